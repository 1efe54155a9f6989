"""RunSpec: one YAML file that describes a run for every orchestrator.

A spec is read, merged over its profile, checked whole (every problem at once, each with field path, value and
cure) and resolved: defaults filled in, name templates expanded, local paths made absolute. The resolved model is
what `spec.yaml` of the run directory holds and what the spec hash covers (contracts.md 1).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    field_validator,
)

from . import gate, records

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: object) -> float:
    """Seconds from ``4h``, ``20m``, ``45s``, ``1.5d`` or a plain number of seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", str(value))
        if not match:
            raise ValueError("must be a duration such as 45s, 20m, 4h or 2d")
        seconds = float(match[1]) * _UNITS[match[2]]
    if not 0 < seconds < float("inf"):
        raise ValueError("must be a duration above zero")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest exact way to write a duration: 14400 -> ``4h``."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms" if (seconds * 1000) % 1 == 0 else f"{seconds}s"


Duration = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Label = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSection(_Section):
    """Who the run is: `<output>/<name>` is its directory."""

    name: Annotated[Name, StringConstraints(pattern=r"^[A-Za-z0-9{][A-Za-z0-9._{}-]*$", max_length=100)]
    output: Name
    labels: dict[str, Label] = Field(default_factory=dict)


class Slices(_Section):
    """TPU slices: an accelerator name (`v6e-16`, `sim-1x2`), or a machine type and a topology."""

    type: Name | None = None
    machine_type: Name | None = None
    topology: Name | None = None
    count: int = Field(ge=1)
    min: int | None = Field(default=None, ge=1)
    capacity: Literal["on_demand", "spot", "reservation", "flex_start"] = "on_demand"
    reservation: Name | None = None
    queue: Name | None = None

    @property
    def minimum(self) -> int:
        """Slices that training needs at least; all of them unless `min` says otherwise."""
        return self.count if self.min is None else self.min


class Model(_Section):
    """The model as MaxText names it, and its tokenizer (a Hugging Face folder)."""

    name: Name
    tokenizer: Name
    start_from: Name | None = None


class Data(_Section):
    """Files of the data sets; the suffix decides how they are read."""

    train: Name
    eval: Name | None = None
    text: Name = "text"


class Train(_Section):
    """How long, and MaxText's own keys for everything else."""

    steps: int = Field(ge=1)
    maxtext: dict[str, Any] = Field(default_factory=dict)


class Checkpoint(_Section):
    """A checkpoint every so many steps; how many are kept (two at least, so that a bad one has a fallback)."""

    every: int = Field(ge=1)
    keep: int = Field(default=3, ge=2)


class Recovery(_Section):
    """What the trainer recovers from by itself, and when it gives up."""

    wait_for_slices: Duration = 4 * 3600.0
    stalled_after: Duration = 20 * 60.0
    attempts_without_progress: int = Field(default=3, ge=1)
    head_restarts: int = Field(default=20, ge=0)
    storage_timeout: Duration = 30 * 60.0


class Limits(_Section):
    """How long each phase may last."""

    queue: Duration = 48 * 3600.0
    start: Duration = 45 * 60.0
    first_step: Duration = 30 * 60.0
    total: Duration = 21 * 86400.0


class Export(_Section):
    """The Hugging Face folder that comes out."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"


class Evaluate(_Section):
    """What is measured on the export, and what it must reach."""

    heldout: bool = True
    gate: list[str] = Field(default_factory=list)

    @field_validator("gate")
    @classmethod
    def _parse(cls, value: list[str]) -> list[str]:
        for text in value:
            gate.parse_gate(text)
        return value


class Secret(_Section):
    """A reference to a secret: a Kubernetes secret and key, or an environment variable of this machine."""

    secret: Name | None = None
    key: Name | None = None
    env: Name | None = None


class Fault(_Section):
    """A rehearsed slice loss: SIGKILL of the slice's worker once training is past a step."""

    slice: int = Field(ge=0)
    after_step: int = Field(ge=0)
    down: Duration | Literal["forever"] = 3.0


class Local(_Section):
    """The local platform: simulated slices on this machine."""

    restart_delay: Duration = 3.0
    unclaimed: Duration = 60.0
    faults: list[Fault] = Field(default_factory=list)
    trainer: list[str] = Field(default_factory=list, description="command in place of `python -m elastic_tpu.trainer`")


class Gke(_Section):
    """Where the run goes on GKE; `head` and `worker` are patches merged into the manifest."""

    project: Name | None = None
    location: Name | None = None
    cluster: Name | None = None
    namespace: Name = "default"
    service_account: Name | None = None
    image: Name | None = None
    ttl: Duration = 3600.0
    head: dict[str, Any] = Field(default_factory=dict)
    worker: dict[str, Any] = Field(default_factory=dict)


class RunSpec(_Section):
    """Everything about a run, as the user wrote it or as it was resolved."""

    profile: Name | None = None
    run: RunSection
    platform: Literal["local", "gke"]
    slices: Slices
    model: Model
    data: Data
    train: Train
    checkpoint: Checkpoint
    recovery: Recovery | Literal[False] = Recovery()
    limits: Limits = Limits()
    export: Export | Literal[False] = Export()
    evaluate: Evaluate | Literal[False] = Evaluate()
    secrets: dict[str, Secret] = Field(default_factory=dict)
    gke: Gke | None = None
    local: Local = Local()

    def hash(self) -> str:
        """sha256 of the canonical JSON of this model, in hex."""
        return hashlib.sha256(records.canonical(self.model_dump(mode="json"))).hexdigest()

    @property
    def uri(self) -> str:
        """The run directory."""
        return f"{self.run.output.rstrip('/')}/{self.run.name}"

    @property
    def run_id(self) -> str:
        """The run's short name for objects that it owns (contracts.md 1)."""
        return run_id(self.run.output, self.run.name)

    @property
    def patience(self) -> Recovery:
        """The recovery settings in force; with recovery off a slice loss is the supervisor's to relaunch."""
        return self.recovery or Recovery()


def run_id(output: str, name: str) -> str:
    """``<slug>-<8 hex>``, 22 characters at most: the longest JobSet name without a subdomain."""
    slug = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if not slug[:1].isalpha():
        slug = f"r{slug}"
    digest = hashlib.sha256(f"{output.rstrip('/')}\n{name}".encode()).hexdigest()
    return f"{slug[:13].rstrip('-')}-{digest[:8]}"


def is_bucket(uri: str) -> bool:
    """Whether a URI names an object store rather than a folder."""
    return "://" in uri


def absolute(path: str, base: Path) -> str:
    """A local path made absolute against the spec's folder; bucket URIs stay as they are."""
    if is_bucket(path):
        return path
    return str((base / Path(path).expanduser()).resolve())
