"""What a slice consists of: from ``v6e-16``, or a machine type and a topology, to chips, VMs and JAX devices.

One table (tpu_table.yaml, which names its sources) and three rules give every figure. The number of VMs is computed
and never asked for: GKE takes minutes to refuse a node pool whose size does not fit its topology.

* chips = product of the topology; VMs = chips / chips of one machine.
* The number in an accelerator name counts chips (v5e, v6e) or TensorCores (v4, v5p, tpu7x): ``v5p-8`` has 4 chips.
* A node pool of one VM must be created without a topology, one of several VMs with it; tpu7x takes it by a workload
  policy.

``sim-<VMs>x<devices a VM>`` (``sim-1x2``) is a simulated slice of the local platform.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from math import prod
from pathlib import Path
from typing import Literal

from ..errors import BadInput, Problem

Placement = Literal["none", "topology", "workload_policy"]

SIMULATED = "sim"
MAX_SIMULATED_DEVICES = 256
"""Devices that one simulated slice may have: more would exhaust the memory of the machine."""


@dataclass(frozen=True)
class SliceShape:
    """What one slice is made of; counts are per slice unless they say otherwise."""

    generation: str
    """v4, v5e, v5p, v6e, tpu7x, or ``sim``."""
    accelerator: str
    """Canonical name as the cloud writes it, e.g. ``v5litepod-16``."""
    topology: str
    chips: int
    vms: int
    chips_per_vm: int
    devices: int
    """JAX devices: one a chip, two on tpu7x."""
    machine_type: str
    """Empty for a simulated slice, like the GKE label and the Pathways type."""
    gke_accelerator_label: str
    pathways_instance_type: str
    """E.g. ``tpuv6e:4x4``; empty where Pathways has none (machines of one chip)."""
    hbm_gib_per_chip: float
    """0 for a simulated slice: its devices share the machine's memory."""
    placement: Placement
    """How the topology of the node pool is given to GKE."""

    @property
    def multi_host(self) -> bool:
        """Whether the slice has several VMs."""
        return self.vms > 1

    @property
    def simulated(self) -> bool:
        """Whether this is a slice of the local platform."""
        return self.generation == SIMULATED

    @property
    def devices_per_vm(self) -> int:
        """JAX devices of one VM."""
        return self.devices // self.vms


@dataclass(frozen=True)
class _Machine:
    name: str
    chips_per_vm: int
    topologies: tuple[str, ...]  # empty: every topology of its size or larger
    pathways: str

    def serves(self, topology: str) -> bool:
        if self.topologies:
            return topology in self.topologies
        return _chips(topology) >= self.chips_per_vm


@dataclass(frozen=True)
class _Generation:
    key: str
    name: str
    aliases: tuple[str, ...]
    gke_accelerator_label: str
    name_units_per_chip: int
    devices_per_chip: int
    hbm_gib_per_chip: float
    placement: Placement
    max_cubes: int  # 0: 2D, only the listed topologies exist
    machines: tuple[_Machine, ...]
    topologies: tuple[str, ...]

    def accelerator(self, chips: int) -> str:
        return f"{self.name}-{chips * self.name_units_per_chip}"

    def has(self, topology: str) -> bool:
        """Listed, or AxBxC of whole 4x4x4 cubes with A<=B<=C, within the largest slice."""
        if topology in self.topologies:
            return True
        dims = [int(size) for size in topology.split("x")]
        if len(dims) != 3 or dims != sorted(dims) or any(size % 4 for size in dims):
            return False
        return prod(dims) <= self.max_cubes * 4**3

    def shape(self, topology: str, machine: _Machine) -> SliceShape:
        chips = _chips(topology)
        vms = chips // machine.chips_per_vm
        return SliceShape(
            generation=self.key,
            accelerator=self.accelerator(chips),
            topology=topology,
            chips=chips,
            vms=vms,
            chips_per_vm=machine.chips_per_vm,
            devices=chips * self.devices_per_chip,
            machine_type=machine.name,
            gke_accelerator_label=self.gke_accelerator_label,
            pathways_instance_type=f"{machine.pathways}:{topology}" if machine.pathways else "",
            hbm_gib_per_chip=self.hbm_gib_per_chip,
            placement=self.placement if vms > 1 else "none",
        )


