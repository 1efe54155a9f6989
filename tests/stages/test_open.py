"""Opening a stage by a spec: a login comes first, the spec is read once, and a release starts nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from elastic_tpu.platforms.gke.api.choice import ForeignLogin
from elastic_tpu.platforms.gke.api.cluster import Cluster
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record.run import create_run, open_run
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.runs.spec.run_spec import RunSpec
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.stages.allowed import home_of, require_under
from elastic_tpu.stages.open import open_stage
from elastic_tpu.stages.stage import Step
from elastic_tpu.stages.steps import PROVISION, RELEASE, STEPS
from elastic_tpu.tests.platforms.gke.scripted_api import Answer, ScriptedApi, serving
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
                open_stage(step, str(source), "dag/1", "try 1", allow_local=True)
    release = open_stage(RELEASE, str(source), "dag/1", "try 1")
    assert release.poll().reason == "no run was started; nothing to do"
    assert open_store(f"gs://{gcs_bucket}/runs").list() == []


@pytest.mark.parametrize("name", ["small", "small-{run}"])
def test_a_run_that_the_cluster_would_refuse_leaves_no_directory(
    tmp_path: Path, gcs_bucket: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Cluster.__init__.__kwdefaults__ or {}, "pauses", ())
    asked = Answer({"kind": "SelfSubjectAccessReview", "status": {"allowed": False, "userInfo": {"username": "ann"}}})
    with serving(ScriptedApi(asked)) as api:
        config = tmp_path / "config"
        cluster = {"clusters": [{"name": "c", "cluster": {"server": api.url}}], "users": [{"name": "u", "user": {}}]}
        context = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
        config.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **cluster, **context}))
        source = tmp_path / "spec.yaml"
        document = small.gke(
            run={"name": name, "output": f"gs://{gcs_bucket}/runs"},
            gke={"kubeconfig": str(config), "namespace": "team"},
        )
        source.write_text(yaml.safe_dump(document))
        for step in STEPS.values():
            if step is not RELEASE:
                with pytest.raises(BadInput, match=r"gke\.namespace: 'team', ann may not create jobsets"):
                    open_stage(step, str(source), "dag/1", "try 1", allow_local=True)
        release = open_stage(RELEASE, str(source), "dag/1", "try 1")
        assert release.poll().reason == "no run was started; nothing to do"
    assert open_store(f"gs://{gcs_bucket}/runs").list() == []


def test_a_spec_edited_during_the_login_starts_as_read(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case()

    def edit(spec: RunSpec, own: bool) -> None:
        case.write(run={"name": "other"}, train={"steps": spec.train.steps + 1})

    monkeypatch.setattr("elastic_tpu.platforms.open.require_login", edit)
    stage = open_stage(PROVISION, str(case.spec), "dag/1", "try 1", allow_local=True)
    assert stage.uri == case.uri
    assert open_run(case.uri).spec.train.steps == 60


# ---- what an orchestrator's stage does not do because somebody triggered it


@pytest.mark.parametrize("step", STEPS.values(), ids=str)
def test_a_local_run_is_not_driven_on_the_machine_of_an_orchestrator(make_case: MakeCase, step: Step) -> None:
    case = make_case()
    if step is not RELEASE:
        with pytest.raises(BadInput, match=r"platform: 'local', would run(.|\n)*local\.trainer: "):
            open_stage(step, str(case.spec), "dag/1", "try 1")
        assert not case.output.exists()
    stored = create_run(read_spec(str(case.spec)))
    with pytest.raises(BadInput, match=r"platform: 'local'.*allow_local=True"):
        open_stage(step, stored.uri, "dag/1", "try 1")


@pytest.mark.parametrize("named", [{"kubeconfig": "/nowhere"}, {"context": "production"}])
def test_a_pipelines_spec_chooses_no_login_of_the_machine(
    tmp_path: Path, gcs_bucket: str, named: dict[str, str]
) -> None:
    source = tmp_path / "spec.yaml"
    document = small.gke(run={"name": "r", "output": f"gs://{gcs_bucket}/runs"}, gke=named)
    source.write_text(yaml.safe_dump(document))
    for given in (str(source), create_run(RunSpec.model_validate(document)).uri):
        with pytest.raises(ForeignLogin):
            open_stage(PROVISION, given, "dag/1", "try 1")


def test_a_run_whose_spec_is_not_the_one_the_pipeline_began_with_is_refused(make_case: MakeCase) -> None:
    stored = create_run(read_spec(str(make_case().spec)))
    pinned = stored.spec_hash
    for step in STEPS.values():
        assert open_stage(step, stored.uri, "dag/1", "1", allow_local=True, spec_hash=pinned).spec_hash == pinned
        with pytest.raises(BadInput, match=f"has the hash {pinned}, this pipeline started with other"):
            open_stage(step, stored.uri, "dag/1", "1", allow_local=True, spec_hash="other")


@pytest.mark.parametrize(
    ("source", "prefix", "allowed"),
    [
        ("gs://acme/specs/a.yaml", "gs://acme", True),
        ("gs://acme/specs/a.yaml", "gs://acme/specs/", True),
        ("gs://acme-evil/a.yaml", "gs://acme", False),
        ("gs://acme/specs-evil/a.yaml", "gs://acme/specs", False),
        ("gs://acme/specs/../../evil/a.yaml", "gs://acme/specs", False),
        ("/etc/a.yaml", "gs://acme", False),
        ("gs://acme/a.yaml", "/", False),
        ("/srv/specs/a.yaml", "/srv/specs", True),
        ("/srv/specs/../evil/a.yaml", "/srv/specs", False),
        ("relative.yaml", ".", True),
    ],
)
def test_where_the_spec_of_a_pipeline_may_lie(source: str, prefix: str, allowed: bool) -> None:
    with nullcontext() if allowed else pytest.raises(BadInput, match="may start only what lies under"):
        require_under(source, ["gs://another/one", prefix])


def test_a_link_does_not_lead_out_of_the_folder_of_specs(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "a.yaml").symlink_to(tmp_path / "evil.yaml")
    with pytest.raises(BadInput, match="may start only"):
        require_under(str(tmp_path / "specs" / "a.yaml"), [str(tmp_path / "specs")])


def test_the_bucket_of_its_own_spec_is_a_pipelines_home() -> None:
    assert home_of("gs://acme/specs/a.yaml") == "gs://acme"
    assert home_of("/srv/specs/a.yaml") == "/srv/specs"
    assert home_of("a.yaml") == "."
