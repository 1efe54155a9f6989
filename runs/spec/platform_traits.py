"""What other rooms must know of a platform without asking which one it is. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlatformTraits:
    """What differs from platform to platform; all times in seconds. Of a run: `RunSpec.traits`.

    Attributes:
      look_interval: between two looks of a launcher at its job.
      log_interval: between two looks at a log that a person follows.
      loss_interval: between two writes of the losses for the report.
      silent_after: without a heartbeat for so long, the report says that the trainer is not running.
      claim_seconds: not renewed for so long, a claim is stale and anybody may take the run.
      ends_unclaimed: whether a run whose claim is stale ends itself and gives its slices back.
      launcher_limits: whether the launcher counts `limits.queue`, `limits.start` and `limits.first_step`.
      simulated: whether the slices are simulated, so that no figure of the run is a TPU's.
    """

    look_interval: float
    log_interval: float
    loss_interval: float
    silent_after: float
    claim_seconds: float
    ends_unclaimed: bool
    launcher_limits: bool
    simulated: bool


def local_traits(unclaimed: float) -> PlatformTraits:
    """The local platform: looks cost nothing, and processes must not outlive whoever drives them by much.

    Args:
      unclaimed: `local.unclaimed`.
    """
    return PlatformTraits(
        look_interval=0.25,
        log_interval=0.5,
        loss_interval=1.0,
        silent_after=30.0,
        claim_seconds=unclaimed,
        ends_unclaimed=True,
        launcher_limits=False,
        simulated=True,
    )


def gke_traits(interval: float) -> PlatformTraits:
    """GKE: a look is a request to a cluster or a bucket, and a run goes on with nobody watching.

    Args:
      interval: `gke.interval`.
    """
    return PlatformTraits(
        look_interval=interval,
        log_interval=5.0,
        loss_interval=30.0,
        silent_after=300.0,
        claim_seconds=600.0,
        ends_unclaimed=False,
        launcher_limits=True,
        simulated=False,
    )
