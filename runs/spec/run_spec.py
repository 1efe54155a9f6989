"""RunSpec: one YAML file that describes a run for every orchestrator.

A spec is read, merged over its profile, checked whole (every problem at once, each with field path, value and
cure) and resolved: defaults filled in, name templates expanded, local paths made absolute. The resolved model is
what `spec.yaml` of the run directory holds and what the spec hash covers (docs/contracts.md 1).

The docstrings of the sections and the descriptions of their fields are what docs/spec.md and the JSON Schema say.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PrivateAttr, StringConstraints

from ..errors import BadInput
from ..store import records
from . import gate
from .fields import Duration, KubernetesName, Label, LabelKey, Name, Plain, Positive, Section, Whole
from .gke_spec import Gke as Gke
from .gke_spec import GkeJob as GkeJob
from .platform_traits import PlatformTraits, gke_traits, local_traits

NAME_TEMPLATES = ("{date}", "{datetime}", "{run}")
LONGEST_NAME = 100
SPEC_SUFFIXES = (".yaml", ".yml")
RunName = Annotated[Name, StringConstraints(pattern=r"^[A-Za-z0-9{][A-Za-z0-9._{}-]*$", max_length=LONGEST_NAME)]


def _condition(text: str) -> str:
    try:
        gate.parse_gate(text)
    except BadInput as error:
        raise ValueError(error.problems[0].cure if error.problems else str(error)) from error
    return text


Condition = Annotated[str, AfterValidator(_condition)]


class RunSection(Section):
    """The name of the run, and the place of its directory, `<output>/<name>`."""

    name: RunName = Field(
        description="Name of the run: letters, digits, `.`, `_` and `-`, at most 100 characters. `{date}` (20260131) "
        "and `{datetime}` (20260131T120500) become the start of the run in UTC, in Airflow its logical date; `{run}` "
        "becomes the orchestrator's run."
    )
    output: Name = Field(
        description="Folder or `gs://bucket/prefix` that holds the run directory. Platform `gke` needs a bucket."
    )
    labels: dict[LabelKey, Label] = Field(
        default_factory=dict,
        description="Kubernetes labels for every object and pod of the run, on platform `gke`. Reserved: names that "
        "begin with `elastic-tpu.dev/`, `jobset.sigs.k8s.io/` or `batch.kubernetes.io/`, and Kueue's queue name (use "
        "`slices.queue`).",
    )


class Slices(Section):
    """How many TPU slices the run takes, and of which kind: give either `type`, or `machine_type` and `topology`."""

    type: Name | None = Field(
        default=None,
        description="Accelerator name: the generation (v4, v5e, v5p, v6e, tpu7x) and a size, e.g. `v6e-16`. The size "
        "counts chips on v5e and v6e, TensorCores (two a chip) on v4, v5p and tpu7x. A generation alone needs "
        "`topology`. On platform `local`: `sim-<VMs>x<devices a VM>`, e.g. `sim-1x2`.",
    )
    machine_type: Name | None = Field(
        default=None, description="GKE machine type, e.g. `ct6e-standard-4t`, instead of `type`; needs `topology`."
    )
    topology: Name | None = Field(
        default=None,
        description="Chips along each axis, e.g. `4x4` or `2x2x2`. Without it: the usual one for the size in `type`.",
    )
    count: Whole = Field(ge=1, le=10_000, description="Slices that the run takes.")
    min: Positive | None = Field(
        default=None,
        description="Slices that training needs at least, up to `count`. With fewer it waits; with more it uses them. "
        "Without it: `count`.",
    )
    capacity: Literal["on_demand", "spot", "reservation", "flex_start"] = Field(
        default="on_demand", description="Kind of TPU nodes that the workers ask for, on platform `gke`."
    )
    reservation: Name | None = Field(
        default=None,
        description="Name of a reservation, or `projects/<project>/reservations/<name>` of another project. Required "
        "with `capacity: reservation`, refused without it.",
    )
    queue: KubernetesName | None = Field(
        default=None, description="Kueue LocalQueue of the namespace that admits the run. Without it: no queue."
    )

    @property
    def minimum(self) -> int:
        """Slices that training needs at least: `min`, or else `count`."""
        return self.count if self.min is None else self.min


class Model(Section):
    """The model and its tokenizer."""

    name: Name = Field(
        description="MaxText's name of the model, e.g. `qwen3-8b`. Models of other families than qwen3 need "
        "`export: false`."
    )
    tokenizer: Name = Field(
        description="Folder of a Hugging Face tokenizer (`tokenizer.json` is in it). On platform `gke`: in a bucket, "
        "or below a mountPath that `gke.head` gives the trainer."
    )
    start_from: Name | None = Field(
        default=None, description="Reserved for the weights to start from: not built yet, so any value is refused."
    )


class Data(Section):
    """The files of the data sets; the suffix decides how they are read.

    On platform `gke` they are in a bucket, or below a mountPath that `gke.head` gives the trainer.
    """

    train: Name = Field(
        description="File or file pattern to train on, e.g. `gs://bucket/train*.array_record`. `.parquet` and "
        "`.array_record` files can resume where training stopped. Other files, which are read as JSON, and "
        "`synthetic`, MaxText's generated data, cannot: they need `recovery: false`."
    )
    eval: Name | None = Field(
        default=None,
        description="Held-out file or file pattern, `.parquet` or `.array_record`, other than `train`. Required by "
        "`evaluate.heldout`.",
    )
    text: Name = Field(
        default="text", description="Name of the column (Parquet) or feature (ArrayRecord) that holds the text."
    )


class Train(Section):
    """How long to train, and MaxText's own keys for everything else."""

    steps: Whole = Field(ge=1, le=2**63 - 1, description="Training steps in all; the last one is number `steps - 1`.")
    maxtext: dict[str, Plain] = Field(
        default_factory=dict,
        description="MaxText keys and their values, over those of the model. Allowed: all keys of MaxText's "
        "`base.yml` but those that the product sets; an error names the field to use instead.",
    )


