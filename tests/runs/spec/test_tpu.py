"""The TPU table and the rules over it: names, topologies, VMs, placement, and what is refused with which advice."""

from __future__ import annotations

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.spec.tpu import resolve_slice


@pytest.mark.parametrize(
    ("name", "accelerator", "topology", "chips", "vms", "devices", "machine_type"),
    [
        ("v4-8", "v4-8", "2x2x1", 4, 1, 4, "ct4p-hightpu-4t"),
        ("v4-512", "v4-512", "4x8x8", 256, 64, 256, "ct4p-hightpu-4t"),
        ("v5litepod-16", "v5litepod-16", "4x4", 16, 4, 16, "ct5lp-hightpu-4t"),
        ("v5e-16", "v5litepod-16", "4x4", 16, 4, 16, "ct5lp-hightpu-4t"),
        ("v5e-1", "v5litepod-1", "1x1", 1, 1, 1, "ct5lp-hightpu-1t"),
        ("v5p-8", "v5p-8", "2x2x1", 4, 1, 4, "ct5p-hightpu-4t"),
        ("v5p-128", "v5p-128", "4x4x4", 64, 16, 64, "ct5p-hightpu-4t"),
        ("v6e-4", "v6e-4", "2x2", 4, 1, 4, "ct6e-standard-4t"),
        ("v6e-8", "v6e-8", "2x4", 8, 2, 8, "ct6e-standard-4t"),
        ("V6E-256", "v6e-256", "16x16", 256, 64, 256, "ct6e-standard-4t"),
        ("trillium-16", "v6e-16", "4x4", 16, 4, 16, "ct6e-standard-4t"),
        ("tpu7x-8", "tpu7x-8", "2x2x1", 4, 1, 8, "tpu7x-standard-4t"),
        ("ironwood-128", "tpu7x-128", "4x4x4", 64, 16, 128, "tpu7x-standard-4t"),
    ],
)
def test_an_accelerator_name_gives_the_whole_shape(
    name: str, accelerator: str, topology: str, chips: int, vms: int, devices: int, machine_type: str
) -> None:
    shape = resolve_slice(name)
    assert (shape.accelerator, shape.topology, shape.chips, shape.vms) == (accelerator, topology, chips, vms)
    assert (shape.devices, shape.machine_type) == (devices, machine_type)
    assert shape.devices_per_vm * shape.vms == shape.devices
    assert shape.multi_host == (vms > 1)


# D02: the number of nodes of a pool is computed; a table of our own that was wrong cost others whole node pools.
@pytest.mark.parametrize(
    ("machine_type", "topology", "vms"),
    [
        ("ct4p-hightpu-4t", "2x2x2", 2),
        ("ct5p-hightpu-4t", "2x2x4", 4),
        ("ct5lp-hightpu-4t", "4x8", 8),
        ("ct6e-standard-4t", "4x4", 4),
        ("tpu7x-standard-4t", "4x4x4", 16),
        ("ct6e-standard-4t", "2x4", 2),
        ("ct6e-standard-8t", "2x4", 1),
        ("ct6e-standard-1t", "1x1", 1),
        ("ct5p-hightpu-4t", "8x8x64", 1024),  # in no list, allowed by the rule
    ],
)
def test_vms_follow_from_machine_type_and_topology(machine_type: str, topology: str, vms: int) -> None:
    shape = resolve_slice(None, machine_type, topology)
    assert shape.vms == vms
    assert shape.machine_type == machine_type
    assert shape.vms * shape.chips_per_vm == shape.chips


# D03: GKE answers 400 to a topology for a pool of one VM; D02: tpu7x takes it by a workload policy.
@pytest.mark.parametrize(
    ("name", "machine_type", "placement"),
    [
        ("v6e-4", None, "none"),
        ("v6e-16", None, "topology"),
        ("v6e-8", None, "topology"),
        ("v6e-8", "ct6e-standard-8t", "none"),
        ("v5p-8", None, "none"),
        ("v5p-16", None, "topology"),
        ("tpu7x-8", None, "none"),
        ("tpu7x-16", None, "workload_policy"),
    ],
)
def test_placement_depends_on_the_number_of_vms(name: str, machine_type: str | None, placement: str) -> None:
    assert resolve_slice(name, machine_type).placement == placement


@pytest.mark.parametrize(
    ("name", "machine_type", "label", "pathways", "hbm"),
    [
        ("v4-16", None, "tpu-v4-podslice", "tpuv4:2x2x2", 32),
        ("v5e-16", None, "tpu-v5-lite-podslice", "tpuv5e:4x4", 16),
        ("v5e-8", "ct5lp-hightpu-8t", "tpu-v5-lite-podslice", "tpuv5e1t:2x4", 16),
        ("v5p-16", None, "tpu-v5p-slice", "tpuv5:2x2x2", 95),
        ("v6e-16", None, "tpu-v6e-slice", "tpuv6e:4x4", 32),
        ("v6e-1", None, "tpu-v6e-slice", "", 32),
        ("tpu7x-16", None, "tpu7x", "tpu7x:2x2x2", 192),
    ],
)
def test_what_gke_and_pathways_call_it(
    name: str, machine_type: str | None, label: str, pathways: str, hbm: float
) -> None:
    shape = resolve_slice(name, machine_type)
    assert (shape.gke_accelerator_label, shape.pathways_instance_type) == (label, pathways)
    assert shape.hbm_gib_per_chip == hbm


