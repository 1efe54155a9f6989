"""MaxText's configuration read as data: its keys, its models, and the keys in force with a run's overrides.

The YAML files of the installed wheel are read without importing it, so that a launcher can check overrides without
JAX. Where the wheel is absent, no key and no model is known, and none is refused: the trainer checks at its start.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import Problem
from ..masking import HIDDEN, looks_secret

# Keys that the product sets, and the field of the spec that decides each. docs/spec.md lists them.
OWNED: Mapping[str, str] = {
    "run_name": "run.name",
    "base_output_directory": "run.output",
    "tensorboard_dir": "run.output",
    "checkpoint_dir": "run.output",
    "hardware": "platform",
    "model_name": "model.name",
    "override_model_config": "train.maxtext (set when an override changes the model)",
    "tokenizer_path": "model.tokenizer",
    "tokenizer_type": "model.tokenizer",
    "load_parameters_path": "model.start_from",
    "load_full_state_path": "model.start_from",
    "steps": "train.steps",
    "dataset_type": "data.train",
    "grain_train_files": "data.train",
    "grain_eval_files": "data.eval",
    "grain_file_type": "data.train",
    "hf_train_files": "data.train",
    "hf_eval_files": "data.eval",
    "hf_path": "data.train",
    "train_data_columns": "data.text",
    "eval_data_columns": "data.text",
    "enable_checkpointing": "checkpoint",
    "checkpoint_period": "checkpoint.every",
    "max_num_checkpoints_to_keep": "checkpoint.keep",
    "async_checkpointing": "checkpoint",
    "enable_continuous_checkpointing": "checkpoint",
    "enable_emergency_checkpoint": "checkpoint",
    "enable_multi_tier_checkpointing": "checkpoint",
    "enable_autocheckpoint": "recovery",
    "save_checkpoint_on_completion": "checkpoint",
    "save_checkpoint_on_start": "checkpoint",
    "enable_single_controller": "recovery",
    "elastic_enabled": "recovery",
    "elastic_timeout_seconds": "recovery.wait_for_slices",
    "elastic_max_retries": "recovery.attempts_without_progress",
    "elastic_min_slice_count": "slices.min",
    "elastic_backup_kind": "recovery",
    "skip_jax_distributed_system": "platform",
    "num_slices": "slices.count",
    "base_config": "model.name",
    "abort_on_nan_loss": "recovery.on_nan",
    "abort_on_inf_loss": "recovery.on_nan",
}

_MOST_COMPARED = 20  # unknown keys; comparing one with all of MaxText's takes 10 ms

# Keys with which this package computes; MaxText takes only whole numbers for them.
_WHOLE = re.compile(
    r"(ici|dcn)_\w+_parallelism|base_\w+_dim|base_num_\w+|head_dim|vocab_size|max_target_length|gradient_accumulation_steps"
)
_MESH = re.compile(r"(ici|dcn)_\w+_parallelism")


@cache
def configs_folder() -> Path | None:
    """The folder of MaxText's YAML files, or None when MaxText is not installed here."""
    found = importlib.util.find_spec("maxtext")
    places = found.submodule_search_locations if found else None
    folder = Path(next(iter(places))) / "configs" if places else None
    return folder if folder and (folder / "base.yml").is_file() else None


@cache
def _read(name: str) -> Mapping[str, Any]:
    import yaml

    folder = configs_folder()
    if folder is None or not (folder / name).is_file():
        return {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with (folder / name).open(encoding="utf-8") as file:
        return dict(yaml.load(file, Loader=loader) or {})


def base() -> Mapping[str, Any]:
    """Every MaxText key with its default; empty when MaxText is not installed here."""
    return _read("base.yml")


def models() -> list[str]:
    """Names of the models that MaxText knows; empty when MaxText is not installed here."""
    folder = configs_folder()
    return sorted(path.stem for path in (folder / "models").glob("*.yml")) if folder else []


def model(name: str) -> Mapping[str, Any]:
    """The keys that MaxText's file for this model sets; empty when there is none."""
    return _read(f"models/{name}.yml")


def resolved(model_name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The keys in force: defaults, then the model's, then the overrides."""
    return {**base(), **model(model_name), **overrides}


def vocabulary(model_name: str, overrides: Mapping[str, Any]) -> int | None:
    """Rows of the model's embedding; None if not known."""
    rows = resolved(model_name, overrides).get("vocab_size")
    return rows if isinstance(rows, int) and not check_model(model_name) else None


def nearest(word: str, words: Mapping[str, Any] | list[str]) -> str:
    """A cure that names the closest known word, e.g. ``; nearest: steps``."""
    close = closest(word, words)
    return f"; nearest: {', '.join(close)}" if close else ""


def closest(word: str, words: Mapping[str, Any] | list[str]) -> list[str]:
    """The one or two known words that are most like this one, best first; empty if none is."""
    return difflib.get_close_matches(word[:100], list(words), n=2, cutoff=0.5)


def normalised(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides with text made a number or a truth value where MaxText's default is one, and 20.0 made 20.

    YAML 1.1 reads ``3e-5`` as text, YAML 1.2 ``100_000``, and some orchestrators pass numbers as doubles.
    """
    return {key: _normal(base().get(key), value) for key, value in overrides.items()}


def _normal(default: object, value: Any) -> Any:
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(value.strip().lower(), value) if isinstance(value, str) else value
    if not isinstance(default, (int, float)) or isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9](_?[0-9]){0,17}\s*", value):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*", value, re.I):
        value = float(value)
    if isinstance(value, float) and isinstance(default, int) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _wrong_type(key: str, default: object, value: object) -> str:
    """Why MaxText would not take a value in place of this default; empty when it would."""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "must be true or false"
    if isinstance(default, (int, float)):
        computed = _WHOLE.fullmatch(key) is not None or key == "per_device_batch_size"
        if not computed and (value is None or isinstance(value, list)):
            return ""  # some keys with a number as default take null or a list too
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        if number is None or not abs(number) < 2**63:
            return f"must be a number; MaxText's default is {default}"
        if _MESH.fullmatch(key) and number < 1 and number != -1:
            return "must be -1 (what is left) or at least 1"
        if _WHOLE.fullmatch(key) and int(number) != number:
            return "must be a whole number"
        if _WHOLE.fullmatch(key) and not _MESH.fullmatch(key) and number < 1 and number != default:
            return "must be at least 1"
        if key == "per_device_batch_size" and number <= 0:
            return "must be above zero"
    return ""


def check_overrides(overrides: Mapping[str, Any]) -> list[Problem]:
    """Problems of `train.maxtext`: keys the product owns, unknown keys, values of a wrong type, credentials."""
    problems = []
    known = base()
    for key, value in overrides.items():
        path = f"train.maxtext.{key}"
        if looks_secret(key, value):
            problems.append(Problem(path, HIDDEN, "looks like a credential; pass it by reference under `secrets`"))
        elif key in OWNED:
            problems.append(Problem(path, value, f"is set by the product; use {OWNED[key]}"))
        elif known and key not in known:
            close = nearest(key, known) if len(problems) < _MOST_COMPARED else ""
            problems.append(Problem(path, value, f"MaxText has no such key{close}"))
        elif known and (wrong := _wrong_type(key, known[key], value)):
            problems.append(Problem(path, value, wrong))
    return problems


def check_model(name: str) -> list[Problem]:
    """Problems of `model.name`."""
    known = models()
    if known and name not in known and name != base().get("model_name"):  # "default": what base.yml describes
        return [Problem("model.name", name, f"MaxText has no such model{nearest(name, known)}")]
    return []
