"""Where the login to a cluster comes from, that it is renewed, and that no file is touched."""

from __future__ import annotations

import base64
import datetime
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google.auth.credentials
import google.cloud
import kubernetes.config.incluster_config
import pytest
import yaml
from elastic_tpu.platforms.gke.api import credentials
from elastic_tpu.platforms.gke.api.cluster import Cluster
from elastic_tpu.platforms.gke.api.credentials import Surroundings, connect, surroundings
from elastic_tpu.platforms.gke.api.google_login import server_of
from elastic_tpu.runs.errors import BadInput, Unreachable
from elastic_tpu.runs.spec.run_spec import Gke
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.tests.platforms.gke.scripted_api import Answer, Request, ScriptedApi, serving, status
from elastic_tpu.tests.support import command
from elastic_tpu.tests.tools.small import gke
from google.cloud import container_v1

ANSWER = Answer({"kind": "JobSet", "metadata": {"name": "demo-1"}})
NAMED = Gke(project="proj", location="europe-west4", cluster="tpus")
METADATA = {
    "project/project-id": "proj",
    "instance/attributes/cluster-location": "europe-west4",
    "instance/attributes/cluster-name": "tpus",
}


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with serving(ScriptedApi(ANSWER)) as api:
        yield api


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key", folder / "crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def secure(tls: tuple[Path, Path]) -> Iterator[ScriptedApi]:
    with serving(ScriptedApi(ANSWER), *tls) as api:
        yield api


@pytest.fixture
def nothing(tmp_path: Path) -> Surroundings:
    """A machine with no login at all."""

    def no_google(name: str) -> tuple[Any, Any]:
        raise BadInput(f"no Google credentials for {name}")

    return Surroundings({"KUBECONFIG": str(tmp_path / "none")}, tmp_path / "account", no_google, lambda _: None)


def kubeconfig(path: Path, server: str, user: dict[str, Any] | None = None, **contexts: str) -> Path:
    """A kubeconfig with a context for the server, the current one, and more for others."""
    servers = {"here": server, **contexts}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": name, "cluster": {"server": address}} for name, address in servers.items()],
        "users": [{"name": "me", "user": {"token": "one"} if user is None else user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in servers],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def ask(client: Any) -> object:
    return Cluster(client, "team").get_jobset("demo-1")


def tokens(api: ScriptedApi) -> list[str]:
    return [request.token for request in api.requests]


# -- a kubeconfig -------------------------------------------------------------------------------------------------


def test_a_kubeconfig_is_used_and_never_written(api: ScriptedApi, nothing: Surroundings, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", api.url)
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir()))
    client = connect(Gke(kubeconfig=str(path)), nothing)
    api.answers = [status(401, "Unauthorized"), ANSWER]
    assert ask(client)
    assert tokens(api) == ["Bearer one", "Bearer one"]
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir())) == before


def test_a_token_that_the_library_renews_is_not_written_back(
    api: ScriptedApi, nothing: Surroundings, tmp_path: Path
) -> None:
    made = {"credential": {"access_token": "new", "token_expiry": "2099-01-01T00:00:00Z"}}
    (tmp_path / "login.py").write_text(f"print({json.dumps(json.dumps(made))})")
    command = {"cmd-path": sys.executable, "cmd-args": str(tmp_path / "login.py")}
    old = {"access-token": "old", "expiry": "2000-01-01T00:00:00Z", **command}
    path = kubeconfig(tmp_path / "config", api.url, {"auth-provider": {"name": "gcp", "config": old}})
    before = path.read_bytes()
    client = connect(Gke(kubeconfig=str(path)), nothing)
    assert ask(client)
    assert tokens(api) == ["Bearer new"]
    assert path.read_bytes() == before


