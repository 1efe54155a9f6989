"""The exception that decides, out of the chains that MaxText, Orbax and tensorstore make."""

from __future__ import annotations

import jax
import pytest
from elastic_tpu.runs.errors import BadInput, EndedOnRequest, Unreachable
from elastic_tpu.trainer.training.error_chain import decisive_error, own_error


def wrapped(cause: Exception) -> Exception:
    """As MaxText raises what a save raised."""
    try:
        raise RuntimeError(f"Checkpointing failed. {cause}") from cause
    except RuntimeError as error:
        return error


LOSS = jax.errors.JaxRuntimeError("DATA_LOSS: slice 1")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (LOSS, "jax", "DATA_LOSS: slice 1"),
        (wrapped(LOSS), "jax", "DATA_LOSS: slice 1"),
        (wrapped(wrapped(LOSS)), "jax", "DATA_LOSS: slice 1"),
        (OSError(5, "I/O error"), "storage", "I/O error"),
        (wrapped(Unreachable("gs://b: no answer")), "storage", "gs://b: no answer"),
        (wrapped(ValueError("UNAVAILABLE: Error reading gs://b/x")), "storage", "UNAVAILABLE: Error reading gs://b/x"),
        (ValueError("shapes are UNAVAILABLE"), "other", "shapes are UNAVAILABLE"),
        (FileNotFoundError(2, "No such file"), "other", "No such file"),
        (wrapped(PermissionError(13, "denied")), "other", "Checkpointing failed"),
        (KeyError("x"), "other", "x"),
    ],
)
def test_which_exception_decides_and_of_which_kind(error: Exception, kind: str, text: str) -> None:
    found, told = decisive_error(error)
    assert found == kind
    assert text in str(told)


def test_our_own_error_keeps_its_code_through_a_save() -> None:
    for error in (EndedOnRequest("superseded"), BadInput("data.train: empty")):
        assert own_error(wrapped(error)) is error
    assert own_error(wrapped(Unreachable("gone"))) is None
    assert own_error(wrapped(LOSS)) is None
