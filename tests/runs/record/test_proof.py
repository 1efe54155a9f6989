"""Proofs: what differs from what was proven, on a folder and in a bucket, and which step is the newest that holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import NotFound
from elastic_tpu.runs.record import proof
from elastic_tpu.runs.record.proof import FileProof, Proof, check, compare, newest_proven, read_proof
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.store.base import Store
from elastic_tpu.tests.tools.small import checkpoint, run_at

WAS = {"a": FileProof(3, "crc32c:x", "1"), "commit_success.txt": FileProof(2, "crc32c:y", "2")}


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (WAS, []),
        ({**WAS, "a": FileProof(2, "crc32c:x", "1")}, ["a has 2 bytes, 3 were proven"]),
        ({**WAS, "a": FileProof(3, "crc32c:z", "1")}, ["a has other content than was proven"]),
        ({**WAS, "a": FileProof(3, "crc32c:x", "9")}, ["a was written again (generation 9, 1 was proven)"]),
        ({**WAS, "a": FileProof(3, "crc32c:x", "")}, []),  # a folder has no generations
        ({**WAS, "b": FileProof(0, "", "")}, ["b is not in the proof"]),
        ({"a": WAS["a"]}, ["commit_success.txt is missing"]),
        ({}, ["a is missing", "commit_success.txt is missing"]),
    ],
)
def test_compare(now: dict[str, FileProof], told: list[str]) -> None:
    assert compare(Proof(7, WAS), now) == told


def test_the_digest_covers_names_sizes_content_and_step_but_not_generations() -> None:
    one = Proof(7, WAS).digest
    assert one == Proof(7, {name: FileProof(f.size, f.digest, "9") for name, f in reversed(WAS.items())}).digest
    for other in (
        Proof(8, WAS),
        Proof(7, {**WAS, "b": FileProof(0, "", "")}),
        Proof(7, {**WAS, "a": FileProof(4, "crc32c:x")}),
        Proof(7, {**WAS, "a": FileProof(3, "crc32c:z")}),
    ):
        assert one != other.digest


def prove(store: Store, step: int) -> Proof:
    proven = Proof(step, proof.files_of(store, step), 5)
    store.put(f"proofs/{step}.json", proven.dump())
    return proven


@pytest.fixture
def run(store_uri: str) -> Run:
    return run_at(store_uri)


def test_a_proof_is_read_back_and_holds(run: Run) -> None:
    files = checkpoint(run, 20)
    proven = prove(run.store, 20)
    assert set(proven.files) == set(files)
    assert read_proof(run.store, 20) == proven
    assert check(run.store, 20) == []
    kept_by_the_bucket = all(f.digest.startswith("crc32c:") and f.generation for f in proven.files.values())
    read_from_the_folder = all(f.digest.startswith("sha256:") and not f.generation for f in proven.files.values())
    assert kept_by_the_bucket if run.uri.startswith("gs://") else read_from_the_folder


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("truncated", "items/params.w/0.0 has 699 bytes, 700 were proven"),
        ("one bit", "items/params.w/0.0 has other content than was proven"),
        ("deleted", "items/params.w/0.0 is missing"),
        ("no marker", "commit_success.txt is missing"),
        ("extra", "items/params.v/0.0 is not in the proof"),
        ("all", "_CHECKPOINT_METADATA is missing"),
    ],
)
def test_damage_is_named(run: Run, damage: str, told: str) -> None:
    files = checkpoint(run, 20)
    prove(run.store, 20)
    name = "checkpoints/20/items/params.w/0.0"
    data = files["items/params.w/0.0"]
    if damage == "truncated":
        run.store.put(name, data[:-1])
    elif damage == "one bit":
        run.store.put(name, data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif damage == "deleted":
        run.store.delete(name)
    elif damage == "no marker":
        run.store.delete("checkpoints/20/commit_success.txt")
    elif damage == "extra":
        run.store.put("checkpoints/20/items/params.v/0.0", b"x")
    else:
        for file in files:
            run.store.delete(f"checkpoints/20/{file}")
    assert check(run.store, 20)[0] == told
    assert newest_proven(run.store) is None


def test_the_same_bytes_written_again_are_seen_in_a_bucket_only(run: Run) -> None:
    files = checkpoint(run, 20)
    prove(run.store, 20)
    run.store.put("checkpoints/20/items/params.w/0.0", files["items/params.w/0.0"])
    problems = check(run.store, 20)
    if run.uri.startswith("gs://"):
        assert "was written again (generation" in problems[0]
    else:
        assert problems == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"step": 20}',
        b'{"step": 20, "files": [], "digest": ""}',
        b'{"step": 20, "files": {"a": 1}, "digest": ""}',
        b'{"step": "x", "files": {}, "digest": ""}',
        b'{"step": 20, "files": {"a": {"size": "x", "digest": ""}}}',
    ],
)
def test_a_proof_that_cannot_be_read_proves_nothing(tmp_path: Path, content: bytes) -> None:
    run = run_at(tmp_path)
    checkpoint(run, 20)
    run.store.put("proofs/20.json", content)
    assert read_proof(run.store, 20) is None
    assert check(run.store, 20) == ["it has no proof"]


def test_a_proof_of_nothing_proves_nothing(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    run.store.put("proofs/20.json", Proof(20, {}).dump())
    assert check(run.store, 20) == ["it has no proof"]


def test_a_proof_that_was_edited_proves_nothing(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    checkpoint(run, 20)
    prove(run.store, 20)
    record = json.loads(run.store.read("proofs/20.json").data)
    del record["files"]["items/params.w/0.0"]
    run.store.put("proofs/20.json", json.dumps(record).encode())
    assert check(run.store, 20) == ["it has no proof"]


def test_a_checkpoint_that_was_copied_with_its_proof_is_not_the_later_step(tmp_path: Path) -> None:  # B03
    run = run_at(tmp_path)
    for name, data in checkpoint(run, 10).items():
        run.store.put(f"checkpoints/20/{name}", data)
    prove(run.store, 10)
    run.store.put("proofs/20.json", run.store.read("proofs/10.json").data)
    assert check(run.store, 20) == ["it has no proof"]
    assert newest_proven(run.store) == 10


def test_the_newest_step_whose_proof_holds(tmp_path: Path) -> None:  # A01, B05, B06
    run = run_at(tmp_path)
    assert newest_proven(run.store) is None
    for step in (1780, 1800):
        checkpoint(run, step)
        prove(run.store, step)
    checkpoint(run, 1820, finished=False)
    run.store.put("checkpoints/1830.orbax-checkpoint-tmp-17/commit_success.txt", b"ok")
    run.store.put("attempts/1/trainer.log", b"saved 1820")
    assert newest_proven(run.store) == 1800
    checkpoint(run, 1820)
    assert newest_proven(run.store) == 1800  # finished is not proven
    prove(run.store, 1820)
    assert newest_proven(run.store) == 1820
    run.store.delete("checkpoints/1820/items/params.w/0.0")  # retention that was interrupted left the marker
    assert newest_proven(run.store) == 1800
    run.store.put("proofs/1800.json", b"garbage")
    assert newest_proven(run.store) == 1780


def test_a_file_that_retention_removes_during_the_look_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_at(tmp_path)
    checkpoint(run, 20)
    prove(run.store, 20)
    real = run.store.digest

    def digest(name: str) -> str:
        if name.endswith("0.0"):
            run.store.delete(name)
            with pytest.raises(NotFound):
                real(name)
        return real(name)

    monkeypatch.setattr(run.store, "digest", digest)
    assert "it is being removed" in check(run.store, 20)[0]


@pytest.mark.parametrize(
    ("names", "folder", "steps"),
    [
        (["checkpoints/20/a", "checkpoints/20/b/c", "checkpoints/0/a", "checkpoints/9/a"], "checkpoints/", [0, 9, 20]),
        (["checkpoints/20.orbax-checkpoint-tmp-1/a", "checkpoints/x/a", "checkpoints/7"], "checkpoints/", []),
        (["checkpoints/²/a", "checkpoints/٣/a", "checkpoints/012/a", "checkpoints/-1/a"], "checkpoints/", []),
        (["proofs/20.json", "proofs/0.json", "proofs/3.json.bak", "proofs/20.rejected-x.json"], "proofs/", [0, 20]),
        (["checkpoints/20/a"], "proofs/", []),
    ],
)
def test_steps_among_names(names: list[str], folder: str, steps: list[int]) -> None:
    assert proof.steps_in(names, folder) == steps
