"""From a user's YAML to a spec: every problem at once, each with path, value and cure, and nothing made up."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.spec.gate import METRICS
from elastic_tpu.runs.spec.load import check, expand_name, has_template, read_spec
from elastic_tpu.runs.spec.plan import make_plan
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.runs.spec.yaml_file import parse
from elastic_tpu.tests.tools.small import document, gke, inputs_in, spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


def lines(changed: dict[str, Any]) -> list[str]:
    """What a user reads about this document."""
    try:
        check(changed)
    except BadInput as error:
        return str(error).splitlines()
    return []


def test_every_problem_is_told_at_once_and_no_other() -> None:
    wrong = {
        "run": {"name": "a b", "output": "gs://b/runs", "labels": {"team": "no way"}},
        "platform": "gke",
        "slices": {"type": "v6e-17", "count": 0, "min": 2},
        "model": {"name": "qwen3-0.6c"},
        "data": {"train": "gs://b/x.parquet", "eval": "gs://b/y.parquet"},
        "train": {
            "steps": "many",
            "maxtext": {"base_emb_dimm": 96, "hf_access_token": TOKEN, "run_name": "x", "base_mlp_dim": "wide"},
        },
        "checkpoint": {"every": 500, "keep": 1},
        "recovery": {"wait_for_slices": "soon"},
        "evaluate": {"gate": ["heldout.loss <= 2", "loss is low"]},
        "secrets": {"HF_TOKEN": TOKEN},
        "limit": {"total": "1d"},
    }
    assert lines(wrong) == [
        "run.name: 'a b', must be letters, digits, '.', '_' and '-', beginning with a letter or digit",
        "run.labels.team: 'no way', must be a Kubernetes label: at most 63 letters, digits, '.', '_' and '-', "
        "a letter or digit at both ends",
        "slices.count: 0, must be at least 1",
        "model.tokenizer: is required",
        "train.steps: 'many', must be a whole number",
        "checkpoint.keep: 1, must be at least 2",
        "recovery.wait_for_slices: 'soon', must be a duration such as 45s, 20m, 4h or 2d",
        "evaluate.gate.1: 'loss is low', write `metric <= number`, with one of <= < >= >, e.g. `heldout.loss <= 1.85`",
        "secrets.HF_TOKEN: '<hidden>', must be a mapping of its fields (secret, key, env)",
        "limit: is not a field here; nearest: limits",
        "slices.type: 'v6e-17', no such slice; nearest: v6e-16, v6e-32",
        "model.name: 'qwen3-0.6c', MaxText has no such model; nearest: qwen3-0.6b, qwen3-1.7b",
        "train.maxtext.base_emb_dimm: 96, MaxText has no such key; nearest: base_emb_dim, base_mlp_dim",
        "train.maxtext.hf_access_token: '<hidden>', looks like a credential; pass it by reference under `secrets`",
        "train.maxtext.run_name: 'x', is set by the product; use run.name",
        "train.maxtext.base_mlp_dim: 'wide', must be a number; MaxText's default is 7168",
        "gke: is required on platform gke: the trainer's `image`, `pathways: {tag}`, and the cluster",
    ]


# One mistake, one line: a value that stands in for a wrong one is never judged.
MISTAKES: list[tuple[dict[str, Any], str]] = [
    (document(slices={"count": 0, "min": 2}), "slices.count: 0, must be at least 1"),
    (document(slices={"count": 2, "min": 3}), "slices.min: 3, must be at most slices.count (2)"),
    (document(train={"steps": "x"}, checkpoint={"every": 500}), "train.steps: 'x', must be a whole number"),
    (gke(platform="gpc"), "platform: 'gpc', must be 'local' or 'gke'"),
    (gke(platform="gek"), "platform: 'gek', must be 'local' or 'gke'; nearest: gke"),
    (gke(secrets={"T": {"secret": "s", "key": "k"}}, platform=None), "platform: is empty, must be 'local' or 'gke'"),
    (gke(slices={"type": "sim-1x2"}), "slices.type: 'sim-1x2', platform gke takes a TPU, e.g. v6e-16"),
    (document(slices={"type": "v6e-16"}), "slices.type: 'v6e-16', platform local takes sim-<VMs>x<devices a VM>"),
    (document(slices={"type": None, "typ": "sim-1x2"}), "slices.typ: 'sim-1x2', is not a field here; nearest: type"),
    (document(checkpoint={"every": 101}), "checkpoint.every: 101, is more than train.steps (100)"),
    (document(checkpoint={"every": 10, "keep": 1}), "checkpoint.keep: 1, must be at least 2"),
    (document(data={"train": "/d/x.jsonl"}), "data.train: '/d/x.jsonl', cannot resume where it stopped"),
    (document(data={"train": "synthetic"}), "data.train: 'synthetic', cannot resume where it stopped"),
    (document(data={"train": "/d/x.jsonl"}, recovery=5), "recovery: 5, must be a mapping of its fields"),
    (document(data={"eval": "/data/train.parquet"}), "data.eval: '/data/train.parquet', is the training data"),
    (document(data={"eval": None}), "data.eval: is required by evaluate.heldout"),
    (document(data={"eval": None}, evaluate=[1]), "evaluate: must be a mapping of its fields (heldout, gate), or"),
    (document(export=False), "evaluate: needs an export"),
    (document(export=True, evaluate=False), "export: True, must be a mapping of its fields (dtype), or false"),
    (document(model={"name": "llama2-7b"}), "model.name: 'llama2-7b', the exporter knows qwen3"),
    (document(model={"name": "default", "start_from": "x"}, export=False, evaluate=False), "model.start_from: 'x'"),
    (document(model={}, data={}, run=None), "run: is empty, must be a mapping of its fields (name, output, labels)"),
    (document(train={"maxtext": {"base_emb_dim": 30}}, slices={"type": "sim-2x4"}), "train.maxtext.base_emb_dim: 30"),
    (
        document(
            slices={"type": "sim-1x2", "count": 4, "min": 2},
            train={"maxtext": {"base_emb_dim": 40, "dcn_data_parallelism": 1, "dcn_fsdp_parallelism": -1}},
        ),
        "train.maxtext.base_emb_dim: 40, must divide by the 6 devices that fsdp spans when 3 of 4 slices train",
    ),
    (
        document(slices={"count": 4, "min": 2}, train={"maxtext": {"dcn_data_parallelism": 4}}),
        "train.maxtext: the ici_*_parallelism keys must multiply to the 2 devices of a slice, "
        "the dcn_*_parallelism keys to the 2 slices when 2 of 4 slices train (slices.min)",
    ),
    (document(train={"maxtext": {"ici_tensor_parallelism": 3}}), "train.maxtext: the ici_*_parallelism keys must mu"),
    (document(train={"maxtext": {"per_device_batch_size": 0.3}}), "train.maxtext.per_device_batch_size: 0.3, times"),
    (document(train={"maxtext": {"per_device_batch_size": 0}}), "train.maxtext.per_device_batch_size: 0, must be ab"),
    (document(train={"maxtext": {"ici_fsdp_parallelism": 0}}), "train.maxtext.ici_fsdp_parallelism: 0, must be -1"),
    (document(train={"maxtext": {"packing": "maybe"}}), "train.maxtext.packing: 'maybe', must be true or false"),
    (document(train={"maxtext": {"grain_use_elastic_iterator": True}}), "train.maxtext.packing: True, must be false"),
    (document(slices={"topology": "4x4", "type": None, "machine_type": None}), "slices.type: give either"),
    (gke(slices={"capacity": "reservation"}), "slices.reservation: is required with `slices.capacity: reservation`"),
    (gke(slices={"reservation": "r"}), "slices.reservation: 'r', needs `slices.capacity: reservation`"),
    (document(run={"output": "s3://b/runs"}), "run.output: 's3://b/runs', must be a path or gs://bucket/..."),
    (document(run={"output": "gs://"}), "run.output: 'gs://', must be a path or gs://bucket/..."),
    (gke(run={"name": "a.yaml"}), "run.name: 'a.yaml', must not end in .yaml or .yml"),
    (gke(run={"output": "/runs"}), "run.output: '/runs', must be a bucket (gs://...) on platform gke"),
    (document(secrets={"T": {"secret": "s", "key": "k"}}), "secrets.T: on the local platform give {env: <NAME>}"),
    (gke(secrets={"T": {"env": "T"}}), "secrets.T: on gke give {secret: <name>, key: <key>}"),
    (
        document(local={"faults": [{"slice": 2, "after_step": 1}]}),
        "local.faults.0.slice: 2, there are 2 slices, numbered",
    ),
    (
        document(local={"faults": [{"slice": 1, "after_step": 1, "down": "x"}]}),
        "local.faults.0.down: 'x', must be a du",
    ),
    (
        document(local={"faults": [{"slice": 1, "after_step": 99}]}),
        "local.faults.0.after_step: 99, must be below the number of the last step (99)",
    ),
    (document(train={"maxtext": {"base_num_decoder_layers": 0}}), "train.maxtext.base_num_decoder_layers: 0, must be"),
    (document(train={"maxtext": {"head_dim": -1}}), "train.maxtext.head_dim: -1, must be at least 1"),
    (
        document(train={"maxtext": {"base_num_query_heads": 12}}),
        "train.maxtext.base_num_query_heads: 12, must be a multiple of base_num_kv_heads (8)",
    ),
    (
        document(train={"maxtext": {"base_num_kv_heads": 3}}),
        "train.maxtext.base_num_kv_heads: 3, must divide base_num_query_heads (16)",
    ),
    (document(evaluate={"heldout": False}), "evaluate.heldout: False, and without an evaluator of your own nothing is"),
    (document(evaluate={"gate": ["loss <= 9"]}), "evaluate.gate.0: 'loss <= 9', nothing measures that; there are held"),
    (document(run={"labels": {7: "x"}}), "run.labels.7: 7, its name must be text; put it in quotes"),
    (document(run={"name": 2026}), "run.name: 2026, must be text; put it in quotes"),
    (document(run={"name": "x" * 101}), f"run.name: '{'x' * 80}...', must be at most 100 characters"),
    (document(run={"name": ""}), "run.name: '', must not be empty"),
    # Credentials, wherever they are: the spec is written to files and reports.
    (document(run={"labels": {"x": TOKEN}}), "run.labels.x: '<hidden>', looks like a credential"),
    (document(tokn=TOKEN), "tokn: '<hidden>', is not a field here"),
    (document(local={"trainer": ["x", f"--token={TOKEN}"]}), "local.trainer.1: '<hidden>', looks like a credential"),
    (
        gke(
            gke={
                "head": {
                    "spec": {"initContainers": [{"name": "pathways-rm", "env": [{"name": "API_KEY", "value": "x"}]}]}
                }
            }
        ),
        "gke.head.spec.initContainers.0.env.0.value: '<hidden>', looks like",
    ),
    (document(train={"maxtext": {"wandb_key": "x"}}), "train.maxtext.wandb_key: '<hidden>', looks like"),
    (
        document(local={"trainer": ["x", "--db", f"postgres://u:{TOKEN}@h/d"]}),
        "local.trainer.2: '<hidden>', looks like",
    ),
    (
        document(local={"trainer": ["x", "https://h/o?X-Goog-Signature=a1b2"]}),
        "local.trainer.1: '<hidden>', looks like a credential",
    ),
    (
        gke(
            gke={
                "head": {
                    "spec": {
                        "initContainers": [{"name": "pathways-rm", "args": ["Authorization: Bearer abcdefgh1234"]}]
                    }
                }
            }
        ),
        "gke.head.spec.initContainers.0.args.0: '<hidden>', looks like",
    ),
    (document(train={"maxtext": {"wandb_api_key": "x"}}), "train.maxtext.wandb_api_key: '<hidden>', looks like"),
]


@pytest.mark.parametrize(("changed", "expected"), MISTAKES, ids=[expected[:50] for _, expected in MISTAKES])
def test_one_mistake_is_one_line(changed: dict[str, Any], expected: str) -> None:
    found = lines(changed)
    assert len(found) == 1, found
    assert found[0].startswith(expected)
    assert TOKEN not in found[0]


def test_what_is_right_on_its_own_platform() -> None:
    assert lines(document()) == lines(gke()) == []
    assert lines(gke(secrets={"HF_TOKEN": {"secret": "hf-token", "key": "token"}})) == []
    assert lines(document(recovery=False, data={"train": "/d/x.jsonl"})) == []
    assert lines({**document(), "gke": gke()["gke"] | {"image": "x:latest"}}) == []  # of a profile for both
    assert lines(document(model={"name": "llama2-7b"}, export=False, evaluate=False)) == []
    assert lines(document(train={"steps": 20}, checkpoint={"every": 20})) == []  # the last step is saved anyway
    assert lines(document(train={"maxtext": {"learning_rate": "3e-5", "hf_access_token": ""}})) == []
    assert lines(document(train={"maxtext": {"base_moe_mlp_dim": -1, "base_num_kv_heads": 4}})) == []
    assert lines(document(local={"faults": [{"slice": 1, "after_step": 98}]})) == []
    assert lines(document(evaluate={"gate": [f"{metric} > 0" for metric in METRICS]})) == []


def test_text_that_stands_for_a_number_becomes_one() -> None:
    written_ = "{learning_rate: 3e-5, base_emb_dim: 96.0, packing: 'False', vocab_size: 1_024}"
    for read in (yaml.safe_load(written_), parse(written_.encode(), "x.yaml")):
        assert check(document(train={"maxtext": read})).train.maxtext == {
            "learning_rate": 3e-5,
            "base_emb_dim": 96,
            "packing": False,
            "vocab_size": 1024,
        }


# -- files --------------------------------------------------------------------------------------------------------


def written(folder: Path, content: dict[str, Any] | str, name: str = "spec.yaml") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def test_relative_paths_are_against_the_specs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    inputs_in(tmp_path / "specs")
    source = written(
        tmp_path / "specs",
        document(
            run={"output": "../out"},
            model={"tokenizer": "./data/tokenizer"},
            data={"train": "data/train*.parquet", "eval": "gs://b/./valid.parquet"},
        ),
    )
    read = read_spec(source, {})
    assert read.run.output == str(tmp_path / "out")
    assert read.model.tokenizer == str(tmp_path / "specs" / "data" / "tokenizer")
    assert read.data.train == str(tmp_path / "specs" / "data" / "train*.parquet")
    assert read.data.eval == "gs://b/./valid.parquet"


def test_data_that_is_no_file_stays(tmp_path: Path) -> None:
    there = document(**inputs_in(tmp_path))
    there["data"]["train"], there["recovery"] = "synthetic", False
    source = written(tmp_path, there)
    assert read_spec(source, {}).data.train == "synthetic"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty; write the sections"),
        ("# nothing\n", "is empty"),
        ("- run\n- platform\n", "holds a list; a mapping of sections"),
        ("run", "holds only 'run'; a mapping of sections"),
        ("run: {name: x", "not readable as YAML"),
        ("run: [\t", "not readable as YAML"),
        ("a: !!python/object:os.system x", "not readable as YAML"),
        ("a: !!int ''", "not readable as YAML"),
        ("a: !!bool x", "not readable as YAML"),
        ("a: !!timestamp x", "not readable as YAML"),
        ("? [a]\n: b", "not readable as YAML"),
        ("a: " + "[" * 5000, "not readable as YAML"),
        ("a: " + "1" * 5000, "not readable as YAML"),
    ],
)
def test_a_file_that_is_no_spec(tmp_path: Path, content: str, expected: str) -> None:
    source = written(tmp_path, content)
    with pytest.raises(BadInput) as raised:
        read_spec(source, {})
    assert str(raised.value).startswith(f"{source}: {expected}")


@pytest.mark.parametrize("source", ["missing.yaml", ".", "a\0b.yaml", "~nobody-at-all/x.yaml", "x" * 5000 + ".yaml"])
def test_a_spec_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="cannot read this spec"):
        read_spec(source, {})


VARIABLES = {"HOME": "/home/ann", "WHERE": "deep/er", "BUCKET": "gs://b", "EMPTY": ""}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("$HOME/runs", "/home/ann/runs"),
        ("${HOME}/runs", "/home/ann/runs"),
        ("$WHERE/runs", "{folder}/deep/er/runs"),
        ("a/$WHERE$WHERE", "{folder}/a/deep/erdeep/er"),
        ("runs-$5-$", "{folder}/runs-$5-$"),  # no names of variables
    ],
)
def test_variables_in_local_paths_are_expanded(tmp_path: Path, output: str, expected: str) -> None:
    source = written(tmp_path, document(run={"output": output}))
    assert read_spec(source, VARIABLES, with_inputs=False).run.output == expected.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("$NOWHERE/runs", "$NOWHERE is not set here; set it, or write the path out"),
        ("${}/runs", "${} is not set here"),
        ("$EMPTY/runs", "$EMPTY is not set here"),
        ("$BUCKET/runs", "$BUCKET is the URI of a bucket here; write it out"),
        ("gs://b/$HOME/runs", "$HOME would be expanded in a local path only; write its value"),
    ],
)
def test_variables_that_have_no_value_there_are_refused(tmp_path: Path, output: str, expected: str) -> None:
    source = written(tmp_path, document(run={"output": output}, train={"steps": "x"}, slices={"count": 0}))
    with pytest.raises(BadInput) as raised:
        read_spec(source, VARIABLES, with_inputs=False)
    told = str(raised.value).splitlines()
    assert [line for line in told if line.startswith("run.output")] == [line for line in told if expected in line]
    assert len(told) == 3  # the others are told too


def test_a_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    source = written(tmp_path, document(run={"output": "~/runs"}))
    assert read_spec(source, {}, with_inputs=False).run.output == "/home/ann/runs"


@pytest.mark.parametrize("make", [document, gke])
@pytest.mark.parametrize(
    "tokenizer", ["Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B", "https://huggingface.co/Qwen/Qwen3-0.6B"]
)
def test_a_repository_of_the_hub_is_no_folder(
    tmp_path: Path, make: Callable[..., dict[str, Any]], tokenizer: str
) -> None:
    inputs = inputs_in(tmp_path) if make is document else {}
    source = written(tmp_path, make(**inputs | {"model": {"tokenizer": tokenizer}}))
    with pytest.raises(BadInput) as raised:
        read_spec(source, {})
    assert str(raised.value).startswith(f"model.tokenizer: {tokenizer!r}, is no folder here; if it is a repository")
    assert "`hf download Qwen/Qwen3-0.6B --include '*token*' --local-dir tokenizer`" in str(raised.value)
    assert len(raised.value.problems) == 1


def test_a_folder_that_reads_like_a_repository_is_a_folder(tmp_path: Path) -> None:
    source = written(tmp_path, document(**inputs_in(tmp_path) | {"model": {"tokenizer": "data/tokenizer"}}))
    assert read_spec(source, {}).model.tokenizer == str(tmp_path / "data" / "tokenizer")


def test_keys_for_anchors_are_ignored(tmp_path: Path) -> None:
    content = document(**inputs_in(tmp_path))
    del content["data"]
    data = inputs_in(tmp_path)["data"]
    text = f"x-data: &d {{train: {data['train']}}}\n{yaml.safe_dump(content)}data: {{<<: *d, eval: {data['eval']}}}\n"
    assert read_spec(written(tmp_path, text), {}).data.train == data["train"]
    with pytest.raises(BadInput, match=r"run\.x-a: 1, is not a field here"):
        read_spec(written(tmp_path, document(run={"x-a": 1})), {})


@pytest.mark.parametrize("name", ["spec.txt", "spec", "spec.yaml.bak"])
def test_a_spec_with_another_suffix(tmp_path: Path, name: str) -> None:
    source = written(tmp_path, document(**inputs_in(tmp_path)), name)
    with pytest.raises(BadInput, match=r"a spec's name ends in \.yaml or \.yml; rename it"):
        read_spec(source, {})


@pytest.mark.parametrize("name", ["spec.yaml", "spec.yml", "SPEC.YAML"])
def test_the_suffixes_of_a_spec(tmp_path: Path, name: str) -> None:
    assert read_spec(written(tmp_path, document(**inputs_in(tmp_path)), name), {}).run.name == "small"


def test_durations_and_words_as_a_user_writes_them(tmp_path: Path) -> None:
    text = yaml.safe_dump(document(run={"labels": {}}, limits={})).replace("limits: {}", "limits: {total: 1h30m}")
    text = text.replace("labels: {}", "labels: {no: on, a: 2026-01-31}").replace("steps: 100", "steps: 010")
    read = read_spec(written(tmp_path, text), {}, with_inputs=False)
    assert (read.limits.total, read.train.steps) == (5400, 10)
    assert read.run.labels == {"no": "on", "a": "2026-01-31"}
    with pytest.raises(BadInput, match=r"limits\.total: '1:30', must be a duration"):
        read_spec(written(tmp_path, text.replace("1h30m", "1:30")), {}, with_inputs=False)


@pytest.mark.parametrize("output", ["a\0b", "~nobody-at-all/runs"])
def test_a_path_that_is_none(tmp_path: Path, output: str) -> None:
    source = written(tmp_path, document(run={"output": output}))
    with pytest.raises(BadInput, match=r"run\.output: .*is not a path of this machine"):
        read_spec(source, {})


def test_yaml_that_contains_itself(tmp_path: Path) -> None:
    content = yaml.safe_dump(document()) + "gke: {head: &a {again: *a}}\n"
    with pytest.raises(BadInput, match=r"'a' contains itself\n.*line 18, column 24:\n +gke: \{head: &a \{again: \*a"):
        read_spec(written(tmp_path, content), {})


# -- profiles -----------------------------------------------------------------------------------------------------


def test_a_spec_is_merged_over_its_profile(tmp_path: Path) -> None:
    written(
        tmp_path / "profiles",
        {
            "run": {"output": "../from-the-profile", "labels": {"team": "platform", "cost": "42"}},
            "limits": {"queue": "1h", "total": "2d"},
            "evaluate": {"gate": ["heldout.loss <= 1"]},
            "profile": "ignored",
        },
        "team.yaml",
    )
    content = document(**inputs_in(tmp_path), profile="team", limits={"total": "3d"}, evaluate=False)
    content["run"] = {"name": "small", "labels": {"team": "nlp"}}
    merged = read_spec(written(tmp_path, content), {})
    assert merged.run.labels == {"team": "nlp", "cost": "42"}
    assert (merged.limits.queue, merged.limits.total) == (3600, 3 * 86400)
    assert merged.run.output == str(tmp_path / "from-the-profile")  # against the profile's own folder
    assert merged.evaluate is False


def test_profiles_may_be_elsewhere(tmp_path: Path) -> None:
    written(tmp_path / "shared", {"limits": {"total": "2d"}}, "team.yaml")
    source = written(tmp_path / "mine", document(**inputs_in(tmp_path), profile="team"))
    assert read_spec(source, {"ELASTIC_TPU_PROFILES": str(tmp_path / "shared")}).limits.total == 2 * 86400


def test_a_profile_may_end_in_yml(tmp_path: Path) -> None:
    written(tmp_path, {"limits": {"total": "2d"}, "x-a": 1}, "team.yml")
    source = written(tmp_path, document(**inputs_in(tmp_path), profile="team"))
    assert read_spec(source, {}).limits.total == 2 * 86400


def test_a_profile_with_a_key_twice_is_named(tmp_path: Path) -> None:
    written(tmp_path, "limits: {}\nlimits: {}\n", "team.yaml")
    with pytest.raises(BadInput, match=r"team\.yaml: not readable as YAML:\n.*'limits' stands twice"):
        read_spec(written(tmp_path, document(profile="team")), {})


@pytest.mark.parametrize("profile", ["nope", ["team"], 7, "x" * 5000, None])
def test_no_such_profile(tmp_path: Path, profile: object) -> None:
    source = written(tmp_path, document(profile=profile))
    with pytest.raises(BadInput, match=r"profile: .*no such profile; looked for "):
        read_spec(source, {})


def test_problems_of_a_profile_are_problems_of_the_spec(tmp_path: Path) -> None:
    written(tmp_path, {"limits": {"totl": "2d"}}, "team.yaml")
    with pytest.raises(BadInput, match=r"limits\.totl: '2d', is not a field here; nearest: total"):
        read_spec(written(tmp_path, document(profile="team")), {})


# -- names with a template ----------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 31, 12, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "orchestrator_run", "expanded"),
    [
        ("q-{date}", "x", "q-20260131"),
        ("q-{datetime}", "x", "q-20260131T120500"),
        ("{run}", "my_dag/manual__2026-01-31T12:00:00+00:00", "my_dag-manual__2026-01-31T12-00-00-00-00"),
        ("{run}-{date}", "_über/1", "ber-1-20260131"),
        ("{run}", "///", "run"),
        ("plain", "x", "plain"),
    ],
)
def test_templates(name: str, orchestrator_run: str, expanded: str) -> None:
    before = spec(run={"name": name})
    after = expand_name(before, orchestrator_run, NOW)
    assert after.run.name == expanded
    assert has_template(before) is ("{" in name)
    assert RunSpec.model_validate(after.model_dump(mode="json")) == after  # the run can be opened again


def test_a_date_of_another_zone_is_told_in_utc() -> None:
    late = datetime(2026, 1, 31, 22, tzinfo=timezone(timedelta(hours=-5)))
    assert expand_name(spec(run={"name": "q-{datetime}"}), "x", late).run.name == "q-20260201T030000"


def test_a_long_orchestrator_run_is_cut_but_stays_its_own() -> None:
    a, b = (expand_name(spec(run={"name": "q-{run}"}), f"{'d' * 200}/{n}", NOW).run.name for n in "ab")
    assert a != b
    assert len(a) <= 100


@pytest.mark.parametrize("name", ["q-{user}", "q-{", "q-}", "{{date}}"])
def test_other_templates_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"only \{date\}, \{datetime\}, \{run\} may stand in braces"):
        expand_name(spec(run={"name": name}), "x", NOW)


def test_each_item_of_a_list_keeps_its_number() -> None:
    assert lines(document(local={"faults": [[], {-245: 1}, [], {"slice": 0, "after_step": "x"}]})) == [
        "local.faults.0: must be a mapping of its fields (slice, after_step, down)",
        "local.faults.1.slice: is required",
        "local.faults.1.after_step: is required",
        "local.faults.1.-245: -245, must be text, as every key; put it in quotes",
        "local.faults.2: must be a mapping of its fields (slice, after_step, down)",
        "local.faults.3.after_step: 'x', must be a whole number",
    ]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"data": {"train": ["a.parquet", "b.parquet"]}},
            "data.train: must be one text, not a list; a pattern names se",
        ),
        ({"data": {"eval": ["a.parquet"]}}, "data.eval: must be one text, not a list; a pattern names several files"),
        ({"model": {"tokenizer": {"a": 1}}}, "model.tokenizer: must be one text, not a mapping"),
        ({"run": {"name": ["a"]}}, "run.name: must be one text, not a list"),
        ({"train": {"steps": [10]}}, "train.steps: must be a whole number, not a list"),
        ({"checkpoint": {"every": {}}}, "checkpoint.every: must be a whole number, not a mapping"),
        ({"limits": {"total": ["4h"]}}, "limits.total: must be a duration such as 45s, 20m, 4h or 2d, not a list"),
        ({"evaluate": {"heldout": [True]}}, "evaluate.heldout: must be true or false, not a list"),
        ({"evaluate": {"gate": [["a"]]}}, "evaluate.gate.0: must be one text, not a list"),
        ({"platform": ["local"]}, "platform: must be 'local' or 'gke', not a list"),
        ({"gke": {"image": "x", "head": {"a": [{1: 2}]}}}, "gke.head.a: must have only text as keys; put quotes"),
        ({"evaluate": {"gate": "heldout.loss <= 2"}}, "evaluate.gate: 'heldout.loss <= 2', must be a list: [...]"),
    ],
)
def test_a_list_where_one_value_is_wanted(changed: dict[str, Any], expected: str) -> None:
    (told,) = lines(document(**changed))
    assert told.startswith(expected)


# -- junk ---------------------------------------------------------------------------------------------------------

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "0", "20.0", "synthetic", "gs://", "4h", "forever", "v6e-16", "sim-1x1", "{date}", 10**400])
    | st.text(max_size=8)
    | st.dates()
    | st.binary(max_size=4)
)
_junk = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=6,
)


def _paths(section: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = section.items() if isinstance(section, dict) else enumerate(section) if isinstance(section, list) else ()
    return [at, *(path for key, value in inner for path in _paths(value, (*at, key)))]


FULL = document(
    run={"labels": {"team": "nlp"}},
    slices={"min": 1, "machine_type": None, "topology": None, "capacity": "on_demand", "reservation": None},
    train={
        "maxtext": dict.fromkeys(
            ["base_emb_dim", "per_device_batch_size", "ici_fsdp_parallelism", "num_experts", "mu_dtype", "opt_type"], 2
        )
        | {"mlp_activations": ["silu"], "decoder_block": "qwen3", "gradient_accumulation_steps": 1, "junk": 1}
    },
    recovery={"wait_for_slices": "1h", "head_restarts": 2},
    limits={"total": "1d"},
    export={"dtype": "bfloat16"},
    evaluate={"heldout": True, "gate": ["heldout.loss <= 2"]},
    secrets={"A": {"env": "A"}},
    gke={"head": {"a": [{"name": "x"}]}, "project": None, "ttl": 3},
    local={"faults": [{"slice": 1, "after_step": 3, "down": "forever"}], "trainer": ["x"]},
    profile=None,
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.tuples(st.sampled_from(_paths(FULL)[1:]), _junk), min_size=1, max_size=4))
def test_junk_in_any_field_is_bad_input_or_a_spec_that_can_be_planned(
    changes: list[tuple[tuple[Any, ...], Any]],
) -> None:
    changed = document(**FULL)
    for path, value in changes:
        target: Any = changed
        for part in path[:-1]:
            fits = isinstance(target, dict) and part in target
            fits = fits or (isinstance(target, list) and isinstance(part, int) and part < len(target))
            target = target[part] if fits else None
        if isinstance(target, dict) or (
            isinstance(target, list) and isinstance(path[-1], int) and path[-1] < len(target)
        ):
            target[path[-1]] = value
    told: BadInput | None = None
    try:
        checked = check(changed)
    except BadInput as error:
        told = error
    if told is not None:
        assert told.problems
        assert len({str(p) for p in told.problems}) == len(told.problems)
        return
    plan = make_plan(checked)
    assert math.isfinite(sum(plan.slice_hours.values()))
    assert RunSpec.model_validate(checked.model_dump(mode="json")).hash() == checked.hash()