def resolve_slice(type: str | None, machine_type: str | None = None, topology: str | None = None) -> SliceShape:
    """The shape of one slice.

    Args:
      type: an accelerator name (``v6e-16``; ``v5e-16`` = ``v5litepod-16``; ``trillium-16``), a generation (``v6e``) if
        the topology is given as well, or ``sim-<VMs>x<devices a VM>``.
      machine_type: a GKE machine type, e.g. ``ct6e-standard-4t``; by default the one of 4 chips, or what there is.
      topology: e.g. ``4x4`` or ``2x2x2``; by default the usual one of that many chips.

    Raises:
      BadInput: unknown, impossible or contradictory; names the field and the nearest values that exist.
    """
    type = type.strip().lower() if type else None
    topology = topology.strip().lower() if topology else None
    if type and re.match(rf"{SIMULATED}\b", type):
        return _simulated(type, machine_type, topology)
    generation, chips = _parse_type(type, topology) if type else (_generation_of(machine_type), None)
    machines = _machines(generation, machine_type)
    if topology is None and chips is None and len(machines) == 1 and len(machines[0].topologies) == 1:
        topology = machines[0].topologies[0]  # a machine that is a whole slice by itself
    if topology is None:
        topology = _default_topology(generation, machines, chips)
    _check_topology(generation, topology, chips, type)
    for machine in machines:
        if machine.serves(topology):
            return generation.shape(topology, machine)
    able = [machine.name for machine in generation.machines if machine.serves(topology)]
    raise _bad("slices.machine_type", machine_type, f"does not serve topology {topology}; {_choose(able)}")


def one_host(shape: SliceShape) -> SliceShape:
    """The slice that one machine of this kind is by itself, e.g. 2x2 for ``ct6e-standard-4t``."""
    generation = _generation_of(shape.machine_type)
    (machine,) = _machines(generation, shape.machine_type)
    for topology in generation.topologies:
        if machine.serves(topology) and _chips(topology) == machine.chips_per_vm:
            return generation.shape(topology, machine)
    raise _bad("slices.machine_type", shape.machine_type, "is never a slice by itself; take another type")


def _simulated(type: str, machine_type: str | None, topology: str | None) -> SliceShape:
    problems = [
        Problem(f"slices.{field}", value, f"a simulated slice has none, {type!r} is enough; remove it")
        for field, value in (("machine_type", machine_type), ("topology", topology))
        if value
    ]
    match = re.fullmatch(rf"{SIMULATED}-(\d+)x(\d+)", type)
    vms, per_vm = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < vms * per_vm <= MAX_SIMULATED_DEVICES:
        cure = f"a simulated slice is sim-<VMs>x<devices a VM>, at most {MAX_SIMULATED_DEVICES} devices; e.g. sim-1x2"
        problems.append(Problem("slices.type", type, cure))
    if problems:
        raise BadInput(problems)
    return SliceShape(
        generation=SIMULATED,
        accelerator=f"{SIMULATED}-{vms}x{per_vm}",
        topology=f"{vms}x{per_vm}",
        chips=vms * per_vm,
        vms=vms,
        chips_per_vm=per_vm,
        devices=vms * per_vm,
        machine_type="",
        gke_accelerator_label="",
        pathways_instance_type="",
        hbm_gib_per_chip=0.0,
        placement="none",
    )


def _parse_type(type: str, topology: str | None) -> tuple[_Generation, int | None]:
    """Generation and chips of an accelerator name; chips is None when only the generation is named."""
    by_name = {alias: generation for generation in _table() for alias in _names(generation)}
    if type in by_name:
        return by_name[type], None
    stem, _, number = type.rpartition("-")
    if stem not in by_name or not number.isdigit():
        close = get_close_matches(stem or type, by_name, n=2, cutoff=0.7)
        if close:
            size = number if number.isdigit() else "<size>"
            raise _bad("slices.type", type, f"no such slice; {_choose([f'{name}-{size}' for name in close])}")
        known = ", ".join(generation.key for generation in _table())
        raise _bad("slices.type", type, f"no such TPU generation; there are {known}, and sim-1x2 on this machine")
    generation, units = by_name[stem], int(number)
    chips, rest = divmod(units, generation.name_units_per_chip)
    sizes = {_chips(listed) for listed in generation.topologies}
    # With an explicit topology the number need not be a usual size; `_check_topology` compares the two.
    if rest or (topology is None and chips not in sizes):
        counted = "TensorCores" if generation.name_units_per_chip > 1 else "chips"
        near = [f"{stem}-{size * generation.name_units_per_chip}" for size in _nearest(chips, sizes)]
        note = f" (the number counts {counted})" if counted == "TensorCores" else ""
        raise _bad("slices.type", type, f"no such slice; nearest: {', '.join(near)}{note}")
    return generation, chips


