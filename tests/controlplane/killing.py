"""Launchers that are killed at a named effect: before it is carried out, or after it and before its answer is heard."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Literal

from elastic_tpu.tests.controlplane.cases import ClusterCase
from elastic_tpu.tests.controlplane.proxy import ApiFault, ApiProxy
from elastic_tpu.tests.support import Launcher
from elastic_tpu.tests.tools.fault_proxy import Fault, FaultProxy

# Where it is asked for (the bucket, or the cluster), method, path, body, and whether only once there is a JobSet.
Effect = tuple[Literal["bucket", "cluster"], str, str, bytes, bool]


def two_launchers(
    case: ClusterCase, proxy: ApiProxy, gcs_server: str, effect: Effect, carried_out: bool, seconds: float = 60.0
) -> Launcher:
    """Start a launcher, kill it at the effect, and let another one run to its end; what it said."""
    where, method, path, body, later = effect
    first: list[Launcher] = []
    killed = threading.Event()

    def kill() -> None:
        killed.set()
        first[0].process.kill()

    case.kubeconfig = case.plane.kubeconfig("elastic-tpu-launcher", case.namespace, proxy.url)
    case.write()
    with ExitStack() as stack:
        bucket = stack.enter_context(FaultProxy(gcs_server))
        faulty, kind = (bucket, Fault) if where == "bucket" else (proxy, ApiFault)
        when = {"after": kill} if carried_out else {"before": kill}
        fault = kind("lose" if carried_out else "reset", method, path, body, **when)
        if later:
            proxy.faults = [ApiFault("pass", "POST", "/jobsets", after=lambda: faulty.faults.append(fault))]
        else:
            faulty.faults = [fault]
        first.append(stack.enter_context(Launcher(case, log="first", STORAGE_EMULATOR_HOST=bucket.url)))
        first[0].wait(seconds)
        assert killed.is_set(), f"{effect} did not come: {first[0].output}"
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
