"""RunSpec: names, durations, numbers, the hash, and what never gets into it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.spec.load import check
from elastic_tpu.runs.spec.run_spec import RunSpec, run_id
from elastic_tpu.tests.tools.small import document, spec
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError


# docs/contracts.md 1
@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("qwen3-8b-a", "qwen3-8b-a"),
        ("Qwen3_8B.a", "qwen3-8b-a"),
        ("7b", "r7b"),
        ("a-very-long-name-of-a-run", "a-very-long-n"),
        ("twelve-chars-x", "twelve-chars"),  # the cut at 13 leaves no dash at the end
        ("run...", "run"),
        ("0", "r0"),
    ],
)
def test_run_id(name: str, slug: str) -> None:
    found = run_id("gs://b/runs", name)
    assert found.rpartition("-")[0] == slug
    assert re.fullmatch(r"[a-z][a-z0-9-]*-[0-9a-f]{8}", found)


@given(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,98}\Z"))
def test_a_run_id_is_a_jobset_name(name: str) -> None:
    found = run_id("gs://b", name)
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", found)
    assert len(found) <= 22


def test_run_id_tells_outputs_apart_but_not_a_trailing_slash() -> None:
    assert (
        run_id("gs://b/runs/", "a") == run_id("gs://b/runs", "a") == "a-f075980f"
    )  # printf 'gs://b/runs\na' | sha256sum
    assert run_id("gs://b/other", "a") != run_id("gs://b/runs", "a")


def test_the_hash_does_not_depend_on_the_order_of_keys_nor_on_how_a_value_is_written() -> None:
    one = document(
        train={"steps": 20, "maxtext": {"learning_rate": 3e-5, "base_mlp_dim": 1024}}, limits={"total": "60m"}
    )
    two = {key: one[key] for key in reversed(one)}
    two["train"] = {"maxtext": {"base_mlp_dim": 1024.0, "learning_rate": "3e-5"}, "steps": 20.0}
    two["limits"] = {"total": "1h"}
    assert check(one).hash() == check(two).hash()
    assert check(one).hash() != check(document()).hash()


def test_the_hash_is_the_same_in_another_process() -> None:
    import subprocess
    import sys

    code = "from elastic_tpu.tests.tools.small import spec; print(spec().hash())"
    environment = {"PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == spec().hash()


def test_a_spec_read_back_from_its_own_dump_is_the_same() -> None:
    first = spec(
        train={"steps": 100, "maxtext": {"profiler": None, "learning_rate": 1e-5}},
        recovery={"wait_for_slices": "2.3s", "stalled_after": 1 / 3},
        local={"faults": [{"slice": 1, "after_step": 2, "down": "forever"}]},
    )
    again = RunSpec.model_validate(first.model_dump(mode="json"))
    assert again == first
    assert again.hash() == first.hash()


@pytest.mark.parametrize("value", [20, 20.0, "20", "20.0", " 20 "])
def test_whole_numbers_arrive_as_doubles_and_text(value: object) -> None:  # E08
    steps = check(document(train={"steps": value}, checkpoint={"every": value})).train.steps
    assert (steps, type(steps)) == (20, int)


@pytest.mark.parametrize("value", [20.5, "20.5", True, "twenty", "", None, [], 1e300, float("inf"), float("nan")])
def test_what_is_no_whole_number(value: object) -> None:
    with pytest.raises(BadInput) as raised:
        check(document(train={"steps": value}))
    assert [p.path for p in raised.value.problems] == ["train.steps"]


@pytest.mark.parametrize("value", [9007199254740993, "9007199254740993"])
def test_a_number_above_2_to_53_survives(value: object) -> None:
    assert check(document(train={"steps": value})).train.steps == 9007199254740993


@pytest.mark.parametrize(("text", "value"), [("False", False), ("false", False), (False, False), ("true", True)])
def test_truth_values_arrive_as_text(text: object, value: bool) -> None:
    evaluate = RunSpec.model_validate(document(evaluate={"heldout": text})).evaluate
    assert evaluate
    assert evaluate.heldout is value


def test_sections_that_are_switched_off() -> None:
    off = spec(recovery=False, export=False, evaluate=False)
    assert (off.recovery, off.export, off.evaluate) == (False, False, False)
    assert off.recovery_limits.wait_for_slices == 4 * 3600
    assert RunSpec.model_validate(off.model_dump(mode="json")) == off


def test_a_spec_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        spec().train.steps = 3  # type: ignore[misc]


def test_secrets_are_references_in_every_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    dumped = spec(secrets={"HF_TOKEN": {"env": "HF_TOKEN"}}).model_dump_json()
    assert '"env":"HF_TOKEN"' in dumped
    assert "hf_abc" not in dumped


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("train.maxtext.x", {"train": {"maxtext": {"x": float("nan")}}}),
        ("train.maxtext.x", {"train": {"maxtext": {"x": b"bytes"}}}),
        ("train.maxtext.x", {"train": {"maxtext": {"x": {1: 2}}}}),
        ("gke.head", {"gke": {"head": {"a": "\ud800"}}}),
        ("model.name", {"model": {"name": "a\0b"}}),
    ],
)
def test_what_no_small_file_could_hold_is_refused(path: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=re.escape(path)):
        check(document(**changes))
