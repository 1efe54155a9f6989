"""Where build.sh puts the control plane, and why there may be none. Light: every pytest process asks."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

HERE = Path(__file__).parent


def directory() -> Path:
    """The directory that build.sh prints, whether or not it has built."""
    key = hashlib.sha256((HERE / "go.sum").read_bytes() + (HERE / "build.sh").read_bytes()).hexdigest()[:16]
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elastic-tpu" / key


def missing() -> str:
    """Why a control plane cannot be started now; "" = it can."""
    return "" if directory().exists() else "there is no control plane: `make controlplane` builds it (needs Go)"


def impossible() -> str:
    """Why it cannot even be built; "" = it can, or is."""
    return "Go is not installed (https://go.dev/dl)" if missing() and shutil.which("go") is None else ""
