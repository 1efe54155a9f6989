"""Who drives a run: one small file, ``claim.json``, changed only by conditional writes (docs/contracts.md 4).

Orchestrators retry, crash, are drained and resume, so two processes may both act for one run. The claim decides between
them: each take raises the term, and a driver acts only while the term in the file is its own. A claim is stale when its
driver has not renewed it for ``seconds``, measured by the storage's clock; the clocks of the machines are not used.
The functions here decide what may be done with a claim; driver.py carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import Damaged, NotFound
from ..store import records
from ..store.base import Store
from ..units import format_duration, show_duration
from .paths import CLAIM


class Claim(BaseModel):
    """The content of claim.json.

    Attributes:
      holder: the orchestrator's run, or ``user@host``.
      instance: the process or try that acts for the holder: pod uid, try number, or ``pid:start time``.
      term: raised by one with each take.
      state: ``held`` = driven, ``stop`` = the trainer is to save and end, ``done`` = the last stage is over.
      nonce: new with each write; a writer recognises its own write by it.
      seconds: a claim that was not renewed for this long may be taken by any holder.
      by: who or what asked for the stop, as text for people; nothing is decided by it.
      by_holder: the holder that asked for the stop, exactly; empty if unknown, as in files of older versions.
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
    by_holder: str = ""
    grace: float = Field(default=0, ge=0)

    @property
    def asked_by(self) -> str:
        """Who asked for the stop, for a message."""
        return self.by or self.by_holder or self.holder


@dataclass(frozen=True)
class StoredClaim:
    """A claim as it was read, with its generation and the storage's time of its last write."""

    claim: Claim
    generation: str
    updated: datetime


@dataclass(frozen=True)
class TakeDecision:
    """What a take does: ``take`` = start the next term, ``go_on`` = renew the current one, ``refuse``; and why."""

    act: Literal["take", "go_on", "refuse"]
    reason: str


def load_claim(data: bytes) -> Claim:
    """The claim in the bytes of its file.

    Raises:
      Damaged: they are not a claim; the cure is named.
      BadInput: a newer version wrote it.
    """
    try:
        return Claim.model_validate(records.load(data, CLAIM))
    except (Damaged, ValidationError) as error:
        why = records.wrong_fields(error) if isinstance(error, ValidationError) else error
        raise Damaged(f"{CLAIM} is not a claim ({why}); delete it if nobody drives the run") from error


def read_claim(store: Store) -> StoredClaim | None:
    """The claim of the run in this store, or None when nobody has taken it yet."""
    try:
        item = store.read(CLAIM)
    except NotFound:
        return None
    return StoredClaim(load_claim(item.data), item.generation, item.updated)


def is_stale(stored: StoredClaim, now: datetime) -> bool:
    """Whether the claim was not renewed for its ``seconds``; `now` is the storage's clock."""
    return now - stored.updated >= timedelta(seconds=stored.claim.seconds)


def may_act(stored: StoredClaim | None, holder: str, now: datetime, term: int | None = None) -> bool:
    """Whether a release or a stage's cancel may act: the claim is the holder's (in `term`, if given), done or stale."""
    if stored is None or stored.claim.state == "done" or is_stale(stored, now):
        return True
    return stored.claim.holder == holder and term in (None, stored.claim.term)


