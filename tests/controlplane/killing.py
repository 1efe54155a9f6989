"""Launchers that are killed at a named effect: before it is carried out, or after it and before its answer is heard."""

from __future__ import annotations

from contextlib import ExitStack

from elastic_tpu.tests.controlplane.cases import ClusterCase
from elastic_tpu.tests.controlplane.proxy import ApiFault, ApiProxy
from elastic_tpu.tests.support import Launcher
from elastic_tpu.tests.tools.fault_proxy import Fault, FaultProxy

# What a launcher does, in this order: where it is asked for (the bucket, or the cluster), method, path, body; and how
# many such requests come before. The preflight looks at the JobSet once, and so do the launch and the first submit.
EFFECTS = {
    "claim taken": ("bucket", "POST", "/o", b"claim.json", 0),
    "slices checked": ("bucket", "POST", "/o", b'"checked"', 0),
    "slices intended": ("bucket", "POST", "/o", b'"requested"', 0),
    "JobSet created": ("cluster", "POST", "/jobsets", b"", 0),
    "JobSet recorded": ("bucket", "POST", "/o", b'"created"', 0),
    "first look": ("cluster", "GET", "/jobsets", b"", 3),
    "JobSet deleted": ("cluster", "DELETE", "/jobsets/", b"", 0),
    "release recorded": ("bucket", "POST", "/o", b'"released"', 0),
}


def two_launchers(
    case: ClusterCase, proxy: ApiProxy, gcs_server: str, effect: str, carried_out: bool, seconds: float = 60.0
) -> Launcher:
    """Start a launcher, kill it at the effect, and let another one run to its end; what it said."""
    where, method, path, body, skip = EFFECTS[effect]
    first: list[Launcher] = []
    killed: list[str] = []

    def kill() -> None:
        killed.append(effect)
        first[0].process.kill()

    case.kubeconfig = case.plane.kubeconfig("elastic-tpu-launcher", case.namespace, proxy.url)
    case.write()
    with ExitStack() as stack:
        bucket = stack.enter_context(FaultProxy(gcs_server))
        faulty, kind = (bucket, Fault) if where == "bucket" else (proxy, ApiFault)
        when = {"after": kill} if carried_out else {"before": kill}
        faulty.faults = [kind("lose" if carried_out else "reset", method, path, body, skip=skip, **when)]
        first.append(stack.enter_context(Launcher(case, log="first", STORAGE_EMULATOR_HOST=bucket.url)))
        first[0].wait(seconds)
        assert killed, f"{effect} did not come: {first[0].output}"
        second = stack.enter_context(Launcher(case, log="second", STORAGE_EMULATOR_HOST=bucket.url))
        assert second.wait(seconds) == 0, second.output
        return second


def adopted(case: ClusterCase, proxy: ApiProxy, steps: int) -> None:
    """Assert that there was one JobSet ever, one trainer, a whole result, and that nothing is left."""
    case.nothing_left()
    result, record, claim = case.record("result.json"), case.record("slices.json"), case.claim
    assert result is not None
    assert record is not None
    assert claim is not None
    assert (result["final_step"], result["attempts"]) == (steps - 1, 1)
    assert sum(m == "POST" and "/jobsets" in p and s == 201 for m, p, s in proxy.carried_out) == 1
    assert (record["state"], claim.claim.state) == ("released", "done")
