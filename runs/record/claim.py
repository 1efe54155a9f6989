"""Who drives a run: one small file, ``claim.json``, changed only by conditional writes (contracts.md 4).

Orchestrators retry, crash, are drained and wake up again, so two of them may believe that a run is theirs. The claim
says which one is right: each take raises its term, and a driver acts only while the term in the file is its own. A
claim goes stale when its driver has not renewed it for its ``seconds``, by the storage's clock; nobody's own clock
matters. What may be done with a claim is decided by the functions here; driver.py carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import BadInput, NotFound
from ..spec.run_spec import format_duration
from ..store import records
from ..store.base import Store
from .paths import CLAIM


class Claim(BaseModel):
    """The content of claim.json.

    Attributes:
      holder: the orchestrator's run, or ``user@host``.
      instance: the process or try that acts for the holder: pod uid, try number, or ``pid:start time``.
      term: raised by one with each take.
      state: ``held`` = driven, ``stop`` = the trainer is to save and end, ``done`` = the last stage is over.
      nonce: new with each write, by which a writer knows its own.
      seconds: not renewed for so long, anybody may take it.
      by: who asked for the stop.
      grace: seconds that a trainer waits before it obeys the stop.
    """

    model_config = ConfigDict(frozen=True)

    holder: str = Field(min_length=1)
    instance: str
    term: int = Field(ge=1)
    state: Literal["held", "stop", "done"]
    nonce: str
    seconds: float = Field(gt=0)
    by: str | None = None
    grace: float = Field(default=0, ge=0)


@dataclass(frozen=True)
class Seen:
    """A claim as it was read, with its generation and the storage's time of its last write."""

    claim: Claim
    generation: str
    updated: datetime


@dataclass(frozen=True)
class Decision:
    """What a take does: ``take`` = next term, ``go_on`` = renew the present one, ``refuse``; and why."""

    act: Literal["take", "go_on", "refuse"]
    reason: str


def load_claim(data: bytes) -> Claim:
    """The claim in the bytes of its file.

    Raises:
      BadInput: they are no claim, or a newer version's.
    """
    try:
        return Claim.model_validate(records.load(data, CLAIM))
    except ValidationError as error:
        raise BadInput(f"{CLAIM} is not a claim ({error}); delete it if nobody drives the run") from error


def read_claim(store: Store) -> Seen | None:
    """The claim of the run in this store, or None when nobody has taken it yet."""
    try:
        item = store.read(CLAIM)
    except NotFound:
        return None
    return Seen(load_claim(item.data), item.generation, item.updated)


def is_stale(seen: Seen, now: datetime) -> bool:
    """Whether the claim was not renewed for its ``seconds``; `now` is the storage's clock."""
    return now - seen.updated >= timedelta(seconds=seen.claim.seconds)


def may_act(seen: Seen | None, holder: str, now: datetime, term: int | None = None) -> bool:
    """Whether release, or a stage's cancel, may act: while the claim is mine (in my term, if given), done or stale."""
    if seen is None or seen.claim.state == "done" or is_stale(seen, now):
        return True
    return seen.claim.holder == holder and term in (None, seen.claim.term)


def decide_take(
    seen: Seen | None, now: datetime, holder: str, instance: str, *, lives: bool, take_over: bool = False
) -> Decision:
    """Whether this holder and instance may take the claim.

    Args:
      seen: the claim as read, or None.
      now: the storage's clock, later than the reading.
      lives: the claim's instance is known to run on this very host.
      take_over: the user asked to take it from whoever has it.
    """
    if seen is None:
        return Decision("take", "nobody has driven this run")
    claim = seen.claim
    mine = claim.holder == holder
    if mine and claim.instance == instance and claim.state == "held":
        return Decision("go_on", "it is this instance's already")
    if claim.state == "done":
        return Decision("take", f"{claim.holder} was done")
    if is_stale(seen, now):
        return Decision("take", f"{claim.holder} has not renewed it for {format_duration(claim.seconds)}")
    if take_over:
        return Decision("take", f"taken over from {claim.holder}")
    if mine and claim.instance != instance and lives:
        return Decision("refuse", "that process still runs on this host; end it first, or take over with --take-over")
    if mine:
        undoes = " and undoes its stop" if claim.state == "stop" else ""
        return Decision("take", f"instance {instance} follows {claim.instance}{undoes}")
    stopping = "it is being stopped, " if claim.state == "stop" else ""
    return Decision(
        "refuse",
        f"{stopping}wait until it is over or has not renewed for {format_duration(claim.seconds)}, "
        "or take over with --take-over",
    )


def decide_stop(claim: Claim, by: str, grace: float, nonce: str) -> Claim | None:
    """The claim with a stop in it; None when there is nothing to write.

    A stop that is there already stays the same stop, since a trainer counts its grace from when it first saw it; only
    a shorter grace replaces it.
    """
    if claim.state == "done" or (claim.state == "stop" and claim.grace <= grace):
        return None
    return claim.model_copy(update={"state": "stop", "by": by, "grace": grace, "nonce": nonce})


def this_instance() -> str:
    """This process as the instance of a CLI holder: ``pid:start time``."""
    process = psutil.Process()
    return f"{process.pid}:{process.create_time():.2f}"


def process_lives(instance: str) -> bool:
    """Whether ``pid:start time`` is a process that runs on this host; any other kind of instance is not."""
    pid, _, started = instance.partition(":")
    try:
        process = psutil.Process(int(pid))
        # The system derives start times from its wall clock, so they drift a little when that is corrected.
        same = abs(process.create_time() - float(started)) < 5
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except (ValueError, OverflowError, psutil.NoSuchProcess):
        return False
    except psutil.AccessDenied:
        return True


def describe(seen: Seen, now: datetime) -> str:
    """Who drives the run and when it last said so, for a message."""
    claim, age = seen.claim, max(0.0, (now - seen.updated).total_seconds())
    return f"{claim.holder} (instance {claim.instance}, term {claim.term}), which renewed {age:.0f} s ago"
