"""An API server that fails its launcher: nothing is concluded from silence, nothing is made twice, nothing is left.

The launcher reaches the server through a proxy that fails on request; the trainer and the controllers reach it directly
and go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from elastic_tpu.runs.errors import ExitCode, Unreachable
from elastic_tpu.tests.support import command, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_tpu.runs.judge.verdict import Verdict
    from elastic_tpu.stages.stage import Stage
    from elastic_tpu.tests.controlplane.cases import ClusterCase
    from elastic_tpu.tests.controlplane.proxy import ApiProxy

ALWAYS = {"times": 0}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are given up in a moment, so that a server is away in half a second as it is in 30 by default."""
    import urllib3
    from elastic_tpu.platforms.gke.api.cluster import Cluster
    from elastic_tpu.platforms.gke.api.connection import RETRIES

    defaults = Cluster.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "retries", RETRIES.new(backoff_factor=0.02, backoff_jitter=0.0))
    monkeypatch.setitem(defaults, "timeout", urllib3.Timeout(connect=5.0, read=1.0))
    monkeypatch.setitem(defaults, "pauses", (0.05, 0.05))
    monkeypatch.setattr("elastic_tpu.platforms.gke.deletion._LOOK", 0.1)


@pytest.fixture
def behind(case: ClusterCase, proxy: ApiProxy) -> ClusterCase:
    case.through(proxy)
    return case


def fault(kind: str, method: str = "", path: str = "", **more: Any) -> Any:
    from elastic_tpu.tests.controlplane.proxy import ApiFault

    return ApiFault(kind, method, path, **more)  # type: ignore[arg-type]


def refusal(status: int, method: str = "", path: str = "", **more: Any) -> Any:
    return fault("refuse", method, path, status=status, **more)


def created(proxy: ApiProxy) -> int:
    """JobSets that were made."""
    return sum(m == "POST" and "/jobsets" in path and status == 201 for m, path, status in proxy.carried_out)


# -- in the middle of training ----------------------------------------------------------------------------------------


def test_the_api_server_is_away_while_training_goes_on_and_ends(behind: ClusterCase, proxy: ApiProxy) -> None:
    behind.trainer = ["--step-seconds", "0.03"]
    with behind.hardware():
        train = behind.launch()
        until(lambda: train.poll().phase == "running" and has_reached(behind, 1), "training, seen by the launcher")
        there = behind.jobset
        with proxy.away():
            seen = polled_until(train, lambda: behind.record("result.json") is not None)
        assert {verdict.phase for verdict in seen} == {"running"}, seen
        # An answer of the moment before may be good for the first of them.
        said = [verdict.reason for verdict in seen[1:] if verdict.reason]
        assert said
        assert all(proxy.url in words and "does not answer" in words for words in said), said
        assert not any("storage" in words for words in said)
        assert behind.watch(train).outcome == "complete"
        result = train.collect().values
        assert (result["attempts"], result["recoveries"]) == (1, 0)
        assert created(proxy) == 1
        record = behind.record("slices.json")
        assert record is not None
        assert there is not None
        assert record["uid"] == there["metadata"]["uid"]
        behind.released()


def has_reached(case: ClusterCase, step: int) -> bool:
    return (status := case.status) is not None and status.step >= step


def polled_until(train: Stage, done: Callable[[], bool]) -> list[Verdict]:
    seen: list[Verdict] = []

    def look() -> bool:
        seen.append(train.poll())
        return len(seen) > 3 and done()

    until(look, "enough looks")
    return seen


