"""Another user of this machine makes the folder that a run would use, or points a file of it elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_tpu.platforms.local.folder import lock_file, open_in_folder
from elastic_tpu.platforms.local.runtime_folder import make_runtime_folder, runtime_folder
from elastic_tpu.platforms.local.supervisors import Supervisors
from elastic_tpu.runs.errors import BadInput

ROOT = os.getuid() == 0
as_another = pytest.mark.skipif(not ROOT, reason="plays a second user, which only root can become")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shared /tmp."""
    with tempfile.TemporaryDirectory(prefix="et") as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def as_attacker(code: str, *args: str) -> None:
    """Run Python as a user who owns nothing here."""
    become = f"import os, sys; os.setgid(65534); os.setuid(65534); {code}"
    subprocess.run([sys.executable, "-c", become, *args], check=True)


@as_another
@pytest.mark.parametrize("level", ["user", "run"])
def test_a_folder_that_another_user_made_is_refused(base: Path, level: str) -> None:
    folder = base / f"elastic-tpu-{os.getuid()}"
    if level == "run":
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
    as_attacker("os.makedirs(sys.argv[1])", str(folder / "r" if level == "run" else folder))
    with pytest.raises(BadInput, match=r"belongs to another user|others may write"):
        runtime_folder("r")
    with pytest.raises(BadInput):
        make_runtime_folder(folder / "r")


@as_another
def test_a_link_that_another_user_put_there_is_refused(base: Path, tmp_path: Path) -> None:
    as_attacker("os.symlink(sys.argv[1], sys.argv[2])", str(tmp_path), str(base / f"elastic-tpu-{os.getuid()}"))
    with pytest.raises(BadInput, match="is no folder but a file or a link"):
        runtime_folder("r")


def test_a_folder_of_ones_own_is_closed_to_others(base: Path) -> None:
    folder = base / f"elastic-tpu-{os.getuid()}" / "r"
    folder.mkdir(mode=0o755, parents=True)
    folder.chmod(0o755)
    make_runtime_folder(runtime_folder("r"))
    assert [level.stat().st_mode & 0o777 for level in (folder.parent, folder)] == [0o700, 0o700]
    folder.chmod(0o777)
    with pytest.raises(BadInput, match="others may write into it"):
        runtime_folder("r")


def test_no_file_is_written_through_a_link(base: Path, tmp_path: Path) -> None:
    folder = runtime_folder("r")
    make_runtime_folder(folder)
    (tmp_path / "victim").write_text("of the user")
    (folder / "slices.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        open_in_folder(folder / "slices.lock")
    assert (tmp_path / "victim").read_text() == "of the user"


def test_a_lock_that_names_another_process_ends_nothing(base: Path) -> None:
    folder = runtime_folder("r")
    make_runtime_folder(folder)
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as victim:
        try:
            from elastic_tpu.platforms.local.processes import identify

            named = {"pid": victim.pid, "started": identify(victim.pid).started}
            lock_file(folder, "slices").write_text(json.dumps(named))
            assert Supervisors("/runs/r", folder).processes("slices", None) == []
        finally:
            victim.send_signal(signal.SIGKILL)


@as_another
def test_a_folder_that_another_user_makes_later_is_noticed_at_the_next_use(base: Path) -> None:
    supervisors = Supervisors("/runs/r", runtime_folder("r"))
    as_attacker("os.makedirs(sys.argv[1])", str(base / f"elastic-tpu-{os.getuid()}" / "r"))
    with pytest.raises(BadInput, match="belongs to another user"):
        supervisors.ask("slices", "state")
    with pytest.raises(BadInput, match="belongs to another user"):
        supervisors.processes("slices", None)