class Checkpoint(Section):
    """When checkpoints are saved, and how many are kept. The start and the end of training are saved as well."""

    every: Positive = Field(description="Steps from one checkpoint to the next, at most `train.steps`.")
    keep: Whole = Field(
        default=3, ge=2, description="Newest checkpoints to keep: at least two, so that a bad one has a fallback."
    )


class Recovery(Section):
    """What the trainer recovers from by itself, and when it gives up."""

    wait_for_slices: Duration = Field(
        default=4 * 3600.0,
        description="How long the trainer waits for slices that are missing or suspended. Then the run ends with exit "
        "code 77.",
    )
    stalled_after: Duration = Field(
        default=20 * 60.0,
        description="How long training may go without a step while all slices are there. Then the trainer exits with "
        "75 and is relaunched.",
    )
    attempts_without_progress: Positive = Field(
        default=3,
        description="Failures in a row that bring no new proven checkpoint, after which the run ends with exit code "
        "77: errors with all slices there, or starts of the trainer's process. A lost slice does not count; a new "
        "proven checkpoint starts the count again.",
    )
    on_nan: Literal["stop", "continue", "restore"] = Field(
        default="stop",
        description="What follows a loss that is NaN or infinite. `stop`: the run ends with exit code 70. `restore`: "
        "training goes on from the newest proven checkpoint before it, as often as `attempts_without_progress` allows. "
        "`continue`: nothing follows. Unless it is `continue`, nothing that was saved after such a loss is ever "
        "restored or exported.",
    )
    head_restarts: Whole = Field(
        default=20,
        ge=0,
        description="Relaunches of the trainer's process after exit code 75, 143 or a signal. On platform `local` a "
        "new proven checkpoint starts the count again, and too many end the run with exit code 77. On `gke` they are "
        "counted over the life of the JobSet, and too many end it with 75: running again goes on with a new JobSet.",
    )
    storage_timeout: Duration = Field(
        default=30 * 60.0,
        description="How long the trainer goes on, or waits at its start, while the run directory's storage does not "
        "answer. Then it exits with 75, without a save.",
    )


