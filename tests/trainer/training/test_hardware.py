"""Which slices a trainer gets, what it refuses, and what it tells about them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
from elastic_tpu.runs.errors import BadInput, Unreachable
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.spec.load import check
from elastic_tpu.tests.fakes.slices import FakeSlices
from elastic_tpu.tests.fakes.store import MemoryStore
from elastic_tpu.tests.support import until
from elastic_tpu.tests.tools import small
from elastic_tpu.trainer.training import pathways
from elastic_tpu.trainer.training.hardware import SIMULATED, Hardware, SliceEvents, prepare
from elastic_tpu.trainer.training.train import _cpu_keys


def gke_run(**sections: Any) -> Run:
    return Run("gs://bucket/runs/small", MemoryStore(), check(small.gke(slices={"count": 2}, **sections)))


def tell_nobody(kind: str, **data: Any) -> None:
    pass


# ---- what is refused


def test_a_trainer_on_gke_must_be_in_the_head_pod() -> None:
    for environ in ({}, {"JAX_PLATFORMS": "cpu"}):
        with pytest.raises(BadInput, match=r"JAX_PLATFORMS: .*head pod"):
            prepare(gke_run(), tell_nobody, environ)


@pytest.mark.parametrize("images", ["", "0.12.0", "0.12", "0.12.0.1"])
def test_pathways_images_that_fit(images: str) -> None:
    pathways.check({"JAX_PLATFORMS": "proxy,cpu", "ELASTIC_TPU_PATHWAYS_JAX": images}, "0.12.0.1")


@pytest.mark.parametrize("images", ["0.9.0", "0.12.1", "0.1", "0.12.0.2", "latest"])
def test_pathways_images_for_another_jax(images: str) -> None:
    with pytest.raises(BadInput) as refusal:
        pathways.check({"JAX_PLATFORMS": "proxy", "ELASTIC_TPU_PATHWAYS_JAX": images}, "0.12.0.1")
    assert images in str(refusal.value)
    assert "0.12.0.1" in str(refusal.value)


@pytest.mark.parametrize("shape", ["", "2", "0x1", "2x", "2x1x1", "v6e-16"])
def test_what_cannot_simulate_a_slice(shape: str) -> None:
    with pytest.raises(BadInput, match=f"{SIMULATED}: .*2x1"):
        prepare(gke_run(), tell_nobody, {SIMULATED: shape})


# ---- what a process gets


def run_python(script: str, **environ: str) -> str:
    path = ":".join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environ},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


PRELUDE = """
    import logging
    logging.basicConfig(level=logging.WARNING)
    from elastic_tpu.tests.trainer.training.test_hardware import gke_run, tell_nobody
    from elastic_tpu.trainer.training.hardware import prepare
    hardware = prepare(gke_run(), tell_nobody)
"""


def test_simulated_slices_on_gke_have_vms_and_devices_and_say_what_they_are() -> None:
    script = """
        import jax
        from pathwaysutils.elastic import elastic
        devices = jax.devices()
        print("devices", [(d.slice_index, d.task_id) for d in devices])
        print("alive", sorted(elastic.get_active_slice_indices(elastic.get_slice_to_devices(devices))))
        print("hardware", hardware.simulated, hardware.slices.hold({0, 1}))
    """
    said = run_python(PRELUDE + script.replace("        ", "    "), **{SIMULATED: "2x1"})
    assert "devices [(0, 0), (0, 1), (1, 2), (1, 3)]" in said
    assert "alive []" in said  # no worker runs
    assert "hardware True frozenset()" in said
    assert "SIMULATED" in said


def test_real_slices_are_pathways() -> None:
    script = """
        import jax, pathwaysutils
        from jax._src import xla_bridge
        print("hardware", hardware.simulated, hardware.loss_timeout > 0)
        print("pathways", "proxy" in xla_bridge._backend_factories, xla_bridge.backends_are_initialized())
    """
    said = run_python(PRELUDE + script.replace("        ", "    "), JAX_PLATFORMS="proxy")
    assert "hardware False True" in said
    assert "pathways True False" in said
    assert "SIMULATED" not in said


def test_maxtext_is_told_of_cpu_devices_only_where_there_are_such() -> None:
    nothing: Any = None
    real, simulated = Hardware(nothing, 1.0, simulated=False), Hardware(nothing, 1.0, simulated=True)
    assert _cpu_keys(gke_run(), real) == {}
    told = _cpu_keys(gke_run(train={"maxtext": {"attention": "flash"}}), simulated)
    assert (told["hardware"], "attention" in told, "jax_cache_dir" in told) == ("cpu", False, True)
    assert _cpu_keys(gke_run(), simulated)["attention"] == "dot_product"


# ---- a loss while training


@pytest.mark.parametrize("simulated", [True, False])
def test_training_stops_by_itself_only_where_arrays_outlive_their_slice(simulated: bool) -> None:
    """Pathways may heal a preempted slice with no exception: its arrays are left alone, and training goes on."""
    import jax
    import jax.numpy as jnp
    from elastic_tpu.trainer.training.elastic import ElasticTraining

    slices = FakeSlices(gone=frozenset({1}))
    training = object.__new__(ElasticTraining)
    training._slices, training._hardware = slices, Hardware(slices, 1.0, simulated=simulated)
    state = {"state": {"weights": jnp.zeros(2)}}
    if simulated:
        with pytest.raises(jax.errors.JaxRuntimeError, match="DATA_LOSS: slice 1"):
            training._raise_if_lost(state)
    else:
        training._raise_if_lost(state)
    assert state["state"]["weights"].is_deleted() is simulated


# ---- what is told


def test_changes_become_events_in_order_though_the_storage_was_away() -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    away, waits = threading.Event(), threading.Event()

    def tell(kind: str, **data: Any) -> None:
        waits.set()
        assert away.wait(60)
        if data.get("slice") == 0:
            raise Unreachable("the bucket is gone")
        told.append((kind, data))

    events = SliceEvents(tell, 2, simulated=False)
    events("ready", None, "")
    assert waits.wait(60)
    events("lost", 0, "never told")
    events("lost", 1, "3 of 4 pods ready")  # nobody waits for the storage
    events("back", 1, "4 of 4 pods ready")
    away.set()
    until(lambda: len(told) == 3, "the events")
    assert told == [
        ("slice.ready", {"all": True, "slices": [0, 1]}),
        ("slice.lost", {"slice": 1, "how": "3 of 4 pods ready"}),
        ("slice.back", {"slice": 1, "how": "4 of 4 pods ready"}),
    ]


def test_events_of_simulated_slices_say_so() -> None:
    told: list[dict[str, Any]] = []
    SliceEvents(lambda kind, **data: told.append(data), 1, simulated=True)("lost", 0, "")
    until(lambda: told, "the event")
    assert told[0]["simulated"] is True
