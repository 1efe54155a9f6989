"""Slices of several VMs: a worker for each, and the slice is lost with any of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from elastic_tpu.platforms.local.runtime_folder import runtime_folder
from elastic_tpu.platforms.local.slices import LocalSlices, worker_socket
from elastic_tpu.tests.support import until

RUN = f"vms-{uuid.uuid4().hex[:8]}"
Workers = dict[tuple[int, int], "subprocess.Popen[bytes]"]


def start(index: int, vm: int) -> subprocess.Popen[bytes]:
    """A worker as the program of a pod."""
    socket = worker_socket(runtime_folder(RUN), index, vm)
    program = [sys.executable, "-m", "elastic_tpu.platforms.local.worker", "--socket", str(socket)]
    return subprocess.Popen([*program, "--slice", str(index), "--vm", str(vm)])


@pytest.fixture
def workers() -> Iterator[Workers]:
    running = {(index, vm): start(index, vm) for index in range(2) for vm in range(2)}
    yield running
    for worker in running.values():
        worker.kill()
        worker.wait()
    shutil.rmtree(runtime_folder(RUN))


def test_a_slice_is_lost_with_any_of_its_vms(workers: Workers) -> None:
    slices = LocalSlices(RUN, 2, vms=2)
    until(lambda: slices.alive() == {0, 1}, "all workers")
    assert slices.hold({0, 1}) == {0, 1}
    workers[1, 1].kill()
    workers[1, 1].wait()
    until(lambda: slices.lost() == {1}, "the loss")
    assert slices.alive() == {0}
    assert slices.away() == {1: "its worker does not answer"}
    assert slices.hold({0, 1}) == {0}
    assert slices.away() == {}  # slice 1 is not held
    workers[1, 1] = start(1, 1)
    until(lambda: slices.alive() == {0, 1}, "the worker to be back")
    assert slices.lost() == frozenset()  # slice 1 is not held
    assert slices.hold({0, 1}) == {0, 1}
    slices.close()


def test_the_loss_of_a_vm_shows_though_it_is_back(workers: Workers) -> None:
    slices = LocalSlices(RUN, 2, vms=2)
    until(lambda: slices.hold({0, 1}) == {0, 1}, "all workers")
    workers[0, 0].kill()
    workers[0, 0].wait()
    workers[0, 0] = start(0, 0)
    until(lambda: slices.alive() == {0, 1}, "the worker to be back")
    assert slices.lost() == {0}
    slices.close()


def test_a_worker_of_another_vm_does_not_count(workers: Workers) -> None:
    slices = LocalSlices(RUN, 2, vms=2)
    until(lambda: slices.alive() == {0, 1}, "all workers")
    folder = runtime_folder(RUN)
    worker_socket(folder, 1, 0).rename(worker_socket(folder, 1, 1))
    assert slices.alive() == {0}
