"""Input files in a bucket are looked into before anything is taken, as far as rights and time allow."""

from __future__ import annotations

import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record.start import start_or_open
from elastic_tpu.runs.spec.bucket_files import Looked, Patience, look
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.runs.store.base import Store
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.tests.tools.fault_proxy import Fault, FaultProxy
from elastic_tpu.tests.tools.small import document, inputs_in, spec, write_parquet, write_tokenizer

Make = Callable[[Path], Any]


@pytest.fixture
def bucket(gcs_bucket: str, gcs_proxy: FaultProxy, tmp_path: Path) -> Store:
    """A bucket behind a proxy, with inputs that are right."""
    gcs_proxy.requests.clear()
    store = open_store(f"gs://{gcs_bucket}")
    inputs_in(tmp_path)
    for path in sorted((tmp_path / "data").rglob("*")):
        if path.is_file():
            store.put(path.relative_to(tmp_path).as_posix(), path.read_bytes())
    return store


def in_bucket(store: Store, **sections: Any) -> RunSpec:
    at = f"{store.uri}/data"
    data = {"train": f"{at}/train.parquet", "eval": f"{at}/valid.parquet", **sections.pop("data", {})}
    return spec(**{"data": data, "model": {"tokenizer": f"{at}/tokenizer"}, **sections})


def put(store: Store, name: str, make: Make, folder: Path) -> None:
    """Write a file with `make` and put it into the bucket."""
    path = folder / "made"
    make(path)
    store.put(name, path.read_bytes())


def told(looked: Looked) -> list[str]:
    assert looked.unread == ()
    return [str(problem) for problem in looked.problems]


def test_files_that_are_right_have_no_problem(bucket: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    assert look(in_bucket(bucket), said.append) == Looked()
    assert said == []  # it was quick


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_text("something"), "is no readable Parquet file"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: write_parquet(path, body=["a"]), "has no column 'text', only body; set data.text"),
        (lambda path: write_parquet(path, text=[1]), "column 'text' is of type int64, not string"),
        (lambda path: write_parquet(path, text=["a", None]), "column 'text' holds 1 nulls"),
        (lambda path: write_parquet(path, text=[" "]), "column 'text' holds no text in its first 1 rows"),
    ],
)
@pytest.mark.parametrize(("field", "file"), [("train", "train"), ("eval", "valid")])
def test_a_parquet_file_that_cannot_be_used(
    bucket: Store, tmp_path: Path, field: str, file: str, make: Make, why: str
) -> None:
    put(bucket, f"data/{file}.parquet", make, tmp_path)
    (found,) = told(look(in_bucket(bucket)))
    assert found.startswith(f"data.{field}: '{bucket.uri}/data/{file}.parquet', {why}")


def test_other_files_must_be_json_lines(bucket: Store) -> None:
    bucket.put("data/a.txt", b"Once upon a time")
    bucket.put("data/b.txt", b'{"text": "a"}\n' * 200_000)  # only its head is read
    (found,) = told(look(in_bucket(bucket, data={"train": f"{bucket.uri}/data/?.txt"}, recovery=False)))
    assert found.startswith(f"data.train: '{bucket.uri}/data/a.txt', does not begin with a line of JSON")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: write_tokenizer(folder, 151_937), "has ids up to 151936, the model has vocab_size 151936"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "its tokenizer.json cannot be read"),
        (lambda folder: write_tokenizer(folder, bos_token=None), "its tokenizer_config.json has neither bos_token nor"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "is no Hugging Face tokenizer (no tokenizer.json in it)"),
    ],
)
def test_a_tokenizer_that_cannot_be_used(bucket: Store, tmp_path: Path, spoil: Make, why: str) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer")
    spoil(folder)
    for path in folder.iterdir():
        bucket.put(f"other/{path.name}", path.read_bytes())
    (found,) = told(look(in_bucket(bucket, model={"tokenizer": f"{bucket.uri}/other"})))
    assert found.startswith(f"model.tokenizer: '{bucket.uri}/other', {why}")


def test_a_pattern_names_files_of_its_own_folder(bucket: Store, tmp_path: Path) -> None:
    for name in ("part-1.parquet", "part-2.parquet", "deep/part-3.parquet", "part-4.json"):
        put(bucket, f"data/{name}", lambda path: path.write_text("broken"), tmp_path)
    found = told(look(in_bucket(bucket, data={"train": f"{bucket.uri}/data/part-[0-9].parquet"})))
    assert [line.split("'")[1].rpartition("/")[2] for line in found] == ["part-2.parquet", "part-1.parquet"]
    (none,) = told(look(in_bucket(bucket, data={"train": f"{bucket.uri}/data/*.x.parquet"})))
    assert none == f"data.train: '{bucket.uri}/data/*.x.parquet', matches no file"


def test_array_record_files_must_be_there(bucket: Store) -> None:
    at = f"{bucket.uri}/data/x.array_record"
    (found,) = told(look(in_bucket(bucket, data={"train": at})))
    assert found == f"data.train: '{at}', matches no file"
    bucket.put("data/x.array_record", b"something")
    looked = look(in_bucket(bucket, data={"train": at}))
    assert looked == Looked((), (looked.unread[0],))
    assert looked.unread[0].startswith("data.train: its files are there, but are not looked into: ")


def test_of_a_large_file_only_the_end_and_the_first_rows_are_read(
    bucket: Store, gcs_proxy: FaultProxy, tmp_path: Path
) -> None:
    texts = [random.Random(i).randbytes(1000).hex() for i in range(6000)]
    put(bucket, "data/train.parquet", lambda path: write_parquet(path, text=texts, other=texts), tmp_path)
    gcs_proxy.requests.clear()
    assert look(in_bucket(bucket)) == Looked()
    parts = [path for _, path in gcs_proxy.requests if "/o/data%2Ftrain.parquet" in path]
    assert 2 <= len(parts) <= 4  # of at most 1 MiB; the file has 12


