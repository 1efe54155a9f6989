"""A copy of a local run that is being trained: the copy touches nothing of it, and a release leaves no folder."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

from elastic_tpu.platforms.local.folder import NAMES, discard, is_at, open_in_folder, without
from elastic_tpu.platforms.local.runtime_folder import runtime_folder
from elastic_tpu.tests.support import Case, Launcher, command, expected_state


def test_a_release_of_a_copy_leaves_the_original_in_peace(make_case: Callable[..., Case], tmp_path: Path) -> None:
    gate = tmp_path / "go"
    case = make_case("--hold-at", f"25:{gate}")
    with Launcher(case) as launcher:
        case.wait_for_step(24)
        copy = tmp_path / "copy"
        shutil.copytree(case.uri, copy)
        before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
        shown = command("status", str(copy))
        assert f"copied from   {case.uri}" in shown.stdout
        for what, code in (("release", 0), ("cancel", 64)):
            done = command(what, str(copy))
            assert done.returncode == code, done.stderr
            assert f"{copy} is a copy of the run {case.uri}" in done.stdout + done.stderr
        assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
        assert case.at_step(24)
        gate.touch()
        assert launcher.wait() == 0
    assert case.final_state() == expected_state(60)
    assert not runtime_folder(case.run_id).exists()
    done = command("run", "--take-over", str(copy))
    assert done.returncode == 64
    assert f"elastic-tpu run --moved {copy}" in done.stderr
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    done = command("run", "--take-over", "--moved", str(copy))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (copy / "result.json").exists()
    assert str(copy) in (copy / "result.json").read_text()
    assert case.attempts() == [1]


def test_the_folder_goes_unless_a_supervisor_serves_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    discard(folder)
    for name in NAMES:
        folder.mkdir()
        with (folder / f"{name}.lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with without(folder, name) as unserved:
                assert not unserved
            discard(folder)
            assert is_at(lock, folder / f"{name}.lock")
            fcntl.flock(lock, fcntl.LOCK_UN)
            discard(folder)
            assert not is_at(lock, folder / f"{name}.lock")
        assert not folder.exists()


def test_a_folder_that_vanishes_is_made_again_for_who_starts_there(tmp_path: Path) -> None:
    lock = tmp_path / "run" / "slices.lock"
    with open_in_folder(lock) as first:
        discard(lock.parent)
        assert not list(tmp_path.iterdir())
        with open_in_folder(lock) as second:
            assert (is_at(first, lock), is_at(second, lock)) == (False, True)
