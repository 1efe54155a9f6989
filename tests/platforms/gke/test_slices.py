"""A slice's child Job is deleted when the slice was up and is not, once, and never one that starts."""

from __future__ import annotations

import http.server
import json
import logging
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.platforms.gke.pod_api import NoAnswer, PodApi
from elastic_tpu.platforms.gke.slices import GkeSlices, JobLook, Tracked, look
from elastic_tpu.tests.support import until

RUN, VMS = "run-1", 4


def job(uid: str, ready: int, active: int = VMS, *, terminating: int = 0, **more: Any) -> dict[str, Any]:
    """A child Job as the API server shows it; `more` overrides parts of metadata, spec or status."""
    document: dict[str, Any] = {
        "metadata": {"name": "j", "uid": uid},
        "spec": {"parallelism": VMS, "suspend": False},
        "status": {"active": active, "ready": ready, "terminating": terminating},
    }
    for part, values in more.items():
        document[part] |= values
    return document


def leaving(document: dict[str, Any]) -> dict[str, Any]:
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return document


# ---- what a Job says


def condition(kind: str, status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "message": "too many failed indexes"}]}


@pytest.mark.parametrize(
    ("document", "state", "says"),
    [
        (job("a", 4), "up", "4 of 4"),
        (job("a", 3, 3), "short", "3 of 4 pods ready"),
        (job("a", 0, 0), "short", "0 of 4"),
        (job("a", 0, 0, terminating=4), "short", "4 ending"),  # a spot notice: Pathways saves meanwhile
        (job("a", 3, 4), "restarting", "3 of 4"),
        (leaving(job("a", 4)), "leaving", "deleted"),
        (job("a", 0, 0, spec={"suspend": True}), "suspended", "suspended"),
        (job("a", 3, 3, status=condition("Failed")), "failed", "too many failed indexes"),
        (job("a", 4, 4, status=condition("FailureTarget")), "failed", "too many failed indexes"),
        (job("a", 4, 4, status=condition("Failed", "False")), "up", ""),
        ({"metadata": {"uid": "a"}, "spec": {"parallelism": 4}}, "short", "0 of 4"),  # just made: no status yet
        ({"metadata": {"uid": "a"}, "spec": {}, "status": {"ready": 1}}, "up", "1 of 1"),
    ],
)
def test_what_a_job_says_about_its_slice(document: dict[str, Any], state: str, says: str) -> None:
    seen = look(document)
    assert (seen.uid, seen.state) == ("a", state)
    assert says in seen.detail


# ---- what is done about it


def steps(*looks: tuple[float, JobLook | None]) -> list[str]:
    """What a slice does at each look: `lost`, `back` and `delete`, which succeeds; "" is nothing."""
    slice_, done = Tracked(), []
    for now, seen in looks:
        words = [kind for kind, _ in slice_.note(seen, now)]
        if slice_.should_delete(now):
            slice_.deleted(now)
            words.append("delete")
        done.append(" ".join(words))
    return done


def seen(state: Any, uid: str = "a") -> JobLook:
    return JobLook(uid, state, "")


@pytest.mark.parametrize(
    ("looks", "done"),
    [
        # It starts for the first time, however long that takes.
        ([(0, None), (1, seen("short")), (999, seen("short")), (1000, seen("restarting"))], ["", "", "", ""]),
        ([(0, seen("up")), (1, seen("short")), (2, seen("short"))], ["", "lost delete", ""]),
        # The new Job starts in peace, and is deleted when it is lost in turn.
        (
            [
                (0, seen("up")),
                (1, seen("short")),
                (2, seen("short", "b")),
                (900, seen("short", "b")),
                (901, seen("up", "b")),
                (910, seen("short", "b")),
            ],
            ["", "lost delete", "", "", "back", "lost delete"],
        ),
        # A container that restarts in its pod is left alone, unless that takes long.
        ([(0, seen("up")), (1, seen("restarting")), (2, seen("up"))], ["", "lost", "back"]),
        ([(0, seen("up")), (1, seen("restarting")), (12, seen("restarting"))], ["", "lost", "delete"]),
        ([(0, seen("up")), (1, seen("restarting")), (2, seen("short"))], ["", "lost", "delete"]),
        ([(0, seen("up")), (1, seen("failed"))], ["", "lost delete"]),
        # Somebody else deleted it.
        ([(0, seen("up")), (1, seen("leaving")), (2, None), (3, seen("up", "b"))], ["", "lost", "", "back"]),
        ([(0, seen("up")), (1, seen("up", "b"))], ["", "lost back"]),
        ([(0, seen("up")), (1, seen("short", "b")), (99, seen("short", "b"))], ["", "lost", ""]),
        # Kueue took the slices back, and gave them again: the same Jobs start.
        ([(0, seen("up")), (1, seen("suspended")), (2, seen("short")), (3, seen("up"))], ["", "", "", ""]),
    ],
)
def test_what_is_done_about_a_slice(looks: list[tuple[float, JobLook | None]], done: list[str]) -> None:
    assert steps(*looks) == done


