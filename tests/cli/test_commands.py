"""The commands that look and act, on one run that is complete and one that lives."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_tpu.cli.main import main
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.record.driver import Driver
from elastic_tpu.runs.record.run import create_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.runs.store.posix import PosixStore
from elastic_tpu.tests.support import Case, Launcher, command, expected_state, until

MakeCase = Callable[..., Case]


def make_complete(folder: Path) -> Case:
    evaluate = {"gate": ["heldout.loss <= 1.5"]}
    data = {"eval": "valid.parquet"}
    # Steps so long that each checkpoint is proven before the next one.
    case = Case(folder, "--step-seconds", "0.05", train={"steps": 12}, export={}, evaluate=evaluate, data=data)
    done = command("run", str(case.spec))
    assert done.returncode == 0, done.stdout + done.stderr
    return case


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A run that completed; tests leave it as it is, or put back what they change."""
    case = make_complete(tmp_path_factory.mktemp("complete"))
    yield case
    case.end()


# ---- a run that is complete


def test_status_of_a_complete_run(complete: Case) -> None:
    done = command("status", complete.uri, "--watch")  # over, so that it does not wait
    assert done.returncode == 0
    rows = dict(line.split("  ", 1) for line in done.stdout.replace("driven by", "driven_by ").splitlines())
    rows = {name: text.strip() for name, text in rows.items()}
    assert rows["run"] == f"{complete.uri}   ({complete.run_id})"  # a line each, however narrow the output is
    assert rows["driven_by"].startswith("nobody; ")
    assert rows["training"].startswith("ended, exit code 0")
    assert rows["step"].startswith("11 of 12")
    assert rows["slices"].startswith("released")
    assert rows["model"] == f"{complete.uri}/export/11"
    assert rows["held-out"].startswith("loss 1.0000 a token")
    assert rows["gate"] == "ok   heldout.loss <= 1.5: 1.0"
    found = json.loads(command("status", complete.uri, "--json").stdout)
    assert found["export"] == {"step": 11, "model": f"{complete.uri}/export/11"}
    assert (found["evaluation"]["heldout_loss"], found["gate"]["outcome"]) == (1.0, "passed")
    assert (found["over"], found["resumable"], found["training"]["state"]) == (True, False, "ended")


def test_logs_of_each_job(complete: Case) -> None:
    assert "exit code 0: complete at step 11" in command("logs", complete.uri).stdout
    assert command("logs", complete.uri, "--follow").returncode == 0  # over, so that it ends
    wrong = command("logs", complete.uri, "--job", "trein")
    assert wrong.returncode == ExitCode.BAD_INPUT
    assert "must be train, export or evaluate" in wrong.stderr
    missing = command("logs", complete.uri, "--attempt", "7")
    assert missing.returncode == ExitCode.BAD_INPUT
    assert f"{complete.uri}/attempts/7/trainer.log: no such log" in missing.stderr


@pytest.mark.parametrize("trouble", [errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("line", [["status"], ["report", "--output", "-"], ["logs"], ["verify"]])
def test_looking_writes_nothing(
    complete: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trouble: int, line: list[str]
) -> None:
    """A run directory that is read-only, another user's, or on a full disk."""

    def refuse(self: PosixStore, folder: Path, data: bytes) -> None:
        raise OSError(trouble, os.strerror(trouble))

    monkeypatch.setattr(PosixStore, "_temporary", refuse)
    monkeypatch.setattr("sys.argv", ["elastic-tpu", line[0], complete.uri, *line[1:]])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code or 0, said.err) == (0, "")
    assert said.out


def test_verify_of_a_whole_run(complete: Case) -> None:
    done = command("verify", complete.uri)
    assert done.returncode == 0
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "ok   checkpoint 0",
        "ok   checkpoint 10",
        "ok   checkpoint 11",
        "ok   result",
        "ok   export",
        "ok   evaluation",
        "ok   gate",
    ]


@pytest.mark.parametrize("step", [10, 11])
def test_verify_names_a_checkpoint_file_with_one_bit_flipped(complete: Case, step: int) -> None:
    path = Path(complete.uri, "checkpoints", str(step), "state.json")
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    try:
        done = command("verify", complete.uri)
    finally:
        path.write_bytes(whole)
    assert done.returncode == ExitCode.BUG
    assert f"FAIL checkpoint {step}: state.json has other content than was proven" in done.stdout
    assert ("FAIL result" in done.stdout) is (step == 11)


@pytest.mark.parametrize("change", ["cut", "one bit"])
def test_verify_names_a_changed_export_file(complete: Case, change: str) -> None:
    path = Path(complete.uri, "export", "11", "model.json")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] if change == "cut" else bytes([whole[0] ^ 1]) + whole[1:])
    try:
        done = command("verify", complete.uri)
    finally:
        path.write_bytes(whole)
    assert done.returncode == ExitCode.BUG
    line = next(line for line in done.stdout.splitlines() if line.startswith("FAIL export"))
    assert "model.json" in line


def changed_record(case: Case, name: str, **changes: object) -> dict[str, object]:
    """A record of the run with fields changed and the rest, its digest too, as it was."""
    record = json.loads(Path(case.uri, name).read_bytes())
    for field, value in changes.items():
        *above, last = field.split("__")
        place = record
        for part in above:
            place = place[part]
        place[last] = value
    return record


