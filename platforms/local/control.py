"""How a launcher asks a supervisor: one request and one answer, a JSON line each, over a Unix socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from ...runs.errors import Infrastructure, Unreachable
from ...runs.units import show_duration


def control_socket(folder: Path, name: str) -> Path:
    """The socket of a supervisor, which is named `slices`, `export` or `evaluate`."""
    return folder / f"{name}.ctl"


def ask(path: Path, call: str, timeout: float = 5.0, **arguments: Any) -> dict[str, Any] | None:
    """Ask a supervisor.

    Args:
      call: state, launch, kill, cancel or release; `arguments` as `Supervisor.answer` takes them.
      timeout: seconds for connecting, and for the answer.

    Returns:
      The answer, or None if no supervisor is there.

    Raises:
      Unreachable: a supervisor is there and did not answer in time; it may be busy.
      Infrastructure: the supervisor refused the call, or the connection failed.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except (BlockingIOError, TimeoutError) as error:  # the socket's queue is full
        connection.close()
        raise Unreachable(f"the supervisor at {path} is too busy for {call!r} ({error})") from error
    try:
        # The request is sent unbuffered: a buffer that a Ctrl-C left half written would be flushed on closing, fail on
        # the closed connection, and turn the interrupt into "no supervisor is there".
        with connection, connection.makefile("rb") as stream:
            connection.sendall(json.dumps({"call": call, **arguments}).encode() + b"\n")
            line = stream.readline()
    except (ConnectionResetError, BrokenPipeError):
        return None  # the supervisor ended before it read the request
    except TimeoutError as error:
        raise Unreachable(f"the supervisor at {path} has not answered {call!r} for {show_duration(timeout)}") from error
    except OSError as error:
        raise Infrastructure(f"the supervisor at {path} did not answer {call!r} ({error})") from error
    if not line:
        return None  # the supervisor ended before it answered
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise Infrastructure(f"the supervisor refused {call!r}: {answer['error']}")
    return answer