def test_a_slice_that_cannot_live_is_left_to_its_back_off() -> None:
    looks: list[tuple[float, JobLook | None]] = []
    for number in range(40):
        looks += [(number * 6, seen("up", str(number))), (number * 6 + 3, seen("short", str(number)))]
    assert sum("delete" in done for done in steps(*looks)) == 20
    later = [(9999.0, seen("up", "z")), (10_000.0, seen("short", "z"))]
    assert steps(*looks, *later)[-1] == "lost delete"


def test_a_slice_lost_again_at_once_waits_a_moment() -> None:
    looks = [(0.0, seen("up")), (1.0, seen("short")), (1.5, seen("up", "b")), (2.0, seen("short", "b"))]
    assert steps(*looks, (3.1, seen("short", "b"))) == ["", "lost delete", "back", "lost", "delete"]


# ---- against a server


class Api(http.server.ThreadingHTTPServer):
    """An API server with Jobs that a test sets, and what it is to answer instead."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(self, port: int, certificate: Path, key: Path) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.tokens = {"first"}
        self.answers: dict[str, int] = {}  # by method, instead of the right one
        self.drop: set[str] = set()  # methods that are carried out and not answered
        self.on_delete: Callable[[str], None] = lambda name: None
        self.looks = 0
        self.deletes: list[tuple[str, dict[str, Any]]] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def set(self, *jobs: dict[str, Any]) -> None:
        self.jobs = {f"{RUN}-pathways-worker-{i}": job for i, job in enumerate(jobs)} | {
            f"{RUN}-pathways-head-0": job("head", 1, 1)
        }

    def change(self, index: int, document: dict[str, Any]) -> None:
        self.jobs[f"{RUN}-pathways-worker-{index}"] = document

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that does not trust this server, or left."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def log_message(self, *args: object) -> None:
        """Not on stderr."""

    def do_GET(self) -> None:
        self.server.looks += 1
        found = self.server.jobs.get(self.path.rpartition("/")[2])
        self._say(*((404, {"message": "not found"}) if found is None else (200, found)))

    def do_DELETE(self) -> None:
        name, api = self.path.rpartition("/")[2], self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        api.deletes.append((name, body))
        there = api.jobs.get(name)
        if self._token_or_fault() is not None:
            self._say(0, {})
        elif there is None:
            self._say(404, {})
        elif there["metadata"]["uid"] != body["preconditions"]["uid"]:
            self._say(409, {})
        else:
            del api.jobs[name]
            api.on_delete(name)
            self._say(200, {"status": "Success"})

    def _token_or_fault(self) -> int | None:
        if self.headers["Authorization"].removeprefix("Bearer ") not in self.server.tokens:
            return 401
        return self.server.answers.get(self.command)

    def _say(self, status: int, body: dict[str, Any]) -> None:
        status = self._token_or_fault() or status
        if not self.path.startswith("/apis/batch/v1/namespaces/team/jobs/"):
            status, body = 404, {}
        if self.command in self.server.drop:
            self.server.drop.discard(self.command)
            self.close_connection = True
            return
        data = json.dumps(body if status < 400 else {"message": f"HTTP {status} it is"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=api -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    return folder / "crt", folder / "key"


@pytest.fixture
def api(tls: tuple[Path, Path]) -> Iterator[Api]:
    server = Api(0, *tls)
    server.set(job("a", 4), job("b", 4))
    yield server
    server.stop()


@pytest.fixture
def account(tmp_path: Path, tls: tuple[Path, Path]) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("team")
    (tmp_path / "ca.crt").write_bytes(tls[0].read_bytes())
    return tmp_path


Changes = list[tuple[str, int | None]]
Opened = tuple[GkeSlices, Changes]


@pytest.fixture
def opened(api: Api, account: Path) -> Iterator[Callable[..., Opened]]:
    """Slices whose clock runs as fast as asked."""
    there: list[GkeSlices] = []

    def open_(speed: float = 1.0) -> Opened:
        changes: Changes = []
        environ = {
            "ELASTIC_TPU_SERVICE_ACCOUNT": str(account),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(api.port),
        }
        slices = GkeSlices(
            RUN,
            2,
            api=PodApi(environ),
            interval=0.01,
            on_change=lambda kind, i, why: changes.append((kind, i)),
            clock=lambda: time.monotonic() * speed,
        )
        there.append(slices)
        return slices, changes

    yield open_
    for slices in there:
        slices.close()


def rounds(api: Api, count: int = 3) -> None:
    """Until the watcher has looked at everything so often again."""
    before = api.looks
    until(lambda: api.looks >= before + 2 * count + 1, "looks")


def warned(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Until the watcher, which looks a hundred times a second here, has written a warning with this text."""
    until(lambda: text in caplog.text, f"a warning with {text!r}", 15.0)


