"""What it costs one process to watch 1,000 runs on a real Kubernetes control plane, as Airflow's triggerer does.

The JobSets are those of examples/gke.yaml. Once they are there the controllers are stopped and statuses are written by
hand: for the API and for whoever looks that is the same, and no pods are needed. A process of its own, with the
launcher's service account, polls every run each interval through the observer and the state function; one run in a
hundred has a slice less, and is looked at in detail. Meanwhile statuses change; how late each change is seen is the
lag, of which two intervals are the most: one until the cluster is asked, one until the run asks.
Prints a table and, last, one JSON object: `value` is the cores that the watching process uses.

    python benchmarks/observer.py [--runs 1000] [--minutes 3] [--interval 15]        # after `make controlplane`
"""

from __future__ import annotations

import argparse
import heapq
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastic_tpu.platforms.gke import names
from rich.console import Console
from rich.table import Table

CORES, MEMORY = 1.0, 300.0  # the goals: cores, MB
ROOT = Path(__file__).parent.parent


def watch(kubeconfig: str, namespace: str, runs: int, interval: float, minutes: float) -> None:
    """The process that is measured. Prints what it saw, as JSON."""
    from elastic_tpu.platforms.gke.api.cluster import Cluster
    from elastic_tpu.platforms.gke.api.credentials import api_client
    from elastic_tpu.platforms.gke.api.observer import observer_of
    from elastic_tpu.platforms.gke.status import state
    from elastic_tpu.runs.spec.run_spec import Gke

    client = api_client(Gke(kubeconfig=kubeconfig))
    cluster = Cluster(client, namespace)
    observer = observer_of(cluster, interval)
    calls: list[float] = []
    pool = client.rest_client.pool_manager
    ask = pool.request

    def counted(*arguments: Any, **more: Any) -> Any:
        calls.append(time.monotonic())
        return ask(*arguments, **more)

    pool.request = counted
    last: dict[str, int] = {}
    seen: list[tuple[str, int, float]] = []

    late: list[float] = []

    def poll(name: str, due: float) -> None:
        jobset = observer.jobset(name)
        assert jobset is not None, f"{name} is there, and was not seen"
        pods, events = [], []
        if state.needs_detail(jobset):
            pods, events = cluster.list_pods(f"{names.RUN_ID}={name}"), observer.events(name)
        look = state.look(jobset, pods, events, datetime.now(UTC))
        assert look.observation.state == "running", look
        restarts = jobset["status"]["restarts"]
        if last.get(name) != restarts:
            last[name] = restarts
            seen.append((name, restarts, time.monotonic()))
        late.append(time.monotonic() - due)

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    began = time.monotonic()
    # Each run at its own moment of the interval, as stages that were started one by one.
    due = [(began + interval * i / runs, run_name(i)) for i in range(runs)]
    heapq.heapify(due)
    warm_until, until = began + 2 * interval, began + 2 * interval + 60 * minutes
    cpu_before, measured = 0.0, False
    with ThreadPoolExecutor(32) as threads:
        pending = []
        while (now := time.monotonic()) < until:
            if not measured and now >= warm_until:
                measured, cpu_before = True, cpu()
                print("WARM", flush=True)
            when, name = due[0]
            if when > now:
                time.sleep(min(when - now, until - now))
                continue
            heapq.heapreplace(due, (when + interval, name))
            pending = [task for task in pending if not _finished(task)]
            pending.append(threads.submit(poll, name, when))
        threads.shutdown(wait=False, cancel_futures=True)  # a machine too slow for it all is not waited for
        used, seconds = cpu() - cpu_before, time.monotonic() - warm_until
    result = {
        "cores": used / seconds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "calls_per_minute": 60 * sum(moment >= warm_until for moment in calls) / seconds,
        "polls_per_minute": 60 * len(late) / (time.monotonic() - began),
        "late_p99": statistics.quantiles(late, n=100, method="inclusive")[98],
        "seen": seen,
    }
    print(json.dumps(result), flush=True)


def _finished(task: Any) -> bool:
    """Whether it is over; raises what it raised."""
    if task.done():
        task.result()
    return bool(task.done())


def run_name(number: int) -> str:
    return f"bench-{number:04d}-00000000"


def manifests(runs: int, namespace: str) -> list[dict[str, Any]]:
    """JobSets as the product makes them."""
    from elastic_tpu.platforms.gke.manifests.manifest import jobset
    from elastic_tpu.runs.spec.load import read_spec
    from elastic_tpu.runs.spec.plan import make_plan

    spec = read_spec(str(ROOT / "examples" / "gke.yaml"), with_inputs=False)
    plan = make_plan(spec)
    text = json.dumps(jobset(spec, plan))
    made = [json.loads(text.replace(plan.run_id, run_name(number))) for number in range(runs)]
    for body in made:
        body["metadata"]["namespace"] = namespace
    return made


