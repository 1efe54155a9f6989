"""Rules between the fields of a spec, each with the fields that it reads: what is valid alone and wrong together.

A rule that reads a field that failed already is left out: it would judge a stand-in, not the user's value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ..errors import BadInput, Problem
from ..masking import HIDDEN, looks_secret
from . import gke_rules, maxtext_config, memory, plan
from .gate import METRICS, parse_gate
from .run_spec import NAME_TEMPLATES, SPEC_SUFFIXES, RunSpec, is_bucket, is_spec_name

_EXPORTED = ("qwen3",)
_BY_REFERENCE = "looks like a credential; pass it by reference under `secrets`"

_BUCKET = re.compile(r"[a-z0-9]([a-z0-9._-]{0,220}[a-z0-9])?")

Rule = Callable[[RunSpec], Iterator[Problem]]


def contradictions(spec: RunSpec, failed: Collection[str] = ()) -> list[Problem]:
    """Every problem that the rules find in a spec.

    Args:
      failed: dotted paths of the fields whose values are stand-ins; rules that read them are left out.
    """
    found: list[Problem] = []
    for fields, rule in _RULES:
        if not any(touches(field, f) for field in fields for f in failed):
            found += rule(spec)
    return list({(problem.path, problem.cure): problem for problem in found}.values())


def touches(path: str, other: str) -> bool:
    """Whether one of two dotted paths lies at or below the other."""
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")


# -- the name -----------------------------------------------------------------------------------------------------


def _name(spec: RunSpec) -> Iterator[Problem]:
    bare = spec.run.name
    for template in NAME_TEMPLATES:
        bare = bare.replace(template, "")
    if "{" in bare or "}" in bare:
        yield Problem("run.name", spec.run.name, f"only {', '.join(NAME_TEMPLATES)} may stand in braces")
    if is_bucket(spec.run.output) and is_spec_name(spec.run.name):
        cure = f"must not end in {' or '.join(SPEC_SUFFIXES)}: in a bucket that is the name of a spec, not of a run"
        yield Problem("run.name", spec.run.name, cure)


# -- slices -------------------------------------------------------------------------------------------------------


def _minimum(spec: RunSpec) -> Iterator[Problem]:
    if spec.slices.min is not None and spec.slices.min > spec.slices.count:
        yield Problem("slices.min", spec.slices.min, f"must be at most slices.count ({spec.slices.count})")


def _type(spec: RunSpec) -> Iterator[Problem]:
    slices = spec.slices
    if (slices.type is None) == (slices.machine_type is None):
        cure = "give either an accelerator name as `type` (v6e-16), or `machine_type` and `topology`"
        yield Problem("slices.type", slices.type, cure)
    elif slices.machine_type is not None and slices.topology is None:
        yield Problem("slices.topology", None, "is required beside slices.machine_type")
    else:
        try:
            plan.shape_of(spec)
        except BadInput as error:
            yield from error.problems or (Problem("slices.type", slices.type, str(error)),)


def _platform(spec: RunSpec) -> Iterator[Problem]:
    if any(_type(spec)):
        return
    if (plan.shape_of(spec).generation == "sim") != (spec.platform == "local"):
        right = "sim-<VMs>x<devices a VM>, e.g. sim-1x2" if spec.platform == "local" else "a TPU, e.g. v6e-16"
        field = "type" if spec.slices.type is not None else "machine_type"
        yield Problem(f"slices.{field}", getattr(spec.slices, field), f"platform {spec.platform} takes {right}")


def _reservation(spec: RunSpec) -> Iterator[Problem]:
    slices = spec.slices
    if slices.reservation is not None and slices.capacity != "reservation":
        cure = "needs `slices.capacity: reservation`; spot, flex-start and reservations exclude one another"
        yield Problem("slices.reservation", slices.reservation, cure)
    if slices.capacity == "reservation" and slices.reservation is None:
        yield Problem("slices.reservation", None, "is required with `slices.capacity: reservation`")


def _faults(spec: RunSpec) -> Iterator[Problem]:
    for index, fault in enumerate(spec.local.faults):
        if fault.slice >= spec.slices.count:
            cure = f"there are {spec.slices.count} slices, numbered from 0"
            yield Problem(f"local.faults.{index}.slice", fault.slice, cure)


def _faults_in_time(spec: RunSpec) -> Iterator[Problem]:
    last = spec.train.steps - 1
    for index, fault in enumerate(spec.local.faults):
        if fault.after_step >= last:
            cure = f"must be below the number of the last step ({last}): later there is no training to interrupt"
            yield Problem(f"local.faults.{index}.after_step", fault.after_step, cure)


def _division(spec: RunSpec) -> Iterator[Problem]:
    """What fsdp shards must divide by the devices of its axis; MaxText would refuse it only once it has the TPU."""
    overrides = spec.train.maxtext
    failed = any(_type(spec)) or maxtext_config.check_model(spec.model.name)
    if failed or maxtext_config.check_overrides(overrides) or not maxtext_config.base():
        return
    devices, keys = plan.shape_of(spec).devices, maxtext_config.resolved(spec.model.name, overrides)
    axes = {key: value for key, value in keys.items() if key.endswith("_parallelism")}
    for slices in plan.slice_counts(spec):
        fewer = f" when {slices} of {spec.slices.count} slices train (slices.min)" if slices < spec.slices.count else ""
        ways = memory.fsdp_ways(axes, devices, slices)
        if ways is None:
            cure = (
                f"the ici_*_parallelism keys must multiply to the {devices} devices of a slice, the dcn_*_parallelism "
                f"keys to the {slices} slices{fewer}; one of each may be -1"
            )
            yield Problem("train.maxtext", None, cure)
            break
        dimension = keys.get("base_emb_dim")
        if isinstance(dimension, int) and dimension % ways:
            cure = f"must divide by the {ways} devices that fsdp spans{fewer}"
            if "base_emb_dim" in overrides:
                yield Problem("train.maxtext.base_emb_dim", dimension, cure)
            else:
                yield Problem("model.name", spec.model.name, f"its base_emb_dim ({dimension}) {cure}")
            break
    batch = keys.get("per_device_batch_size")
    if isinstance(batch, (int, float)) and (batch * devices) % 1:
        cure = f"times the {devices} devices of a slice must be a whole number"
        yield Problem("train.maxtext.per_device_batch_size", batch, cure)


def _heads(spec: RunSpec) -> Iterator[Problem]:
    """Query heads share key and value heads in groups of one size; MaxText would refuse others when it compiles."""
    overrides, (query, shared) = spec.train.maxtext, ("base_num_query_heads", "base_num_kv_heads")
    failed = maxtext_config.check_model(spec.model.name) or maxtext_config.check_overrides(overrides)
    if failed or not maxtext_config.base():
        return
    keys = maxtext_config.resolved(spec.model.name, overrides)
    if query in overrides and keys[query] % keys[shared]:
        yield Problem(f"train.maxtext.{query}", keys[query], f"must be a multiple of {shared} ({keys[shared]})")
    elif shared in overrides and keys[query] % keys[shared]:
        yield Problem(f"train.maxtext.{shared}", keys[shared], f"must divide {query} ({keys[query]})")


# -- model and data -----------------------------------------------------------------------------------------------


def _model(spec: RunSpec) -> Iterator[Problem]:
    yield from maxtext_config.check_model(spec.model.name)


def _overrides(spec: RunSpec) -> Iterator[Problem]:
    yield from maxtext_config.check_overrides(spec.train.maxtext)


def _start_from(spec: RunSpec) -> Iterator[Problem]:
    if spec.model.start_from is not None:
        yield Problem("model.start_from", spec.model.start_from, "is reserved and not built yet; leave it out")


def _exporter(spec: RunSpec) -> Iterator[Problem]:
    if not spec.export or not maxtext_config.base() or maxtext_config.check_model(spec.model.name):
        return
    block = maxtext_config.resolved(spec.model.name, spec.train.maxtext).get("decoder_block")
    if block not in _EXPORTED:
        cure = f"the exporter knows {', '.join(_EXPORTED)}, not decoder_block {block!r}; set `export: false`"
        yield Problem("model.name", spec.model.name, cure)


def _resumable(spec: RunSpec) -> Iterator[Problem]:
    if plan.data_kind(spec.data.train)[0] != "grain" and spec.recovery:
        cure = (
            "cannot resume where it stopped, so a recovery would train on other data; use .parquet or .array_record "
            "files, or set `recovery: false`"
        )
        yield Problem("data.train", spec.data.train, cure)


def _heldout(spec: RunSpec) -> Iterator[Problem]:
    if spec.evaluate and spec.evaluate.heldout and spec.data.eval is None and not gke_rules.own_evaluator(spec):
        cure = "is required by evaluate.heldout; name the held-out files, or set `evaluate: false`"
        yield Problem("data.eval", None, cure)


def _heldout_kind(spec: RunSpec) -> Iterator[Problem]:
    if spec.data.eval is not None and plan.data_kind(spec.data.eval)[0] != "grain":
        yield Problem("data.eval", spec.data.eval, "must be .parquet or .array_record files")


def _held_out(spec: RunSpec) -> Iterator[Problem]:
    if spec.data.eval is not None and spec.data.eval == spec.data.train:
        yield Problem("data.eval", spec.data.eval, "is the training data: hold some data out")


def _packing(spec: RunSpec) -> Iterator[Problem]:
    keys = spec.train.maxtext
    if keys.get("grain_use_elastic_iterator") and keys.get("packing", True):
        yield Problem("train.maxtext.packing", True, "must be false with grain_use_elastic_iterator")


# -- export, evaluation, checkpoints ------------------------------------------------------------------------------


def _evaluation(spec: RunSpec) -> Iterator[Problem]:
    if spec.evaluate and not spec.export:
        yield Problem("evaluate", None, "needs an export; set `evaluate: false` too, or drop `export: false`")


def _gate(spec: RunSpec) -> Iterator[Problem]:
    if not spec.evaluate or gke_rules.own_evaluator(spec):
        return
    if not spec.evaluate.heldout:
        cure = "and without an evaluator of your own nothing is measured; set `evaluate: false`, or leave heldout out"
        yield Problem("evaluate.heldout", False, cure)
        return
    for index, text in enumerate(spec.evaluate.gate):
        if parse_gate(text).metric not in METRICS:
            yield Problem(f"evaluate.gate.{index}", text, f"nothing measures that; there are {', '.join(METRICS)}")


def _period(spec: RunSpec) -> Iterator[Problem]:
    if spec.checkpoint.every > spec.train.steps:
        cure = f"is more than train.steps ({spec.train.steps}): nothing would be saved between start and end; lower it"
        yield Problem("checkpoint.every", spec.checkpoint.every, cure)


# -- places and secrets -------------------------------------------------------------------------------------------


def _place(section: str, field: str) -> Rule:
    def rule(spec: RunSpec) -> Iterator[Problem]:
        uri = getattr(getattr(spec, section), field)
        if uri is None or uri in plan.NOT_FILES:
            return
        scheme, _, rest = uri.partition("://")
        if is_bucket(uri) and (scheme != "gs" or not rest.strip("/")):
            yield Problem(f"{section}.{field}", uri, "must be a path or gs://bucket/...; other storage is unsupported")
        elif is_bucket(uri) and not _BUCKET.fullmatch(rest.partition("/")[0]):
            cure = "has no valid bucket name: at most 222 lower-case letters, digits, '-', '_' and '.'"
            yield Problem(f"{section}.{field}", uri, cure)

    return rule


def _in_a_bucket(section: str, field: str) -> Rule:
    def rule(spec: RunSpec) -> Iterator[Problem]:
        uri = getattr(getattr(spec, section), field)
        if spec.platform != "gke" or uri is None or is_bucket(uri) or uri in plan.NOT_FILES:
            return
        cure = "must be a bucket (gs://...) on platform gke"
        if section in ("data", "model"):
            if gke_rules.is_mounted(spec, uri):
                return
            cure += ", or a path below a mountPath that gke.head gives the trainer (gcsfuse)"
        yield Problem(f"{section}.{field}", uri, cure)

    return rule


def _references(spec: RunSpec) -> Iterator[Problem]:
    for name, ref in spec.secrets.items():
        by_key = ref.secret is not None and ref.key is not None and ref.env is None
        by_env = ref.env is not None and ref.secret is None and ref.key is None
        if spec.platform == "gke" and not by_key:
            yield Problem(f"secrets.{name}", None, "on gke give {secret: <name>, key: <key>}")
        if spec.platform == "local" and not by_env:
            yield Problem(f"secrets.{name}", None, "on the local platform give {env: <NAME>}")


def _credentials(spec: RunSpec) -> Iterator[Problem]:
    """Credentials in any field: the spec is written to files, reports and arguments."""
    document = spec.model_dump(exclude={"secrets"})
    # The rule `_overrides` checks the top-level keys of train.maxtext.
    seen = {f"train.maxtext.{key}" for key, value in spec.train.maxtext.items() if not isinstance(value, (dict, list))}

    def walk(path: str, key: str, value: Any) -> Iterator[Problem]:
        if isinstance(value, dict):
            if looks_secret(str(value.get("name", "")), value.get("value")):
                yield Problem(f"{path}.value", HIDDEN, _BY_REFERENCE)  # an environment variable in a patch
                value = {k: v for k, v in value.items() if k != "value"}
            for name, inner in value.items():
                yield from walk(f"{path}.{name}" if path else name, name, inner)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from walk(f"{path}.{index}", key, inner)
        elif path not in seen and looks_secret(key, value):
            yield Problem(path, HIDDEN, _BY_REFERENCE)

    yield from walk("", "", document)


_RULES: tuple[tuple[tuple[str, ...], Rule], ...] = (
    (("run.name", "run.output"), _name),
    (("slices.min", "slices.count"), _minimum),
    (("slices.type", "slices.machine_type", "slices.topology"), _type),
    (("slices.type", "slices.machine_type", "slices.topology", "platform"), _platform),
    (("slices.reservation", "slices.capacity"), _reservation),
    (("slices.count", "local.faults"), _faults),
    (("train.steps", "local.faults"), _faults_in_time),
    (("model.name", "train.maxtext"), _heads),
    (
        (
            "slices.type",
            "slices.machine_type",
            "slices.topology",
            "slices.count",
            "slices.min",
            "platform",
            "train.maxtext",
            "model.name",
        ),
        _division,
    ),
    (("data.train", "recovery"), _resumable),
    (("data.eval", "evaluate", "gke.jobs"), _heldout),
    (("data.eval",), _heldout_kind),
    (("data.eval", "data.train"), _held_out),
    (("train.maxtext",), _packing),
    (("run.output",), _place("run", "output")),
    (("data.train",), _place("data", "train")),
    (("data.eval",), _place("data", "eval")),
    (("model.tokenizer",), _place("model", "tokenizer")),
    (("run.output", "platform"), _in_a_bucket("run", "output")),
    (("data.train", "platform"), _in_a_bucket("data", "train")),
    (("data.eval", "platform"), _in_a_bucket("data", "eval")),
    (("model.tokenizer", "platform"), _in_a_bucket("model", "tokenizer")),
    (("model.name",), _model),
    (("train.maxtext",), _overrides),
    (("secrets", "platform"), _references),
    ((), _credentials),
    (("model.start_from",), _start_from),
    (("model.name", "train.maxtext", "export"), _exporter),
    (("evaluate", "export"), _evaluation),
    (("evaluate", "gke.jobs"), _gate),
    (("checkpoint.every", "train.steps"), _period),
    *gke_rules.RULES,
)