def ready(opened: Callable[..., Opened], speed: float = 1.0) -> Opened:
    slices, changes = opened(speed)
    until(lambda: changes == [("ready", None)], "all slices")
    return slices, changes


def test_a_lost_slice_is_deleted_once_by_its_uid_and_comes_back(api: Api, opened: Callable[..., Opened]) -> None:
    slices, changes = ready(opened)
    assert slices.hold({0, 1}) == {0, 1}
    api.on_delete = lambda name: api.change(1, job("c", 0))  # JobSet makes it anew, and it starts
    api.change(1, job("b", 3, 3))
    until(lambda: api.deletes, "the delete")
    rounds(api)
    assert [name for name, _ in api.deletes] == ["run-1-pathways-worker-1"]
    assert api.deletes[0][1]["preconditions"] == {"uid": "b"}
    assert api.deletes[0][1]["propagationPolicy"] == "Background"
    assert (slices.alive(), slices.lost()) == ({0}, {1})
    assert slices.away() == {1: "0 of 4 pods ready, all exist"}
    api.change(1, job("c", 4))
    until(lambda: changes[1:] == [("lost", 1), ("back", 1)], "lost and back")
    assert slices.alive() == {0, 1}
    assert slices.lost() == {1}  # it is another slice than the one that was taken
    assert slices.away() == {}
    slices.hold({0, 1})
    assert slices.lost() == frozenset()


def test_slices_that_start_are_left_in_peace(api: Api, opened: Callable[..., Opened]) -> None:
    api.set(job("a", 0, 0), job("b", 3))
    slices, changes = opened()
    rounds(api)
    assert (slices.alive(), changes, api.deletes) == (frozenset(), [], [])
    api.set(job("a", 4), job("b", 4))
    until(lambda: changes == [("ready", None)], "ready")


def test_a_job_made_anew_meanwhile_is_not_hit(
    api: Api, opened: Callable[..., Opened], caplog: pytest.LogCaptureFixture
) -> None:
    _, changes = ready(opened)
    short, anew, looks = job("b", 3, 3), job("c", 0), iter(range(99))
    # The look shows the lost one; when the delete arrives, JobSet has made another.
    api.jobs = _Swapped(api.jobs, "run-1-pathways-worker-1", lambda: short if next(looks) == 0 else anew)
    until(lambda: ("lost", 1) in changes, "the loss")
    rounds(api)
    assert [body["preconditions"] for _, body in api.deletes] == [{"uid": "b"}]
    assert "run-1-pathways-worker-1" in api.jobs
    assert "does not answer" not in caplog.text


class _Swapped(dict[str, Any]):
    def __init__(self, jobs: dict[str, Any], name: str, answer: Callable[[], dict[str, Any]]) -> None:
        super().__init__(jobs)
        self._name, self._answer = name, answer

    def get(self, name: str, default: Any = None) -> Any:
        return self._answer() if name == self._name else super().get(name, default)


def test_the_token_is_read_again_as_it_rotates(
    api: Api, account: Path, opened: Callable[..., Opened], caplog: pytest.LogCaptureFixture
) -> None:
    slices, changes = ready(opened)
    slices.hold({0, 1})
    api.tokens = {"second"}
    api.change(0, job("a", 3, 3))
    warned(caplog, "does not answer")
    assert (slices.alive(), slices.lost(), api.deletes) == ({0, 1}, frozenset(), [])  # unknown is not lost
    (account / "token").write_text("second")
    until(lambda: changes[1:] == [("lost", 0)], "the loss")
    until(lambda: api.deletes, "the delete")