def test_the_ways_to_say_the_same_slice_agree() -> None:
    said = [
        resolve_slice("v6e-16"),
        resolve_slice("v6e", topology="4X4"),
        resolve_slice(None, "ct6e-standard-4t", "4x4"),
        resolve_slice("v6e-16", "ct6e-standard-4t", "4x4"),
    ]
    assert len(set(said)) == 1


def test_an_unusual_topology_may_go_with_the_name() -> None:
    assert resolve_slice("v4-512", topology="4x4x16").topology == "4x4x16"
    assert resolve_slice("v4-1920", topology="4x4x60").vms == 240


def test_a_machine_that_is_a_whole_slice_needs_no_topology() -> None:
    assert resolve_slice(None, "ct6e-standard-8t").topology == "2x4"


def test_simulated_slices() -> None:
    shape = resolve_slice("sim-2x4")
    assert (shape.generation, shape.accelerator, shape.vms, shape.chips_per_vm) == ("sim", "sim-2x4", 2, 4)
    assert (shape.devices, shape.devices_per_vm, shape.chips) == (8, 4, 8)
    assert shape.simulated
    assert shape.multi_host
    assert not resolve_slice("v6e-16").simulated


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("v6e-12",), "slices.type: 'v6e-12', no such slice; nearest: v6e-8, v6e-16"),
        (("v6e-999",), "slices.type: 'v6e-999', no such slice; nearest: v6e-256"),
        (("v5p-7",), "slices.type: 'v5p-7', no such slice; nearest: v5p-8 (the number counts TensorCores)"),
        (("v6-16",), "slices.type: 'v6-16', no such slice; use v6e-16"),
        (
            ("h100-8",),
            "slices.type: 'h100-8', no such TPU generation; "
            "there are v4, v5e, v5p, v6e, tpu7x, and sim-1x2 on this machine",
        ),
        ((None,), "slices.type: is required: an accelerator, e.g. v6e-16, or machine_type and topology"),
        (
            ("v6e",),
            "slices.topology: is required, because nothing else gives the size; one of 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, "
            "...",
        ),
        (("v6e", None, "3x5"), "slices.topology: '3x5', v6e has no such topology; nearest: 2x4, 4x4"),
        (("v5e", None, "4x4x4"), "slices.topology: '4x4x4', v5e has no such topology; nearest: 8x8"),
        (("v5p", None, "8x4x4"), "slices.topology: '8x4x4', v5p has no such topology; nearest: 4x4x8"),
        (("v5p", None, "48x48x48"), "slices.topology: '48x48x48', v5p has no such topology; nearest: 16x20x28"),
        (("v6e", None, "4,4"), "slices.topology: '4,4', not a topology; write it as 16x16"),
        (
            ("v6e-16", None, "4x8"),
            "slices.topology: '4x8', has 32 chips, but type 'v6e-16' has 16; remove one of the two",
        ),
        (
            ("v6e-16", "ct5p-hightpu-4t"),
            "slices.machine_type: 'ct5p-hightpu-4t', not a machine of v6e; "
            "one of ct6e-standard-4t, ct6e-standard-1t, ct6e-standard-8t",
        ),
        (
            ("v6e-16", "ct6e-standard-8t"),
            "slices.machine_type: 'ct6e-standard-8t', does not serve topology 4x4; use ct6e-standard-4t",
        ),
        (
            (None, "ct6e-standard-4t", "1x1"),
            "slices.machine_type: 'ct6e-standard-4t', does not serve topology 1x1; use ct6e-standard-1t",
        ),
        (
            ("sim-0x2",),
            "slices.type: 'sim-0x2', a simulated slice is sim-<VMs>x<devices a VM>, at most 256 devices; e.g. sim-1x2",
        ),
        (
            ("sim-1x2", None, "2x2"),
            "slices.topology: '2x2', a simulated slice has none, 'sim-1x2' is enough; remove it",
        ),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest_that_does(given: tuple[str | None, ...], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        resolve_slice(*given)
    assert str(refused.value) == message


def test_all_that_is_wrong_with_a_simulated_slice_is_said_at_once() -> None:
    with pytest.raises(BadInput) as refused:
        resolve_slice("sim-99x99", "ct6e-standard-4t", "4x4")
    assert [problem.path for problem in refused.value.problems] == [
        "slices.machine_type",
        "slices.topology",
        "slices.type",
    ]
