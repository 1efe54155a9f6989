"""The demo's data: complete or made anew, the same every time, and readable by those who train and evaluate on it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "make_data.py"


def make(out: Path, *options: str) -> str:
    command = [sys.executable, str(SCRIPT), str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def digests(out: Path) -> dict[str, str]:
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    make(out)
    return out


def rows(path: Path) -> list[str]:
    table = parquet.read_table(path)
    assert table.column_names == ["text"]
    return [text.as_py() for text in table["text"]]


def test_rows_are_short_enough_and_no_text_is_in_both_splits(data: Path) -> None:
    train, valid = rows(data / "train.parquet"), rows(data / "valid.parquet")
    assert len(train) > 3000
    assert len(valid) > 100
    assert 200 < max(len(text.encode()) for text in train + valid) <= 250
    assert set(train) & set(valid) == set()


def test_transformers_loads_the_tokenizer_and_gives_the_text_back(data: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data / "tokenizer", add_bos_token=True, add_eos_token=True)
    assert len(tokenizer) == 260
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    text = "Hello  é\n , one token a byte"
    tokens = tokenizer(text)["input_ids"]
    assert (tokens[0], tokens[-1], len(tokens)) == (1, 2, len(text.encode()) + 2)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text


def test_a_complete_set_is_left_alone_and_a_damaged_one_made_again(data: Path) -> None:
    whole = digests(data)
    assert "nothing to do" in make(data)
    (data / "train.parquet").write_bytes(b"cut short")
    make(data)
    assert digests(data) == whole


def test_another_chunk_size_is_another_set(tmp_path: Path) -> None:
    make(tmp_path, "--chunk-bytes", "100")
    assert 80 < max(len(text.encode()) for text in rows(tmp_path / "train.parquet")) <= 100
    assert json.loads((tmp_path / "manifest.json").read_bytes())["chunk_bytes"] == 100
