"""A refusal of YAML shows the line, but none with a credential."""

from __future__ import annotations

import pytest
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.spec.yaml_file import parse


@pytest.mark.parametrize(
    "text",
    [
        'train:\n  maxtext: {wandb_key: "correct-horse", b: [}\n',
        "password: correct-horse\npassword: correct-horse\n",
        "x: [https://u:correct-horse@h/\n",
        "x: {password: correct-horse, a: [" + "1, " * 200 + "}",
    ],
)
def test_a_line_with_a_credential_is_not_shown(text: str) -> None:
    with pytest.raises(BadInput, match=r"line \d+") as told:
        parse(text.encode(), "spec.yaml")
    assert "correct-horse" not in str(told.value)


def test_another_line_is_shown() -> None:
    with pytest.raises(BadInput, match=r"a: \[}"):
        parse(b"train:\n  steps: 7 }\n  a: [}\n", "spec.yaml")
