"""The simulated Pathways backend: a "proxy" platform that is really XLA's CPU client, with slices x VMs x devices.

MaxText, pathwaysutils and Orbax run on it unchanged; what is simulated is the hardware, and every figure made here is
called simulated. Each CPU device gets the `slice_index` and the `task_id` (its VM) that a TPU device has.
`configure` must come before jax is imported, `install` right after.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping, Set
from pathlib import Path

_THREADS_PER_DEVICE = 8
_DEVICES_FLAG = "--xla_force_host_platform_device_count="


def cache_folder() -> Path:
    """Where compiled programs are kept between runs of the local platform."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "elastic-tpu" / "jax"


def configure(slices: int, devices_per_slice: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what jax reads when it is imported."""
    environ["JAX_PLATFORMS"] = "proxy,cpu"
    flags = [flag for flag in environ.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICES_FLAG)]
    environ["XLA_FLAGS"] = " ".join([*flags, f"{_DEVICES_FLAG}{slices * devices_per_slice}"])
    # XLA's CPU client runs independent collectives of one step side by side, each blocking a thread until all devices
    # have joined; with as many threads as cores they can wait for one another for ever. NPROC sizes its pool.
    threads = _THREADS_PER_DEVICE * slices * devices_per_slice
    environ["NPROC"] = str(max(int(environ.get("NPROC", "0") or 0), threads))
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        environ.setdefault(name, "1")  # the local platform needs no network


def install(devices_per_slice: int, devices_per_vm: int, alive: Callable[[], Set[int]]) -> None:
    """Register the backend, give each device its slice and VM, and call a slice healthy while its worker is alive.

    Args:
      devices_per_slice: CPU devices of a slice.
      devices_per_vm: CPU devices of a VM (`task_id`).
      alive: slices whose worker answers now.
    """
    import jax
    from jax._src import xla_bridge
    from jax.extend import backend
    from pathwaysutils import initialize, profiling, proxy_backend
    from pathwaysutils.elastic import elastic

    def register() -> None:
        backend.register_backend_factory("proxy", xla_bridge.make_cpu_client, priority=-1)

    class WorkerHealth(elastic.SliceHealthChecker):  # type: ignore[misc]
        """A simulated slice is up while its worker process is; there is nothing to dispatch."""

        def dispatch(self) -> None:
            return None

        def validate(self) -> Set[int]:
            return frozenset(self.slice_to_devices) & frozenset(alive())

    proxy_backend.register_backend_factory = register
    profiling.monkey_patch_jax = lambda: None  # there is no Pathways profiler server to talk to
    elastic.DefaultSliceHealthChecker = WorkerHealth
    initialize()
    # Real Pathways has its own compilation cache. Here XLA's makes a second compilation cheap.
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    device = type(jax.devices()[0])
    device.slice_index = property(lambda self: self.id // devices_per_slice)
    device.task_id = property(lambda self: self.id // devices_per_vm)
