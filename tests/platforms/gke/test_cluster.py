"""The calls that we make to a Kubernetes API, against a server whose answers are written down."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any

import kubernetes
import pytest
import urllib3
from elastic_tpu.platforms.gke.api.cluster import Cluster
from elastic_tpu.platforms.gke.api.connection import RETRIES, Retries
from elastic_tpu.platforms.gke.api.errors import BeingDeleted
from elastic_tpu.platforms.gke.api.preflight import LAUNCHER, Rule
from elastic_tpu.runs.errors import BadInput, Changed, Exists, Unreachable
from elastic_tpu.tests.platforms.gke.scripted_api import Answer, Request, ScriptedApi, serving, status

MANIFEST = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "demo-1"}}
PATH = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets"
WAITED: list[float] = []


class Impatient(Retries):
    """Notes how long it would wait."""

    def sleep(self, response: Any = None) -> None:
        asked = self.get_retry_after(response) if response is not None else None
        WAITED.append(asked or self.get_backoff_time())


def impatient() -> Retries:
    known = ("total", "read", "other", "status_forcelist", "allowed_methods", "backoff_factor", "retry_after_max")
    values = {name: getattr(RETRIES, name) for name in known}
    return Impatient(**values, raise_on_status=False)


class Client(kubernetes.client.ApiClient):
    """Its login may be renewed, as credentials.py's."""

    login = "log in with magic"

    def __init__(self, url: str) -> None:
        configuration = kubernetes.client.Configuration(host=url)
        configuration.api_key["authorization"] = "Bearer 1"
        super().__init__(configuration)
        self.renewals = 0

    def renew(self) -> None:
        self.renewals += 1
        self.configuration = kubernetes.client.Configuration(host=self.configuration.host)
        self.configuration.api_key["authorization"] = f"Bearer {1 + self.renewals}"


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    WAITED.clear()
    with serving(ScriptedApi(Answer(MANIFEST))) as api:
        yield api


@pytest.fixture
def client(api: ScriptedApi) -> Client:
    return Client(api.url)


@pytest.fixture
def cluster(client: Client) -> Cluster:
    return Cluster(client, "team", retries=impatient(), pauses=(0.0, 0.0))


def listing(*names: str, rest: str = "") -> Answer:
    items = [{"metadata": {"name": name}, "junk": 1} for name in names]
    return Answer({"kind": "JobSetList", "metadata": {"continue": rest}, "items": items})


NONE = status(404, "NotFound", 'jobsets.jobset.x-k8s.io "demo-1" not found', name="demo-1", kind="jobsets")


# -- what is sent -------------------------------------------------------------------------------------------------


def test_create_is_strict_so_that_no_field_is_dropped_silently(api: ScriptedApi, cluster: Cluster) -> None:
    assert cluster.create_jobset(MANIFEST) == MANIFEST
    (request,) = api.requests
    assert (request.method, request.path, request.body) == ("POST", PATH, MANIFEST)
    assert request.query["fieldValidation"] == "Strict"
    assert request.token == "Bearer 1"


def test_a_jobset_is_deleted_with_all_that_it_made_and_no_successor_is(api: ScriptedApi, cluster: Cluster) -> None:
    assert cluster.delete_jobset("demo-1", "uid-1")
    (request,) = api.requests
    assert (request.method, request.path) == ("DELETE", f"{PATH}/demo-1")
    assert request.body["propagationPolicy"] == "Foreground"
    assert request.body["preconditions"] == {"uid": "uid-1"}


@pytest.mark.parametrize(("foreground", "policy"), [(True, "Foreground"), (False, "Background")])
def test_a_job_is_deleted_as_asked(api: ScriptedApi, cluster: Cluster, foreground: bool, policy: str) -> None:
    assert cluster.delete_job("demo-1-export", "uid-1", foreground)
    assert api.requests[0].path == "/apis/batch/v1/namespaces/team/jobs/demo-1-export"
    assert api.requests[0].body["propagationPolicy"] == policy


def test_a_pod_gets_its_grace_unless_forced(api: ScriptedApi, cluster: Cluster) -> None:
    cluster.delete_pod("p", "u")
    cluster.delete_pod("p", "u", grace=0)
    polite, forced = (request.body for request in api.requests)
    assert "gracePeriodSeconds" not in polite
    assert forced["gracePeriodSeconds"] == 0
    assert polite["preconditions"] == {"uid": "u"}


