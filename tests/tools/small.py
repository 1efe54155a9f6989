"""A small valid spec, and runs of it, for tests of what decides."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elastic_tpu.runs.record.run import Run, create_run
from elastic_tpu.runs.spec.images import TRAINER_JAX
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.runs.store.base import Store
from elastic_tpu.trainer.session import TrainerSession

_DOCUMENT: dict[str, Any] = {
    "run": {"name": "small", "output": "/runs"},
    "platform": "local",
    "slices": {"type": "sim-1x2", "count": 2},
    "model": {"name": "qwen3-0.6b", "tokenizer": "/data/tokenizer"},
    "data": {"train": "/data/train.parquet", "eval": "/data/valid.parquet"},
    "train": {"steps": 100},
    "checkpoint": {"every": 10},
}


def document(**sections: Any) -> dict[str, Any]:
    """The small document with sections merged over it; a section that is no mapping replaces its own."""
    merged = copy.deepcopy(_DOCUMENT)
    for name, value in sections.items():
        old = merged.get(name)
        merged[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def gke(**sections: Any) -> dict[str, Any]:
    """The same on GKE."""
    there: dict[str, Any] = {
        "run": {"name": "small", "output": "gs://bucket/runs"},
        "platform": "gke",
        "slices": {"type": "v6e-16", "count": 4},
        "model": {"name": "qwen3-0.6b", "tokenizer": "gs://bucket/tokenizer"},
        "data": {"train": "gs://bucket/train*.array_record", "eval": "gs://bucket/valid.array_record"},
        "gke": {"image": "eu.gcr.io/acme/elastic-tpu:0.1.0", "pathways": {"tag": f"20260510-jax_{TRAINER_JAX}"}},
    }
    for name, value in sections.items():
        old = there.get(name)
        there[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return document(**there)


def inputs_in(folder: Path) -> dict[str, Any]:
    """Sections whose files are there and right, for specs that are read from a file."""
    data = folder / "data"
    write_tokenizer(data / "tokenizer")
    for name in ("train.parquet", "valid.parquet"):
        write_parquet(data / name, text=["A text.", "Another."])
    (data / "x.jsonl").write_text('{"text": "A text."}\n')
    return {
        "run": {"output": str(folder / "out")},
        "model": {"tokenizer": str(data / "tokenizer")},
        "data": {"train": str(data / "train.parquet"), "eval": str(data / "valid.parquet")},
    }


def write_parquet(path: Path, **columns: list[Any]) -> Path:
    """A Parquet file of these columns."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path)
    return path


def write_tokenizer(folder: Path, size: int = 4, **settings: Any) -> Path:
    """A tokenizer with `size` ids, and its settings over a `bos_token` that it has."""
    from tokenizers import Tokenizer, models

    folder.mkdir(parents=True, exist_ok=True)
    words = {"<bos>": 0, "<unk>": 1} | {f"word{i}": i for i in range(2, size)}
    Tokenizer(models.WordLevel(words, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"} | settings))
    return folder


def spec(**sections: Any) -> RunSpec:
    """The small document, checked."""
    return check(document(**sections))


def run_in(store: Store, **sections: Any) -> Run:
    """A run whose small files are in this store; nothing is written."""
    return Run(store.uri, store, spec(**sections))


def run_at(output: str | Path, **sections: Any) -> Run:
    """A run that is created below a folder or a bucket."""
    return create_run(spec(**sections, run={"name": "small", "output": str(output)}))


@contextmanager
def session_of(run: Run) -> Iterator[TrainerSession]:
    """A trainer's session in this process, which would be left with one of `session.left`."""
    left: list[int] = []
    session = TrainerSession(run, exit_process=left.append, capture_log=False)
    session.left = left  # type: ignore[attr-defined]
    try:
        yield session
    finally:
        session.end(0, "the test is over")


def checkpoint(run: Run, step: int, finished: bool = True, content: bytes = b"weights") -> dict[str, bytes]:
    """Write a checkpoint's files as Orbax does, with arrays that nothing but a proof understands."""
    leaf = {"key_metadata": [{"key": "params"}, {"key": "w"}], "value_metadata": {"value_type": "jax.Array"}}
    files = {
        "_CHECKPOINT_METADATA": b'{"commit_timestamp_nsecs": 1700000000000000000, "item_handlers": {"items": "x"}}',
        "items/_METADATA": json.dumps({"tree_metadata": {"w": leaf}, "use_ocdbt": False}).encode(),
        "items/params.w/0.0": content * 100,
    }
    if finished:
        files["commit_success.txt"] = b"ok"
    for name, data in files.items():
        run.store.put(f"checkpoints/{step}/{name}", data)
    return files