def test_no_bad_answer_is_taken_for_a_lost_run(behind: ClusterCase, proxy: ApiProxy) -> None:
    """One run, and every answer that is none in turn; `times` beyond the retries, or just once."""
    faults = {
        "connections are reset": (fault("reset", **ALWAYS), "does not answer"),
        "half an answer": (fault("cut", **ALWAYS), "does not answer"),
        "an answer that takes too long": (fault("pass", delay=1.3, **ALWAYS), "timed out"),
        "no login for long": (refusal(401, **ALWAYS), "does not accept these credentials"),
        "throttled": (refusal(429, **ALWAYS), "429"),
        "an error of the server": (refusal(500, **ALWAYS), "500"),
        "forbidden by somebody on the way": (refusal(403, **ALWAYS), "refused now"),
        "a login that expired": (refusal(401), ""),
        "throttled once": (refusal(429, headers={"Retry-After": "1"}), ""),
        "one burst": (refusal(503, times=3), ""),
        "a slow answer": (fault("pass", delay=0.7), ""),
    }
    behind.trainer = ["--step-seconds", "0.1"]
    behind.write(train={"steps": 400}, gke={"interval": "100ms"})
    with behind.hardware():
        train = behind.launch()
        until(lambda: train.poll().phase == "running" and has_reached(behind, 1), "training, seen by the launcher")
        for what, (one, words) in faults.items():
            proxy.faults = [one]
            seen = until(lambda: hit(proxy, train), what)
            assert seen.phase == "running", (what, seen)
            assert (words in seen.reason) if words else not seen.reason, (what, seen.reason)
            proxy.faults = []
            until(lambda: not train.poll().reason, f"the answer after {what}")
        with no_rights(behind):
            seen = until(lambda: (verdict := train.poll()).reason and verdict, "the refusal")
            assert seen.phase == "running"
            assert "may not get jobsets.jobset.x-k8s.io" in seen.reason
            assert "deploy/rbac.yaml" in seen.reason
        until(lambda: not train.poll().reason, "the answer after the rights are back")
        assert train.cancel(0.0, by="tests")
        verdict = behind.watch(train)
        assert (verdict.outcome, verdict.code) == ("cancelled", ExitCode.ENDED_ON_REQUEST)
        assert created(proxy) == 1
        behind.released()


def hit(proxy: ApiProxy, train: Stage) -> Verdict | None:
    """The verdict of a look that met the fault; None when a recent answer was good enough for it."""
    before = len(proxy.requests)
    verdict = train.poll()
    return verdict if len(proxy.requests) > before else None


@contextmanager
def no_rights(case: ClusterCase) -> Iterator[None]:
    where = ["rolebinding", "elastic-tpu-launcher", "-n", case.namespace]
    binding = json.loads(case.plane.kubectl("get", *where, "-o", "json").stdout)
    case.plane.kubectl("delete", *where)
    yield
    kept = {key: binding["metadata"][key] for key in ("name", "namespace")}
    case.plane.apply({**{k: binding[k] for k in ("apiVersion", "kind", "roleRef", "subjects")}, "metadata": kept})


