"""Opening a stage by a spec: a login comes first, the spec is read once, and a release starts nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record.run import open_run
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.stages.open import open_stage
from elastic_tpu.stages.steps import PROVISION, RELEASE, STEPS
from elastic_tpu.tests.support import Case
from elastic_tpu.tests.tools import small

MakeCase = Callable[..., Case]


@pytest.mark.parametrize("name", ["small", "small-{run}"])
def test_without_a_login_to_the_cluster_no_run_is_started(tmp_path: Path, gcs_bucket: str, name: str) -> None:
    source = tmp_path / "spec.yaml"
    document = small.gke(
        run={"name": name, "output": f"gs://{gcs_bucket}/runs"}, gke={"kubeconfig": str(tmp_path / "config")}
    )
    source.write_text(yaml.safe_dump(document))
    for step in STEPS.values():
        if step is not RELEASE:
            with pytest.raises(BadInput, match=r"gke\.kubeconfig: .*there is no such file"):
                open_stage(step, str(source), "dag/1", "try 1")
    release = open_stage(RELEASE, str(source), "dag/1", "try 1")
    assert release.poll().reason == "no run was started; nothing to do"
    assert open_store(f"gs://{gcs_bucket}/runs").list() == []


def test_a_spec_edited_during_the_login_starts_as_read(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case()

    def edit(spec: RunSpec) -> None:
        case.write(run={"name": "other"}, train={"steps": spec.train.steps + 1})

    monkeypatch.setattr("elastic_tpu.platforms.open.require_login", edit)
    stage = open_stage(PROVISION, str(case.spec), "dag/1", "try 1")
    assert stage.uri == case.uri
    assert open_run(case.uri).spec.train.steps == 60