def test_a_named_context_wins_over_the_current_one(api: ScriptedApi, nothing: Surroundings, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", other=api.url)
    assert ask(connect(Gke(kubeconfig=str(path), context="other"), nothing))
    around = replace(nothing, environ={"KUBECONFIG": str(path)})
    assert connect(Gke(context="other"), around).configuration.host == api.url
    assert connect(Gke(), around).configuration.host == "http://127.0.0.1:1"


def test_without_the_extra_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cure = r"platform: 'gke', needs `pip install 'elastic-tpu\[gke\]'`"
    monkeypatch.delitem(sys.modules, credentials.__name__)
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    with pytest.raises(BadInput, match=cure):
        importlib.import_module(credentials.__name__)
    monkeypatch.setitem(sys.modules, "google.cloud.container_v1", None)
    monkeypatch.delattr(google.cloud, "container_v1")
    with pytest.raises(BadInput, match=cure):
        surroundings().google("projects/p/locations/l/clusters/c")


def test_a_kubeconfig_wins_over_a_named_cluster(api: ScriptedApi, nothing: Surroundings, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", api.url)
    assert ask(connect(NAMED.model_copy(update={"kubeconfig": str(path)}), nothing))


def test_another_current_context_does_not_send_a_run_to_another_cluster(
    api: ScriptedApi, nothing: Surroundings, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "config", api.url, other="http://127.0.0.1:1")
    client = connect(Gke(kubeconfig=str(path)), nothing)
    path.write_text(path.read_text().replace("current-context: here", "current-context: other").replace("one", "two"))
    api.answers = [status(401, "Unauthorized"), ANSWER]
    assert ask(client)
    assert tokens(api) == ["Bearer one", "Bearer two"]


PLUGIN = """
import json, pathlib, sys
count = pathlib.Path(sys.argv[1])
number = int(count.read_text()) + 1
count.write_text(str(number))
if len(sys.argv) > 2:
    sys.exit(sys.argv[2])
made = {"token": f"plugin-{number}", "expirationTimestamp": "2099-01-01T00:00:00Z"}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": made}))
"""


def plugin(folder: Path, *arguments: str) -> dict[str, Any]:
    (folder / "count").write_text("0")
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": sys.executable,
            "args": ["-c", PLUGIN, str(folder / "count"), *arguments],
        }
    }


def test_a_login_plugin_is_run_again_when_its_token_is_refused(
    api: ScriptedApi, nothing: Surroundings, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "config", api.url, plugin(tmp_path))
    client = connect(Gke(kubeconfig=str(path)), nothing)
    assert ask(client)
    assert ask(client)
    api.answers = [status(401, "Unauthorized"), ANSWER]
    assert ask(client)
    assert tokens(api) == ["Bearer plugin-1"] * 3 + ["Bearer plugin-2"]


def test_a_login_plugin_that_fails_says_why(api: ScriptedApi, nothing: Surroundings, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", api.url, plugin(tmp_path, "please log in first"))
    with pytest.raises(BadInput, match=r"gke\.kubeconfig.*please log in first"):
        connect(Gke(kubeconfig=str(path)), nothing)


def test_a_login_plugin_that_is_not_installed_is_named(api: ScriptedApi, nothing: Surroundings, tmp_path: Path) -> None:
    missing = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "gke-gcloud-auth-plugin-x"}}
    path = kubeconfig(tmp_path / "config", api.url, missing)
    with pytest.raises(BadInput, match="gke-gcloud-auth-plugin-x"):
        connect(Gke(kubeconfig=str(path)), nothing)


def test_a_login_plugin_that_fails_later_is_unknown_not_lost(
    api: ScriptedApi, nothing: Surroundings, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "config", api.url, plugin(tmp_path))
    client = connect(Gke(kubeconfig=str(path)), nothing)
    kubeconfig(path, api.url, plugin(tmp_path, "the session is over"))
    api.answers = [status(401, "Unauthorized")]
    with pytest.raises(Unreachable, match=r"the session is over.*gcloud auth login"):
        ask(client)
    kubeconfig(path, api.url)
    api.answers = [status(401, "Unauthorized"), ANSWER]
    assert ask(client), "a new login works without a new start"