def status_of(body: dict[str, Any], restarts: int, lost: int) -> dict[str, Any]:
    """The status of a JobSet that runs, with this many slices lost."""
    jobs = [
        {"name": job["name"], "ready": job["replicas"], "active": job["replicas"], "failed": 0, "succeeded": 0}
        for job in body["spec"]["replicatedJobs"]
    ]
    jobs[1]["ready"] -= lost
    conditions = [
        {
            "type": "StartupPolicyCompleted",
            "status": "True",
            "reason": "AllReplicatedJobsStarted",
            "message": "started",
        },
        {"type": "Suspended", "status": "False", "reason": "ResumeJobs", "message": "resumed"},
    ]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "restarts": restarts,
        "replicatedJobsStatus": [{**job, "suspended": 0} for job in jobs],
        "conditions": [{**condition, "lastTransitionTime": now} for condition in conditions],
    }


class Bench:
    """The control plane's side: makes the JobSets and changes their statuses."""

    def __init__(self, plane: Any, namespace: str, runs: int) -> None:
        import kubernetes

        self._objects = kubernetes.client.CustomObjectsApi(plane.admin)
        self._where = ("jobset.x-k8s.io", "v1alpha2", namespace, "jobsets")
        self._bodies = manifests(runs, namespace)
        self._restarts = [0] * runs
        self.written: dict[tuple[str, int], float] = {}
        plane.kill("kube-controller-manager")  # without it no pods
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(self._create, self._bodies))
            plane.kill("jobset")
            list(threads.map(self.write, range(runs)))

    def _create(self, body: dict[str, Any]) -> None:
        self._objects.create_namespaced_custom_object(*self._where, body)

    def write(self, number: int) -> None:
        """One more restart, which is what the watcher will see."""
        self._restarts[number] += 1
        body, restarts = self._bodies[number], self._restarts[number]
        lost = int(number % 100 == 0)
        name = body["metadata"]["name"]
        change = {"status": status_of(body, restarts, lost)}
        self._objects.patch_namespaced_custom_object_status(*self._where, name, change)
        self.written[name, restarts] = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--watch", nargs=2, metavar=("KUBECONFIG", "NAMESPACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        watch(*options.watch, options.runs, options.interval, options.minutes)
        return

    from elastic_tpu.tests.controlplane.plane import ControlPlane

    with tempfile.TemporaryDirectory(prefix="elastic-tpu-bench-") as folder, ControlPlane(Path(folder) / "p") as plane:
        namespace = plane.namespace("bench")
        bench = Bench(plane, namespace, options.runs)
        print(f"{options.runs} JobSets made", file=sys.stderr)
        command = [
            sys.executable,
            __file__,
            "--watch",
            str(plane.kubeconfig("elastic-tpu-launcher", namespace)),
            namespace,
        ]
        command += ["--runs", str(options.runs), "--minutes", str(options.minutes), "--interval", str(options.interval)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout
            try:
                if watcher.stdout.readline().strip() != "WARM":
                    raise RuntimeError("the watcher ended early")
                # Each run once in the time, but for the end, which would not be seen any more.
                changing = time.monotonic() + 60 * options.minutes - 2 * options.interval - 5
                pause = max(0.0, changing - time.monotonic()) / options.runs
                begin, first = time.monotonic(), set(bench.written)
                for number in range(options.runs):
                    time.sleep(max(0.0, begin + number * pause - time.monotonic()))
                    bench.write(number)
                measured = json.loads(watcher.stdout.read())
            finally:
                watcher.kill()
    seen = {(name, restarts): moment for name, restarts, moment in measured.pop("seen")}
    changes = set(bench.written) - first
    lags = sorted(seen[change] - bench.written[change] for change in changes & seen.keys())
    report(options, measured, lags, len(changes))


def report(options: argparse.Namespace, measured: dict[str, float], lags: list[float], changes: int) -> None:
    p50, p99 = statistics.median(lags), statistics.quantiles(lags, n=100, method="inclusive")[98]
    figures = {
        "runs watched": f"{options.runs}, each every {options.interval:g} s",
        "cores": f"{measured['cores']:.3f} (goal {CORES:g})",
        "memory at its peak, MB": f"{measured['peak_mb']:.0f} (goal {MEMORY:g})",
        "API calls a minute": f"{measured['calls_per_minute']:.1f}",
        "polls a minute": f"{measured['polls_per_minute']:.0f}, p99 over {measured['late_p99']:.2f} s after its time",
        "lag of a change, s": f"p50 {p50:.1f}, p99 {p99:.1f}, longest {lags[-1]:.1f}",
        "changes seen": f"{len(lags)} of {changes}",
    }
    table = Table("one watching process", "measured")
    for what, figure in figures.items():
        table.add_row(what, figure)
    Console().print(table)
    good = measured["cores"] <= CORES and measured["peak_mb"] <= MEMORY and len(lags) == changes
    result = {
        "name": "observer",
        "value": round(measured["cores"], 4),
        "goal": CORES,
        "unit": "cores",
        "pass": good,
        "peak_mb": round(measured["peak_mb"], 1),
        "calls_per_minute": round(measured["calls_per_minute"], 1),
        "lag_p50": round(p50, 2),
        "lag_p99": round(p99, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
