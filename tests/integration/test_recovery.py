"""Recovery with real MaxText, Orbax and pathwaysutils on simulated slices: what comes out is what an uninterrupted run
gives, bit for bit, whatever was lost on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.runs.errors import ExitCode
from elastic_tpu.runs.record import paths, proof
from elastic_tpu.runs.record.result import proven_result

from .conftest import EVERY, STEPS, Scenario, WarmTrainer, differing, tiny_spec, wait_for

pytestmark = pytest.mark.maxtext

TWO_OF_THREE = "2 of 3 slices, global batch 8 instead of 12, the learning rate stays"
Make = Callable[..., Scenario]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, data: Path, trainer: WarmTrainer) -> dict[str, Any]:
    """The final checkpoint of a run that nothing happened to."""
    from elastic_tpu.runs.record.run import create_run
    from elastic_tpu.runs.spec.load import check

    out = tmp_path_factory.mktemp("uninterrupted")
    one = Scenario(create_run(check(tiny_spec(out, data))), trainer)
    one.provision()
    assert one.train() == 0
    assert not one.events("recovery.started")
    result, why = proven_result(one.run)
    assert result is not None, why
    assert (result.final_step, result.recoveries, result.early_stop) == (STEPS - 1, 0, False)
    content = one.checkpoint()
    assert len(content) > 40, "all arrays and the iterator"
    one.platform.release()
    return content


def test_a_lost_slice_changes_nothing_in_the_result(scenario: Make, uninterrupted: dict[str, Any]) -> None:
    one = scenario()
    wait = one.start()
    one.wait_for_step(EVERY)
    one.kill(1)
    assert wait() == 0
    assert differing(one.checkpoint(), uninterrupted) == []
    (recovery,) = one.events("recovery.finished")
    assert recovery.data["in_process"]
    assert (recovery.data["account"], recovery.data["result"]) == ("exact", "bit-identical")
    assert recovery.data["slices"] == [1]
    assert recovery.data["restored"] % EVERY == 0
    assert recovery.data["steps_lost"] == recovery.data["reached"] - recovery.data["restored"]
    assert len(one.events("attempt.started")) == 1, "one process, start to end"
    result, why = proven_result(one.run)
    assert result is not None, why
    assert (result.attempts, result.recoveries) == (1, 1)


@pytest.mark.full
def test_two_slices_at_once_then_another_one(scenario: Make, uninterrupted: dict[str, Any]) -> None:
    one = scenario()
    wait = one.start()
    one.wait_for_step(0)
    one.kill(0, 2)
    wait_for(lambda: len(one.events("recovery.finished")) == 1)
    one.wait_for_step(EVERY)
    one.kill(1)
    assert wait() == 0
    assert differing(one.checkpoint(), uninterrupted) == []
    assert len(one.events("recovery.finished")) == 2


@pytest.mark.full
def test_a_kill_while_a_checkpoint_is_being_saved(scenario: Make, uninterrupted: dict[str, Any]) -> None:
    one = scenario()
    wait = one.start()
    folder = Path(one.run.uri) / "checkpoints"
    wait_for(lambda: (folder / f"{EVERY}.orbax-checkpoint-tmp").exists())
    one.kill(0)
    assert wait() == 0
    assert differing(one.checkpoint(), uninterrupted) == []
    assert not one.events("checkpoint.rejected")


def truncate(folder: Path) -> None:
    file = biggest(folder)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def delete_a_part(folder: Path) -> None:
    biggest(folder).unlink()


def flip_one_bit(folder: Path) -> None:
    file = biggest(folder)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def biggest(folder: Path) -> Path:
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: (p.stat().st_size, p.name))


@pytest.mark.parametrize(
    "damage", [flip_one_bit, *(pytest.param(how, marks=pytest.mark.full) for how in (truncate, delete_a_part))]
)
def test_a_damaged_newest_checkpoint_is_never_loaded(
    scenario: Make, uninterrupted: dict[str, Any], damage: Callable[[Path], None]
) -> None:
    one = scenario()
    wait = one.start()
    one.wait_for_step(2 * EVERY)
    one.driver.stop(0, "the test")
    assert wait() == ExitCode.ENDED_ON_REQUEST
    newest = proof.newest_proven(one.run.store)
    assert newest is not None
    assert newest > 2 * EVERY, "a stop saves the step that it comes at"
    damage(Path(one.run.uri) / paths.checkpoint(newest))

    one.driver.take()
    assert one.train() == 0
    (rejected,) = one.events("checkpoint.rejected")
    assert rejected.step == newest
    restored = [event.step for event in one.events("train.restored")]
    assert len(restored) == 1
    assert restored[0] % EVERY == 0
    assert restored[0] < newest
    assert list((Path(one.run.uri) / "checkpoints-rejected").glob(f"{newest}-*"))
    assert differing(one.checkpoint(), uninterrupted) == []


@pytest.mark.full
def test_a_stop_is_saved_and_a_relaunch_resumes(scenario: Make, uninterrupted: dict[str, Any]) -> None:
    one = scenario()
    wait = one.start()
    one.wait_for_step(EVERY)
    one.driver.stop(0, "the test")
    assert wait() == ExitCode.ENDED_ON_REQUEST
    status = one.status()
    assert status is not None
    assert status.phase == "ended"
    assert status.proven_step == status.step, "nothing was lost"
    assert "the test" in status.reason
    assert proven_result(one.run)[0] is None, "a stopped run is not a success"

    one.driver.take()
    assert one.train() == 0
    assert [event.step for event in one.events("train.restored")] == [status.step]
    assert differing(one.checkpoint(), uninterrupted) == []

    before = len(one.events("attempt.started"))
    assert one.train() == 0, "a relaunch of a complete run"
    status = one.status()
    assert status is not None
    assert "already complete" in status.reason
    assert len(one.events("attempt.started")) == before + 1
    assert len(one.events("train.restored")) == 1, "does nothing"


@pytest.mark.full
def test_slices_of_two_vms_feed_every_device(scenario: Make, uninterrupted: dict[str, Any]) -> None:
    """MaxText 0.2.5 counts the devices of one VM only; the same six devices must see the same batches."""
    one = scenario(slices={"type": "sim-2x1", "count": 3})
    assert one.train() == 0
    assert differing(one.checkpoint(), uninterrupted) == []


@pytest.mark.full
def test_the_end_of_the_data_is_an_early_stop_with_the_last_step_saved(
    scenario: Make, data: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    few = tmp_path / "few.parquet"
    pq.write_table(pq.read_table(data / "train.parquet").slice(0, 40), few)
    one = scenario(data={"train": str(few)}, train={"maxtext": {"num_epoch": 1}})
    assert one.train() == 0
    result, why = proven_result(one.run)
    assert result is not None, why
    assert result.early_stop
    assert 0 < result.final_step < STEPS - 1
    assert (Path(one.run.uri) / paths.checkpoint(result.final_step)).is_dir()


def test_unreadable_data_is_no_success(scenario: Make, data: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    content = (data / "train.parquet").read_bytes()
    broken.write_bytes(content[: len(content) // 2])
    one = scenario(data={"train": str(broken)})
    assert one.train() == ExitCode.BAD_INPUT
    status = one.status()
    assert status is not None
    assert "broken.parquet" in status.reason
    assert not (Path(one.run.uri) / paths.RESULT).exists()


def test_what_the_run_directory_tells(scenario: Make) -> None:
    """A person or a new process learns the story from small files alone."""
    one = scenario(train={"steps": 12})
    assert one.train() == 0
    result = json.loads((Path(one.run.uri) / paths.RESULT).read_text())
    assert result["final_step"] == 11
    assert result["spec_hash"] == one.run.spec_hash
    proven = [event.step for event in one.events("checkpoint.proven")]
    assert proven == [0, 10, 11]
    first = one.events("train.first_step")
    assert [event.step for event in first] == [0]


@pytest.mark.full
@pytest.mark.parametrize("proven", [True, False])
def test_a_death_after_the_last_save_costs_no_step(scenario: Make, uninterrupted: dict[str, Any], proven: bool) -> None:
    """MaxText itself refuses a directory whose last step is saved; the run is complete all the same."""
    one = scenario()
    assert one.train() == 0
    (Path(one.run.uri) / paths.RESULT).unlink()
    if not proven:
        (Path(one.run.uri) / paths.proof(STEPS - 1)).unlink()
    assert one.train() == 0
    result, why = proven_result(one.run)
    assert result is not None, why
    assert result.final_step == STEPS - 1
    assert len(one.events("train.first_step")) == 1, "no step was done again"
    assert differing(one.checkpoint(), uninterrupted) == []


@pytest.mark.full
def test_fewer_slices_go_on_and_take_the_lost_one_in_after_a_save(scenario: Make) -> None:
    one = scenario(
        slices={"type": "sim-1x2", "count": 3, "min": 2}, local={"restart_delay": "3s"}, train={"steps": 150}
    )
    wait = one.start()
    one.wait_for_step(EVERY)
    one.kill(1)
    assert wait() == 0
    loss, back = one.events("recovery.finished")
    assert loss.data["slices"] == [1]
    assert (loss.data["result"], back.data["result"]) == (TWO_OF_THREE,) * 2, "steps with two slices count"
    assert [(e.data["active"], e.data["global_batch"]) for e in one.events("train.slices")] == [(2, 8), (3, 12)]
    assert back.data["steps_lost"] == 0, "more slices are taken right after a save"
    result, why = proven_result(one.run)
    assert result is not None, why
    assert result.final_step == 149
    assert result.steps_lost == loss.data["steps_lost"]


@pytest.mark.full
def test_a_loss_that_is_not_a_number_for_once_costs_some_steps(scenario: Make, uninterrupted: dict[str, Any]) -> None:
    one = scenario(recovery={"wait_for_slices": "2m", "on_nan": "restore"})
    assert one.trainer.start(one.run, nan_at=2 * EVERY)() == 0
    (told,) = one.events("train.not_finite")
    (rejected,) = one.events("checkpoint.rejected")
    (recovery,) = one.events("recovery.finished")
    assert (told.step, rejected.step, recovery.data["restored"]) == (2 * EVERY, 2 * EVERY, EVERY)
    assert recovery.data["result"] == f"it went back because the loss of step {2 * EVERY} is nan"
    assert differing(one.checkpoint(), uninterrupted) == []


def test_training_that_diverges_ends_in_words_and_leaves_no_bad_checkpoint(scenario: Make) -> None:
    one = scenario(train={"maxtext": {"learning_rate": 1e18, "warmup_steps_fraction": 0.9}}, checkpoint={"every": 1})
    assert one.train() == ExitCode.BUG
    (told,) = one.events("train.not_finite")
    status = one.status()
    assert status is not None
    assert f"the loss of step {told.step} is {told.data['loss']}: training is stopped" in status.reason
    proven = proof.recorded_steps(one.run.store)
    assert max(proven) < (told.step or 0)
    assert not [p for p in (Path(one.run.uri) / "checkpoints").iterdir() if int(p.name) not in proven]
