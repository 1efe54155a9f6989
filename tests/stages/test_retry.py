"""Waiting for a storage or a cluster that does not answer."""

from __future__ import annotations

import subprocess
import sys

import pytest
from elastic_tpu.runs.errors import BadInput, Unreachable
from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.stages.retry import until_answered, waits_for_answer


class Cluster:
    """Answers after some failures; its clock goes on only while somebody sleeps."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.now = 100.0
        self.told: list[str] = []

    def ask(self) -> str:
        if self.failures:
            self.failures -= 1
            raise Unreachable("the cluster does not answer")
        return "yes"

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_call_is_repeated_until_there_is_an_answer() -> None:
    cluster = Cluster(3)
    assert until_answered(cluster.ask, cluster.told.append, cluster.clock, cluster.sleep) == "yes"
    assert cluster.told == ["waiting for an answer: the cluster does not answer"] * 3
    assert cluster.now == 130.0


def test_the_limit_counts_from_the_first_call() -> None:
    cluster = Cluster(1000)
    with pytest.raises(Unreachable, match="the cluster does not answer"):
        until_answered(cluster.ask, cluster.told.append, cluster.clock, cluster.sleep, limit=30)
    assert cluster.now == 140.0
    assert len(cluster.told) == 4  # not before giving up: nothing is waited for then


@pytest.mark.parametrize("error", [BadInput("no"), KeyboardInterrupt()])
def test_other_errors_end_the_wait_at_once(error: BaseException) -> None:
    cluster = Cluster(0)

    def call() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        until_answered(call, cluster.told.append, cluster.clock, cluster.sleep)
    assert raised.value is error
    assert cluster.told == []


def test_a_poll_without_an_answer_says_what_it_waits_for() -> None:
    class Stage:
        @waits_for_answer
        def poll(self) -> Verdict:
            raise Unreachable("gs://bucket does not answer")

    assert Stage().poll() == Verdict("running", reason="waiting for an answer: gs://bucket does not answer")


def test_the_retry_library_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys; import elastic_tpu.stages.retry; sys.exit('tenacity' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