def test_the_last_lines_of_a_log(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [Answer("été\n".encode() + b"\xff")]
    assert cluster.pod_log("p", "trainer", 20) == "été\n�"
    assert api.requests[0].query == {"container": "trainer", "tailLines": "20"}


@pytest.mark.parametrize(
    "answer", [status(400, "BadRequest", "is waiting to start"), status(404, "NotFound", name="p")]
)
def test_a_container_that_has_not_started_has_no_lines(api: ScriptedApi, cluster: Cluster, answer: Answer) -> None:
    api.answers = [answer]
    assert cluster.pod_log("p", "trainer", 20) == ""


def test_what_is_absent_is_none_and_deleting_it_is_no_error(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [NONE]
    assert cluster.get_jobset("demo-1") is None
    assert not cluster.delete_jobset("demo-1", "u")


@pytest.mark.parametrize(
    "answer", [Answer(b"404 page not found\n", 404), status(404, "NotFound", "could not find the requested resource")]
)
def test_a_cluster_without_jobset_is_not_a_run_that_is_gone(api: ScriptedApi, cluster: Cluster, answer: Answer) -> None:
    api.answers = [answer]
    with pytest.raises(BadInput, match="install JobSet"):
        cluster.get_jobset("demo-1")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (status(409, "AlreadyExists", "it already exists"), Exists),
        (status(409, "AlreadyExists", "object is being deleted: it already exists"), BeingDeleted),
        (status(404, "NotFound", 'namespaces "team" not found', name="team", kind="namespaces"), BadInput),
    ],
)
def test_a_create_that_is_refused(api: ScriptedApi, cluster: Cluster, answer: Answer, kind: type[Exception]) -> None:
    api.answers = [answer]
    with pytest.raises(kind):
        cluster.create_jobset(MANIFEST)


