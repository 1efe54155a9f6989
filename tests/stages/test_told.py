"""What was there when a process of a job began is not shown as what that process does."""

from __future__ import annotations

from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.runs.record import paths
from elastic_tpu.runs.record.job_progress import JobProgress
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.record.status import Status
from elastic_tpu.runs.spec.load import check
from elastic_tpu.stages.told import Told
from elastic_tpu.tests.fakes.store import MemoryStore
from elastic_tpu.tests.tools import small

RUNNING = Verdict("running", reason="slice 1 lost")


def make_run() -> Run:
    return Run("mem://r", MemoryStore(), check(small.document()))


def test_what_an_earlier_trainer_wrote_is_judged_by_and_not_shown() -> None:
    run, told = make_run(), None
    old = Status(run.run_id, 1, "a", phase="training", step=40, steps=60, loss=2.0)
    run.store.put(paths.STATUS, old.dump())
    told = Told(run, "train")
    told.hide()
    assert (told.read(), told.status) == (old, None)
    assert told.shown(RUNNING) == Verdict("starting")
    # What the platform knows by itself is shown as it is.
    for verdict in (Verdict("queued", reason="position 3"), Verdict("done", "complete")):
        assert told.shown(verdict) == verdict
    new = Status(run.run_id, 2, "b", phase="starting", steps=60)
    run.store.put(paths.STATUS, new.dump())
    assert (told.read(), told.status) == (new, new)
    assert told.shown(RUNNING) == RUNNING


def test_the_first_trainer_of_a_run_is_shown_from_its_first_beat_on() -> None:
    run = make_run()
    told = Told(run, "train")
    told.hide()
    assert told.read() is None
    assert told.shown(RUNNING) == RUNNING  # nothing is there that could mislead
    status = Status(run.run_id, 1, "a")
    run.store.put(paths.STATUS, status.dump())
    assert (told.read(), told.status) == (status, status)


def test_the_progress_of_an_earlier_export_is_not_shown() -> None:
    run = make_run()
    told, name = Told(run, "export"), paths.job_progress("export")
    old, new = (JobProgress(attempt=attempt, doing="writing the weights") for attempt in (1, 2))
    run.store.put(name, old.dump())
    told.read()
    assert told.progress == old  # a process that only watches, as a trigger does
    told.hide()
    told.read()
    assert told.progress is None
    assert told.shown(RUNNING) == RUNNING
    run.store.put(name, new.dump())
    told.read()
    assert told.progress == new
