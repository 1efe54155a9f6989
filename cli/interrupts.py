"""What Ctrl-C, SIGTERM and a closed terminal are to `elastic-tpu run`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .display import Display


class Stopped(KeyboardInterrupt):
    """SIGTERM: whoever sends it wants an end."""


class HungUp(KeyboardInterrupt):
    """The terminal was closed."""


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM end the run in order, and a closed terminal (SIGHUP) leave it or end it, as Ctrl-C does."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Stopped if signum == signal.SIGTERM else HungUp

    before: list[tuple[signal.Signals, Any]] = [
        (number, signal.signal(number, interrupt))
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup: the run must outlive its terminal
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def ignoring_interrupts(display: Display) -> Iterator[None]:
    """Give the slices back whatever signal comes."""

    def say(signum: int, frame: FrameType | None) -> None:
        display.say("the slices are being given back; this is not interrupted")

    before: list[tuple[signal.Signals, Any]] = [
        (number, signal.signal(number, say)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