def test_a_slice_that_comes_back_has_its_refusals_forgotten() -> None:
    slice_ = Tracked()
    slice_.note(seen("up"), 0.0)
    slice_.note(seen("short"), 1.0)
    assert not slice_.refused(1.0)
    slice_.note(seen("up"), 2.0)
    slice_.note(seen("short"), 900.0)
    assert slice_.should_delete(900.0)
    assert not slice_.refused(900.0)
    assert not slice_.should_delete(900.1), "not a hundred times a second"
    slice_.api_was_silent()
    assert not slice_.refused(960.0)
    assert slice_.should_delete(970.0)
    assert slice_.refused(970.0)
    assert not slice_.should_delete(980.0)


def test_a_refusal_of_a_server_that_has_just_started_is_not_believed(
    api: Api, opened: Callable[..., Opened], caplog: pytest.LogCaptureFixture
) -> None:
    _, changes = ready(opened, speed=2.0)
    api.answers["DELETE"] = 403
    api.change(1, job("b", 3, 3))
    until(lambda: len(api.deletes) == 3, "deletes that are refused")
    api.answers.clear()
    until(lambda: "run-1-pathways-worker-1" not in api.jobs, "the delete")
    assert changes[1:] == [("lost", 1)]
    assert "deploy/rbac.yaml" not in caplog.text


def test_looks_that_a_server_refuses_when_it_has_just_started_are_repeated_soon(
    api: Api, opened: Callable[..., Opened], caplog: pytest.LogCaptureFixture
) -> None:
    api.answers["GET"] = 403
    _, changes = opened()
    until(lambda: api.looks > 3, "looks")
    api.answers.clear()
    until(lambda: changes == [("ready", None)], "all slices", 10.0)
    assert "deploy/rbac.yaml" not in caplog.text


def test_an_api_that_is_away_for_days_is_asked_still(caplog: pytest.LogCaptureFixture) -> None:
    """At 1100 failures the pause, were it doubled each time, would be no number."""
    looks: list[str] = []
    there = threading.Event()

    class Gone(PodApi):
        def get_job(self, name: str) -> dict[str, Any] | None:
            looks.append(name)
            there.wait(60)
            if len(looks) < 1100:
                slices.ask_back(())  # do not wait
            raise NoAnswer("gone")

    slices = GkeSlices(RUN, 1, api=Gone({}), interval=30.0)
    there.set()
    until(lambda: len(looks) >= 1100, "looks")
    slices.close()
    assert "could not be looked at" not in caplog.text


def test_without_the_right_to_delete_it_is_said_once_and_the_slice_waits(
    api: Api, opened: Callable[..., Opened], caplog: pytest.LogCaptureFixture
) -> None:
    _, changes = ready(opened, speed=50.0)
    api.answers["DELETE"] = 403
    for uid in ("b", "c"):
        del api.deletes[:]
        api.change(1, job(uid, 4))
        until(lambda: changes[-1][0] in ("ready", "back"), "the slice")
        api.change(1, job(uid, 3, 3))
        until(lambda: changes[-1] == ("lost", 1), "the loss")
        warned(caplog, "deploy/rbac.yaml")
        if uid == "b":
            asked = len(api.deletes)
            rounds(api, 20)
            assert 2 <= len(api.deletes) == asked <= 21, "then it is left to the back-off"
    api.change(1, job("c", 4))
    until(lambda: changes[-1] == ("back", 1), "back")
    assert caplog.text.count("deploy/rbac.yaml") == 1


def test_without_the_right_to_look_nothing_is_lost(
    api: Api, opened: Callable[..., Opened], caplog: pytest.LogCaptureFixture
) -> None:
    api.answers["GET"] = 403
    slices, changes = opened(speed=50.0)
    warned(caplog, "deploy/rbac.yaml")
    slices.hold({0, 1})
    assert (slices.alive(), slices.lost(), changes) == ({0, 1}, frozenset(), [])


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again(
    api: Api, opened: Callable[..., Opened], caplog: pytest.LogCaptureFixture, status: int
) -> None:
    slices, changes = ready(opened)
    api.change(1, job("b", 3, 3))
    api.answers["GET"] = api.answers["DELETE"] = status
    until(lambda: f"HTTP {status}" in caplog.text or changes[1:], "the trouble")
    api.answers.clear()
    until(
        lambda: (
            changes[1:] == [("lost", 1)] and api.jobs.keys() == {"run-1-pathways-worker-0", f"{RUN}-pathways-head-0"}
        )
    )
    assert slices.alive() == {0}


