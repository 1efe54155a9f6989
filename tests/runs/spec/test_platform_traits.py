"""What differs from platform to platform, as the spec sets it."""

from __future__ import annotations

from elastic_tpu.runs.spec.load import check
from elastic_tpu.tests.tools.small import document, gke

FAULTS = [{"slice": 1, "after_step": 20}]


def test_a_local_run_ends_itself_once_it_is_unclaimed_for_as_long_as_its_spec_says() -> None:
    traits = check(document(local={"unclaimed": "5m"})).traits
    assert (traits.claim_seconds, traits.ends_unclaimed, traits.launcher_limits) == (300.0, True, False)


def test_a_run_on_gke_is_looked_at_as_often_as_its_spec_says() -> None:
    traits = check(gke(gke={"interval": "40s"})).traits
    assert (traits.look_interval, traits.ends_unclaimed, traits.launcher_limits) == (40.0, False, True)


def test_only_simulated_slices_have_losses_to_rehearse() -> None:
    """A profile may serve both platforms."""
    local, other = check(document(local={"faults": FAULTS})), check(gke(local={"faults": FAULTS}))
    assert [fault.slice for fault in local.faults] == [1]
    assert other.faults == []
    assert (local.traits.simulated, other.traits.simulated) == (True, False)