class Limits(Section):
    """How long each phase may last. A limit that is spent is named, and the run ends with exit code 77."""

    queue: Duration = Field(
        default=48 * 3600.0,
        description="Time in the queue, at the start and whenever the cluster suspends the run. Platform `gke` only.",
    )
    start: Duration = Field(
        default=45 * 60.0,
        description="Time from the request (on `gke`: from the admission) until the slices are ready; on `gke` also "
        "until a trainer that died is back.",
    )
    first_step: Duration = Field(
        default=30 * 60.0,
        description="Time from ready slices to the end of the first step. It also bounds each phase of starting, "
        "restoring and compiling (unless `recovery.stalled_after` is longer): then the trainer exits with 75 and is "
        "relaunched.",
    )
    total: Duration = Field(
        default=21 * 86400.0,
        description="Time since the first start of the trainer, waiting included. Then the trainer saves and ends.",
    )


class Export(Section):
    """The Hugging Face folder that is made of the final checkpoint: `export/<step>/` in the run directory."""

    dtype: Literal["bfloat16", "float32"] = Field(default="bfloat16", description="Data type of the exported weights.")


class Evaluate(Section):
    """What is measured on the export, and what it must reach."""

    heldout: bool = Field(
        default=True, description="Measure loss, perplexity and bits per byte on `data.eval`, as `heldout.<metric>`."
    )
    gate: list[Condition] = Field(
        default_factory=list,
        description="Conditions on the metrics, e.g. `heldout.loss <= 1.85` (or `<`, `>=`, `>`). Unless all hold, the "
        "run ends with exit code 65.",
    )


class Secret(Section):
    """A reference to a secret, never its value: `secret` and `key` on platform `gke`, `env` on `local`."""

    secret: Name | None = Field(default=None, description="Name of a Kubernetes Secret in the run's namespace.")
    key: Name | None = Field(default=None, description="Key in that Secret.")
    env: Name | None = Field(default=None, description="Environment variable of this machine that holds the value.")


class Fault(Section):
    """A rehearsed slice loss: SIGKILL of the slice's worker."""

    slice: Whole = Field(ge=0, description="Number of the slice, from 0.")
    after_step: Whole = Field(ge=0, description="The worker is killed once training has done this step.")
    down: Duration | Literal["forever"] = Field(
        default=3.0,
        description="How long the slice stays away, or `forever`.",
        json_schema_extra={"default": "3s"},  # pydantic writes a union's default as it is in memory
    )


class Local(Section):
    """The local platform: simulated slices, which are processes of this machine."""

    restart_delay: Duration = Field(
        default=3.0,
        description="How long a slice stays away after its worker died; rehearsed losses have their own `down`.",
    )
    unclaimed: Duration = Field(
        default=60.0,
        description="How long the run goes on while no launcher renews its claim. Then it ends itself, and any "
        "launcher may take it over.",
    )
    faults: list[Fault] = Field(
        default_factory=list,
        description="Slice losses to rehearse. One that did not happen makes `elastic-tpu run` end with exit code 70.",
    )
    trainer: list[Name] = Field(
        default_factory=list,
        description="Command, one argument an item, instead of `python -m elastic_tpu.trainer`; for tests. "
        "What is in the data files and the tokenizer is not checked then.",
    )