@pytest.mark.parametrize(
    ("spec", "text", "says"),
    [
        ({"kubeconfig": "FILE"}, None, "gke.kubeconfig: 'FILE', there is no such file"),
        ({"kubeconfig": "FILE"}, "{ not yaml", "gke.kubeconfig: 'FILE', cannot be read"),
        ({"kubeconfig": "FILE"}, "", "gke.kubeconfig: 'FILE', cannot be read"),
        ({"kubeconfig": "FILE", "context": "mars"}, "GOOD", "gke.context: 'mars', FILE has no such context, but here"),
        ({}, None, "gke.cluster: no cluster is named or found; set gke.project"),
        ({"cluster": "tpus", "project": "p"}, None, "gke.location: is missing"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    nothing: Surroundings, tmp_path: Path, spec: dict[str, str], text: str | None, says: str
) -> None:
    path = tmp_path / "config"
    if text == "GOOD":
        kubeconfig(path, "http://127.0.0.1:1")
    elif text is not None:
        path.write_text(text)
    gke = Gke.model_validate({key: value.replace("FILE", str(path)) for key, value in spec.items()})
    with pytest.raises(BadInput) as caught:
        connect(gke, nothing)
    assert says.replace("FILE", str(path)) in str(caught.value)


# -- a pod --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pod(secure: ScriptedApi, nothing: Surroundings, tls: tuple[Path, Path]) -> Surroundings:
    """A pod of a cluster whose API server is `secure`."""
    nothing.account.mkdir()
    (nothing.account / "token").write_text("pod-1")
    (nothing.account / "ca.crt").write_bytes(tls[0].read_bytes())
    host, port = secure.url.removeprefix("https://").split(":")
    return replace(nothing, environ={"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})


def test_a_pod_uses_its_own_token_and_reads_it_again(
    secure: ScriptedApi, pod: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(Gke(), pod)
    assert ask(client)
    (pod.account / "token").write_text("pod-2")
    secure.answers = [status(401, "Unauthorized"), ANSWER]
    assert ask(client)
    assert tokens(secure) == ["bearer pod-1", "bearer pod-1", "bearer pod-2"]

    (pod.account / "token").write_text("pod-3")

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime.now(tz) + datetime.timedelta(minutes=2)

    clock = SimpleNamespace(datetime=Later, timedelta=datetime.timedelta)
    monkeypatch.setattr(kubernetes.config.incluster_config, "datetime", clock)
    assert ask(client)
    assert tokens(secure)[-1] == "bearer pod-3", "without being refused first"


def test_a_pod_without_a_token_is_no_pod(pod: Surroundings, api: ScriptedApi, tmp_path: Path) -> None:
    (pod.account / "token").unlink()
    path = kubeconfig(tmp_path / "config", api.url)
    around = replace(pod, environ={**pod.environ, "KUBECONFIG": str(path)})
    assert connect(Gke(), around).configuration.host == api.url


def test_a_pod_of_the_named_cluster_uses_its_own_token(secure: ScriptedApi, pod: Surroundings) -> None:
    assert ask(connect(NAMED, replace(pod, metadata=METADATA.get)))
    assert tokens(secure) == ["bearer pod-1"]


@pytest.mark.parametrize("other", [{}, {**METADATA, "instance/attributes/cluster-name": "composer"}])
def test_a_pod_of_another_cluster_goes_through_google(pod: Surroundings, other: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="projects/proj/locations/europe-west4/clusters/tpus"):
        connect(NAMED, replace(pod, metadata=other.get))


# -- Google's API -------------------------------------------------------------------------------------------------


class GoogleCredentials(google.auth.credentials.Credentials):
    """A new token whenever the library asks for one."""

    made = 0

    def refresh(self, request: object) -> None:
        type(self).made += 1
        self.token = f"google-{self.made}"
        self.expiry = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(hours=1)


def described(certificate: Path, address: str, **more: Any) -> container_v1.Cluster:
    authority = base64.b64encode(certificate.read_bytes()).decode()
    return container_v1.Cluster(endpoint=address, master_auth={"cluster_ca_certificate": authority}, **more)


@pytest.fixture
def cloud(nothing: Surroundings, secure: ScriptedApi, tls: tuple[Path, Path]) -> Surroundings:
    """A machine with Google credentials for the cluster whose API server is `secure`."""
    GoogleCredentials.made = 0

    def google_api(name: str) -> tuple[Any, Any]:
        assert name == "projects/proj/locations/europe-west4/clusters/tpus"
        return GoogleCredentials(), described(tls[0], secure.url.removeprefix("https://"))

    return replace(nothing, google=google_api)


def test_a_named_cluster_is_reached_with_google_credentials(secure: ScriptedApi, cloud: Surroundings) -> None:
    client = connect(NAMED, cloud)
    assert ask(client)
    assert ask(client)
    assert tokens(secure) == ["Bearer google-1"] * 2


def test_a_token_is_renewed_before_it_ends_and_when_it_is_refused(
    secure: ScriptedApi, cloud: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(NAMED, cloud)
    for _ in range(3):
        assert ask(client)

    def decide(request: Request) -> Answer:
        return status(401, "Unauthorized") if request.token == "Bearer google-1" else ANSWER

    secure.decide = decide
    assert ask(client), "as when the server ends it early"
    assert tokens(secure)[3:] == ["Bearer google-1", "Bearer google-2"]
    in_an_hour = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(minutes=58)
    monkeypatch.setattr("google.auth._helpers.utcnow", lambda: in_an_hour)
    assert ask(client)
    assert tokens(secure)[5:] == ["Bearer google-3"]


def test_a_cluster_whose_certificate_was_renewed_is_trusted_again(
    secure: ScriptedApi, cloud: Surroundings, tmp_path: Path
) -> None:
    old = tmp_path / "old.crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=old -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", tmp_path / "k", "-out", old], check=True, capture_output=True)
    address = secure.url.removeprefix("https://")
    asked: list[str] = []

    def first_the_old_one(name: str) -> tuple[Any, Any]:
        asked.append(name)
        return (GoogleCredentials(), described(old, address)) if len(asked) == 1 else cloud.google(name)

    assert ask(connect(NAMED, replace(cloud, google=first_the_old_one)))
    assert len(asked) == 2


def test_a_server_that_is_not_the_cluster_gets_no_token(
    secure: ScriptedApi, cloud: Surroundings, tmp_path: Path
) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other -addext subjectAltName=IP:127.0.0.1"
    other = tmp_path / "other.crt"
    subprocess.run([*command.split(), "-keyout", tmp_path / "k", "-out", other], check=True, capture_output=True)
    address = secure.url.removeprefix("https://")
    wrong = replace(cloud, google=lambda _: (GoogleCredentials(), described(other, address)))
    with pytest.raises(Unreachable, match="does not prove that it is the cluster"):
        ask(connect(NAMED, wrong))
    assert not len(secure)


IP = {"public_endpoint": "1.2.3.4", "private_endpoint": "10.0.0.2"}
BOTH = {"ip_endpoints_config": IP, "dns_endpoint_config": {"endpoint": "gke-x.gke.goog"}}
OLD = {"private_cluster_config": {"public_endpoint": "1.2.3.5", "private_endpoint": "10.0.0.3"}}


@pytest.mark.parametrize(
    ("endpoint", "more", "host", "own_authority"),
    [
        ("public", {}, "34.1.1.1", True),
        ("public", {"control_plane_endpoints_config": BOTH}, "1.2.3.4", True),
        ("private", {"control_plane_endpoints_config": BOTH}, "10.0.0.2", True),
        ("public", OLD, "1.2.3.5", True),
        ("private", OLD, "10.0.0.3", True),
        ("dns", {"control_plane_endpoints_config": BOTH}, "gke-x.gke.goog", False),
    ],
)
def test_the_endpoint_that_was_asked_for(
    tls: tuple[Path, Path], endpoint: str, more: Any, host: str, own_authority: bool
) -> None:
    cluster = described(tls[0], "34.1.1.1", **more)
    address, authority = server_of(cluster, Gke.model_validate({"cluster": "tpus", "endpoint": endpoint}))
    assert address == host
    # The DNS endpoint has a certificate that everybody trusts.
    assert authority == (cluster.master_auth.cluster_ca_certificate if own_authority else "")


@pytest.mark.parametrize("endpoint", ["private", "dns"])
def test_an_endpoint_that_the_cluster_lacks_is_named(tls: tuple[Path, Path], endpoint: str) -> None:
    with pytest.raises(BadInput, match=rf"gke\.endpoint: '{endpoint}', cluster tpus has no such endpoint"):
        server_of(described(tls[0], "34.1.1.1"), Gke.model_validate({"cluster": "tpus", "endpoint": endpoint}))


# -- the machine itself -------------------------------------------------------------------------------------------


def test_the_metadata_server_says_which_cluster_this_is(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answers = [Answer(b"tpus"), Answer(b"", 404)]
    monkeypatch.setenv("GCE_METADATA_HOST", api.url.removeprefix("http://"))
    ask_metadata = credentials.surroundings().metadata
    assert ask_metadata("instance/attributes/cluster-name") == "tpus"
    assert api.requests[0].path == "/computeMetadata/v1/instance/attributes/cluster-name"
    assert ask_metadata("instance/attributes/cluster-name") is None


def test_without_google_credentials_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "adc.json"
    broken.write_text(json.dumps({"type": "nonsense"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(broken))
    with pytest.raises(BadInput, match=r"gke\.cluster.*gcloud auth application-default login"):
        credentials.surroundings().google("projects/p/locations/l/clusters/c")


def test_all_runs_of_a_process_share_a_client(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = str(kubeconfig(tmp_path / "config", api.url))
    first = credentials.api_client(Gke(kubeconfig=path, namespace="a"))
    assert credentials.api_client(Gke(kubeconfig=path, namespace="b")) is first
    assert ask(first)


def test_a_run_that_could_not_even_log_in_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcs_bucket: str
) -> None:
    """Its name would be taken, and its spec could not be mended under that name."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(gke(run={"output": f"gs://{gcs_bucket}/runs"})))
    ended = command("run", str(spec))
    assert ended.returncode == 64
    assert "gke.cluster: no cluster is named or found" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert open_store(f"gs://{gcs_bucket}").list() == []
