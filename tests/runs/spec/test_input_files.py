"""What is in the input files is checked before anything is taken: every problem at once, with file, column and cure."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from elastic_tpu.runs import extras
from elastic_tpu.runs.spec import input_files
from elastic_tpu.tests.tools.small import document, inputs_in, write_parquet, write_tokenizer
from pyarrow import parquet

Spoil = Callable[[Path], Any]


def told(folder: Path, **sections: Any) -> list[str]:
    """What a user reads about a spec whose files are in this folder."""
    files = {name: {**value, **sections.pop(name, {})} for name, value in inputs_in_once(folder).items()}
    return [str(problem) for problem in input_files.problems(document(**files, **sections))]


def inputs_in_once(folder: Path) -> dict[str, Any]:
    """The sections of `inputs_in`, whose files are left as a test made them."""
    if not (folder / "data").exists():
        return inputs_in(folder)
    data = folder / "data"
    return {
        "run": {"output": str(folder / "out")},
        "model": {"tokenizer": str(data / "tokenizer")},
        "data": {"train": str(data / "train.parquet"), "eval": str(data / "valid.parquet")},
    }


def test_files_that_are_right_have_no_problem(tmp_path: Path) -> None:
    assert told(tmp_path) == []


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _uncounted_null(path: Path) -> None:
    parquet.write_table(pa.table({"text": ["a", None]}), path, write_statistics=False)


PARQUET: list[tuple[Spoil, str]] = [
    (_cut, "is no readable Parquet file (Parquet magic bytes not found"),
    (lambda path: path.write_text("something else"), "is no readable Parquet file (Parquet magic bytes not found"),
    (lambda path: write_parquet(path, body=["a"], id=["b"]), "has no column 'text', only body, id; set data.text"),
    (lambda path: write_parquet(path, text=[1, 2]), "column 'text' is of type int64, not string"),
    (lambda path: write_parquet(path, text=[b"a"]), "column 'text' is of type binary, not string"),
    (lambda path: write_parquet(path, text=["a", None, None]), "column 'text' holds 2 nulls; leave out those rows"),
    (_uncounted_null, "column 'text' holds a null in row 1"),
    (lambda path: parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path), "holds no rows"),
    (lambda path: write_parquet(path, text=["", " "]), "column 'text' holds no text in its first 2 rows"),
]


@pytest.mark.parametrize(("spoil", "why"), PARQUET, ids=[why[:50] for _, why in PARQUET])
@pytest.mark.parametrize("name", ["train", "valid"])
def test_a_parquet_file_that_cannot_be_used(tmp_path: Path, name: str, spoil: Spoil, why: str) -> None:
    inputs_in(tmp_path)
    path = tmp_path / "data" / f"{name}.parquet"
    spoil(path)
    field = {"train": "data.train", "valid": "data.eval"}[name]
    found = told(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(f"{field}: '{path}', {why}")


def test_every_file_of_a_pattern_is_looked_into_and_named(tmp_path: Path) -> None:
    inputs_in(tmp_path)
    data = tmp_path / "data"
    for i in range(300):
        write_parquet(data / f"part-{i:03}.parquet", text=["A text."])
    (data / "part-007.parquet").write_text("broken")
    write_parquet(data / "part-299.parquet", body=["newest"])
    began = time.monotonic()
    found = told(tmp_path, data={"train": str(data / "part-*.parquet")})
    assert time.monotonic() - began < 20  # 0.5 s on an idle machine
    assert [line.partition(",")[0] for line in found] == [
        f"data.train: '{data}/part-{i}.parquet'" for i in ("007", "299")
    ]


def test_many_wrong_files_are_counted(tmp_path: Path) -> None:
    inputs_in(tmp_path)
    for i in range(30):
        (tmp_path / "data" / f"part-{i:03}.parquet").write_text("broken")
    found = told(tmp_path, data={"train": str(tmp_path / "data" / "part-*.parquet")})
    assert len(found) == 11
    assert found[-1].endswith("20 more of its files cannot be used")


def test_other_types_of_text_and_token_ids_are_right(tmp_path: Path) -> None:
    inputs_in(tmp_path)
    path = tmp_path / "data" / "train.parquet"
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        parquet.write_table(pa.table({"text": pa.array(["a"], pa.string()).cast(kind)}), path)
        assert told(tmp_path) == []
    write_parquet(path, text=[[1, 2]])
    assert told(tmp_path, train={"maxtext": {"tokenize_train_data": False}}) == []
    assert len(told(tmp_path)) == 1


def test_another_column_is_right_if_the_spec_names_it(tmp_path: Path) -> None:
    inputs_in(tmp_path)
    for name in ("train", "valid"):
        write_parquet(tmp_path / "data" / f"{name}.parquet", body=["a"], text=[1])
    assert told(tmp_path, data={"text": "body"}) == []


def _record(path: Path, *records: bytes) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: _record(path, b"\x0a\x04text a text"), ""),
        (lambda path: _record(path, b"\x0a\x04body a body"), "has no feature 'text' in its first record"),
        (_record, "holds no records"),
        (lambda path: path.write_text("something"), "is no readable ArrayRecord file"),
        (lambda path: (_record(path, b"text" * 50), _cut(path)), "is no readable ArrayRecord file"),
    ],
    ids=["right", "another feature", "no record", "another file", "cut"],
)
def test_array_record_files(tmp_path: Path, spoil: Spoil, why: str) -> None:
    inputs_in(tmp_path)
    path = tmp_path / "data" / "train.array_record"
    spoil(path)
    found = told(tmp_path, data={"train": str(path)})
    assert len(found) == (1 if why else 0)
    assert all(line.startswith(f"data.train: '{path}', {why}") for line in found)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"text": "a"}\n{"text": "b"}\n', ""),
        ('[\n{"text": "a"}]', ""),
        ("Once upon a time\n", "does not begin with a line of JSON; files other than .parquet and .array_record are"),
        ('{"text": "a"\n', "its first line is not JSON ("),
        ('{"body": "a"}\n', "has no field 'text' in its first line, only body; set data.text"),
        ('{"text": null}\n', "field 'text' is not text in its first line: None"),
        ("\n\n", "holds no text"),
    ],
)
def test_other_files_must_be_json_lines(tmp_path: Path, content: str, why: str) -> None:
    inputs_in(tmp_path)
    path = tmp_path / "data" / "train.txt"
    path.write_text(content)
    found = told(tmp_path, data={"train": str(path)}, recovery=False)
    assert len(found) == (1 if why else 0)
    assert all(line.startswith(f"data.train: '{path}', {why}") for line in found)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: _cut(folder / "tokenizer.json"), "its tokenizer.json cannot be read ("),
        (
            lambda folder: write_tokenizer(folder, 101),
            "has ids up to 100, the model has vocab_size 100; set train.maxt",
        ),
        (lambda folder: write_tokenizer(folder, 100), ""),
        (lambda folder: _cut(folder / "tokenizer_config.json"), "its tokenizer_config.json is not valid JSON"),
        (lambda folder: write_tokenizer(folder, eos_token="</s>"), "its tokenizer_config.json names eos_token '</s>'"),
        (lambda folder: write_tokenizer(folder, bos_token=None), "its tokenizer_config.json has neither bos_token nor"),
        (lambda folder: write_tokenizer(folder, bos_token=None, eos_token={"content": "word2"}), ""),
        (lambda folder: write_tokenizer(folder, bos_token="x", added_tokens_decoder={"7": {"content": "x"}}), ""),
    ],
)
def test_tokenizers(tmp_path: Path, spoil: Spoil, why: str) -> None:
    inputs_in(tmp_path)
    folder = tmp_path / "data" / "tokenizer"
    spoil(folder)
    found = told(tmp_path, train={"maxtext": {"vocab_size": 100}})
    assert len(found) == (1 if why else 0)
    assert all(line.startswith(f"model.tokenizer: '{folder}', {why}") for line in found)


def test_without_evaluation_a_tokenizer_needs_no_bos_and_no_eos(tmp_path: Path) -> None:
    inputs_in(tmp_path)
    write_tokenizer(tmp_path / "data" / "tokenizer", bos_token=None)
    assert told(tmp_path, evaluate=False) == told(tmp_path, evaluate={"heldout": False}) == []


def test_a_trainer_of_ones_own_may_read_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs_in(tmp_path)
    (tmp_path / "data" / "train.parquet").write_text("something")
    (tmp_path / "data" / "tokenizer" / "tokenizer.json").write_text("something")
    monkeypatch.setitem(sys.modules, "jax", None)
    assert told(tmp_path, local={"trainer": ["x"]}) == []


def test_junk_in_a_field_is_left_to_other_checks(tmp_path: Path) -> None:
    for junk in (None, 7, [], {"a": 1}, "x"):
        for section in ("data", "model", "train", "local", "evaluate"):
            input_files.problems({**document(**inputs_in_once(tmp_path)), section: junk})
        for section, field in (("data", "text"), ("model", "name"), ("train", "maxtext"), ("local", "trainer")):
            there = document(**inputs_in_once(tmp_path))
            there[section] = {**there.get(section, {}), field: junk}
            input_files.problems(there)


# ---- what is not installed


def test_without_the_trainers_libraries_a_local_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs_in(tmp_path)
    for module in ("maxtext", "pyarrow", "tokenizers", "array_record"):
        monkeypatch.setitem(sys.modules, module, None)
    expected = "platform: 'local', needs `pip install 'elastic-tpu[trainer]'` (No module named 'maxtext')"
    assert told(tmp_path) == [expected]


def test_a_library_that_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs_in(tmp_path)
    path = tmp_path / "data" / "train.array_record"
    path.write_text("something")
    monkeypatch.setitem(sys.modules, "array_record", None)
    assert told(tmp_path, data={"train": str(path)}) == []
    lines = input_files.unread(document(**{**inputs_in_once(tmp_path), "data": {"train": str(path)}}))
    assert lines == [
        "data.train is not looked into: array_record, which reads such files, is not installed here",
    ]


@pytest.mark.parametrize("python", [(3, 11), (3, 12)])
def test_an_old_python_is_named_for_the_trainer(python: tuple[int, int]) -> None:
    said = extras.cure("trainer", "No module named 'jax'", python)
    assert ("with Python 3.12 or newer: on 3.11, which this is, that extra installs nothing" in said) == (
        python[1] < 12
    )
    assert "newer" not in extras.cure("gke", "x", python)


def test_the_modules_of_the_trainer_are_what_its_extra_installs() -> None:
    from importlib.metadata import requires

    said = " ".join(requires("elastic-tpu") or ())
    assert all(name in said for name in ("jax", "maxtext", "pathwaysutils", "grain", "orbax", "tokenizers", "pyarrow"))
    assert extras.missing("trainer") == ""
