"""RunSpec: one YAML file that describes a run for every orchestrator.

A spec is read, merged over its profile, checked whole (every problem at once, each with field path, value and
cure) and resolved: defaults filled in, name templates expanded, local paths made absolute. The resolved model is
what `spec.yaml` of the run directory holds and what the spec hash covers (contracts.md 1).
"""

from __future__ import annotations

import hashlib
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
)

from . import gate, records
from .errors import BadInput

_UNITS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}
_DURATION = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(ms|s|m|h|d|)\s*")
NAME_TEMPLATES = ("{date}", "{datetime}", "{run}")
LONGEST_NAME = 100
_LONGEST = 36500 * 86400.0


def parse_duration(value: object) -> float:
    """Seconds from ``4h``, ``20m``, ``45s``, ``1.5d`` or a plain number of seconds."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match:
        # Exactly, so that what is written down and read again has the same hash.
        seconds = float(Fraction(match[1]) * _UNITS[match[2] or "s"])
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(min(value, 2 * _LONGEST))
    else:
        raise ValueError("must be a duration such as 45s, 20m, 4h or 2d")
    if not seconds > 0:
        raise ValueError("must be a duration above zero")
    if not 0.001 <= seconds <= _LONGEST:
        raise ValueError("must be a duration between 1ms and 36500d")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest exact way to write a duration: 14400 -> ``4h``."""
    for unit in ("d", "h", "m", "s"):
        count = Fraction(seconds) / _UNITS[unit]
        if count >= 1 and count.denominator == 1:
            return f"{count}{unit}"
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds / 1000 == seconds else f"{seconds!r}s"


def _whole(value: object) -> object:
    """Numbers that came through a transport that knows only doubles (20.0, "20.0") are whole again; true is no 1."""
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,4000}\.0+\s*", value):
        return value.strip().partition(".")[0]
    return value


def _text(value: str) -> str:
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError("must be plain text, with no null or surrogate characters")
    return value


Duration = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4096), AfterValidator(_text)]
Whole = Annotated[int, BeforeValidator(_whole)]
RunName = Annotated[Name, StringConstraints(pattern=r"^[A-Za-z0-9{][A-Za-z0-9._{}-]*$", max_length=LONGEST_NAME)]
LabelKey = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9][a-z0-9.-]{0,251}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
Label = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]


def _plain(value: Any, depth: int = 0) -> Any:
    """Only what JSON can hold: it is hashed, written to files and passed on as arguments."""
    if depth > 32:
        raise ValueError("is nested too deeply, or contains itself")
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            raise ValueError("must have only text as keys; put quotes around the others")
        for inner in value.values():
            _plain(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _plain(inner, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    elif isinstance(value, str):
        _text(value)
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise ValueError(f"must be text, a number, true or false, a list or a mapping, not a {type(value).__name__}")
    return value


Plain = Annotated[Any, AfterValidator(_plain)]


def _condition(text: str) -> str:
    try:
        gate.parse_gate(text)
    except BadInput as error:
        raise ValueError(error.problems[0].cure if error.problems else str(error)) from error
    return text


Condition = Annotated[str, AfterValidator(_condition)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSection(_Section):
    """Who the run is: `<output>/<name>` is its directory."""

    name: RunName
    output: Name
    labels: dict[LabelKey, Label] = Field(default_factory=dict)


class Slices(_Section):
    """TPU slices: an accelerator name (`v6e-16`, `sim-1x2`), or a machine type and a topology."""

    type: Name | None = None
    machine_type: Name | None = None
    topology: Name | None = None
    count: Whole = Field(ge=1, le=10_000)
    min: Whole | None = Field(default=None, ge=1)
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

    steps: Whole = Field(ge=1, le=2**63 - 1)
    maxtext: dict[str, Plain] = Field(default_factory=dict)


class Checkpoint(_Section):
    """A checkpoint every so many steps; how many are kept (two at least, so that a bad one has a fallback)."""

    every: Whole = Field(ge=1)
    keep: Whole = Field(default=3, ge=2)


class Recovery(_Section):
    """What the trainer recovers from by itself, and when it gives up."""

    wait_for_slices: Duration = 4 * 3600.0
    stalled_after: Duration = 20 * 60.0
    attempts_without_progress: Whole = Field(default=3, ge=1)
    head_restarts: Whole = Field(default=20, ge=0)
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
    gate: list[Condition] = Field(default_factory=list)


class Secret(_Section):
    """A reference to a secret: a Kubernetes secret and key, or an environment variable of this machine."""

    secret: Name | None = None
    key: Name | None = None
    env: Name | None = None


class Fault(_Section):
    """A rehearsed slice loss: SIGKILL of the slice's worker once training is past a step."""

    slice: Whole = Field(ge=0)
    after_step: Whole = Field(ge=0)
    down: Duration | Literal["forever"] = 3.0


class Local(_Section):
    """The local platform: simulated slices on this machine."""

    restart_delay: Duration = 3.0
    unclaimed: Duration = 60.0
    faults: list[Fault] = Field(default_factory=list)
    trainer: list[Name] = Field(default_factory=list, description="command in place of `python -m elastic_tpu.trainer`")


class Gke(_Section):
    """Where the run goes on GKE; `head` and `worker` are patches merged into the manifest."""

    project: Name | None = None
    location: Name | None = None
    cluster: Name | None = None
    namespace: Name = "default"
    service_account: Name | None = None
    image: Name | None = None
    ttl: Duration = 3600.0
    head: dict[str, Plain] = Field(default_factory=dict)
    worker: dict[str, Plain] = Field(default_factory=dict)


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
    secrets: dict[Name, Secret] = Field(default_factory=dict)
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
