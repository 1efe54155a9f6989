"""A job on CPU tells how far it is while it goes on, and neither a silent storage nor its end is in the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import Unreachable
from elastic_tpu.runs.record.job_progress import JobProgress, read_job_progress
from elastic_tpu.runs.record.run import Run
from elastic_tpu.tests.support import until
from elastic_tpu.tests.tools.small import run_at
from elastic_tpu.trainer.job_progress import ProgressRecord


def read(run: Run) -> JobProgress | None:
    found = read_job_progress(run, "export")
    return found and found[0]


def test_what_a_job_does_is_written_while_it_goes_on_and_removed_at_its_end(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    now = [100.0]
    progress = ProgressRecord(run, "export", 2, every=0.01, clock=lambda: now[0])
    until(lambda: read(run) == JobProgress(attempt=2, doing="starting"), "the first word")
    progress.doing("writing the weights")
    progress.counter("bytes")(3, 9)
    now[0] = 104.0
    told = JobProgress(attempt=2, doing="writing the weights", doing_seconds=4, done=3, total=9, unit="bytes")
    until(lambda: read(run) == told, "how far it is")
    progress.doing("publishing")  # nothing of it is counted
    until(lambda: read(run) == JobProgress(attempt=2, doing="publishing"), "the next word")
    progress.close()
    assert read(run) is None


def test_it_is_written_every_few_seconds_however_often_a_job_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, writes = run_at(tmp_path), list[bytes]()
    monkeypatch.setattr(run.store, "put", lambda name, data: writes.append(data))
    progress = ProgressRecord(run, "export", 1, every=60)
    for done in range(1000):
        progress.counter("documents")(done, 1000)
    progress.close()
    assert len(writes) <= 1


def test_a_storage_that_does_not_answer_holds_no_job_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked, released = run_at(tmp_path), threading.Event(), threading.Event()

    def put(name: str, data: bytes) -> str:
        asked.set()
        released.wait(60)
        raise Unreachable("no answer")

    monkeypatch.setattr(run.store, "put", put)
    progress = ProgressRecord(run, "export", 1, every=0.01)
    assert asked.wait(60)
    progress.counter("bytes")(1, 2)
    progress.close()
    released.set()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"attempt": 1, "doing": 7}', b'{"schema": 9}'])
def test_a_damaged_file_tells_nothing(tmp_path: Path, content: bytes) -> None:
    run = run_at(tmp_path)
    run.store.put("jobs/export-progress.json", content)
    assert read_job_progress(run, "export") is None