def test_a_successor_of_the_same_name_is_not_deleted(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [status(409, "Conflict", "the UID in the precondition does not match")]
    with pytest.raises(Changed):
        cluster.delete_jobset("demo-1", "u")


# -- listings -----------------------------------------------------------------------------------------------------


def test_a_listing_is_read_to_its_end_a_page_at_a_time(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [listing("a", "b", rest="next"), listing("c")]
    found = cluster.list_jobsets(lambda item: item["metadata"]["name"])  # type: ignore[arg-type,return-value]
    assert found == ["a", "b", "c"]
    first, second = (request.query for request in api.requests)
    assert first == {"labelSelector": "elastic-tpu.dev/run-id", "limit": "250"}
    assert second == {**first, "continue": "next"}


def test_a_listing_that_expires_begins_again_and_brings_nothing_twice(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [listing("a", rest="old"), status(410, "Expired"), listing("a", rest="new"), listing("b")]
    assert [item["metadata"]["name"] for item in cluster.list_jobsets()] == ["a", "b"]
    assert "continue" not in api.requests[2].query


def test_a_listing_that_always_expires_is_unknown(api: ScriptedApi, cluster: Cluster) -> None:
    api.decide = lambda request: status(410, "Expired") if "continue" in request.query else listing("a", rest="old")
    with pytest.raises(Unreachable, match="expired"):
        cluster.list_jobsets()


# -- no answer, or a bad one --------------------------------------------------------------------------------------

Call = Callable[[Cluster], object]


def read(cluster: Cluster) -> object:
    return cluster.get_jobset("demo-1")


def create(cluster: Cluster) -> object:
    return cluster.create_jobset(MANIFEST)


def delete(cluster: Cluster) -> object:
    return cluster.delete_jobset("demo-1", "u")


@pytest.mark.parametrize("call", [read, delete])
@pytest.mark.parametrize(
    "fault", [status(429), status(500), status(502), status(503), status(504), Answer(drop=True), Answer({}, half=True)]
)
def test_reads_and_deletes_are_asked_again(api: ScriptedApi, cluster: Cluster, call: Call, fault: Answer) -> None:
    api.answers = [fault, fault, Answer(MANIFEST)]
    assert call(cluster)
    assert len(api) == 3


def test_a_delete_whose_answer_was_lost_finds_it_gone(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [Answer(drop=True), NONE]
    assert not delete(cluster)


@pytest.mark.parametrize(
    "fault",
    [status(500), status(503), Answer({}, 503, {"Retry-After": "1"}), Answer(drop=True), Answer(b"{" * 9, half=True)],
)
def test_a_create_that_may_have_been_carried_out_is_not_repeated(
    api: ScriptedApi, cluster: Cluster, fault: Answer
) -> None:
    api.answers = [fault]
    with pytest.raises(Unreachable):
        create(cluster)
    assert len(api) == 1


def test_a_create_that_was_only_put_off_is_repeated_when_the_server_says(api: ScriptedApi, cluster: Cluster) -> None:
    put_off = Answer({}, 429, {"Retry-After": "3"})
    api.answers = [put_off, Answer({}, 429, {"Retry-After": "86400"}), Answer(MANIFEST)]
    assert create(cluster)
    assert WAITED == [3, 5], "not a day"


@pytest.mark.parametrize("code", [429, 503])
def test_a_server_that_goes_on_refusing_is_unknown_after_a_few_times(
    api: ScriptedApi, cluster: Cluster, code: int
) -> None:
    api.answers = [status(code, "Busy", "very busy")]
    with pytest.raises(Unreachable, match="very busy"):
        read(cluster)
    assert len(api) == 5
    # The first comes at once.
    assert sorted(WAITED) == WAITED
    assert WAITED[-1] >= 2.0


@pytest.mark.parametrize("call", [read, create, delete])
def test_a_server_that_is_not_there_is_asked_again_whatever_is_asked(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    WAITED.clear()
    cluster = Cluster(Client(f"http://127.0.0.1:{port}"), "team", retries=impatient())
    with pytest.raises(Unreachable, match=rf"http://127.0.0.1:{port} does not answer \(.*refused.*\); asked to "):
        call(cluster)
    assert len(WAITED) == 4


def test_a_server_that_is_too_slow_is_unknown(api: ScriptedApi, client: Client) -> None:
    done = threading.Event()
    api.answers = [Answer(MANIFEST, late=done)]
    cluster = Cluster(client, "team", retries=impatient(), timeout=urllib3.Timeout(connect=5, read=0.05))
    try:
        with pytest.raises(Unreachable, match="timed out"):
            create(cluster)
        assert len(api) == 1, "it may have been carried out"
        with pytest.raises(Unreachable, match="timed out"):
            read(cluster)
        assert len(api) == 4
    finally:
        done.set()


@pytest.mark.parametrize("page", [b"<html>log in to the hotel</html>", b'"text"', b"{}"])
def test_something_else_that_answers_is_unknown_not_absent(api: ScriptedApi, cluster: Cluster, page: bytes) -> None:
    api.answers = [Answer(page)]
    for call in (read, create, Cluster.list_jobsets):
        with pytest.raises(Unreachable, match="not the Kubernetes API"):
            call(cluster)


def test_a_redirect_is_not_followed_with_our_token(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [Answer({}, 302, {"Location": "/elsewhere"}), Answer(MANIFEST)]
    with pytest.raises(Unreachable, match="302"):
        read(cluster)
    assert len(api) == 1


# -- the server's clock -------------------------------------------------------------------------------------------


def test_the_time_is_the_servers_however_wrong_our_own_clock_is(api: ScriptedApi, client: Client) -> None:
    wrong = [0.0]
    cluster = Cluster(client, "team", clock=lambda: time.time() + wrong[0])

    def off() -> float:
        assert cluster.now().tzinfo is not None
        return abs(cluster.now().timestamp() - time.time())

    for seconds in (7200.0, -86400.0, 3.0):  # somebody sets it meanwhile
        wrong[0] = seconds
        read(cluster)
        assert off() < 1.5


def test_a_clock_that_agrees_with_the_server_is_left_as_it_is(api: ScriptedApi, client: Client) -> None:
    cluster = Cluster(client, "team")
    before = time.time()
    assert before <= cluster.now().timestamp() <= time.time(), "and is all there is before an answer"
    for _ in range(5):
        read(cluster)
        before = time.time()
        assert before - 1e-3 <= cluster.now().timestamp() <= time.time() + 1e-3


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Jan 1970 00:00:00 GMT"])
def test_an_answer_without_a_time_changes_nothing(
    api: ScriptedApi, client: Client, monkeypatch: pytest.MonkeyPatch, date: str
) -> None:
    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda *_: date)
    cluster = Cluster(client, "team")
    assert read(cluster)
    assert abs(cluster.now().timestamp() - time.time()) < 0.1


# -- logins -------------------------------------------------------------------------------------------------------

ANONYMOUS = 'jobsets is forbidden: User "system:anonymous" cannot get resource "jobsets"'


@pytest.mark.parametrize("refused", [status(401, "Unauthorized"), status(403, "Forbidden", ANONYMOUS)])
@pytest.mark.parametrize("call", [read, create])
def test_an_expired_login_is_renewed_once_and_the_call_repeated(
    api: ScriptedApi, client: Client, cluster: Cluster, call: Call, refused: Answer
) -> None:
    api.answers = [refused, Answer(MANIFEST)]
    assert call(cluster)
    assert [request.token for request in api.requests] == ["Bearer 1", "Bearer 2"]
    assert client.renewals == 1


def test_a_login_that_stays_refused_is_unknown_not_lost(api: ScriptedApi, client: Client, cluster: Cluster) -> None:
    api.answers = [status(401, "Unauthorized")]
    with pytest.raises(Unreachable, match=r"credentials.*log in with magic"):
        read(cluster)
    assert (len(api), client.renewals) == (2, 1)


def test_many_threads_renew_an_expired_login_once(api: ScriptedApi, client: Client, cluster: Cluster) -> None:
    together = threading.Barrier(8)

    def decide(request: Request) -> Answer:
        return status(401, "Unauthorized") if request.token == "Bearer 1" else Answer(MANIFEST)

    def call(_: int) -> object:
        together.wait(10)
        return read(cluster)

    api.decide = decide
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(8)))
    assert client.renewals == 1


def test_a_renewal_that_fails_is_unknown_not_lost(
    api: ScriptedApi, client: Client, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("the login server is away")

    monkeypatch.setattr(client, "renew", fail)
    api.answers = [status(401, "Unauthorized")]
    with pytest.raises(Unreachable, match=r"the login server is away.*log in with magic"):
        read(cluster)


def test_a_token_that_cannot_be_fetched_is_unknown_not_lost(api: ScriptedApi, client: Client, cluster: Cluster) -> None:
    def fail(_: object) -> None:
        raise OSError("token file is gone")

    client.configuration.refresh_api_key_hook = fail
    with pytest.raises(Unreachable, match="token file is gone"):
        read(cluster)
    assert not len(api)


def test_a_client_of_the_library_itself_will_do(api: ScriptedApi) -> None:
    plain = kubernetes.client.ApiClient(kubernetes.client.Configuration(host=api.url))
    assert read(Cluster(plain, "team"))
    api.answers = [status(401, "Unauthorized")]
    with pytest.raises(Unreachable, match="credentials"):
        read(Cluster(plain, "team"))


# -- rights -------------------------------------------------------------------------------------------------------

REFUSED = status(403, "Forbidden", 'jobsets is forbidden: User "u" cannot get resource "jobsets"')


def test_a_right_that_is_missing_is_named_when_it_stays_missing(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [REFUSED]
    with pytest.raises(BadInput, match=r"u may not get jobsets.*deploy/rbac\.yaml"):
        read(cluster)
    assert len(api) == 3


def test_a_server_that_has_just_started_knows_no_rights_yet(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [REFUSED, REFUSED, Answer(MANIFEST)]
    assert read(cluster)


def test_a_right_that_was_there_before_is_unknown_not_a_verdict(api: ScriptedApi, cluster: Cluster) -> None:
    assert read(cluster)
    api.answers = [REFUSED]
    with pytest.raises(Unreachable, match="served before"):
        read(cluster)
    with pytest.raises(BadInput):
        create(cluster)


def test_a_refused_look_of_a_login_that_was_served_before_is_no_verdict(api: ScriptedApi, cluster: Cluster) -> None:
    assert read(cluster)
    api.answers = [REFUSED]
    looks: list[Call] = [lambda c: c.list_pods("x"), Cluster.list_events, lambda c: c.pod_log("p", "trainer", 9)]
    for look in looks:
        with pytest.raises(Unreachable, match=r"served before.*deploy/rbac\.yaml"):
            look(cluster)
    assert len(api) == 1 + 3 * len(looks), "each is asked for again a few times"
    assert cluster.has_service_account("x") is None
    for refused in (create, delete):
        with pytest.raises(BadInput):
            refused(cluster)


def test_a_refusal_that_is_not_about_rights_is_not_asked_again(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [status(403, "Forbidden", 'jobsets "demo-1" is forbidden: exceeded quota: small')]
    with pytest.raises(BadInput, match="exceeded quota: small"):
        create(cluster)
    assert len(api) == 1


# -- preflight ----------------------------------------------------------------------------------------------------


def test_each_right_is_asked_for_and_what_is_denied_is_named(api: ScriptedApi, cluster: Cluster) -> None:
    def decide(request: Request) -> Answer:
        asked = request.body["spec"]["resourceAttributes"]
        allowed = (asked["verb"], asked["resource"], asked["subresource"]) not in {
            ("create", "jobsets", ""),
            ("get", "pods", "log"),
        }
        return Answer({"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}, 201)

    api.decide = decide
    assert cluster.denied(LAUNCHER) == ["create jobsets.jobset.x-k8s.io", "get pods/log"]
    assert len(api) == len(LAUNCHER) + 2 + 2, "what is denied is asked for again"
    attributes = api.requests[0].body["spec"]["resourceAttributes"]
    assert (attributes["namespace"], attributes["group"]) == ("team", "jobset.x-k8s.io")


RUNNER = "system:serviceaccount:kubeflow:pipeline-runner"


@pytest.mark.parametrize(
    ("review", "listing", "name"),
    [
        (Answer({"kind": "SelfSubjectReview", "status": {"userInfo": {"username": RUNNER}}}, 201), None, RUNNER),
        (  # older than Kubernetes 1.28
            Answer(b"404 page not found", 404),
            status(403, "Forbidden", f'jobsets is forbidden: User "{RUNNER}" cannot list resource "jobsets"'),
            RUNNER,
        ),
        (Answer(b"404 page not found", 404), Answer({"kind": "JobSetList", "items": []}), ""),
        (status(503), None, ""),
    ],
    ids=["asked", "from a refusal", "nobody says", "no answer"],
)
def test_who_this_login_is(
    api: ScriptedApi, cluster: Cluster, review: Answer, listing: Answer | None, name: str
) -> None:
    api.decide = lambda request: listing if listing and request.method == "GET" else review
    assert cluster.user() == name


def test_the_question_may_be_repeated(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [
        Answer(drop=True),
        status(503),
        Answer({"kind": "SelfSubjectAccessReview", "status": {"allowed": True}}),
    ]
    assert cluster.denied([Rule("list", "", "pods")]) == []


@pytest.mark.parametrize("kind", ["Status", "JobSetList"])
def test_an_answer_of_another_kind_is_unknown(api: ScriptedApi, cluster: Cluster, kind: str) -> None:
    api.answers = [Answer({"kind": kind, "metadata": {}, "items": []})]
    with pytest.raises(Unreachable, match=f"sent another thing \\({kind}\\)"):
        cluster.get_jobset("x")
    api.answers = [Answer({"kind": "JobSet", "metadata": {"name": "x"}})]
    with pytest.raises(Unreachable, match="sent another thing"):
        cluster.list_jobsets()


def test_a_kind_that_was_served_before_and_is_unknown_now_is_no_absence(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [Answer(b"404 page not found", 404)]
    with pytest.raises(BadInput, match="install JobSet"):
        cluster.get_jobset("x")
    api.answers = [Answer({"kind": "JobSet", "metadata": {"name": "x"}})]
    assert cluster.get_jobset("x")
    api.answers = [Answer(b"404 page not found", 404)]
    with pytest.raises(Unreachable, match="served that before"):
        cluster.get_jobset("x")


def test_whether_a_service_account_is_there(api: ScriptedApi, cluster: Cluster) -> None:
    api.answers = [REFUSED]
    assert cluster.has_service_account("x") is None
    api.answers = [Answer({"kind": "ServiceAccount"})]
    assert cluster.has_service_account("x") is True
    api.answers = [status(404, "NotFound", name="x", kind="serviceaccounts")]
    assert cluster.has_service_account("x") is False


def test_looking_at_a_cluster_does_not_pay_for_the_clients_import() -> None:
    rooms = ("cluster", "connection", "observer", "preflight", "errors")
    modules = ", ".join(f"elastic_tpu.platforms.gke.api.{room}" for room in rooms)
    code = f"import sys, {modules}; sys.exit('kubernetes' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