class RunSpec(Section):
    """One run: what is trained, on which slices, within which limits, and what follows training."""

    profile: Name | None = Field(
        default=None,
        description="Name of a file `<profile>.yaml` or `.yml` over which this spec is merged: mappings key by key, "
        "other values replaced. Looked for in `$ELASTIC_TPU_PROFILES`, in `profiles/` beside the spec, and beside the "
        "spec.",
    )
    run: RunSection = Field(description="The name of the run, and the place of its directory.")
    platform: Literal["local", "gke"] = Field(
        description="Where the slices are: simulated ones on this machine, or TPUs in a GKE cluster."
    )
    slices: Slices = Field(description="How many TPU slices, and of which kind.")
    model: Model = Field(description="What is trained: a model that MaxText knows, and its tokenizer.")
    data: Data = Field(description="The files to train on, and the held-out ones.")
    train: Train = Field(description="How long to train, and MaxText's own keys.")
    checkpoint: Checkpoint = Field(description="When checkpoints are saved, and how many are kept.")
    recovery: Recovery | Literal[False] = Field(
        default=Recovery(),
        description="What the trainer recovers from by itself. With `false` a lost slice ends the trainer's process "
        "with 75, and the platform relaunches it.",
    )
    limits: Limits = Field(default=Limits(), description="How long each phase may last.")
    export: Export | Literal[False] = Field(
        default=Export(), description="The export of the final checkpoint in Hugging Face format; `false`: none."
    )
    evaluate: Evaluate | Literal[False] = Field(
        default=Evaluate(),
        description="What is measured on the export, and what it must reach; `false`: nothing. Needs `export`.",
    )
    secrets: dict[Name, Secret] = Field(
        default_factory=dict,
        description="Environment variables of the trainer and of the jobs after it that hold secrets, by reference.",
    )
    gke: Gke | None = Field(
        default=None, description="The cluster, the images and the pods. Required on platform `gke`, else ignored."
    )
    local: Local = Field(default=Local(), description="The simulated slices of platform `local`; else ignored.")

    _hash: str | None = PrivateAttr(default=None)  # of a spec whose directory is elsewhere by now: as it was written

    def hash(self) -> str:
        """sha256 in hex of the canonical JSON of what is not at its default; after `moved`, of the spec as written.

        Without the defaults, so that a version with a new field gives a run that goes on the hash that it had.
        """
        said = self.model_dump(mode="json", exclude_defaults=True)
        return self._hash or hashlib.sha256(records.canonical(said)).hexdigest()

    def moved(self, uri: str) -> RunSpec:
        """The same spec with the same hash, for a run directory that was copied or moved to this URI.

        Raises:
          ValueError: the URI is that of a whole bucket.
        """
        output, _, name = uri.rpartition("/")
        if is_bucket(uri) and not is_bucket(output):
            raise ValueError(f"a run is a folder of a bucket; copy it below {uri}")
        place = self.run.model_copy(update={"output": output or "/", "name": name})
        there = self.model_copy(update={"run": place})
        there._hash = self.hash()
        return there

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats of the trainer."""
        return 1.0 if self.gke is None or self.platform == "local" else self.gke.interval

    @property
    def traits(self) -> PlatformTraits:
        """What differs from platform to platform."""
        return local_traits(self.local.unclaimed) if self.platform == "local" else gke_traits(self.beat)

    @property
    def faults(self) -> list[Fault]:
        """The slice losses to rehearse; only the local platform rehearses any."""
        return self.local.faults if self.platform == "local" else []

    @property
    def uri(self) -> str:
        """The run directory."""
        return f"{self.run.output.rstrip('/')}/{self.run.name}"

    @property
    def run_id(self) -> str:
        """The run's short name for objects that it owns (docs/contracts.md 1)."""
        return run_id(self.run.output, self.run.name)

    @property
    def recovery_limits(self) -> Recovery:
        """The recovery settings in force: with `recovery: false` the defaults, which bound the relaunches."""
        return self.recovery or Recovery()


def run_id(output: str, name: str) -> str:
    """``<slug>-<8 hex digits>``, at most 22 characters: the longest JobSet name without a subdomain."""
    slug = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if not slug[:1].isalpha():
        slug = f"r{slug}"
    digest = hashlib.sha256(f"{output.rstrip('/')}\n{name}".encode()).hexdigest()
    return f"{slug[:13].rstrip('-')}-{digest[:8]}"


def is_bucket(uri: str) -> bool:
    """Whether a URI names an object store rather than a folder."""
    return "://" in uri


def is_spec_name(source: str) -> bool:
    """Whether a path or URI ends as that of a spec does."""
    return source.lower().endswith(SPEC_SUFFIXES)


def absolute(path: str, base: Path) -> str:
    """A local path made absolute against the spec's folder; bucket URIs stay as they are."""
    if is_bucket(path):
        return path
    return str((base / Path(path).expanduser()).resolve())