@pytest.mark.parametrize(
    ("file", "changes", "line"),
    [
        ("evaluation", {"metrics__heldout__loss": 0.94}, "FAIL evaluation: "),
        ("evaluation", {"metrics__heldout__loss": float("nan")}, "FAIL evaluation: "),
        ("result.json", {"goodput": 0.5}, "FAIL result: "),
        ("gate.json", {"outcome": "failed"}, "FAIL gate: "),
        ("export/11/manifest.json", {"files__model.json__sha256": "0" * 64}, "FAIL export: "),
    ],
)
def test_verify_names_a_record_that_was_changed(
    complete: Case, file: str, changes: dict[str, object], line: str
) -> None:
    name = file if "." in file else next(Path(complete.uri).glob(f"{file}/*.json")).relative_to(complete.uri).as_posix()
    path = Path(complete.uri, name)
    whole = path.read_bytes()
    path.write_text(json.dumps(changed_record(complete, name, **changes)))
    try:
        done = command("verify", complete.uri)
    finally:
        path.write_bytes(whole)
    assert done.returncode == ExitCode.BUG
    (found,) = (shown for shown in done.stdout.splitlines() if shown.startswith(line))
    assert f"{name}: record_digest is " in found
    assert "it was changed or damaged; " in found


def test_verify_goes_on_after_a_damaged_result(complete: Case) -> None:
    """With one fault more, so that both are seen at once."""
    paths = [Path(complete.uri, "result.json"), Path(complete.uri, "export/11/model.json")]
    whole = {path: path.read_bytes() for path in paths}
    for path in paths:
        path.write_bytes(whole[path][:-3])
    try:
        done = command("verify", complete.uri)
    finally:
        for path, data in whole.items():
            path.write_bytes(data)
    assert done.returncode == ExitCode.BUG
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[-3:]] == ["FAIL result", "FAIL export", "FAIL evaluation"]
    assert "result.json" in lines[-3]
    assert "model.json" in lines[-2]


def test_verify_of_records_of_an_older_version(complete: Case) -> None:
    evaluation = next(Path(complete.uri).glob("evaluation/*.json"))
    paths = [evaluation, Path(complete.uri, "result.json"), Path(complete.uri, "export/11/manifest.json")]
    gate = Path(complete.uri, "gate.json")
    whole = {path: path.read_bytes() for path in (*paths, gate)}
    for path in paths:
        record = json.loads(whole[path])
        del record["record_digest"]
        path.write_text(json.dumps(record))
    gate.unlink()
    try:
        done = command("verify", complete.uri)
    finally:
        for path, data in whole.items():
            path.write_bytes(data)
    assert done.returncode == 0
    for what in ("result", "export", "evaluation"):
        assert f"ok   {what}: no digest (written by an older version)\n" in done.stdout
    assert "ok   gate: no gate.json (written by an older version, or before" in done.stdout


def test_a_run_whose_final_checkpoint_was_damaged_is_not_complete(complete: Case) -> None:
    path = Path(complete.uri, "checkpoints", "11", "state.json")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    try:
        done = command("run", complete.uri)
    finally:
        path.write_bytes(whole)
    assert done.returncode == 0
    assert "training is complete already" not in done.stdout
    assert "checkpoint 11 set aside: state.json has" in done.stdout
    assert complete.attempts() == [1, 2]
    assert complete.final_state() == expected_state(12)


def test_kill_slice_where_none_runs(complete: Case) -> None:
    done = command("kill-slice", complete.uri, "1")
    assert done.returncode == ExitCode.BAD_INPUT
    assert "no slices are provisioned now" in done.stderr


def test_a_holder_that_looks_like_markup_or_an_escape_sequence_is_shown_as_text(make_case: MakeCase) -> None:
    case = make_case()
    run = create_run(read_spec(str(case.spec)))
    Driver(run.store, "dag [/x]\x1b[2J/1", "1", 600).take()
    for line in ("cancel", "status", "release"):
        done = command(line, case.uri)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
    assert "dag [/x]/1 drives the run" in command("cancel", case.uri).stdout


# ---- a run that lives


def test_a_live_run_is_watched_and_a_slice_killed(make_case: MakeCase) -> None:
    case = make_case(train={"steps": 100_000})
    with Launcher(case) as launcher:
        case.wait_for_step(5)
        status = command("status", case.uri).stdout
        assert "2 of 2 slices ready" in status
        assert "training (last heartbeat" in status
        assert "nobody" not in status
        with Launcher(case, "logs", case.uri, "--follow", log="logs") as logs:
            before = {worker.pid for worker in case.workers()}
            done = command("kill-slice", case.uri, "1")
            assert done.returncode == 0
            killed = int(done.stdout.split("pid ")[1].split()[0])
            assert killed in before
            until(lambda: case.events("recovery.finished"), "a recovery")
            wrong = command("kill-slice", case.uri, "2")
            assert wrong.returncode == ExitCode.BAD_INPUT
            assert "this run has 2 slices, numbered from 0" in wrong.stderr
            case.trainer().kill()
            until(lambda: len(case.attempts()) == 2, "a second attempt")
            until(lambda: case.status and case.status.attempt == 2 and case.at_step(1), "training again")
            launcher.interrupt()
            assert launcher.wait() == ExitCode.INTERRUPTED
            assert logs.wait() == 0  # the run is over
        assert "exit code 76" in logs.output  # of the second attempt's log
    assert "slice 1 lost" in launcher.output
    assert "recoveries" in command("status", case.uri).stdout
    case.released()


# ---- plan


def test_plan_creates_nothing(make_case: MakeCase) -> None:
    case = make_case()
    before = sorted(case.folder.rglob("*"))
    done = command("plan", str(case.spec))
    assert done.returncode == 0
    assert f"{case.uri}   ({case.run_id})" in done.stdout
    assert "slice-hours" in done.stdout
    machine = json.loads(command("plan", str(case.spec), "--json").stdout)
    assert machine["plan"]["run_id"] == case.run_id
    assert machine["provisional"] == []
    assert machine["spec"]["train"]["steps"] == 60
    assert sorted(case.folder.rglob("*")) == before