def _generation_of(machine_type: str | None) -> _Generation:
    if not machine_type:
        raise _bad("slices.type", None, "is required: an accelerator, e.g. v6e-16, or machine_type and topology")
    by_machine = {machine.name: generation for generation in _table() for machine in generation.machines}
    if machine_type not in by_machine:
        close = get_close_matches(machine_type, by_machine, n=3, cutoff=0.5)
        raise _bad("slices.machine_type", machine_type, f"no TPU machine; {_choose(close or list(by_machine))}")
    return by_machine[machine_type]


def _machines(generation: _Generation, machine_type: str | None) -> Sequence[_Machine]:
    """The machines to choose from, in the order of preference: the user's, or all of the generation."""
    if not machine_type:
        return generation.machines
    chosen = [machine for machine in generation.machines if machine.name == machine_type]
    if not chosen:
        names = [machine.name for machine in generation.machines]
        raise _bad("slices.machine_type", machine_type, f"not a machine of {generation.key}; {_choose(names)}")
    return chosen


def _default_topology(generation: _Generation, machines: Sequence[_Machine], chips: int | None) -> str:
    for listed in generation.topologies:
        if _chips(listed) == chips:
            return listed
    served = [listed for listed in generation.topologies if any(machine.serves(listed) for machine in machines)]
    shown = ", ".join(served[:6]) + (", ..." if len(served) > 6 else "")
    raise _bad("slices.topology", None, f"is required, because nothing else gives the size; one of {shown}")


def _check_topology(generation: _Generation, topology: str, chips: int | None, type: str | None) -> None:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)+", topology):
        raise _bad("slices.topology", topology, f"not a topology; write it as {generation.topologies[-1]}")
    if not generation.has(topology):
        ordered = "x".join(sorted(topology.split("x"), key=int))
        near = [ordered] if generation.has(ordered) else _nearest_topologies(generation, _chips(topology))
        raise _bad("slices.topology", topology, f"{generation.key} has no such topology; nearest: {', '.join(near)}")
    if chips is not None and _chips(topology) != chips:
        cure = f"has {_chips(topology)} chips, but type {type!r} has {chips}; remove one of the two"
        raise _bad("slices.topology", topology, cure)


def _nearest_topologies(generation: _Generation, chips: int) -> list[str]:
    sizes = _nearest(chips, {_chips(listed) for listed in generation.topologies})
    return [next(listed for listed in generation.topologies if _chips(listed) == size) for size in sizes]


def _nearest(wanted: int, sizes: Iterable[int]) -> list[int]:
    """The size itself if it exists, else its neighbours below and above."""
    ordered = sorted(sizes)
    below = [size for size in ordered if size <= wanted][-1:]
    above = [size for size in ordered if size > wanted][:1]
    return below if below == [wanted] else below + above


def _names(generation: _Generation) -> tuple[str, ...]:
    return (generation.key, generation.name, *generation.aliases)


def _chips(topology: str) -> int:
    return prod(int(size) for size in topology.split("x"))


def _choose(names: Sequence[str]) -> str:
    return f"use {names[0]}" if len(names) == 1 else f"one of {', '.join(names)}"


def _bad(path: str, value: object, cure: str) -> BadInput:
    return BadInput([Problem(path, value, cure)])


@cache
def _table() -> tuple[_Generation, ...]:
    import yaml  # here: most importers of this module never resolve a slice

    raw = yaml.safe_load(Path(__file__).with_name("tpu_table.yaml").read_text(encoding="utf-8"))
    return tuple(
        _Generation(
            key=key,
            max_cubes=entry.pop("max_cubes", 0),
            hbm_gib_per_chip=float(entry.pop("hbm_gib_per_chip")),
            aliases=tuple(entry.pop("aliases")),
            topologies=tuple(entry.pop("topologies")),
            machines=tuple(
                _Machine(
                    name=name,
                    chips_per_vm=machine["chips_per_vm"],
                    topologies=tuple(machine.get("topologies", ())),
                    pathways=machine.get("pathways", ""),
                )
                for name, machine in entry.pop("machines").items()
            ),
            **entry,
        )
        for key, entry in raw["generations"].items()
    )
