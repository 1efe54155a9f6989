"""What each exit code means (docs/contracts.md 8), and that nobody else says otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import (
    BadInput,
    ElasticTPUError,
    ExitCode,
    GateFailed,
    HeldByAnother,
    Infrastructure,
    Problem,
    describe_codes,
    error_for,
    exit_words,
    final_codes,
)

ROOT = Path(__file__).parents[2]

# code: outcome, who acts, retried and relaunched, resumable, processes
MEANINGS = {
    0: ("complete", "none", False, False, {"trainer", "job", "command"}),
    64: ("failed", "user", False, False, {"trainer", "job", "command"}),
    65: ("failed", "user", False, False, {"job", "command"}),
    69: ("superseded", "none", False, False, {"command"}),
    70: ("failed", "user", False, False, {"trainer", "job", "command"}),
    75: ("failed", "relaunch", True, True, {"trainer", "job", "command"}),
    76: ("cancelled", "none", False, True, {"trainer", "job", "command"}),
    77: ("failed", "user", False, False, {"trainer", "job", "command"}),
    130: ("cancelled", "none", False, True, {"command"}),
    143: ("failed", "relaunch", True, True, {"trainer", "job"}),
}


def test_what_every_code_means() -> None:
    assert {
        int(code): (code.outcome, code.act, code.relaunched, code.resumable, set(code.processes)) for code in ExitCode
    } == MEANINGS


@pytest.mark.parametrize("code", ExitCode)
def test_every_code_has_words_and_one_rule_for_platforms_and_orchestrators(code: ExitCode) -> None:
    assert code.words
    assert code.retried is code.relaunched
    assert ExitCode.of(int(code)) is code


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        (None, ExitCode.INFRASTRUCTURE),  # not observed
        (-9, ExitCode.INFRASTRUCTURE),
        (-200, ExitCode.INFRASTRUCTURE),
        (1, ExitCode.BUG),
        (137, ExitCode.BUG),
        (69, ExitCode.BUG),  # only the command ends with it
        (130, ExitCode.BUG),
        (65, ExitCode.GATE_FAILED),
        (143, ExitCode.EVICTED),
    ],
)
def test_any_exit_of_a_job_has_a_meaning(code: int | None, meant: ExitCode) -> None:
    assert ExitCode.of(code, "job") is meant


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (70, "a bug or user error"),
        (-9, "killed by SIGKILL"),
        (-200, "killed by signal 200"),
        (69, "not a code of the trainer"),
        (3, "not a code of the trainer"),
        (None, "has not ended, or its exit was not observed"),
    ],
)
def test_exits_in_words(code: int | None, words: str) -> None:
    assert exit_words(code) == words


def test_the_codes_that_kubernetes_must_not_start_again() -> None:
    assert final_codes("trainer") == [64, 70, 76, 77]
    assert final_codes("job") == [64, 65, 70, 76, 77]


@pytest.mark.parametrize("code", [code for code in ExitCode if code])
def test_a_failure_is_raised_with_its_own_code(code: ExitCode) -> None:
    error = error_for(code, "why")
    assert (error.code, str(error)) == (code, "why")


def test_a_failure_is_raised_as_the_error_of_who_must_act() -> None:
    kinds = {kind.code: kind for kind in (GateFailed, HeldByAnother, Infrastructure)}
    assert all(type(error_for(code, "")) is kind for code, kind in kinds.items())
    assert type(error_for(ExitCode.EVICTED, "")) is ElasticTPUError


def test_a_help_names_the_codes_of_its_own_process() -> None:
    assert "130 interrupted" in describe_codes("command")
    assert "143 evicted" not in describe_codes("command")
    assert describe_codes("trainer").endswith("After 75, 76, 143, running again goes on with the run.")


def test_the_readme_names_every_code_with_its_words() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| ([^|]*) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(rows) == {str(int(code)) for code in ExitCode}
    assert all(rows[str(int(code))].startswith(code.words) for code in ExitCode)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a b", "f: 'a b', cure"),
        (3, "f: 3, cure"),
        (None, "f: cure"),
        ([1, "b"], "f: [1, 'b'], cure"),
        ("x" * 1000, f"f: '{'x' * 300}...', cure"),
        ([7] * 5000, f"f: {str([7] * 5000)[:80]}... (5,000 items), cure"),
        ({n: n for n in range(99)}, f"f: {str({n: n for n in range(99)})[:80]}... (99 items), cure"),
    ],
)
def test_a_problem_shows_its_value_and_cuts_what_is_long(value: object, shown: str) -> None:
    assert str(Problem("f", value, "cure")) == shown


def test_a_message_has_fifty_problems_at_most_and_says_how_many_there_are() -> None:
    error = BadInput([Problem(str(number), None, "cure") for number in range(1050)])
    assert len(error.problems) == 1050
    assert str(error).splitlines()[49:] == ["49: cure", "and 1,000 more problems"]


def test_the_contracts_say_what_is_relaunched_and_retried() -> None:
    text = (ROOT / "docs" / "contracts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| .* \| (yes|no)? ?\| (yes|no)? ?\|$", text, re.MULTILINE)
    assert [(int(code), name) for code, name, *_ in rows] == [(int(code), code.name) for code in ExitCode]
    for code, name, relaunched, retried in rows:
        assert relaunched in ("", "yes" if ExitCode[name].relaunched else "no"), code
        assert retried in ("", "yes" if ExitCode[name].retried else "no"), code
