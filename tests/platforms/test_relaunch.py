"""Which ends of a trainer are followed by another start (docs/contracts.md 8)."""

from __future__ import annotations

import pytest
from elastic_tpu.platforms.local.relaunch import decide


@pytest.mark.parametrize(
    ("exit_code", "restarts", "allowed", "wanted", "again", "code"),
    [
        (0, 0, 20, True, False, 0),  # whether it proves is not decided here
        (75, 0, 20, True, True, 75),
        (143, 0, 20, True, True, 143),
        (-9, 0, 20, True, True, -9),
        (-15, 0, 20, True, True, -15),
        (-11, 19, 20, True, True, -11),
        *[(code, 0, 20, True, False, code) for code in (1, 2, 64, 65, 69, 70, 76, 77, 130, 137)],
        (75, 20, 20, True, False, 77),
        (-9, 20, 20, True, False, 77),
        (143, 0, 0, True, False, 77),
        (75, 0, 20, False, False, 75),
        (-9, 0, 20, False, False, -9),
        (143, 25, 20, False, False, 143),
    ],
)
def test_relaunch(exit_code: int, restarts: int, allowed: int, wanted: bool, again: bool, code: int) -> None:
    decision = decide(exit_code, restarts, allowed, wanted)
    assert (decision.again, decision.code) == (again, code)


@pytest.mark.parametrize(("exit_code", "code"), [(0, 0), (75, 76), (143, 76), (-9, 76), (70, 70), (77, 77)])
def test_a_process_that_was_told_to_end_is_not_started_again(exit_code: int, code: int) -> None:
    decision = decide(exit_code, 0, 20, True, stopped=True)
    assert (decision.again, decision.code) == (False, code)


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (decide(-9, 0, 20, True), "killed by signal 9; restart 1 of 20"),
        (decide(75, 3, 20, True), "exited 75; restart 4 of 20"),
        (decide(75, 20, 20, True), "recovery.head_restarts (20) is spent: the process exited 75"),
        (decide(143, 0, 20, False), "exited 143 and the run is being ended"),
    ],
)
def test_the_reason_says_what_happened(decision: object, reason: str) -> None:
    assert reason in decision.reason  # type: ignore[attr-defined]
