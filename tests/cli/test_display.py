"""The line that says where a stage is."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_tpu.cli.display import OutputConsole, plain, print_rows
from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.runs.record.job_progress import JobProgress
from elastic_tpu.runs.record.status import SliceCount, Status
from elastic_tpu.stages.progress import progress_text

FULL = "the claim cannot be renewed: /runs/r/claim.json: No space left on device"


def test_a_process_that_resumes_tells_no_step_before_its_first() -> None:
    begun = Status("r", 2, "n", phase="restoring", steps=60, slices=SliceCount(2, 2))
    assert progress_text("train", Verdict("starting"), begun) == "train: restoring, slices 2 of 2"


def test_what_takes_long_is_named_with_its_seconds() -> None:
    importing = Status("r", 1, "n", steps=60, doing="importing MaxText", doing_seconds=12.3)
    verdict = Verdict("starting", reason="importing MaxText")
    assert progress_text("train", verdict, importing) == "train: starting, importing MaxText, 12 s"
    first = Status("r", 1, "n", phase="training", step=-1, steps=60, doing="compiling the first step", doing_seconds=61)
    told = progress_text("train", Verdict("running", reason="compiling the first step"), first)
    assert told == "train: training, compiling the first step, 1 min 1 s"


def test_a_recovery_does_not_contradict_its_slices() -> None:
    back = Status("r", 1, "n", phase="waiting", step=46, steps=60, slices=SliceCount(3, 3), reason="slice 1 lost")
    told = progress_text("train", Verdict("recovering", reason="slice 1 lost"), back)
    assert told == "train: waiting, step 46 of 60, slices 3 of 3, recovering from: slice 1 lost"


def test_slices_that_are_away_are_told_with_what_is_known_of_them() -> None:
    away = Status("r", 1, "n", phase="suspended", step=46, steps=60, slices=SliceCount(2, 3), reason="slice 1 is away")
    told = progress_text("train", Verdict("suspended", reason="slice 1 is away"), away)
    assert told == "train: suspended, step 46 of 60, slices 2 of 3, slice 1 is away"


def status(phase: Any) -> Status:
    return Status("r", 1, "n", phase=phase, step=46, steps=60, slices=SliceCount(2, 2))


@pytest.mark.parametrize(
    ("verdict", "phase", "text"),
    [
        (Verdict("running"), "training", "train: training, step 46 of 60, slices 2 of 2"),
        (Verdict("running", reason=FULL), "training", f"train: training, step 46 of 60, slices 2 of 2, {FULL}"),
        (Verdict("finishing", reason="train has ended"), "training", "train: finishing, train has ended"),
        (Verdict("recovering", reason="restart 1 of 3"), "saving", "train: recovering, restart 1 of 3"),
    ],
)
def test_a_dead_trainers_step_is_not_told_as_progress(verdict: Verdict, phase: str, text: str) -> None:
    assert progress_text("train", verdict, status(phase)) == text


HOSTILE = [
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1b]52;c;ZXZpbA==\x07",  # writes the clipboard
    "\x1b]0;title\x1b\\",
    "\x9b2J",
    "\x1bc",  # resets the terminal
    "\r\x08\x07\x00",
    "\u202e\u2066",  # turns the direction of the text
    "\x1b]8;;http://evil",  # a link that never ends
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_in_a_text_is_obeyed_by_a_terminal(hostile: str) -> None:
    assert plain(f"before{hostile}") == "before"


def test_a_sequence_that_never_ends_hides_no_other_line() -> None:
    assert plain("step 1\n\x1b]0;title\nERROR out of memory") == "step 1\n\nERROR out of memory"


def test_text_is_no_markup_and_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    console = OutputConsole(highlight=False)
    console.print("[/x] [red]a[/red]\x1b[2J")
    print_rows(console, [("driven by", "[/x]\x1b[2J")])
    console.out("\tone\ntwo é\x1b[31m")
    assert capsys.readouterr().out == "[/x] [red]a[/red]\ndriven by     [/x]\n        one\ntwo é\n"


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (JobProgress(attempt=1, doing="importing JAX", doing_seconds=4), "evaluate: importing JAX, 4 s"),
        (
            JobProgress(
                attempt=1, doing="scoring documents", doing_seconds=61, done=1200, total=4800, unit="documents"
            ),
            "evaluate: scoring documents, 1 min 1 s, 1,200 of 4,800 documents (25 %)",
        ),
        (
            JobProgress(attempt=1, doing="writing", doing_seconds=2, done=2**30, total=2**32, unit="bytes"),
            "evaluate: writing, 2 s, 1 GiB of 4 GiB (25 %)",
        ),
        (None, "evaluate: running"),
    ],
)
def test_a_job_on_cpu_tells_how_far_it_is(job: JobProgress | None, text: str) -> None:
    assert progress_text("evaluate", Verdict("running"), None, job) == text


def test_a_queued_job_does_nothing_whatever_an_earlier_one_said() -> None:
    said = JobProgress(attempt=1, doing="importing JAX")
    assert (
        progress_text("export", Verdict("queued", reason="in the queue"), None, said) == "export: queued, in the queue"
    )
