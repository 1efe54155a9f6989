"""`elastic-tpu status`: who drives, whether the trainer lives, and what it looks like for people and programs."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.cli import status as command
from elastic_tpu.cli.display import OutputConsole
from elastic_tpu.cli.look import training_state
from elastic_tpu.cli.main import app
from elastic_tpu.runs.judge.verdict import Observation
from elastic_tpu.runs.record import paths
from elastic_tpu.runs.record.claim import Claim, this_instance
from elastic_tpu.runs.record.run import Run, create_run
from elastic_tpu.runs.record.status import SliceCount, Status
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.runs.store import records
from elastic_tpu.tests.support import Case
from typer.testing import CliRunner

HERE = socket.gethostname()
TRAINING = Status("r", 1, "n", phase="training", step=46, steps=60, loss=2.5, proven_step=40, slices=SliceCount(2, 2))


@pytest.fixture
def run(make_case: Callable[..., Case]) -> Run:
    """A run of which nothing was written but its spec."""
    return create_run(read_spec(str(make_case().spec)))


def claim(run: Run, state: Any = "held", holder: str = f"me@{HERE}", instance: str = "", age: float = 0) -> None:
    written = Claim(
        holder=holder,
        instance=instance or this_instance(),
        term=1,
        state=state,
        nonce="n",
        seconds=60.0,
        by="bob@there",
    )
    run.store.put(paths.CLAIM, records.dump(written.model_dump()))
    grow_old(run, paths.CLAIM, age)


def heartbeat(run: Run, status: Status = TRAINING, age: float = 0) -> None:
    run.store.put(paths.STATUS, status.dump())
    grow_old(run, paths.STATUS, age)


def slices(run: Run, host: str = HERE) -> None:
    record = {"run_id": run.run_id, "platform": "local", "state": "ready", "host": host, "slices": [{}, {}], "pid": 1}
    run.store.put(paths.SLICES, records.dump(record))


def grow_old(run: Run, name: str, age: float) -> None:
    then = time.time() - age
    os.utime(Path(run.uri, name), (then, then))


def shown(run: Run, *options: str) -> str:
    result = CliRunner().invoke(app, ["status", run.uri, *options])
    assert result.exit_code == 0, result.output
    return str(result.output)


def row(text: str, name: str) -> str:
    (found,) = (line[14:] for line in text.splitlines() if line.startswith(f"{name:<13} "))
    return found


def test_a_dead_process_is_not_told_as_training(run: Run) -> None:
    claim(run)
    heartbeat(run, age=150)
    slices(run)
    run.store.put("attempts/1/started.json", records.dump({"pid": 1, "time": records.timestamp()}))
    text = shown(run)
    assert row(text, "training") == (
        "not running: train died together with its supervisor (attempt 1); its last word was training, 2 min 30 s ago, "
        "attempt 1"
    )


def test_an_old_heartbeat_is_said_where_the_platform_cannot_be_asked(run: Run) -> None:
    claim(run, holder="me@elsewhere")
    heartbeat(run, age=90)
    slices(run, host="elsewhere")
    assert row(shown(run), "training") == "no heartbeat for 1 min 30 s; its last word was training, attempt 1"
    heartbeat(run)
    assert row(shown(run), "training").startswith("training (last heartbeat 0 s ago), attempt 1")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"holder": "me@elsewhere", "instance": "7:1.00"}, "me@elsewhere, renewed 0 s ago"),
        ({}, f"me@{HERE}, renewed 0 s ago"),
        ({"instance": "4194303:1.00"}, f"nobody drives this run: the process of me@{HERE} is gone, last renewed 0 s"),
        (
            {"holder": "dag/run", "age": 70},
            "nobody drives this run: dag/run does not renew its claim, last renewed 1 min",
        ),
        ({"state": "stop"}, f"me@{HERE}, renewed 0 s ago, stop asked for by bob@there"),
        ({"state": "done"}, f"nobody; me@{HERE} was done 0 s ago"),
    ],
)
def test_who_drives(run: Run, how: dict[str, Any], words: str) -> None:
    claim(run, **how)
    assert row(shown(run), "driven by").startswith(words)


def test_what_has_not_begun_has_no_numbers(run: Run) -> None:
    text = shown(run)
    assert (row(text, "driven by"), row(text, "training")) == ("nobody yet", "not started")
    assert row(text, "slices") == "not taken yet"
    assert "0 of" not in text


@pytest.mark.parametrize(
    ("phase", "seen", "silent", "state"),
    [
        ("training", Observation("running"), False, "alive"),
        ("training", Observation("running"), True, "silent"),
        ("training", Observation("running", trainer_lives=False), False, "gone"),
        ("training", Observation("over", -9), False, "gone"),
        ("training", Observation("over", -9, relaunching=True), False, "restarting"),
        ("training", Observation("suspended", trainer_lives=False), True, "suspended"),
        ("ended", Observation("over", 76), True, "ended"),
        ("ended", Observation("running"), True, "starting"),  # the next process has not written yet
        ("ended", None, True, "ended"),
        (None, None, False, "none"),
        (None, Observation("absent"), False, "none"),
        (None, Observation("running"), False, "starting"),
        (None, Observation("over", 1), False, "gone"),
    ],
)
def test_a_heartbeat_counts_as_far_as_the_platform_bears_it_out(
    phase: Any, seen: Observation | None, silent: bool, state: str
) -> None:
    said = None if phase is None else Status("r", 1, "n", phase=phase)
    assert training_state(said, seen, silent)[0] == state


def test_a_run_that_was_interrupted_says_how_to_go_on(run: Run) -> None:
    claim(run, "done")
    heartbeat(run, Status("r", 1, "n", phase="ended", step=46, steps=60, exit=76, reason="stop asked for by me"))
    text = shown(run)
    assert row(text, "training") == "ended, exit code 76 (ended on request), attempt 1"
    assert row(text, "go on with") == f"elastic-tpu run {run.uri}"
    heartbeat(run, Status("r", 1, "n", phase="ended", step=46, steps=60, exit=77, reason="limits.total is spent"))
    assert "go on with" not in shown(run)


FIELDS = {
    *("schema", "time", "run", "run_id", "copied_from", "over", "resumable", "driver", "training", "slices"),
    *("recoveries", "result", "job", "export", "evaluation", "gate", "damaged"),
}


def test_a_job_that_is_silent_is_not_told_as_going_on() -> None:
    job = {"name": "export", "attempt": 1, "doing": "writing the weights", "doing_seconds": 4, "heartbeat_seconds": 300}
    assert command._job_words(job) == "no word for 5 min; its last was: writing the weights, 4 s"


def test_the_json_is_one_document_with_the_documented_fields(run: Run) -> None:
    assert json.loads(shown(run, "--json")).keys() == FIELDS
    claim(run)
    heartbeat(run)
    found = json.loads(shown(run, "--json"))
    assert found.keys() == FIELDS
    assert found["driver"]["drives"]
    assert (found["training"]["step"], found["training"]["loss"]) == (46, 2.5)
    page = Path(__file__).parents[2].joinpath("docs", "contracts.md").read_text()
    section = page.partition("## 13. ")[2]
    names = FIELDS | found["driver"].keys() | found["training"].keys() | found["slices"].keys()
    assert [name for name in sorted(names) if f"`{name}`" not in section] == []


def test_a_watched_run_tells_only_what_changed_and_ends_with_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    claim(run, holder="me@elsewhere")
    heartbeat(run)
    pauses = iter([lambda: None, lambda: heartbeat(run, age=5), lambda: claim(run, "done")])
    command.status(run.uri, watch=True, as_json=True, pause=lambda seconds: next(pauses)())
    seen = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [look["over"] for look in seen] == [False, True]


def test_on_a_terminal_a_watched_run_is_drawn_in_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(run, holder="me@elsewhere")
    screen = io.StringIO()
    monkeypatch.setattr(command, "OutputConsole", lambda: OutputConsole(file=screen, force_terminal=True, width=200))
    pauses = iter([lambda: heartbeat(run), lambda: claim(run, "done")])
    command.status(run.uri, watch=True, as_json=False, pause=lambda seconds: next(pauses)())
    assert len(re.findall(r"driven by", screen.getvalue())) >= 3
    assert "\x1b[1A" in screen.getvalue()  # up over what was drawn before
