"""A launcher is killed at each effect between intent and verdict; the next one adopts what is there, and nothing leaks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from elastic_tpu.tests.support import Launcher
from elastic_tpu.tests.tools.fault_proxy import Fault, FaultProxy

if TYPE_CHECKING:
    from elastic_tpu.tests.controlplane.cases import ClusterCase
    from elastic_tpu.tests.controlplane.proxy import ApiProxy

# What a launcher does, in this order: where it is asked for (the bucket, or the cluster), method, path, body.
EFFECTS = {
    "claim taken": ("bucket", "POST", "/o", b"claim.json"),
    "slices checked": ("bucket", "POST", "/o", b'"checked"'),
    "slices intended": ("bucket", "POST", "/o", b'"requested"'),
    "JobSet created": ("cluster", "POST", "/jobsets", b""),
    "JobSet recorded": ("bucket", "POST", "/o", b'"created"'),
    "first look": ("cluster", "GET", "/jobsets", b""),
    "JobSet deleted": ("cluster", "DELETE", "/jobsets/", b""),
    "release recorded": ("bucket", "POST", "/o", b'"released"'),
}


@pytest.mark.parametrize("carried_out", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("effect", EFFECTS)
def test_the_next_launcher_adopts(
    case: ClusterCase,
    proxy: ApiProxy,
    gcs_server: str,
    effect: str,
    carried_out: bool,
) -> None:
    from elastic_tpu.tests.controlplane.proxy import ApiFault

    where, method, path, body = EFFECTS[effect]
    launchers: list[Launcher] = []
    hit: list[str] = []

    def kill() -> None:
        hit.append(effect)
        launchers[0].process.kill()

    how = {"after": kill} if carried_out else {"before": kill}
    kind = "lose" if carried_out else "reset"
    case.kubeconfig = case.plane.kubeconfig("elastic-tpu-launcher", case.namespace, proxy.url)
    case.write()
    with ExitStack() as stack:
        stack.enter_context(case.hardware())
        bucket = stack.enter_context(FaultProxy(gcs_server))
        if where == "bucket":
            bucket.faults = [Fault(kind, method, path, body, **how)]
        else:
            # The preflight looks at the JobSet once, and so does the launch, before there is one.
            skip = 3 if effect == "first look" else 0
            proxy.faults = [ApiFault(kind, method, path, body, skip=skip, **how)]
        launchers.append(stack.enter_context(Launcher(case, log="first", STORAGE_EMULATOR_HOST=bucket.url)))
        launchers[0].process.wait(60)
        assert hit, launchers[0].output
        second = stack.enter_context(Launcher(case, log="second", STORAGE_EMULATOR_HOST=bucket.url))
        assert second.wait() == 0, second.output
        case.nothing_left()
        result = case.record("result.json")
        assert result is not None
        assert (result["final_step"], result["attempts"]) == (59, 1)
        assert sum(m == "POST" and "/jobsets" in p and s == 201 for m, p, s in proxy.carried_out) == 1
        record, claim = case.record("slices.json"), case.claim
        assert record is not None
        assert claim is not None
        assert (record["state"], claim.claim.state) == ("released", "done")