def decide_take(
    stored: StoredClaim | None, now: datetime, holder: str, instance: str, *, lives: bool, take_over: bool = False
) -> TakeDecision:
    """Whether this holder and instance may take the claim.

    Args:
      stored: the claim as read, or None.
      now: the storage's clock, read after the claim.
      lives: the process that the claim names as its instance is known to run on this host.
      take_over: the user asked to take the claim from whoever has it.
    """
    if stored is None:
        return TakeDecision("take", "nobody has driven this run")
    claim = stored.claim
    mine = claim.holder == holder
    if mine and claim.instance == instance and claim.state == "held":
        return TakeDecision("go_on", "this instance holds it already")
    if claim.state == "done":
        return TakeDecision("take", f"{claim.holder} was done")
    if is_stale(stored, now):
        return TakeDecision("take", f"{claim.holder} has not renewed it for {format_duration(claim.seconds)}")
    if take_over:
        return TakeDecision("take", f"taken over from {claim.holder}")
    if mine and claim.instance != instance and lives:
        cure = "end it first, or take over with --take-over"
        return TakeDecision("refuse", f"that process still runs on this host; {cure}")
    if mine:
        undoes = " and undoes its stop" if claim.state == "stop" else ""
        return TakeDecision("take", f"instance {instance} follows {claim.instance}{undoes}")
    stopping = "it is being stopped, " if claim.state == "stop" else ""
    return TakeDecision(
        "refuse",
        f"{stopping}wait until it is over or has not renewed for {format_duration(claim.seconds)}, "
        "or take over with --take-over",
    )


def why_stop_stands(
    stored: StoredClaim | None, now: datetime, holder: str, instance: str, *, first: bool, take_over: bool = False
) -> str | None:
    """Why a stage of this holder must not undo the stop in the claim by a take; None when no stop is in the way.

    An instance never undoes a stop of what it drives itself. A stop with no grace that was asked for by anybody but the
    holder stands as well, unless it is stale, the user takes over, or the stage is the `first` of a pipeline. Whether a
    claim of another holder may be taken is decided by `decide_take` alone.

    Args:
      now: the storage's clock, read after the claim.
      first: the stage starts a pipeline (provision).
      take_over: the user asked to take the claim from whoever has it.
    """
    if stored is None or stored.claim.state != "stop" or stored.claim.holder != holder:
        return None
    claim = stored.claim
    stands = f"stop asked for by {claim.asked_by}; nothing more is started"
    if claim.instance == instance:
        return stands
    if first or take_over or claim.grace or claim.by_holder == holder or is_stale(stored, now):
        return None
    return f"{stands}; to go on, run the pipeline from provision"


def decide_stop(claim: Claim, by_holder: str, by: str, grace: float, nonce: str) -> Claim | None:
    """The claim with a stop in it; None when there is nothing to write.

    An earlier stop is left as it is, because a trainer counts the grace from its first look at that stop. Two things
    change it: a shorter grace, and a person who asks for what so far only the holder's own try asked for, which the
    holder's next try would undo. A person's stop remains that person's.
    """
    if claim.state == "done":
        return None
    if claim.state == "stop":
        by_person = claim.by_holder != claim.holder
        if claim.grace <= grace and (by_person or by_holder == claim.holder):
            return None
        grace = min(grace, claim.grace)
        if by_person and by_holder == claim.holder:
            by, by_holder = claim.by or claim.by_holder, claim.by_holder
    stop = {"state": "stop", "by": by, "by_holder": by_holder, "grace": grace, "nonce": nonce}
    return claim.model_copy(update=stop)


def this_instance() -> str:
    """This process as the instance of a CLI holder: ``pid:start time``."""
    process = psutil.Process()
    return f"{process.pid}:{process.create_time():.2f}"


def process_lives(instance: str) -> bool:
    """Whether ``pid:start time`` is a process that runs on this host; False for any other kind of instance."""
    pid, _, started = instance.partition(":")
    try:
        process = psutil.Process(int(pid))
        # The system computes start times from its wall clock, so they shift a little when that clock is corrected.
        same = abs(process.create_time() - float(started)) < 5
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except (ValueError, OverflowError, psutil.NoSuchProcess):
        return False
    except psutil.AccessDenied:
        return True


def process_is_gone(claim: Claim, host: str) -> bool:
    """Whether the claim's driver is a command line on this host whose process has ended; False if that is not known."""
    return claim.holder.endswith(f"@{host}") and not process_lives(claim.instance)


def describe(stored: StoredClaim, now: datetime) -> str:
    """Who drives the run and when the claim was last renewed, for a message."""
    claim, age = stored.claim, max(0.0, (now - stored.updated).total_seconds())
    return f"{claim.holder} (instance {claim.instance}, term {claim.term}), which renewed {show_duration(age)} ago"