def test_an_api_that_is_away_loses_nothing(
    api: Api, tls: tuple[Path, Path], opened: Callable[..., Opened], caplog: pytest.LogCaptureFixture
) -> None:
    slices, changes = ready(opened)
    slices.hold({0, 1})
    api.stop()
    # A connection that is open goes on being served by its own thread: let it end.
    api.drop.add("GET")
    warned(caplog, "does not answer")
    assert (slices.alive(), slices.lost(), changes[1:]) == ({0, 1}, frozenset(), [])
    again = Api(api.port, *tls)
    try:
        again.set(job("a", 4), job("b", 0, 0))
        until(lambda: again.deletes, "the delete")
        assert again.deletes[0][1]["preconditions"] == {"uid": "b"}
        assert caplog.text.count("does not answer") == 1
    finally:
        again.stop()


def test_a_delete_whose_answer_was_lost_is_not_a_second_loss(api: Api, opened: Callable[..., Opened]) -> None:
    _, changes = ready(opened)
    api.on_delete = lambda name: api.change(1, job("c", 0))
    api.drop.add("DELETE")
    api.change(1, job("b", 3, 3))
    until(lambda: "c" in str(api.jobs["run-1-pathways-worker-1"]), "the delete")
    rounds(api)
    assert {body["preconditions"]["uid"] for _, body in api.deletes} == {"b"}
    assert api.jobs["run-1-pathways-worker-1"]["metadata"]["uid"] == "c"
    assert changes[1:] == [("lost", 1)]


def test_a_server_that_is_not_the_clusters_gets_no_token(
    api: Api, account: Path, opened: Callable[..., Opened], caplog: pytest.LogCaptureFixture
) -> None:
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other"
    files = ["-keyout", str(account / "key"), "-out", str(account / "ca.crt")]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    opened()
    warned(caplog, "CERTIFICATE_VERIFY_FAILED")
    assert api.looks == 0


def test_the_end_of_a_jobset_is_no_loss(api: Api, opened: Callable[..., Opened]) -> None:
    _, changes = ready(opened)
    api.jobs = {name: leaving(dict(document)) for name, document in api.jobs.items()}
    until(lambda: _quiet(api), "the watcher to rest")
    assert (changes[1:], api.deletes) == ([], [])


def _quiet(api: Api) -> bool:
    before = api.looks
    time.sleep(0.3)
    return api.looks == before


def test_a_job_deleted_by_hand_is_a_loss(api: Api, opened: Callable[..., Opened]) -> None:
    _, changes = ready(opened)
    del api.jobs["run-1-pathways-worker-0"]
    until(lambda: changes[1:] == [("lost", 0)], "the loss")
    api.change(0, job("c", 4))
    until(lambda: changes[1:] == [("lost", 0), ("back", 0)], "back")
    assert api.deletes == []


def test_a_loss_that_shows_late_is_waited_for(api: Api, opened: Callable[..., Opened]) -> None:
    slices, _ = ready(opened)
    slices.hold({0, 1})
    began = time.monotonic()
    assert slices.lost(timeout=0.2) == frozenset()
    assert time.monotonic() - began >= 0.2
    threading.Timer(0.2, api.change, (1, job("b", 0, 0))).start()
    assert slices.lost(timeout=30) == {1}
    assert time.monotonic() - began < 20


def test_outside_of_a_pod_it_is_said_and_nothing_else_happens(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    (tmp_path / "namespace").write_text("x")
    with caplog.at_level(logging.WARNING):
        slices = GkeSlices(RUN, 2, api=PodApi({"ELASTIC_TPU_SERVICE_ACCOUNT": str(tmp_path)}))
        warned(caplog, "not in a pod")
        assert slices.alive() == {0, 1}
        slices.close()


def test_the_trainers_image_needs_no_library_for_it() -> None:
    script = (
        "import sys; before = set(sys.modules); import elastic_tpu.platforms.gke.slices; "
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(roots - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['elastic_tpu']"
