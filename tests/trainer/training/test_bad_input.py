"""Bad data is named with file and column once training has failed on it, wherever in the files it is."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.tests.tools.small import document, inputs_in, write_parquet
from elastic_tpu.trainer.training.bad_input import find_bad_input, may_come_from_input
from pyarrow import parquet

Spoil = Callable[[Path], Any]


def spec_in(folder: Path, pattern: str = "train*.parquet") -> RunSpec:
    sections = inputs_in(folder)
    (folder / "data" / "train.parquet").unlink()
    write_parquet(folder / "data" / "train-0.parquet", text=["A text."] * 3000)
    sections["data"]["train"] = str(folder / "data" / pattern)
    return check(document(**sections, recovery=False))


def _late_null(path: Path) -> None:
    parquet.write_table(pa.table({"text": [*["a"] * 2999, None]}), path, write_statistics=False)


def _broken_page(path: Path) -> None:
    texts = [sha256(bytes([i % 256, i // 256])).hexdigest() for i in range(3000)]
    parquet.write_table(pa.table({"text": texts}), path, use_dictionary=False, row_group_size=500, compression="zstd")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2  # in a row group that no sample of the first rows shows
    content[middle : middle + 64] = bytes(64)
    path.write_bytes(bytes(content))


PARQUET: list[tuple[str, Spoil, str]] = [
    ("another column", lambda path: write_parquet(path, body=["a"]), "has no column 'text', only body; set data.text"),
    ("not parquet", lambda path: path.write_text("something"), "is no readable Parquet file"),
    ("counted null", lambda path: write_parquet(path, text=["a", None]), "column 'text' holds 1 nulls"),
    ("late null", _late_null, "column 'text' holds a null in row 2999; leave out such rows"),
    ("broken page", _broken_page, "cannot be read after row "),
]


@pytest.mark.parametrize(("spoil", "why"), [case[1:] for case in PARQUET], ids=[case[0] for case in PARQUET])
def test_a_bad_file_among_good_ones_is_named(tmp_path: Path, spoil: Spoil, why: str) -> None:
    spec = spec_in(tmp_path)
    assert find_bad_input(spec) is None
    path = tmp_path / "data" / "train-1.parquet"
    spoil(path)
    error = find_bad_input(spec)
    assert error is not None
    assert error.code == ExitCode.BAD_INPUT
    assert len(error.problems) == 1
    assert str(error).startswith(f"data.train: '{path}', {why}")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("Once upon a time\n", "does not begin with a line of JSON"),
        ('{"text": "a"}\n{"text": 1}\n', "line 2 has no text in field 'text'"),
        ('{"text": "a"}\n\n{"text"\n', "line 3 is not JSON"),
    ],
)
def test_a_bad_text_file_is_named(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "data" / "x.txt"
    spec = spec_in(tmp_path, path.name)
    path.write_text(content)
    assert str(find_bad_input(spec)).startswith(f"data.train: '{path}', {why}")


def test_data_that_is_gone_and_a_cut_tokenizer_are_both_told(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, "none*.parquet")
    tokenizer = tmp_path / "data" / "tokenizer" / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:50])
    error = find_bad_input(spec)
    assert error is not None
    assert [problem.path for problem in error.problems] == ["model.tokenizer", "data.train"]


@pytest.mark.parametrize(
    ("kind", "error", "looked"),
    [
        ("other", ValueError("Column ['text'] not found"), True),
        ("storage", OSError("Couldn't deserialize thrift"), True),
        ("storage", TimeoutError(110, "timed out"), False),
        ("jax", RuntimeError("RESOURCE_EXHAUSTED"), False),
    ],
)
def test_which_failures_may_come_from_the_input(kind: str, error: Exception, looked: bool) -> None:
    assert may_come_from_input(kind, error) is looked