# -- create and delete ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("create", "delete", "then", "waits"),
    [
        pytest.param(
            [fault("lose", "POST", "/jobsets")], [fault("lose", "DELETE")], [], (True, False), id="answer lost"
        ),
        pytest.param(
            [fault("lose-503", "POST", "/jobsets")],
            [fault("lose", "DELETE")],
            [refusal(503, times=12)],
            (True, True),
            id="answer lost, then nobody there",
        ),
        pytest.param(
            [fault("pass", "POST", "/jobsets", delay=1.3)],
            [fault("pass", "DELETE", delay=1.3)],
            [],
            (True, False),
            id="answer too late",
        ),
        pytest.param(
            [fault("reset", "POST", "/jobsets")], [fault("reset", "DELETE", times=2)], [], (True, False), id="not heard"
        ),
        pytest.param(
            [refusal(500, "POST", "/jobsets", times=2)],
            [refusal(500, "DELETE", times=4)],
            [],
            (True, False),
            id="errors",
        ),
        pytest.param(
            [refusal(429, "POST", "/jobsets", headers={"Retry-After": "1"}), refusal(401, "POST", "/jobsets")],
            [refusal(429, "DELETE", headers={"Retry-After": "1"}), refusal(401, "DELETE")],
            [],
            (False, False),
            id="throttled, and the login expires",
        ),
    ],
)
def test_what_is_not_answered_is_done_once_and_verified(
    behind: ClusterCase,
    proxy: ApiProxy,
    create: list[Any],
    delete: list[Any],
    then: list[Any],
    waits: tuple[bool, bool],
) -> None:
    """`then`: faults that begin once the first one has happened. `waits`: whether the one who waits is told."""
    following = lambda: proxy.faults.extend(then)  # noqa: E731
    behind.do("provision")
    train = behind.stage("train")
    proxy.faults = [replace(create[0], after=following), *create[1:]]
    told = behind.submit(train)
    assert bool(told) == waits[0], told
    assert not any("storage" in words for words in told), told
    assert not proxy.faults
    assert train.poll().phase == "starting"
    assert created(proxy) == 1

    release = behind.stage("release")
    proxy.faults = [replace(delete[0], after=following), *delete[1:]]
    told = behind.submit(release)
    assert bool(told) == waits[1], told
    assert not proxy.faults
    assert release.poll().outcome == "complete"
    behind.nothing_left()
    values = release.collect().values
    assert f"JobSet {behind.run_id}" in values["deleted"]
    assert values["left"] == ()
    record = behind.record("slices.json")
    assert record is not None
    assert record["state"] == "released"


def test_the_api_server_is_away_at_submit_and_at_release(behind: ClusterCase, proxy: ApiProxy) -> None:
    behind.do("provision")
    train = behind.stage("train")
    with proxy.away():
        with pytest.raises(Unreachable, match=r"Kubernetes API at .* does not answer") as caught:
            train.submit()
        assert caught.value.code == ExitCode.INFRASTRUCTURE
    behind.submit(train)
    assert created(proxy) == 1
    release = behind.stage("release")
    with proxy.away(), pytest.raises(Unreachable, match="does not answer"):
        release.submit()
    record = behind.record("slices.json")
    assert record is not None
    assert record["state"] == "created", "what could not be deleted is not called released"
    assert behind.jobset
    behind.released()


# -- listings ---------------------------------------------------------------------------------------------------------


def test_a_listing_that_expires_begins_again(behind: ClusterCase, proxy: ApiProxy) -> None:
    train = behind.launch()
    until(lambda: "no node for the pod" in train.poll().reason, "why it waits")
    proxy.faults = [refusal(410, "GET", "/pods"), refusal(410, "GET", "/events")]
    assert "no node for the pod" in until(lambda: met(proxy, train)).reason
    proxy.faults = [refusal(410, "GET", "/pods", **ALWAYS)]
    verdict = until(lambda: hit(proxy, train))
    assert (verdict.phase, "expired" in verdict.reason) == ("running", True), verdict
    proxy.faults = []
    until(lambda: train.poll().phase == "starting", "the next answer")
    behind.released()


def met(proxy: ApiProxy, train: Stage) -> Verdict | None:
    """The verdict of the look that used up all faults."""
    verdict = train.poll()
    return None if proxy.faults else verdict


# -- no login ---------------------------------------------------------------------------------------------------------


def test_a_login_that_is_not_accepted_is_named_with_its_cure(behind: ClusterCase) -> None:
    """By the real command."""
    behind.launch()
    login = behind.kubeconfig.read_text()
    behind.kubeconfig.write_text(login.replace("token: ", "token: no"))
    ended = command("release", behind.uri)
    assert ended.returncode == ExitCode.INFRASTRUCTURE, ended
    (line,) = [line for line in ended.stderr.splitlines() if line]
    assert line.startswith("error: the cluster does not accept these credentials")
    assert f"log in again for context 'plane' of {behind.kubeconfig}" in line
    assert "Traceback" not in ended.stdout
    assert behind.jobset
    behind.kubeconfig.write_text(login)
    behind.released()
