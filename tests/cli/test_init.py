"""`elastic-tpu init`: from texts of each kind to data and a spec that plans; what cannot be used is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from elastic_tpu.cli import texts
from elastic_tpu.cli.main import app
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.tests.tools.small import write_parquet, write_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

DOCUMENTS = [f"Document {i}: {' '.join(f'{i}.{k}' for k in range(i % 60))} and {i} ends{i}." for i in range(300)]


def init(data: Path, *options: str) -> Result:
    result = CliRunner().invoke(app, ["init", str(data), "--out", str(data.parent / "made"), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def write(folder: Path, kind: str, column: str = "text") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        write_parquet(folder / "a.parquet", **{column: DOCUMENTS})
    elif kind == "jsonl":
        (folder / "a.jsonl").write_text("".join(json.dumps({"id": 1, column: text}) + "\n" for text in DOCUMENTS))
    else:
        (folder / "a.txt").write_text("\n\n".join(DOCUMENTS))
    return folder


def rows_of(path: Path) -> list[str]:
    from pyarrow import parquet

    return list(parquet.read_table(path).column("text").to_pylist())


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_every_kind_becomes_the_same_data_and_a_spec_that_plans(tmp_path: Path, kind: str) -> None:
    done = init(write(tmp_path / "texts", kind))
    assert done.exit_code == 0, done.output
    made = tmp_path / "made"
    train, held_out = rows_of(made / "train.parquet"), rows_of(made / "valid.parquet")
    assert not set(train) & set(held_out)
    assert sorted(" ".join([*train, *held_out]).split()) == sorted(" ".join(DOCUMENTS).split())  # no word is lost
    assert 5 <= len(held_out) <= len(train) / 5
    spec = read_spec(str(made / "spec.yaml"))  # with its files looked into
    assert spec.train.maxtext["vocab_size"] >= 260
    again = tmp_path / "again" / "texts"
    assert init(write(again, kind)).exit_code == 0
    assert rows_of(tmp_path / "again" / "made" / "train.parquet") == train


def test_a_tokenizer_of_ones_own_sets_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", 1000)
    assert init(write(tmp_path / "texts", "txt"), "--tokenizer", str(tokenizer)).exit_code == 0
    spec = read_spec(str(tmp_path / "made" / "spec.yaml"))
    assert spec.model.tokenizer == str(tokenizer)
    assert spec.train.maxtext["vocab_size"] >= 1000
    assert not (tmp_path / "made" / "tokenizer").exists()


def test_another_column_is_named_and_taken(tmp_path: Path) -> None:
    data = write(tmp_path / "texts", "jsonl", column="body")
    refused = init(data)
    assert refused.exit_code == ExitCode.BAD_INPUT
    assert "a.jsonl, line 1', has no field 'text', only id, body; choose one by --text" in refused.output
    assert not (tmp_path / "made").exists()
    assert init(data, "--text", "body").exit_code == 0


def test_nothing_is_written_over_without_a_word(tmp_path: Path) -> None:
    data = write(tmp_path / "texts", "txt")
    assert init(data).exit_code == 0
    spec = tmp_path / "made" / "spec.yaml"
    spec.write_text("mine")
    refused = init(data)
    assert refused.exit_code == ExitCode.BAD_INPUT
    assert "`--out`, or `--force`" in refused.output
    assert spec.read_text() == "mine"
    assert init(data, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"good\n\nb\xe4d\n", "a.txt, line 3', is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"text": 1}\n', "line 2', field 'text' is not text: 1"),
        ("a.jsonl", b'{"text": "x"}\n[1]\n', "line 2', is no object but [1]"),
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', "line 2', is not JSON"),
        ("a.parquet", b"PAR1 not at all", "a.parquet', is no readable Parquet file"),
        ("a.pdf", b"x", "holds no .txt, .jsonl, .parquet file, only .pdf"),
        ("a.txt", b"too little", "too little to train and hold out"),
        ("a.txt", b"", "too little to train and hold out"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "holds half a character (a lone surrogate)"),
        ("a.jsonl", b"[" * 100_000, "line 1', is not JSON"),
    ],
)
def test_what_cannot_be_used_is_named_and_leaves_nothing(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / name).write_bytes(content)
    refused = init(tmp_path / "texts")
    assert refused.exit_code == ExitCode.BAD_INPUT
    assert says in refused.output
    assert not (tmp_path / "made").exists()


def test_a_tokenizer_that_is_there_is_kept(tmp_path: Path) -> None:
    data = write(tmp_path / "texts", "txt")
    mine = write_tokenizer(tmp_path / "made" / "tokenizer") / "tokenizer.json"
    before = mine.read_bytes()
    refused = init(data)
    assert refused.exit_code == ExitCode.BAD_INPUT
    assert "holds tokenizer already" in refused.output
    assert mine.read_bytes() == before
    assert init(data, "--tokenizer", str(mine.parent)).exit_code == 0


def test_what_it_wrote_is_not_read_again(tmp_path: Path) -> None:
    data = write(tmp_path / "made", "txt")  # the data and the output are in one folder
    first = init(data)
    again = init(data, "--force")
    assert (first.exit_code, again.exit_code) == (ExitCode.BAD_INPUT, ExitCode.BAD_INPUT)
    data = write(tmp_path, "txt")
    assert CliRunner().invoke(app, ["init", str(data), "--out", str(data / "run")]).exit_code == 0
    rows = rows_of(data / "run" / "train.parquet")
    assert CliRunner().invoke(app, ["init", str(data), "--out", str(data / "run"), "--force"]).exit_code == 0
    assert rows_of(data / "run" / "train.parquet") == rows


def test_a_place_that_cannot_be_used_is_named_at_once(tmp_path: Path) -> None:
    data = write(tmp_path / "texts", "txt")
    (tmp_path / "made").write_text("a file")
    refused = init(data)
    assert refused.exit_code == ExitCode.BAD_INPUT
    assert "give another folder" in refused.output
    os.mkfifo(tmp_path / "pipe.txt")
    refused = init(tmp_path / "pipe.txt", "--out", str(tmp_path / "elsewhere"))
    assert refused.exit_code == ExitCode.BAD_INPUT
    assert "is no regular file" in refused.output


def test_a_long_text_without_blank_lines_is_many_documents(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "A.TXT").write_text("".join(f"line {i} of a long poem\n" for i in range(100_000)))
    done = init(tmp_path / "texts")
    assert done.exit_code == 0, done.output
    assert rows_of(tmp_path / "made" / "valid.parquet")


def test_a_folder_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    refused = init(write(tmp_path / "texts", "txt"), "--tokenizer", str(tmp_path))
    assert refused.exit_code == ExitCode.BAD_INPUT
    assert "holds no tokenizer.json" in refused.output


@given(st.text(max_size=300), st.integers(4, 40))
def test_rows_hold_every_word_and_are_short_enough(text: str, longest: int) -> None:
    rows = list(texts.rows(text, longest))
    assert all(0 < len(row.encode()) <= longest for row in rows)
    assert "".join("".join(rows).split()) == "".join(text.split())
