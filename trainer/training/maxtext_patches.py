"""Every place where training reaches into MaxText, by name, checked at start: no fork, no edited file.

Known to fit MaxText 0.2.5. A version that lacks one of these names is refused, with the version and the name, before
training starts.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...runs.errors import ElasticTPUError
from .error_chain import SaveFailed

_TRAIN = "maxtext.trainers.pre_train.train"

# Module, symbol, and the parameters that are relied on.
SYMBOLS: Sequence[tuple[str, str, tuple[str, ...]]] = (
    (_TRAIN, "initialize", ("argv",)),
    (_TRAIN, "run", ("config", "recorder")),
    (_TRAIN, "training_loop_iteration", ("jax_device_state", "python_vars", "immutable_data")),
    ("maxtext.common.checkpointing", "save_checkpoint", ("checkpoint_manager", "step", "state")),
    ("maxtext.common.checkpointing", "wait_until_finished", ("checkpoint_manager",)),
    ("maxtext.common.checkpointing", "load_state_if_possible", ("checkpoint_manager",)),
    ("maxtext.common.metric_logger", "MetricLogger", ()),
    ("maxtext.utils.maxtext_utils", "add_config_to_summary_writer", ("config", "summary_writer")),
    ("maxtext.utils.elastic_utils", "get_local_batch_size", ("config",)),
    ("maxtext.utils.elastic_utils", "live_devices", ("config",)),
    ("maxtext.utils.elastic_utils", "is_scale_up_event", ()),
    ("maxtext.utils.elastic_utils", "elastic_manager", ()),
    ("maxtext.utils.exceptions", "StopTraining", ()),
)


class Hooks(Protocol):
    """Calls that training gets while MaxText runs."""

    def before_restore(self) -> None:
        """MaxText is about to look for a checkpoint to restore."""

    def after_restore(self) -> None:
        """MaxText has restored a checkpoint, or found none; it builds and compiles next."""

    def iteration(self, step: int, state: dict[str, Any], variables: dict[str, Any], fixed: dict[str, Any],
                  proceed: Callable[[], Any]) -> Any:  # fmt: skip
        """One training step, which `proceed` runs; the mappings are those of MaxText's loop."""

    def before_save(self, step: int) -> None:
        """A checkpoint of this step is about to be saved."""

    def end_save(self) -> None:
        """MaxText waits for the save that is under way."""

    def saved(self, step: int) -> None:
        """The save of this step has begun in the background."""

    def declined(self, step: int) -> None:
        """Orbax did not begin the save of this step."""

    def may_scale_up(self) -> bool:
        """Whether MaxText may stop here for slices that are back."""

    def metrics(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Metrics of a completed step, on the host."""


@dataclass(frozen=True)
class MaxText:
    """MaxText's own entry points."""

    initialize: Callable[[list[str]], tuple[Any, Any]]
    run: Callable[[Any, Any], None]
    stop_training: type[Exception]
    version: str


def check() -> str:
    """Import MaxText and check each of `SYMBOLS`; returns MaxText's version.

    Raises:
      ElasticTPUError: a symbol is missing or takes other parameters; names it and the version.
    """
    version = importlib.metadata.version("maxtext")
    for module, symbol, parameters in SYMBOLS:
        found: Any = getattr(importlib.import_module(module), symbol, _MISSING)
        if found is _MISSING:
            raise ElasticTPUError(f"MaxText {version} has no {module}.{symbol}; install 0.2.5, which elastic-tpu fits")
        if parameters:
            have = list(inspect.signature(found).parameters)
            if any(name not in have for name in parameters):
                want = ", ".join(parameters)
                raise ElasticTPUError(
                    f"MaxText {version}: {module}.{symbol} takes ({', '.join(have)}), not ({want}); "
                    "install 0.2.5, which elastic-tpu fits"
                )
    return version


_MISSING = object()


def install(hooks: Hooks, manager: Any) -> MaxText:
    """Install the hooks; calling it again replaces them.

    Args:
      manager: pathwaysutils' elastic Manager, for MaxText to use.
    """
    from maxtext.common import checkpointing, metric_logger
    from maxtext.trainers.pre_train import train
    from maxtext.utils import elastic_utils, exceptions, maxtext_utils

    elastic_utils.elastic_manager = manager
    scale_up = _original(elastic_utils, "is_scale_up_event")
    elastic_utils.is_scale_up_event = lambda config: hooks.may_scale_up() and scale_up(config)
    elastic_utils.get_local_batch_size = _rows_for_all_devices
    iteration = _original(train, "training_loop_iteration")
    save = _original(checkpointing, "save_checkpoint")
    wait = _original(checkpointing, "wait_until_finished")
    load = _original(checkpointing, "load_state_if_possible")
    write = _original(metric_logger.MetricLogger, "write_metrics")
    describe = _original(maxtext_utils, "add_config_to_summary_writer")

    @functools.wraps(iteration)
    def hooked_iteration(state: dict[str, Any], variables: dict[str, Any], fixed: dict[str, Any]) -> Any:
        def proceed() -> Any:
            return iteration(state, variables, fixed)

        return hooks.iteration(int(variables["step"]), state, variables, fixed, proceed)

    @functools.wraps(save)
    def hooked_save(manager: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        hooks.before_save(int(step))
        try:
            begun = save(manager, step, *args, **kwargs)
        except Exception as error:
            raise SaveFailed(int(step)) from error
        hooks.saved(int(step)) if begun else hooks.declined(int(step))
        return begun

    @functools.wraps(wait)
    def hooked_wait(manager: Any) -> None:
        hooks.end_save()
        wait(manager)

    @functools.wraps(load)
    def hooked_load(*args: Any, **kwargs: Any) -> Any:
        hooks.before_restore()
        restored = load(*args, **kwargs)
        hooks.after_restore()
        return restored

    @functools.wraps(write)
    def hooked_write(self: Any, metrics: Any, step: int, metric_type: str = "train") -> Any:
        done = write(self, metrics, step, metric_type)
        if metrics and metric_type == "train":
            hooks.metrics(int(step), metrics["scalar"])
        return done

    described: list[str] = []

    @functools.wraps(describe)
    def describe_once(config: Any, summary_writer: Any) -> None:
        # It writes hundreds of text entries for TensorBoard: once a process is enough, a recovery need not wait for it.
        if config.run_name not in described:
            described.append(config.run_name)
            describe(config, summary_writer)

    train.training_loop_iteration = hooked_iteration
    checkpointing.save_checkpoint = hooked_save
    checkpointing.wait_until_finished = hooked_wait
    checkpointing.load_state_if_possible = hooked_load
    metric_logger.MetricLogger.write_metrics = hooked_write
    maxtext_utils.add_config_to_summary_writer = describe_once
    return MaxText(train.initialize, train.run, exceptions.StopTraining, importlib.metadata.version("maxtext"))


def _original(owner: Any, name: str) -> Any:
    kept = f"_elastic_tpu_{name}"
    if not hasattr(owner, kept):
        setattr(owner, kept, getattr(owner, name))
    return getattr(owner, kept)


def _rows_for_all_devices(config: Any) -> float:
    """Rows that this process loads a step.

    Under a single controller one process feeds every device, unless a colocated sidecar on each VM does; MaxText 0.2.5
    counts one VM's devices in both cases.
    """
    from maxtext.utils import elastic_utils

    if getattr(config, "colocated_python_data_input", False):
        return float(config.per_device_batch_size * elastic_utils.get_devices_per_host(config))
    rows = config.per_device_batch_size * len(elastic_utils.live_devices(config))
    return int(rows) if rows == int(rows) else rows


def check_first_batch(loader: Any, config: Any, devices: int) -> None:
    """Let the loader check its next batch, the first: MaxText 0.2.5 may feed one VM's devices only.

    Args:
      loader: MaxText's data loader.
      devices: live devices, each of which must get its rows.
    Raises:
      ElasticTPUError: from the loader, if the batch has another number of rows.
    """
    load = loader.load_next_batch
    expected = int(config.per_device_batch_size * devices * config.gradient_accumulation_steps)

    def checked(*args: Any, **kwargs: Any) -> Any:
        del loader.load_next_batch  # back to the method of the class; assigning it would keep the loader in a cycle
        batch = load(*args, **kwargs)
        rows = next(iter(batch.values())).shape[0]
        if rows != expected:
            raise ElasticTPUError(
                f"the first global batch has {rows} rows, {devices} devices with per_device_batch_size "
                f"{config.per_device_batch_size} need {expected}: the data pipeline does not feed every device"
            )
        return batch

    loader.load_next_batch = checked


def base_config() -> str:
    """Path of MaxText's base.yml."""
    from ...runs.spec.maxtext_config import configs_folder

    folder = configs_folder()
    if folder is None:
        raise ElasticTPUError(f"MaxText {importlib.metadata.version('maxtext')} has no configs/base.yml; install 0.2.5")
    return str(folder / "base.yml")


def arguments(overrides: Mapping[str, Any]) -> list[str]:
    """MaxText's command line for these keys."""

    def text(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    return ["elastic-tpu", base_config(), *(f"{key}={text(value)}" for key, value in overrides.items())]
