"""Which checkpoint is restored: the newest on storage that is proven or opens whole; all others are set aside."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.runs.errors import Infrastructure
from elastic_tpu.runs.record import proof
from elastic_tpu.runs.record.events import EventReader
from elastic_tpu.runs.record.run import Run
from elastic_tpu.tests.tools.small import checkpoint, run_at, session_of
from elastic_tpu.trainer.session import TrainerSession
from elastic_tpu.trainer.training import checkpoints
from elastic_tpu.trainer.training.finite import FiniteLosses


@pytest.fixture
def session(store_uri: str) -> Iterator[TrainerSession]:
    with session_of(run_at(store_uri)) as opened:
        yield opened


@pytest.fixture
def on_folder(tmp_path: Path) -> Iterator[TrainerSession]:
    with session_of(run_at(tmp_path)) as opened:
        yield opened


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """What opening a step whole would find wrong with it; the steps that were opened are its keys."""
    found: dict[int, list[str]] = {}

    def open_whole(folder: str, step: int, finite: bool) -> list[str]:
        assert folder.endswith(f"/checkpoints/{step}")
        assert finite
        return found.setdefault(step, [])

    monkeypatch.setattr(checkpoints, "open_whole", open_whole)
    return found


def settle(session: TrainerSession, own: set[int] | None = None) -> int | None:
    return checkpoints.settle(session.run.store, session.run.uri, own or set(), session, FiniteLosses("stop"))


def proven(session: TrainerSession, step: int) -> None:
    checkpoint(session.run, step)
    checkpoints.prove(session.run.store, step, session)


def listed(run: Run) -> list[int]:
    """Steps that Orbax would list: folders on a filesystem, markers in a bucket."""
    if run.uri.startswith("gs://"):
        return sorted(checkpoints.finished_steps(run.store))
    folder = Path(run.uri) / "checkpoints"
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []


def told(run: Run, kind: str) -> list[tuple[int | None, Any]]:
    return [(e.step, e.data.get("why")) for e in EventReader(run.store).all() if e.kind == kind]


def test_nothing_there(session: TrainerSession) -> None:
    assert settle(session) is None


def test_a_proof_says_everything_about_the_files(session: TrainerSession) -> None:
    files = checkpoint(session.run, 20)
    recorded = checkpoints.prove(session.run.store, 20, session)
    assert set(recorded.files) == set(files)
    assert recorded.commit_timestamp_nsecs == 1700000000000000000
    assert proof.read_proof(session.run.store, 20) == recorded
    assert told(session.run, "checkpoint.proven") == [(20, None)]


@pytest.mark.parametrize("metadata", [b"", b"{", b"[]", b"{}", b'{"commit_timestamp_nsecs": "soon"}'])
def test_a_commit_time_that_is_not_there_is_none(on_folder: TrainerSession, metadata: bytes) -> None:
    checkpoint(on_folder.run, 20)
    on_folder.run.store.put("checkpoints/20/_CHECKPOINT_METADATA", metadata)
    assert checkpoints.prove(on_folder.run.store, 20, on_folder).commit_timestamp_nsecs is None


def test_the_newest_proven_step_is_restored_without_being_opened(
    session: TrainerSession, opening: dict[int, list[str]]
) -> None:
    for step in (10, 20):
        proven(session, step)
    assert settle(session) == 20
    assert opening == {}
    assert listed(session.run) == [10, 20]


def test_a_finished_step_with_no_proof_is_opened_whole_and_proven(
    session: TrainerSession, opening: dict[int, list[str]]
) -> None:
    proven(session, 10)
    checkpoint(session.run, 20)
    assert settle(session) == 20
    assert list(opening) == [20]
    assert proof.check(session.run.store, 20) == []


def test_a_step_of_our_own_needs_no_opening(session: TrainerSession, opening: dict[int, list[str]]) -> None:
    checkpoint(session.run, 20)
    assert settle(session, own={20}) == 20
    assert opening == {}
    assert proof.check(session.run.store, 20) == []


def test_what_does_not_open_is_set_aside_and_the_older_one_taken(
    session: TrainerSession, opening: dict[int, list[str]]
) -> None:
    proven(session, 10)
    for step in (20, 30):
        checkpoint(session.run, step)
        opening[step] = ["array params.w cannot be read"]
    assert settle(session) == 10
    assert listed(session.run) == [10]
    assert told(session.run, "checkpoint.rejected") == [
        (30, ["array params.w cannot be read"]),
        (20, ["array params.w cannot be read"]),
    ]


def test_garbage_that_only_looks_finished_does_not_open(on_folder: TrainerSession) -> None:  # A01, B05
    """With the real reader: marker and metadata are there, the arrays are not."""
    proven(on_folder, 10)
    checkpoint(on_folder.run, 20)
    assert settle(on_folder) == 10
    assert listed(on_folder.run) == [10]


def test_what_is_not_what_was_proven_is_set_aside(session: TrainerSession, opening: dict[int, list[str]]) -> None:
    for step in (10, 20):
        proven(session, step)
    session.run.store.put("checkpoints/20/items/params.w/0.0", b"Weights" * 100)
    assert settle(session) == 10
    assert opening == {}  # its proof says enough
    assert listed(session.run) == [10]
    assert proof.recorded_steps(session.run.store) == [10]
    assert told(session.run, "checkpoint.rejected")[0][0] == 20


def test_a_proof_that_cannot_be_read_counts_as_none(session: TrainerSession, opening: dict[int, list[str]]) -> None:
    proven(session, 20)
    session.run.store.put("proofs/20.json", b"garbage")
    assert settle(session) == 20
    assert list(opening) == [20]
    assert proof.check(session.run.store, 20) == []


def test_nothing_is_left_when_nothing_holds(session: TrainerSession, opening: dict[int, list[str]]) -> None:
    checkpoint(session.run, 10)
    opening[10] = ["damaged"]
    assert settle(session) is None
    assert listed(session.run) == []
    assert settle(session) is None


def test_set_aside_on_a_folder_is_one_rename_and_loses_nothing(
    on_folder: TrainerSession, opening: dict[int, list[str]]
) -> None:
    files = checkpoint(on_folder.run, 20)
    opening[20] = ["damaged"]
    settle(on_folder)
    (aside,) = (Path(on_folder.run.uri) / "checkpoints-rejected").iterdir()
    assert aside.name.startswith("20-")
    assert {p.relative_to(aside).as_posix(): p.read_bytes() for p in aside.rglob("*") if p.is_file()} == files


def test_set_aside_in_a_bucket_keeps_the_marker_and_moves_nothing(
    gcs_bucket: str, opening: dict[int, list[str]]
) -> None:
    with session_of(run_at(f"gs://{gcs_bucket}/runs")) as session:
        store = session.run.store
        files = checkpoint(session.run, 20)
        opening[20] = ["damaged"]
        assert settle(session) is None
        left = {entry.name.removeprefix("checkpoints/20/") for entry in store.list("checkpoints/20/")}
        assert left == files.keys() - {"commit_success.txt"}
        (kept,) = [e.name for e in store.list("proofs/")]
        assert kept.startswith("proofs/20.rejected-")
        record = json.loads(store.read(kept).data)
        assert (record["step"], record["marker"], record["why"]) == (20, "ok", ["damaged"])
        assert settle(session) is None
        assert len(told(session.run, "checkpoint.rejected")) == 1  # told once, though its files stay for ever


def test_unfinished_saves_are_left_to_orbax(session: TrainerSession) -> None:  # B06
    names = ["20.orbax-checkpoint-tmp", "20.orbax-checkpoint-tmp-1703", "notes"]
    for name in names:
        session.run.store.put(f"checkpoints/{name}/commit_success.txt", b"ok")
    assert settle(session) is None
    assert {e.name.split("/")[1] for e in session.run.store.list("checkpoints/")} == set(names)
    assert told(session.run, "checkpoint.rejected") == []


@pytest.mark.parametrize("content", ["empty", "unfinished"])
def test_a_folder_that_orbax_would_list_though_it_is_not_finished(on_folder: TrainerSession, content: str) -> None:
    proven(on_folder, 10)
    if content == "empty":  # no listing of files shows it
        (Path(on_folder.run.uri) / "checkpoints/11").mkdir()
    else:
        checkpoint(on_folder.run, 11, finished=False)
    assert settle(on_folder) == 10
    assert listed(on_folder.run) == [10]
    assert told(on_folder.run, "checkpoint.rejected") == [(11, ["it was never finished"])]


def test_a_disk_that_refuses_to_set_aside_is_infrastructure(
    on_folder: TrainerSession, opening: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(on_folder.run, 20)
    opening[20] = ["damaged"]

    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if "checkpoints-rejected" in str(target):
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(Infrastructure, match=r"20-.*Input/output error"):
        settle(on_folder)
    assert listed(on_folder.run) == [20]


def test_a_folder_that_cannot_be_listed_is_infrastructure(
    on_folder: TrainerSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(on_folder.run, 20)

    def iterdir(self: Path) -> Iterator[Path]:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(Infrastructure, match="Stale file handle"):
        settle(on_folder)


def test_older_steps_are_left_alone(session: TrainerSession, opening: dict[int, list[str]]) -> None:
    checkpoint(session.run, 10)
    proven(session, 20)
    assert settle(session) == 20
    assert opening == {}
    assert listed(session.run) == [10, 20]


def test_a_zombie_proves_nothing(on_folder: TrainerSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fence is lost while it reads the files for their digests."""
    checkpoint(on_folder.run, 20)
    real = proof.files_of

    def slow(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        on_folder.heartbeat.finish(76, "superseded meanwhile")
        return found

    monkeypatch.setattr(proof, "files_of", slow)
    with pytest.raises(Exception, match="saves, proves and records nothing more"):
        checkpoints.prove(on_folder.run.store, 20, on_folder)
    assert proof.recorded_steps(on_folder.run.store) == []
