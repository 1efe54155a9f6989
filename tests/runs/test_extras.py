"""A missing extra is told in one sentence with the pip line, wherever it is needed."""

from __future__ import annotations

import importlib
import sys

import pytest
from elastic_tpu.runs import extras
from elastic_tpu.runs.errors import BadInput, ExitCode


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("elastic_tpu.components.train_elastic.component", "kfp", "kfp"),
        ("elastic_tpu.pipelines.train_export_evaluate", "kfp", "kfp"),
        ("elastic_tpu.pipelines.compile", "kfp", "kfp"),
        ("elastic_tpu.components.airflow_operator", "airflow.triggers.base", "airflow"),
        ("elastic_tpu.components.airflow", "airflow.triggers.base", "airflow"),
        ("elastic_tpu.components.kfp", "kfp", "kfp"),
        ("elastic_tpu.components.train_elastic.operator", "airflow.triggers.base", "airflow"),
        ("elastic_tpu.dags.train_export_evaluate", "airflow.triggers.base", "airflow"),
    ],
)
def test_an_import_without_its_extra(monkeypatch: pytest.MonkeyPatch, module: str, library: str, extra: str) -> None:
    for name in [name for name in sys.modules if name.startswith(("elastic_tpu.components", "elastic_tpu.pipelines"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError) as caught:
        importlib.import_module(module)
    assert isinstance(caught.value, BadInput)
    assert caught.value.code == ExitCode.BAD_INPUT
    assert f"needs `pip install 'elastic-tpu[{extra}]'`" in str(caught.value)


def test_what_is_installed_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    extras.require("trainer", "the trainer")
    monkeypatch.setitem(sys.modules, "jax", None)
    expected = r"the trainer needs `pip install 'elastic-tpu\[trainer\]'` \(No module named 'jax'\)"
    with pytest.raises(extras.MissingExtra, match=expected):
        extras.require("trainer", "the trainer")