def test_a_bucket_that_is_not_there_is_a_problem(bucket: Store) -> None:
    (found,) = told(look(in_bucket(bucket, data={"train": "gs://no-bucket/x.parquet"})))
    assert found.startswith(
        "data.train: 'gs://no-bucket/x.parquet', gs://no-bucket: there is no bucket no-bucket; create"
    )
    assert found.endswith("or correct its name")


# ---- what cannot be looked into is said


def test_without_rights_nothing_is_wrong(bucket: Store, gcs_proxy: FaultProxy) -> None:
    gcs_proxy.faults.append(Fault("refuse", status=403, reason="forbidden", times=0))
    looked = look(in_bucket(bucket))
    assert looked.problems == ()
    assert [line.partition(": ")[0] for line in looked.unread] == [
        f"{name} is not looked into" for name in ("model.tokenizer", "data.train", "data.eval")
    ]
    assert all(f"access to bucket {bucket.uri[5:]} is refused" in line for line in looked.unread)


def test_without_a_login_nothing_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none"))
    looked = look(spec(data={"train": "gs://a/b.parquet", "eval": "gs://a/c.parquet"}))
    assert looked.problems == ()
    (line,) = looked.unread
    assert line.startswith("data.train and data.eval are not looked into: no Google credentials: ")


def test_a_library_that_is_missing_is_said(bucket: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pyarrow", "tokenizers"):
        monkeypatch.setitem(sys.modules, module, None)
    why = "its files are there, but are not looked into: pyarrow, which reads such files, is not installed here"
    assert look(in_bucket(bucket)).unread == (
        "model.tokenizer is not looked into: tokenizers, which reads it, is not installed here",
        f"data.train: {why}",
        f"data.eval: {why}",
    )


class Hold:
    """A bucket that does not answer for what matches, until the test is over; time is up once it was asked."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy, self.asked, self.released = proxy, threading.Event(), threading.Event()
        later = chain([2.0], repeat(100.0))
        self.patience = Patience(60, quiet=0.01, clock=lambda: next(later) if self.asked.is_set() else 0.0)

    def __call__(self, path: str) -> None:
        self.proxy.faults.append(Fault("pass", path=path, times=0, before=self._wait))

    def _wait(self) -> None:
        self.asked.set()
        self.released.wait(60)


@pytest.fixture
def hold(gcs_proxy: FaultProxy) -> Iterator[Hold]:
    held = Hold(gcs_proxy)
    yield held
    held.released.set()


def test_a_bucket_that_does_not_answer_holds_nothing_up(bucket: Store, hold: Hold) -> None:
    hold("/o")
    said: list[str] = []
    looked = look(in_bucket(bucket), said.append, hold.patience)
    assert looked.problems == ()
    assert any("data.train and data.eval are not looked into: the bucket did not answer" in x for x in looked.unread)
    (line,) = said
    assert line == "looking into model.tokenizer, data.train, data.eval in buckets: 0 of 1 files, 2 s of at most 60 s"


def test_the_newest_files_of_both_sets_come_first(bucket: Store, tmp_path: Path, hold: Hold) -> None:
    for name in ("a", "b", "c"):
        for part in ("train", "held-out"):
            put(bucket, f"{part}/{name}.parquet", lambda path: write_parquet(path, body=["a"]), tmp_path)
    put(bucket, "train/a.parquet", lambda path: path.write_text("broken"), tmp_path)  # now the newest
    hold("(train%2Fb|train/b)")
    both = {"train": f"{bucket.uri}/train/*.parquet", "eval": f"{bucket.uri}/held-out/*.parquet"}
    looked = look(in_bucket(bucket, data=both), patience=hold.patience)
    files = [re.search(r"/(\w+|held-out)/(\w)\.parquet", str(problem)) for problem in looked.problems]
    assert [f"{found[1]} {found[2]}" for found in files if found] == ["train a", "train c", "held-out c", "held-out b"]
    assert looked.unread == (
        "data.train: 2 of 3 files are looked into, the newest, in 60 s",
        "data.eval: 2 of 3 files are looked into, the newest, in 60 s",
    )


# ---- who starts a run


@pytest.mark.parametrize("name", ["small", "small-{run}"])
@pytest.mark.parametrize("person", [True, False])
def test_a_run_is_not_started_on_data_that_cannot_be_used(
    bucket: Store, tmp_path: Path, name: str, person: bool
) -> None:
    import yaml

    wanted = in_bucket(bucket)
    sections = {"data": wanted.data.model_dump(exclude_none=True), "model": {"tokenizer": wanted.model.tokenizer}}
    source = tmp_path / "spec.yaml"
    source.write_text(yaml.safe_dump(document(run={"name": name, "output": f"{bucket.uri}/runs"}, **sections)))

    def start() -> str:
        return start_or_open(str(source), "dag/1", lambda spec: None, person=person).uri

    bucket.put("data/train.parquet", b"something")
    with pytest.raises(BadInput, match=r"data\.train: .* is no readable Parquet file"):
        start()
    assert bucket.list("runs/") == []
    put(bucket, "data/train.parquet", lambda path: write_parquet(path, text=["a"]), tmp_path)
    uri = start()
    bucket.delete("data/train.parquet")  # once it is started, its data is the trainer's concern
    if not person or name == "small":  # a person's next run of a template is another one
        assert start() == uri
