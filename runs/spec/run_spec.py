"""RunSpec: one YAML file that describes a run for every orchestrator.

A spec is read, merged over its profile, checked whole (every problem at once, each with field path, value and
cure) and resolved: defaults filled in, name templates expanded, local paths made absolute. The resolved model is
what `spec.yaml` of the run directory holds and what the spec hash covers (contracts.md 1).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from ..errors import BadInput
from ..store import records
from . import gate
from .fields import Duration, KubernetesName, Label, LabelKey, Name, Plain, Section, Whole
from .fields import format_duration as format_duration
from .fields import parse_duration as parse_duration
from .gke_spec import Gke as Gke
from .gke_spec import GkeJob as GkeJob

NAME_TEMPLATES = ("{date}", "{datetime}", "{run}")
LONGEST_NAME = 100
RunName = Annotated[Name, StringConstraints(pattern=r"^[A-Za-z0-9{][A-Za-z0-9._{}-]*$", max_length=LONGEST_NAME)]


def _condition(text: str) -> str:
    try:
        gate.parse_gate(text)
    except BadInput as error:
        raise ValueError(error.problems[0].cure if error.problems else str(error)) from error
    return text


Condition = Annotated[str, AfterValidator(_condition)]


class RunSection(Section):
    """Who the run is: `<output>/<name>` is its directory."""

    name: RunName
    output: Name
    labels: dict[LabelKey, Label] = Field(default_factory=dict)


class Slices(Section):
    """TPU slices: an accelerator name (`v6e-16`, `sim-1x2`), or a machine type and a topology."""

    type: Name | None = None
    machine_type: Name | None = None
    topology: Name | None = None
    count: Whole = Field(ge=1, le=10_000)
    min: Whole | None = Field(default=None, ge=1)
    capacity: Literal["on_demand", "spot", "reservation", "flex_start"] = "on_demand"
    reservation: Name | None = None
    queue: KubernetesName | None = None  # a Kueue LocalQueue

    @property
    def minimum(self) -> int:
        """Slices that training needs at least; all of them unless `min` says otherwise."""
        return self.count if self.min is None else self.min


class Model(Section):
    """The model as MaxText names it, and its tokenizer (a Hugging Face folder)."""

    name: Name
    tokenizer: Name
    start_from: Name | None = None


class Data(Section):
    """Files of the data sets; the suffix decides how they are read."""

    train: Name
    eval: Name | None = None
    text: Name = "text"


class Train(Section):
    """How long, and MaxText's own keys for everything else."""

    steps: Whole = Field(ge=1, le=2**63 - 1)
    maxtext: dict[str, Plain] = Field(default_factory=dict)


class Checkpoint(Section):
    """A checkpoint every so many steps; how many are kept (two at least, so that a bad one has a fallback)."""

    every: Whole = Field(ge=1)
    keep: Whole = Field(default=3, ge=2)


class Recovery(Section):
    """What the trainer recovers from by itself, and when it gives up."""

    wait_for_slices: Duration = 4 * 3600.0
    stalled_after: Duration = 20 * 60.0
    attempts_without_progress: Whole = Field(default=3, ge=1)
    head_restarts: Whole = Field(default=20, ge=0)
    storage_timeout: Duration = 30 * 60.0


class Limits(Section):
    """How long each phase may last."""

    queue: Duration = 48 * 3600.0
    start: Duration = 45 * 60.0
    first_step: Duration = 30 * 60.0
    total: Duration = 21 * 86400.0


class Export(Section):
    """The Hugging Face folder that comes out."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"


class Evaluate(Section):
    """What is measured on the export, and what it must reach."""

    heldout: bool = True
    gate: list[Condition] = Field(default_factory=list)


class Secret(Section):
    """A reference to a secret: a Kubernetes secret and key, or an environment variable of this machine."""

    secret: Name | None = None
    key: Name | None = None
    env: Name | None = None


class Fault(Section):
    """A rehearsed slice loss: SIGKILL of the slice's worker once training is past a step."""

    slice: Whole = Field(ge=0)
    after_step: Whole = Field(ge=0)
    down: Duration | Literal["forever"] = 3.0


class Local(Section):
    """The local platform: simulated slices on this machine."""

    restart_delay: Duration = 3.0
    unclaimed: Duration = 60.0
    faults: list[Fault] = Field(default_factory=list)
    trainer: list[Name] = Field(default_factory=list, description="command in place of `python -m elastic_tpu.trainer`")


class RunSpec(Section):
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
    secrets: dict[Name, Secret] = Field(default_factory=dict)
    gke: Gke | None = None
    local: Local = Local()

    def hash(self) -> str:
        """sha256 of the canonical JSON of this model, in hex."""
        return hashlib.sha256(records.canonical(self.model_dump(mode="json"))).hexdigest()

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats of the trainer."""
        return 1.0 if self.gke is None or self.platform == "local" else self.gke.interval

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
