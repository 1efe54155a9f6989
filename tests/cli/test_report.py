"""`elastic-tpu report`, and the report that a whole run leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elastic_tpu.tests.support import Case, command

Make = Callable[..., Case]


def test_a_run_that_lost_a_slice_leaves_its_story(make_case: Make) -> None:
    case = make_case(
        "--loss", "3", "--step-seconds", "0.05", data={"eval": "valid.parquet"},
        export={}, evaluate={"gate": ["heldout.loss <= 1"]}, checkpoint={"every": 50},
        local={"faults": [{"slice": 1, "after_step": 8, "down": "200ms"}]},
    )  # fmt: skip
    assert command("run", str(case.spec)).returncode == 65
    page = (case.output / case.name / "report.html").read_text()
    assert page.count('data-recovery="') == len(case.events("recovery.finished")) == 1
    assert "steps that were lost and done again" in page
    assert "but the gate did not pass" in page
    assert '<td data-label="Exit"><span class="exit ok">0</span> complete' in page


def test_a_run_that_failed_says_so_on_its_report(make_case: Make, tmp_path: Path) -> None:
    case = make_case("--exit-at", "12:70")
    assert command("run", str(case.spec)).returncode == 70
    there = case.output / case.name / "report.html"
    page = there.read_text()
    assert "Ended after step 13 of 60 with exit code 70" in page

    # The command writes it again, where it is told to.
    there.unlink()
    done = command("report", case.uri)
    assert (done.returncode, done.stdout.strip()) == (0, str(there))
    assert there.read_text().startswith("<!doctype html>")

    elsewhere = tmp_path / "page.html"
    done = command("report", case.uri, "--output", str(elsewhere))
    assert (done.returncode, done.stdout.strip()) == (0, str(elsewhere))
    assert elsewhere.read_text().startswith("<!doctype html>")

    assert command("report", case.uri, "--output", "-").stdout.startswith("<!doctype html>")

    done = command("report", case.uri, "--output", str(tmp_path / "no" / "such.html"))
    assert done.returncode == 64
    assert "such.html" in done.stderr


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    done = command("report", str(tmp_path))
    assert done.returncode == 64
    assert "no run here" in done.stderr
