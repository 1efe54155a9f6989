"""What a spec amounts to: parameters, memory, overrides, slice-hours, and that no JAX is needed to know."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from elastic_tpu.runs.spec import input_files, machine, maxtext_config
from elastic_tpu.runs.spec.input_files import machine_gib
from elastic_tpu.runs.spec.memory import fsdp_ways, parameter_count
from elastic_tpu.runs.spec.plan import Plan, data_kind, make_plan, maxtext_overrides
from elastic_tpu.tests.tools.small import gke, spec


# The figures of the models' own cards and of transformers, by num_parameters().
@pytest.mark.parametrize(
    ("model", "parameters"),
    [("qwen3-0.6b", 596_049_920), ("qwen3-8b", 8_190_735_360), ("qwen3-30b-a3b", 30_532_122_624)],
)
def test_parameters(model: str, parameters: int) -> None:
    assert parameter_count(maxtext_config.resolved(model, {})) == parameters


def test_memory_of_float32_adamw() -> None:
    memory = make_plan(spec(slices={"type": "sim-1x2", "count": 2})).memory
    assert memory is not None
    assert memory.parameters_gib == pytest.approx(596_049_920 * 4 / 2**30)
    assert memory.optimizer_gib == pytest.approx(2 * memory.parameters_gib)
    assert memory.checkpoint_gib == pytest.approx(3 * memory.parameters_gib)
    # Weights, gradients and two moments over the two devices that fsdp spans; slices hold copies.
    assert memory.per_device_gib == pytest.approx(4 * memory.parameters_gib / 2)


def test_memory_of_other_types() -> None:
    half = make_plan(spec(train={"maxtext": {"weight_dtype": "bfloat16", "mu_dtype": "bfloat16"}})).memory
    whole = make_plan(spec()).memory
    assert half is not None
    assert whole is not None
    assert half.checkpoint_gib == pytest.approx(whole.checkpoint_gib / 2)
    assert make_plan(spec(train={"maxtext": {"opt_type": "sgd"}})).memory.optimizer_gib == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("document", "persistence", "reason"),
    [
        (gke(model={"name": "qwen3-0.6b"}), False, "a checkpoint is 6.66 GiB, not above 6.7 GiB"),
        (gke(model={"name": "qwen3-1.7b"}), True, "GiB, above 6.7 GiB"),
        ({"model": {"name": "qwen3-1.7b"}}, False, "the local platform has no Pathways service"),
    ],
)
def test_persistence(document: dict[str, object], persistence: bool, reason: str) -> None:
    plan = make_plan(spec(**document))
    assert plan.persistence is persistence
    assert reason in plan.persistence_reason


def test_hardware_batch_and_hours() -> None:
    plan = make_plan(
        spec(
            **gke(
                slices={"type": "v6e-16", "count": 4, "min": 3},
                train={"steps": 100, "maxtext": {"per_device_batch_size": 2, "gradient_accumulation_steps": 4}},
                limits={"total": "10h", "start": "30m", "first_step": "15m"},
                recovery={"wait_for_slices": "2h"},
            )
        )
    )
    assert (plan.slices, plan.minimum, plan.chips, plan.vms, plan.devices) == (4, 3, 64, 16, 64)
    assert plan.global_batch == 2 * 64 * 4
    assert plan.slice_hours == {"total": 40, "start": 2, "first_step": 1, "wait_for_slices": 8}
    assert plan.uri == "gs://bucket/runs/small"
    assert plan.record()["shape"]["topology"] == "4x4"


def test_the_batch_of_every_number_of_slices_is_said() -> None:
    sections: dict[str, Any] = {"train": {"steps": 100, "maxtext": {"per_device_batch_size": 2}}}
    plan = make_plan(spec(slices={"type": "sim-1x2", "count": 3, "min": 1}, **sections))
    assert plan.global_batches == {1: 4, 2: 8, 3: 12}
    note = (
        "on fewer slices (slices.min) the global batch is smaller and the learning rate stays: 12 on 3, 8 on 2, 4 on 1"
    )
    assert note in plan.notes
    many = make_plan(spec(slices={"type": "sim-1x2", "count": 100, "min": 1}, **sections))
    assert any(text.endswith("400 on 100, 396 on 99, 392 on 98, 388 on 97, 384 on 96, 4 on 1") for text in many.notes)
    assert not any("fewer slices" in text for text in make_plan(spec(slices={"count": 3}, **sections)).notes)


def test_memory_that_fewer_slices_lack_is_said() -> None:
    sharded: dict[str, Any] = {"dcn_data_parallelism": 1, "dcn_fsdp_parallelism": -1}
    big: dict[str, Any] = {"model": {"name": "qwen3-32b"}, "train": {"steps": 100, "maxtext": sharded}}
    notes = make_plan(spec(**gke(slices={"type": "v6e-16", "count": 2, "min": 1}, **big))).notes
    assert any(note.startswith("on 1 of 2 slices a step needs about") for note in notes), notes


def test_a_fraction_of_a_row_a_device_is_a_whole_batch() -> None:
    plan = make_plan(spec(slices={"type": "sim-1x4", "count": 2}, train={"maxtext": {"per_device_batch_size": 0.5}}))
    assert plan.global_batch == 4


def on_v5e(**maxtext: Any) -> Plan:
    """Qwen3-0.6b, which a step of 2048 tokens a device takes: 2.2 GiB of state on 4 chips of 16 GiB, 2.9 of logits."""
    return make_plan(spec(**gke(slices={"type": "v5litepod-4", "count": 1}, train={"steps": 10, "maxtext": maxtext})))


def test_memory_of_a_step_in_parts() -> None:
    memory = on_v5e(per_device_batch_size=1).memory
    assert memory is not None
    assert memory.per_device_gib == pytest.approx(596_049_920 * 16 / 4 / 2**30)
    assert memory.logits_gib == pytest.approx(2048 * 151_936 * 10 / 2**30)
    assert memory.saved_gib == pytest.approx(28 * 2048 * 1024 * 4 / 2**30)
    assert memory.scores_gib == 0  # a TPU's kernel computes attention in tiles
    assert memory.step_gib == pytest.approx(memory.per_device_gib + memory.logits_gib + memory.saved_gib)
    tiled = on_v5e(per_device_batch_size=1, num_vocab_tiling=4).memory
    assert tiled is not None
    assert tiled.logits_gib == pytest.approx(memory.logits_gib / 4)


def test_every_axis_that_shards_weights_divides_the_state() -> None:
    fsdp = on_v5e(per_device_batch_size=1).memory
    tensor = on_v5e(per_device_batch_size=1, ici_fsdp_parallelism=1, ici_tensor_parallelism=4).memory
    assert fsdp is not None
    assert tensor is not None
    assert tensor.per_device_gib == fsdp.per_device_gib
    assert tensor.logits_gib == fsdp.logits_gib  # four times the sequences, each with a quarter of the vocabulary


def test_a_step_that_may_not_fit_into_a_tpu_is_noted() -> None:
    assert on_v5e(per_device_batch_size=2).notes == ()
    (note,) = on_v5e(per_device_batch_size=5).notes
    assert "a step needs about" in note
    assert "there are 16 GiB: lower per_device_batch_size or max_target_length" in note
    (note,) = make_plan(spec(**gke(slices={"type": "v6e-4", "count": 1}, model={"name": "qwen3-32b"}))).notes
    assert "there are 32 GiB" in note
    assert "dcn_fsdp_parallelism" in note  # the state alone is too large


def test_simulated_devices_have_the_memory_of_their_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "machine_gib", machine_gib)  # in place of the other tests' large machine
    monkeypatch.setattr(machine, "memory_limit", lambda: 2**30)
    (problem,) = input_files.machine_problems(spec())
    assert "there are 1 GiB, 4 devices share it" in str(problem)
    assert "(this process may use 1 GiB of the machine's" in str(problem)


def test_simulated_devices_share_the_memory_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    small = spec()
    memory = make_plan(small).memory
    assert memory is not None
    assert memory.step_gib is not None
    devices = make_plan(small).devices
    monkeypatch.setattr(input_files, "machine_gib", lambda: memory.step_gib * devices / 1.9)
    assert input_files.machine_problems(small) == []
    monkeypatch.setattr(input_files, "machine_gib", lambda: memory.step_gib * devices / 2.1)
    (problem,) = input_files.machine_problems(small)
    assert f"{devices} devices share it: lower per_device_batch_size" in str(problem)


def test_simulated_figures_are_called_simulated() -> None:
    assert "simulated" in " ".join(make_plan(spec()).notes)


def test_overrides_of_the_product() -> None:
    keys = maxtext_overrides(
        spec(
            **gke(
                slices={"min": 3},
                train={"steps": 60, "maxtext": {"learning_rate": 3e-5}},
                checkpoint={"every": 20, "keep": 5},
                recovery={"wait_for_slices": "2h"},
            )
        )
    )
    expected = {
        "run_name": "small",
        "base_output_directory": "gs://bucket/runs",
        "model_name": "qwen3-0.6b",
        "steps": 60,
        "dataset_type": "grain",
        "grain_train_files": "gs://bucket/train*.array_record",
        "grain_file_type": "arrayrecord",
        "checkpoint_period": 20,
        "max_num_checkpoints_to_keep": 5,
        "save_checkpoint_on_completion": True,
        "elastic_min_slice_count": 3,
        "elastic_timeout_seconds": 7200,
        "hardware": "tpu",
        "learning_rate": 3e-5,
    }
    assert {key: keys[key] for key in expected} == expected
    assert "override_model_config" not in keys


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [
        ({}, False),
        ({"learning_rate": 1e-3, "per_device_batch_size": 1}, False),
        ({"base_emb_dim": 1024}, False),  # what the model says anyway
        ({"base_emb_dim": 1024.0}, False),
        ({"base_emb_dim": 96}, True),
    ],
)
def test_override_model_config_is_set_only_when_the_model_changes(overrides: dict[str, object], needed: bool) -> None:
    assert ("override_model_config" in maxtext_overrides(spec(train={"maxtext": overrides}))) is needed


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("/d/x.parquet", ("grain", "parquet")),
        ("gs://b/train*.array_record", ("grain", "arrayrecord")),
        ("/d/x.arrayrecord", ("grain", "arrayrecord")),
        ("/d/x.array_record*", ("grain", "arrayrecord")),
        ("/d/x.array_record-00000-of-00010", ("grain", "arrayrecord")),
        ("/d/x.array_record-*", ("grain", "arrayrecord")),
        ("/d/x.parquet.gz", ("hf", "")),
        ("/d/parquet/x.jsonl", ("hf", "")),
        ("/d/x.parquets", ("hf", "")),
        ("synthetic", ("synthetic", "")),
    ],
)
def test_the_suffix_decides_how_data_is_read(pattern: str, kind: tuple[str, str]) -> None:
    assert data_kind(pattern) == kind


# MaxText's defaults: ici_fsdp_parallelism and dcn_data_parallelism take what is left.
@pytest.mark.parametrize(
    ("keys", "devices", "slices", "ways"),
    [
        ({}, 16, 4, 16),
        ({"ici_tensor_parallelism": 4}, 16, 4, 4),
        ({"ici_tensor_parallelism": 3}, 16, 4, None),
        ({"ici_fsdp_parallelism": 8}, 16, 1, None),
        ({"ici_fsdp_parallelism": 8, "ici_data_parallelism": 2}, 16, 1, 8),
        ({"dcn_data_parallelism": 1, "dcn_fsdp_parallelism": -1}, 16, 4, 64),
        ({"dcn_fsdp_parallelism": 2}, 16, 4, 32),
        ({"dcn_fsdp_parallelism": 3}, 16, 4, None),
        ({"dcn_fsdp_parallelism": 3}, 16, 1, 16),  # one slice: the dcn keys do not matter
        ({"ici_data_parallelism": -1}, 16, 1, None),  # two axes to be filled
    ],
)
def test_devices_that_fsdp_spans(keys: dict[str, int], devices: int, slices: int, ways: int | None) -> None:
    assert fsdp_ways(maxtext_config.resolved("qwen3-0.6b", keys), devices, slices) == ways


def test_planning_imports_neither_jax_nor_maxtext() -> None:
    code = (
        "import sys\n"
        "from elastic_tpu.runs.spec.load import check\n"
        "from elastic_tpu.runs.spec.plan import make_plan\n"
        "import json\n"
        "assert make_plan(check(json.loads(sys.argv[1]))).memory\n"
        "heavy = {'jax', 'jaxlib', 'maxtext', 'orbax', 'pathwaysutils', 'tensorstore', 'torch', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    import json

    from elastic_tpu.tests.tools.small import document

    done = subprocess.run([sys.executable, "-c", code, json.dumps(document())], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
