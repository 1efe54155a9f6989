"""Success needs proof: result.json of this spec, and a final checkpoint that is what was proven."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record import proof
from elastic_tpu.runs.record.result import TrainingResult, proven_result, read_result
from elastic_tpu.runs.record.run import Run
from elastic_tpu.runs.store import records
from elastic_tpu.tests.tools.small import checkpoint, run_at


def complete(run: Run, step: int = 99, **changes: object) -> TrainingResult:
    """A run with its final checkpoint proven and its result written."""
    checkpoint(run, step)
    proven = proof.Proof(step, proof.files_of(run.store, step))
    run.store.put(f"proofs/{step}.json", proven.dump())
    result = TrainingResult(
        final_step=step,
        checkpoint=run.path(f"checkpoints/{step}"),
        proof_digest=proven.digest,
        spec_hash=run.spec_hash,
        attempts=1,
        recoveries=0,
        steps_lost=0,
        goodput=0.9,
        seconds_by_kind={"training": 9.0, "other": 1.0},
        early_stop=False,
    )
    result = dataclasses.replace(result, **changes)  # type: ignore[arg-type]
    run.store.put("result.json", result.dump())
    return result


def test_a_result_that_proves(store_uri: str) -> None:
    run = run_at(store_uri)
    result = complete(run)
    assert proven_result(run) == (result, "")


def test_a_trainer_that_only_said_so_proves_nothing(tmp_path: Path) -> None:  # B02
    run = run_at(tmp_path)
    checkpoint(run, 90)
    run.store.put("checkpoints/99.orbax-checkpoint-tmp-1/x", b"half")
    run.store.put("attempts/1/trainer.log", b"saved 99")
    assert proven_result(run) == (None, "there is no result.json")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spec_hash": "0" * 64}, "result.json is of another spec (hash 000000000000"),
        ({"proof_digest": "x"}, "the proof of the final checkpoint (step 99) is missing, or not the result's"),
        ({"final_step": 98}, "result.json is of step 98, the last is 99"),  # A12
        ({"final_step": 50, "early_stop": True}, "the proof of the final checkpoint (step 50) is missing"),
    ],
)
def test_a_result_that_does_not(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    run = run_at(tmp_path)
    complete(run, **changes)
    result, told = proven_result(run)
    assert result is None
    assert told.startswith(why)


def test_the_end_of_the_data_is_a_result(tmp_path: Path) -> None:  # A12
    run = run_at(tmp_path)
    result = complete(run, step=5, early_stop=True)
    assert proven_result(run) == (result, "")


@pytest.mark.parametrize("damage", ["gone", "bit", "proof"])
def test_a_final_checkpoint_that_is_not_what_was_proven(tmp_path: Path, damage: str) -> None:
    run = run_at(tmp_path)
    complete(run)
    if damage == "gone":
        run.store.delete("checkpoints/99/items/params.w/0.0")
    elif damage == "bit":
        run.store.put("checkpoints/99/items/params.w/0.0", b"Weights" * 100)
    else:
        run.store.delete("proofs/99.json")
    result, why = proven_result(run)
    assert result is None
    assert "final checkpoint (step 99)" in why


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{}", "not a training result"),
        (b'{"schema": 2}', "schema 2 is newer than 1"),
        (b'{"final_step": 99}', "not a training result"),
    ],
)
def test_a_file_that_is_no_result_is_refused_by_name(tmp_path: Path, data: bytes, message: str) -> None:
    run = run_at(tmp_path)
    run.store.put("result.json", data)
    with pytest.raises(BadInput, match=f"result.json: .*{message}"):
        read_result(run)


def test_fields_of_a_later_writer_are_ignored(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    result = complete(run)
    run.store.put("result.json", records.seal({**dataclasses.asdict(result), "new_field": 1}))
    assert read_result(run) == result


def test_a_result_of_a_version_without_digests_holds(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    result = complete(run, goodput=1.0002, seconds_by_kind={"training": 9.0})  # as it was rounded then
    run.store.put("result.json", records.dump(dataclasses.asdict(result)))
    assert proven_result(run) == (result, "")


def test_no_bit_of_a_result_can_be_flipped_unnoticed(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    result = complete(run)
    whole = run.store.read("result.json").data
    for at in range(len(whole)):  # a bit of each byte
        Path(run.uri, "result.json").write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(BadInput):
            read_result(run)
    Path(run.uri, "result.json").write_bytes(whole)
    assert read_result(run) == result


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"goodput": float("nan")}, "goodput"),
        ({"goodput": 1.5}, "goodput"),
        ({"goodput": 0.4}, "goodput is 0.4, but seconds_by_kind give 0.9000"),
        ({"seconds_by_kind": {"training": float("inf")}}, "seconds_by_kind.training"),
        ({"seconds_by_kind": {"training": -1.0}}, "seconds_by_kind.training"),
        ({"attempts": -1}, "attempts"),
        ({"recoveries": 1.5}, "recoveries"),
        ({"final_step": "99"}, "final_step"),
        ({"early_stop": None}, "early_stop"),
    ],
)
def test_figures_that_cannot_be_are_refused_by_name(
    tmp_path: Path, changes: dict[str, object], said: str, sealed: bool
) -> None:
    run = run_at(tmp_path)
    record = {**dataclasses.asdict(complete(run)), **changes, "schema": 1}
    if sealed:
        record["record_digest"] = records.digest(record)
    run.store.put("result.json", json.dumps(record).encode())
    with pytest.raises(BadInput, match=re.escape(said)) as raised:
        read_result(run)
    assert "result.json: " in str(raised.value)
    assert "move it aside" in str(raised.value)
