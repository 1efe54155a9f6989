"""A container as a local process, and the environment and arguments that Kubernetes would give it.

No isolation: no image, no volumes, no probes. What a process leaves behind in its session ends with it, as everything
in a container ends with its first process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_SLOWEST = 30  # a container that ends again and again waits this many times the first delay at most
_WORDS = 2048  # bytes of a log that serve as the last words of a container
_LOOPBACK = "127.0.0.1"


class CannotConfigure(Exception):
    """The container's spec refers to what is not there; a kubelet waits for it."""


def stamp(when: datetime | None = None) -> str:
    """A time as the API writes it, now by default."""
    return (when or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def expand(text: str, env: dict[str, str]) -> str:
    """`$(NAME)` as Kubernetes does it: an unknown name stays, `$$` is a dollar."""
    return re.sub(r"\$\$|\$\(([^()]+)\)", lambda m: "$" if m[1] is None else env.get(m[1], m[0]), text)


def environment(
    container: Json, pod: Json, secret: Callable[[str, str], str | None], given: dict[str, str]
) -> dict[str, str]:
    """The variables of a container, in order over the `given` ones: a value may use those above it.

    Raises:
      CannotConfigure: a secret or its key is missing, or the source is none that this kubelet knows.
    """
    env = dict(given)
    for item in container.get("env", []):
        source = item.get("valueFrom")
        if source is None:
            env[item["name"]] = expand(item.get("value", ""), env)
        elif "fieldRef" in source:
            env[item["name"]] = field(pod, source["fieldRef"]["fieldPath"])
        elif "secretKeyRef" in source:
            ref = source["secretKeyRef"]
            value = secret(ref["name"], ref["key"])
            if value is not None:
                env[item["name"]] = value
            elif not ref.get("optional"):
                raise CannotConfigure(f"couldn't find key {ref['key']} in Secret {ref['name']}")
        else:
            raise CannotConfigure(f"{item['name']}: a kubelet of processes does not know {', '.join(source)}")
    return env


def field(pod: Json, path: str) -> str:
    """What the downward API says for `fieldPath`; a label or annotation that is missing is empty."""
    meta, spec = pod["metadata"], pod["spec"]
    if entry := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(meta.get(entry[1], {}).get(entry[2], ""))
    fields = {
        **{f"metadata.{name}": meta[name] for name in ("name", "namespace", "uid")},
        **{f"spec.{name}": spec.get(name, "") for name in ("nodeName", "serviceAccountName")},
        **dict.fromkeys(("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"), _LOOPBACK),
    }
    if path not in fields:
        raise CannotConfigure(f"a kubelet of processes does not know the field {path}")
    return str(fields[path])


class Container:
    """One container of a pod: started as often as its pod wants, with a log file a start."""

    def __init__(self, spec: Json, folder: Path, changed: Callable[[], None], *, init: bool = False) -> None:
        self.spec, self.name, self.init = spec, str(spec["name"]), init
        self.sidecar = init and spec.get("restartPolicy") == "Always"
        self.starts = 0
        self.code: int | None = None  # of the newest start; None before it, and while it runs
        self.due = 0.0  # not started again before this time of the monotonic clock
        self._folder, self._changed = folder, changed
        self._process: subprocess.Popen[bytes] | None = None
        self._blocked = ""
        self._started = self._ended = datetime.now(UTC)
        self._last: Json | None = None
        self._lock = threading.Lock()  # a pid is signalled or reaped, never one during the other

    @property
    def running(self) -> bool:
        return self._process is not None and self.code is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.code is None else None

    def log(self, start: int | None = None) -> Path:
        """The output of a start, 1 = the first; of the newest by default."""
        return self._folder / f"{self.name}.{self.starts if start is None else start}.log"

    def block(self, why: str) -> None:
        """It cannot be started now; its status says why."""
        self._blocked, self.due = why, time.monotonic() + 1

    def start(self, argv: list[str], env: dict[str, str], backoff: float) -> int:
        """Start it, for the first time or again, and return its session; its end calls `changed`.

        To be called by a thread that lives longer: the kernel ends the process with the thread that started it.
        """
        self._last = self._terminated() if self.code is not None else None
        self.starts += 1
        self._blocked, self._started = "", datetime.now(UTC)
        with self.log().open("wb") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                env=env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.code = None
        delay = min(backoff * 2 ** (self.starts - 1), _SLOWEST * backoff)
        threading.Thread(target=self._reap, args=(self._process, delay), daemon=True).start()
        return self._process.pid

    def signal(self, number: int) -> None:
        """Signal the process and all of its session's group, if it runs."""
        with self._lock:
            if self.pid is not None:
                os.killpg(self.pid, number)

    def status(self, again: bool) -> Json:
        """Its entry in the pod's status; `again`: it will be started again when it has ended."""
        last = self._last
        if self._blocked:
            state: Json = {"waiting": {"reason": "CreateContainerConfigError", "message": self._blocked}}
        elif not self.starts:
            state = {"waiting": {"reason": "PodInitializing"}}
        elif self.code is None:
            state = {"running": {"startedAt": stamp(self._started)}}
        elif again:
            state, last = {"waiting": {"reason": "CrashLoopBackOff"}}, self._terminated()
        else:
            state = self._terminated()
        image = self.spec.get("image", "")
        number = self._process.pid if self._process else 0
        return {
            "name": self.name,
            **{
                "image": image,
                "imageID": image,
                "containerID": f"process://{number}",
            },
            **{"state": state, "lastState": last or {}, "restartCount": max(self.starts - 1, 0)},
            "started": self.running,
            "ready": self.code == 0 if self.init and not self.sidecar else self.running,
        }

    def _terminated(self) -> Json:
        times = {"startedAt": stamp(self._started), "finishedAt": stamp(self._ended)}
        words = {"message": self._last_words()} if self.code else {}
        return {
            "terminated": {"exitCode": self.code, "reason": "Error" if self.code else "Completed", **times, **words}
        }

    def _last_words(self) -> str:
        """As much of the log as a kubelet puts into the status of a container that failed."""
        if self.spec.get("terminationMessagePolicy") != "FallbackToLogsOnError" or not self.log().exists():
            return ""
        return self.log().read_bytes()[-_WORDS:].decode(errors="replace")

    def _reap(self, process: subprocess.Popen[bytes], delay: float) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            os.killpg(process.pid, signal.SIGKILL)  # what it started; a zombie keeps its number
            code = process.wait()
            self._ended, self.due = datetime.now(UTC), time.monotonic() + delay
            self.code = code if code >= 0 else 128 - code
        self._changed()
