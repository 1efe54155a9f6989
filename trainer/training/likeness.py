"""Whether what is trained is, bit for bit, what it would be without interruptions; if not, why."""

from __future__ import annotations

from collections.abc import Iterable

from ...runs.record import slice_counts
from ...runs.record.events import Event
from ...runs.record.recovery_events import IDENTICAL, RecoveryFinished


class Likeness:
    """What has made the weights others than those of an uninterrupted run, each with the step that it began at.

    A restore of a step before that undoes it.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._unlike: list[tuple[int, str]] = []
        for event in events:  # of earlier processes
            if event.kind == slice_counts.KIND and event.step is not None:
                told = event.data
                if told.get("active") != told.get("wanted"):
                    self._unlike.append((event.step, slice_counts.batch_words(told)))
            if event.kind != RecoveryFinished.KIND or event.step is None:
                continue
            finished = RecoveryFinished.of(event)
            self._undo(event.step - 1)
            if finished.result not in ("", IDENTICAL):
                self._unlike.append((event.step, finished.result))

    def begin(self, restored: int, why: Iterable[str]) -> None:
        """Training goes on after the restored step, -1 for none, in a way that is other for these reasons."""
        self._undo(restored)
        self._unlike += [(restored + 1, reason) for reason in why]

    def _undo(self, restored: int) -> None:
        self._unlike = [(step, why) for step, why in self._unlike if step <= restored]

    @property
    def result(self) -> str:
        """As in `RecoveryFinished`."""
        reasons = (part for _, why in self._unlike for part in why.split("; "))
        return "; ".join(dict.fromkeys(reasons)) or IDENTICAL
