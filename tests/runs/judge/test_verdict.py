"""Every row of the judgement on a job: what was observed, what it means, and who must act (docs/contracts.md 8)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.judge.verdict import Observation, Verdict, judge
from elastic_tpu.runs.record.status import SliceCount, Status

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def status(phase: Any, **more: Any) -> Status:
    return Status("r-12345678", 1, "nonce", phase=phase, step=7, steps=10, slices=SliceCount(2, 3), **more)


def ended(code: int, reason: str) -> Status:
    return status("ended", exit=code, reason=reason)


# What the trainer's exit code is, what it said, and the verdict: outcome, act, code, reason.
EXITS: list[tuple[int | None, Status | None, tuple[str, str, int, str]]] = [
    (64, ended(64, "bad"), ("failed", "user", 64, "bad")),
    (65, None, ("failed", "user", 65, "job exited 65")),
    (70, ended(70, "KeyError: x"), ("failed", "user", 70, "KeyError: x")),
    (75, ended(75, "stalled"), ("failed", "relaunch", 75, "stalled")),
    (76, ended(76, "stopped by ann"), ("cancelled", "none", 76, "stopped by ann")),
    (77, ended(77, "limits.total is spent"), ("failed", "user", 77, "limits.total is spent")),
    (143, ended(143, "evicted"), ("failed", "relaunch", 75, "evicted")),
    # Whoever finds another trainer's words in status.json leaves without any of its own.
    (76, status("training"), ("superseded", "none", 76, "another trainer has this run")),
    (76, None, ("cancelled", "none", 76, "job exited 76")),
    # No code of ours: a bug, whatever it was meant to say.
    (1, None, ("failed", "user", 70, "job exited 1")),
    (137, None, ("failed", "user", 70, "job exited 137")),
    # Success needs proof.
    (0, ended(0, "complete"), ("failed", "user", 70, "job exited 0 but no proof")),
    # Deaths by signal, and ends that were not observed.
    (-9, status("training"), ("failed", "relaunch", 75, "job was killed by signal 9")),
    (-11, None, ("failed", "relaunch", 75, "job was killed by signal 11")),
    (None, status("training"), ("failed", "relaunch", 75, "job ended; its exit was not observed")),
    # The platform made another code of the trainer's: its reason counts, not the trainer's words for the other code.
    (77, ended(75, "stalled"), ("failed", "user", 77, "job exited 77")),
    (76, ended(143, "evicted"), ("cancelled", "none", 76, "job exited 76")),
]


@pytest.mark.parametrize(("code", "said", "expected"), EXITS)
def test_a_job_that_is_over(code: int | None, said: Status | None, expected: tuple[str, str, int, str]) -> None:
    verdict = judge("job", Observation("over", code), said, proven=False, unproven_reason="no proof")
    assert verdict.done
    assert (verdict.outcome, verdict.act, verdict.code) == expected[:3]
    assert verdict.reason.startswith(expected[3])


def test_the_platforms_reason_stands_in_for_a_trainers_that_is_missing() -> None:
    seen = Observation("over", 77, detail="recovery.head_restarts (1) is spent")
    assert judge("train", seen, ended(75, "stalled"), proven=False).reason == "recovery.head_restarts (1) is spent"


@pytest.mark.parametrize("code", [0, None, -9, 70, 75, 76, 143])
def test_a_proof_counts_more_than_an_exit_code(code: int | None) -> None:
    verdict = judge("job", Observation("over", code), None, proven=True)
    assert (verdict.phase, verdict.outcome, verdict.code) == ("done", "complete", 0)


def test_a_proof_counts_when_the_job_is_gone() -> None:
    assert judge("job", Observation("absent"), None, proven=True).outcome == "complete"


def test_a_job_that_is_gone_without_a_proof() -> None:
    verdict = judge("job", Observation("absent"), None, proven=False)
    assert (verdict.phase, verdict.outcome, verdict.act, verdict.code) == ("done", "failed", "relaunch", 75)
    assert "no such job" in verdict.reason


@pytest.mark.parametrize(
    ("seen", "said", "phase"),
    [
        (Observation("queued"), None, "queued"),
        (Observation("suspended"), None, "suspended"),
        (Observation("suspended"), status("training"), "suspended"),  # a trainer's that was put back with its job
        (Observation("starting"), None, "starting"),
        (Observation("starting"), status("training"), "running"),  # with some of its slices
        (Observation("starting"), status("waiting"), "starting"),  # nothing was lost yet
        (Observation("starting"), status("waiting", recovery=1), "recovering"),  # one of some was
        (Observation("starting", trainer_lives=False), ended(75, "stalled"), "starting"),
        (Observation("running"), None, "running"),
        (Observation("running"), status("starting"), "starting"),
        (Observation("running"), status("restoring"), "starting"),
        (Observation("running"), status("compiling"), "starting"),
        (Observation("running"), status("compiling", recovery=1), "recovering"),
        (Observation("running"), status("waiting"), "recovering"),
        (Observation("running"), status("suspended"), "suspended"),
        (Observation("running"), status("training"), "running"),
        (Observation("running", trainer_lives=False), status("training"), "finishing"),  # gone, not yet recorded
        (Observation("running"), status("training", recovery=1), "running"),
        (Observation("running"), status("saving"), "running"),
        (Observation("running"), status("stopping"), "finishing"),
        (Observation("over", -9, relaunching=True), status("training"), "recovering"),
        (Observation("over", 75, relaunching=True), ended(75, "stalled"), "recovering"),
    ],
)
def test_a_job_that_goes_on(seen: Observation, said: Status | None, phase: str) -> None:
    verdict = judge("job", seen, said, proven=False)
    assert (verdict.phase, verdict.outcome, verdict.act, verdict.code) == (phase, "none", "none", 0)


def test_a_recovery_says_how_many_slices_there_are() -> None:
    assert judge("train", Observation("running"), status("waiting"), proven=False).reason == "2 of 3 slices"


NO_NODE = "0 of 3 slices ready; slices 0, 1, 2: no node for the pod"


@pytest.mark.parametrize(
    ("state", "detail", "said", "reason"),
    [
        ("starting", NO_NODE, status("waiting"), NO_NODE),
        ("starting", NO_NODE, status("waiting", reason="asks for slices"), f"asks for slices; {NO_NODE}"),
        ("starting", NO_NODE, status("waiting", reason=NO_NODE), NO_NODE),
        ("starting", "", status("waiting"), "2 of 3 slices"),
        ("running", NO_NODE, status("waiting", recovery=1, reason="slice 1 lost"), f"slice 1 lost; {NO_NODE}"),
        ("running", NO_NODE, status("restoring", recovery=1), NO_NODE),
        ("running", "", status("starting", doing="importing MaxText", doing_seconds=9), "importing MaxText"),
        ("running", "", status("waiting", recovery=1, reason="slice 1 lost"), "slice 1 lost"),
    ],
)
def test_what_the_platform_and_the_trainer_know_stands_side_by_side(
    state: Any, detail: str, said: Status, reason: str
) -> None:
    assert judge("train", Observation(state, detail=detail), said, proven=False).reason == reason


def test_a_job_that_waits_says_what_for() -> None:
    for state in ("queued", "suspended"):
        seen = Observation(state, detail="waits in queue tpu")  # type: ignore[arg-type]
        assert judge("train", seen, status("training"), proven=False).reason == "waits in queue tpu"


def test_a_start_does_not_repeat_the_words_of_a_trainer_before_it() -> None:
    seen = Observation("starting", detail="0 of 3 slices ready", trainer_lives=False)
    assert judge("train", seen, ended(75, "stalled"), proven=False).reason == "0 of 3 slices ready"


def test_a_trainer_that_is_gone_is_not_said_to_train() -> None:
    seen = Observation("running", detail="train has ended, which cannot be recorded", trainer_lives=False)
    assert judge("train", seen, status("training"), proven=False).reason == seen.detail


def test_a_verdict_survives_the_database_of_an_orchestrator() -> None:
    spent = Verdict("done", "failed", "user", ExitCode.LIMIT_SPENT, "limits.start (10m) is spent", limit="limits.start")
    assert Verdict(**json.loads(json.dumps(spent.record()))) == spent


@pytest.mark.parametrize("said", [None, status("training"), ended(75, "stalled")])
@pytest.mark.parametrize("state", ["absent", "queued", "starting", "running", "suspended", "over"])
def test_evidence_decides_nothing(state: Any, said: Status | None) -> None:
    misleading = {"trainer_lives": False, "ran": True, "running_since": NOON.isoformat(), "limit": "limits.start"}
    plain, told = Observation(state), Observation(state, evidence=misleading)
    verdict = judge("train", told, said, proven=False)
    assert replace(verdict, evidence={}) == judge("train", plain, said, proven=False)
    assert verdict.evidence == misleading
