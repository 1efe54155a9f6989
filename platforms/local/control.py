"""One question and one answer between a launcher and a supervisor: a JSON line each, over a Unix socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from ...runs.errors import Infrastructure, Unreachable


def control_socket(folder: Path, name: str) -> Path:
    """Where the supervisor of that name answers (`slices`, `export`, `evaluate`)."""
    return folder / f"{name}.ctl"


def ask(path: Path, call: str, timeout: float = 5.0, **arguments: Any) -> dict[str, Any] | None:
    """Ask a supervisor; None when there is none.

    Raises:
      Unreachable: it is there and has not answered in `timeout` seconds: it may be busy.
      Infrastructure: it refused, or the connection failed.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except (BlockingIOError, TimeoutError) as error:  # its queue is full
        connection.close()
        raise Unreachable(f"the supervisor at {path} is too busy for {call!r} ({error})") from error
    try:
        # Nothing is buffered on the way out: closing a buffer that a Ctrl-C left half written would write again, fail
        # on the closed connection, and so turn the interrupt into "there is no supervisor".
        with connection, connection.makefile("rb") as stream:
            connection.sendall(json.dumps({"call": call, **arguments}).encode() + b"\n")
            line = stream.readline()
    except (ConnectionResetError, BrokenPipeError):
        return None  # it ended with the question in its queue
    except TimeoutError as error:
        raise Unreachable(f"the supervisor at {path} has not answered {call!r} for {timeout:.0f} s") from error
    except OSError as error:
        raise Infrastructure(f"the supervisor at {path} did not answer {call!r} ({error})") from error
    if not line:
        return None  # it ended before it could answer
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise Infrastructure(f"the supervisor refused {call!r}: {answer['error']}")
    return answer
