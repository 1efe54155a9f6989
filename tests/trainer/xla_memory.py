"""Compiles MaxText's own training step for CPU devices and prints what XLA says of its memory; executes nothing.

Reads a list of MaxText keys as JSON from standard input; prints for each the bytes on a device, arguments included.
"""

import json
import os
import sys

DEVICES = 2
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"


def measure(keys: dict[str, object]) -> int:
    """Bytes on a device for one set of MaxText's keys, by MaxText's own ahead-of-time compilation."""
    import jax
    from jax.sharding import AxisType, Mesh
    from maxtext.configs import pyconfig
    from maxtext.trainers.pre_train import train, train_compile
    from maxtext.utils import maxtext_utils, sharding

    config = pyconfig.initialize(["measure", *(f"{key}={value}" for key, value in keys.items())])
    axes = (AxisType.Auto,) * len(config.mesh_axes)
    mesh = Mesh(maxtext_utils.create_device_mesh(config, jax.devices()), config.mesh_axes, axis_types=axes)
    arguments, more, shardings, _, model = train_compile.get_shaped_inputs(mesh, config)
    parameters, shardings = sharding.maybe_update_params_sharding_with_opt(config, shardings)
    state = sharding.build_zero1_input_state_mesh_shardings(config, shardings, parameters)
    data = sharding.get_input_data_sharding(config, mesh)
    signature = maxtext_utils.get_functional_train_with_signature(
        train.train_step, data, state, model, config, parameters
    )
    step, inputs, outputs, static, donated = signature
    rules = train_compile.axis_rules(config.logical_axis_rules)
    compiled = train_compile.jit_and_compile(
        step, arguments, more, mesh, inputs, outputs, static, donated, config, rules
    )
    said = compiled.memory_analysis()
    return int(said.argument_size_in_bytes + said.temp_size_in_bytes)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # MaxText prints
    json.dump([measure(keys) for keys in json.load(sys.stdin)], answers)
    answers.flush()
