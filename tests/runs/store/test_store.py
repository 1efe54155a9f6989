"""One contract, two kinds of storage: every test without a special fixture runs on a folder and in a bucket."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from elastic_tpu.runs.errors import BadInput, Changed, Damaged, ExitCode, NotFound, Unreachable
from elastic_tpu.runs.errors import Exists as AlreadyExists
from elastic_tpu.runs.store import posix
from elastic_tpu.runs.store.base import CHUNK, LARGEST, Store
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.runs.store.posix import PosixStore
from elastic_tpu.tests.tools.fault_proxy import Fault, FaultProxy

ODD_NAMES = [
    "a b.json",
    "ü/é ñ.txt",
    "percent%20.json",
    "q?x=1&y#z",
    ".starts/ab.json",
    "a/b/c/d/e",
    "-x",
    "back\\slash",
]
ESCAPES = ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", "a\nb", "a\0b", ".tmp-x", "a/.tmp-x"]


@pytest.fixture
def store(store_uri: str) -> Store:
    return open_store(store_uri)


def test_what_is_created_is_read_back_with_its_generation_and_the_storages_time(store: Store) -> None:
    before = store.now()
    generation = store.create("status.json", b"\x00\xff{}")
    item = store.read("status.json")
    assert (item.data, item.generation) == (b"\x00\xff{}", generation)
    assert before - timedelta(milliseconds=10) <= item.updated <= store.now() + timedelta(milliseconds=10)
    assert item.updated.tzinfo == UTC
    assert abs(item.updated - datetime.now(UTC)) < timedelta(minutes=1)


def test_an_empty_store_has_nothing_and_is_not_made_by_looking(store: Store, store_uri: str) -> None:
    with pytest.raises(NotFound, match=r"claim\.json"):
        store.read("claim.json")
    with pytest.raises(NotFound, match=r"claim\.json"):
        store.digest("claim.json")
    assert store.list() == []
    store.delete("claim.json")
    with pytest.raises(Changed):
        store.delete("claim.json", "17")
    assert not Path(store_uri).exists()


def test_a_second_create_is_refused_and_changes_nothing(store: Store) -> None:
    generation = store.create("x", b"first")
    with pytest.raises(AlreadyExists, match="x exists"):
        store.create("x", b"first")
    assert store.read("x").generation == generation


def test_replace_needs_the_generation_that_is_there(store: Store) -> None:
    first = store.create("x", b"1")
    second = store.replace("x", b"2", first)
    with pytest.raises(Changed, match=first):
        store.replace("x", b"lost update", first)
    assert (store.read("x").data, store.read("x").generation) == (b"2", second)
    store.delete("x")
    with pytest.raises(Changed):
        store.replace("x", b"3", second)
    for nonsense in ("0", "", "none", "-1", "1e3"):
        with pytest.raises(Changed):
            store.replace("x", b"4", nonsense)
    assert store.list() == []


def test_every_write_has_another_generation_even_within_one_tick_of_the_clock(store: Store) -> None:
    generations = [store.put("x", b"same") for _ in range(40)]
    for _ in range(20):
        generations.append(store.replace("x", b"same", generations[-1]))
    for _ in range(20):
        store.delete("x", generations[-1])
        generations.append(store.create("x", b"same"))
    assert len(set(generations)) == len(generations)
    times = [int(g) for g in generations[:60]]
    assert times == sorted(times)


def test_list_names_everything_below_a_prefix_in_order(store: Store) -> None:
    sizes = {"b": 1, "a/2": 2, "a/10/x": 3, "a.json": 4, "ab/c": 5}
    generations = {name: store.put(name, b"x" * size) for name, size in sizes.items()}
    store.now()
    entries = store.list()
    assert [e.name for e in entries] == sorted(sizes)
    assert {e.name: e.size for e in entries} == sizes
    assert {e.name: e.generation for e in entries} == generations
    assert all(abs(e.updated - store.read(e.name).updated) < timedelta(milliseconds=1) for e in entries)
    for prefix in ("a", "a/", "a/1", "a/10/x", "b/", "nothing/here", ""):
        assert [e.name for e in store.list(prefix)] == sorted(n for n in sizes if n.startswith(prefix)), prefix


def test_the_digest_is_that_of_the_bytes(store: Store, store_uri: str) -> None:
    store.put("x", b"123456789")
    (entry,) = store.list()
    if store_uri.startswith("gs://"):
        # The check value of CRC-32C (RFC 3720), big-endian: 0xE3069283.
        assert entry.digest == store.digest("x") == "crc32c:4waSgw=="
    else:
        assert entry.digest is None
        assert store.digest("x") == "sha256:15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_kept_as_they_are(store: Store, name: str) -> None:
    generation = store.create(name, b"1")
    assert store.read(name).data == b"1"
    assert [e.name for e in store.list()] == [name]
    store.delete(name, store.replace(name, b"2", generation))
    assert store.list() == []


@pytest.mark.parametrize("name", ESCAPES)
def test_a_name_that_leaves_the_root_is_refused(store: Store, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.read(name),
        lambda: store.create(name, b""),
        lambda: store.replace(name, b"", "1"),
        lambda: store.put(name, b""),
        lambda: store.delete(name),
        lambda: store.digest(name),
    ]
    for call in calls:
        with pytest.raises(BadInput, match="name"):
            call()


def test_delete_with_a_generation_deletes_only_that(store: Store, store_uri: str) -> None:
    old = store.create("x", b"1")
    new = store.replace("x", b"2", old)
    if not store_uri.startswith("gs://"):  # the bucket server ignores this precondition: see the test with a proxy
        with pytest.raises(Changed):
            store.delete("x", old)
        assert store.read("x").data == b"2"
    store.delete("x", new)
    with pytest.raises(NotFound):
        store.read("x")


RACER = """
import sys
from elastic_tpu.runs.errors import Exists
from elastic_tpu.runs.store.open import open_store
store = open_store(sys.argv[1])
store.list()
print("ready", flush=True)
for line in sys.stdin:
    try:
        store.create(line.strip(), sys.argv[2].encode())
        print("won", flush=True)
    except Exists:
        print("lost", flush=True)
"""


def test_of_several_processes_exactly_one_creates(store: Store, store_uri: str) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, store_uri, "same bytes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for round_ in range(10):
            answers = []
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"race/{round_}\n")
                racer.stdin.flush()
            for racer in racers:
                assert racer.stdout is not None
                answers.append(racer.stdout.readline().strip())
            assert sorted(answers) == ["lost", "lost", "lost", "won"]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert len(store.list()) == 10


def test_no_update_is_lost_between_threads(store: Store, store_uri: str) -> None:
    store.create("counter", b"0")

    def count(_: int) -> None:
        mine = open_store(store_uri)
        for _ in range(10):
            while True:
                item = mine.read("counter")
                try:
                    mine.replace("counter", str(int(item.data) + 1).encode(), item.generation)
                    break
                except Changed:
                    continue

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert store.read("counter").data == b"40"


def test_opening_a_folder_does_not_load_googles_client() -> None:
    code = (
        "import sys; from elastic_tpu.runs.store.open import open_store as o; o('x'); print('requests' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("uri", ["", "s3://bucket/x", "gs://", "gs:///x", "file:///tmp/x"])
def test_other_places_are_refused(uri: str) -> None:
    with pytest.raises(BadInput, match="gs://bucket/prefix"):
        open_store(uri)


def test_uris(tmp_path: Path, gcs_environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    del gcs_environment
    monkeypatch.chdir(tmp_path)
    assert open_store("runs/a/").uri == str(tmp_path / "runs/a")
    assert open_store("gs://bucket/runs/a/").uri == "gs://bucket/runs/a"
    assert open_store("gs://bucket").uri == "gs://bucket"


# On a folder only.

WRITER = """
import sys
from elastic_tpu.runs.store.open import open_store
store = open_store(sys.argv[1])
while True:
    for letter in b"ab":
        store.put("x", bytes([letter]) * 3_000_000)
        print("written", flush=True)
"""


def test_a_killed_writer_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for writes in (1, 4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(writes):
            assert writer.stdout.readline() == "written\n"
        seen = store.read("x").data  # while it writes
        writer.kill()
        writer.communicate()
        for data in (seen, store.read("x").data):
            assert len(data) == 3_000_000
            assert len(set(data)) == 1
        assert [e.name for e in store.list()] == ["x"]
        store.put("x", b"the lock is free")


HALFWAY = """
import os, sys
from elastic_tpu.runs.store.open import open_store
def wait(_):
    print("halfway", flush=True)
    sys.stdin.read()
os.fsync = wait
store = open_store(sys.argv[1])
getattr(store, sys.argv[2])(sys.argv[3], b"new" * 1000)
"""


@pytest.mark.parametrize(("call", "name"), [("create", "folder/new"), ("put", "old")])
def test_a_writer_that_is_killed_halfway_shows_nothing(tmp_path: Path, call: str, name: str) -> None:
    store = open_store(str(tmp_path))
    generation = store.create("old", b"old")
    command = [sys.executable, "-c", HALFWAY, str(tmp_path), call, name]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "halfway\n"
    for _ in range(2):
        assert [(e.name, e.size) for e in store.list()] == [("old", 3)]
        assert (store.read("old").data, store.read("old").generation) == (b"old", generation)
        writer.kill()
        writer.communicate()
    store.put(name, b"free to be written")
    assert store.read(name).data == b"free to be written"


def test_a_file_is_never_seen_half(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("x", b"a" * 1_000_000)
    done = threading.Event()
    torn = []

    def look() -> None:
        while not done.is_set():
            data = store.read("x").data
            if len(data) != 1_000_000 or len(set(data)) != 1:
                torn.append(data[:10])

    reader = threading.Thread(target=look)
    reader.start()
    for letter in b"bcdefghijk":
        store.put("x", bytes([letter]) * 1_000_000)
    done.set()
    reader.join()
    assert torn == []


def test_a_file_has_the_time_of_its_commit_even_when_its_writer_had_to_wait(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("before", b"")  # makes the lock's file
    lock = os.open(tmp_path / ".tmp-lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(store.put, "x", b"1")
        while not (waiting := [path for path in tmp_path.glob(".tmp-*") if path.stat().st_size]):
            assert not writing.done()
        os.utime(waiting[0], (0, 0))  # it has waited since 1970
        os.close(lock)
        writing.result()
    assert abs(store.read("x").updated - store.now()) < timedelta(minutes=1)


def test_nothing_is_left_behind_by_writes_that_fail(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    generation = store.create("x", b"1")
    with pytest.raises(AlreadyExists):
        store.create("x", b"2")
    with pytest.raises(Changed):
        store.replace("x", b"2", "1")
    store.replace("x", b"2", generation)
    store.now()
    assert {path.name for path in tmp_path.rglob("*")} == {"x", ".tmp-lock"}


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("a", b"")
    store.put("folder/x", b"")
    with pytest.raises(BadInput, match="a/b"):
        store.put("a/b", b"")
    with pytest.raises(BadInput, match="folder"):
        store.put("folder", b"")
    for absent in ("a/b", "folder"):
        with pytest.raises(NotFound, match=absent):
            store.read(absent)


@pytest.mark.parametrize("call", ["create", "put", "replace", "now", "deeper"])
def test_a_root_that_was_deleted_is_not_made_again(tmp_path: Path, call: str) -> None:
    root = tmp_path / "runs" / "r"
    first = PosixStore(root)
    generation = first.create("claim.json", b"1")
    later = PosixStore(root)
    later.read("claim.json")
    shutil.rmtree(root)
    for store in (first, later):
        calls: dict[str, Callable[[], object]] = {
            "create": lambda store=store: store.create("a", b""),  # type: ignore[misc]
            "put": lambda store=store: store.put("a", b""),  # type: ignore[misc]
            "replace": lambda store=store: store.replace("claim.json", b"2", generation),  # type: ignore[misc]
            "now": store.now,
            "deeper": lambda store=store: store.create("attempts/1/exit.json", b""),  # type: ignore[misc]
        }
        with pytest.raises(Changed if call == "replace" else NotFound, match=r"runs/r: the folder was deleted"):
            calls[call]()
        assert not root.exists()


def test_a_name_that_is_too_long_is_the_users_to_change(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="shorter"):
        open_store(str(tmp_path)).put("x" * 300, b"")


@pytest.mark.parametrize("granularity", [1_000, 1_000_000_000, 2_000_000_000])
def test_generations_change_on_a_filesystem_with_coarse_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granularity: int
) -> None:
    utime = os.utime

    def coarse(path: Path, times: None = None, *, ns: tuple[int, int] | None = None) -> None:
        utime(path, times) if ns is None else utime(path, ns=(ns[0], ns[1] // granularity * granularity))

    monkeypatch.setattr(os, "utime", coarse)
    store = open_store(str(tmp_path))
    generations = [int(store.put("x", b"")) for _ in range(5)]
    assert generations == sorted(set(generations))
    assert str(generations[-1]) == store.read("x").generation


def test_a_file_that_is_deleted_and_created_within_one_tick_gets_another_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utime = os.utime
    tick = 1_800_000_000_000_000_000
    monkeypatch.setattr(os, "utime", lambda path, *, ns=(tick, tick): utime(path, ns=ns))
    store = open_store(str(tmp_path))
    old = store.create("x", b"1")
    store.delete("x")
    store.create("x", b"2")
    with pytest.raises(Changed):
        store.replace("x", b"3", old)


def test_a_reader_who_locks_the_folder_keeps_no_writer_waiting(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        store = open_store(str(tmp_path))
        store.replace("x", b"2", store.create("x", b"1"))
    finally:
        os.close(folder)
    assert [(e.name, e.size) for e in store.list()] == [("x", 1)]  # the lock file is in no listing


@pytest.mark.parametrize(
    ("folder", "lock", "file"), [(0o755, 0o600, 0o640), (0o2775, 0o660, 0o640), (0o1777, 0o666, 0o640)]
)
def test_only_those_who_may_write_can_open_the_lock(tmp_path: Path, folder: int, lock: int, file: int) -> None:
    tmp_path.chmod(folder)
    before = os.umask(0o022)
    try:
        open_store(str(tmp_path)).create("x", b"1")
    finally:
        os.umask(before)
    assert ((tmp_path / ".tmp-lock").stat().st_mode & 0o777, (tmp_path / "x").stat().st_mode & 0o777) == (lock, file)


def test_a_lock_that_is_held_for_too_long_names_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix, "_LOCKED", 0.05)
    store = open_store(str(tmp_path))
    store.create("x", b"1")
    lock = os.open(tmp_path / ".tmp-lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unreachable, match=rf"\.tmp-lock: locked for 0 s by pid {os.getpid()}$"):
            store.put("x", b"2")
    finally:
        os.close(lock)


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, Unreachable), (errno.ESTALE, Unreachable), (errno.EACCES, BadInput)]
)
def test_trouble_with_the_filesystem_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    store = open_store(str(tmp_path))
    store.put("status.json", b"old")

    def fails(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(error, match=r"status\.json.*" + os.strerror(number)):
        store.put("status.json", b"new")
    assert store.read("status.json").data == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"status.json", ".tmp-lock"}


# In a bucket only: what can happen to a request.


@pytest.fixture
def bucket(gcs_bucket: str, gcs_proxy: FaultProxy) -> Store:
    assert os.environ["STORAGE_EMULATOR_HOST"] == gcs_proxy.url
    from elastic_tpu.runs.store.gcs import GcsStore, connect
    from tenacity import wait_none

    return GcsStore(connect(), gcs_bucket, "run", deadline=20, back_off=wait_none())


def posts(proxy: FaultProxy) -> int:
    return sum(method == "POST" for method, _ in proxy.requests)


def test_all_stores_of_a_process_share_one_client(gcs_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from elastic_tpu.runs.store import gcs

    made, real = list[int](), gcs.storage.Client
    monkeypatch.setattr(gcs.storage, "Client", lambda **options: made.append(os.getpid()) or real(**options))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"/{gcs_bucket}")  # a login that no store has used
    for name in "ab":
        open_store(f"gs://{gcs_bucket}/{name}").put("x", b"1")
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a fork: a connection is not for two processes
    open_store(f"gs://{gcs_bucket}/c").put("x", b"1")
    assert (len(made), made[-1]) == (2, -1)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("refuse", status=429),
        Fault("refuse", status=503),
        Fault("refuse", status=500),
        Fault("refuse", status=408),
        Fault("refuse", status=403, reason="rateLimitExceeded"),
        Fault("reset"),
    ],
    ids=lambda f: f"{f.kind}-{f.status}-{f.reason}",
)
def test_a_request_that_was_not_carried_out_is_asked_again(bucket: Store, gcs_proxy: FaultProxy, fault: Fault) -> None:
    gcs_proxy.faults = [fault, fault]
    generation = bucket.create("x", b"1")
    assert posts(gcs_proxy) == 3
    gcs_proxy.faults = [fault]
    generation = bucket.replace("x", b"2", generation)
    gcs_proxy.faults = [fault]
    assert bucket.read("x").generation == generation
    gcs_proxy.faults = [fault]
    assert [e.name for e in bucket.list()] == ["x"]
    gcs_proxy.faults = [fault]
    bucket.delete("x", generation)
    assert gcs_proxy.faults == []
    assert bucket.list() == []


@pytest.mark.parametrize("kind", ["lose", "lose-503"])
def test_a_write_whose_answer_was_lost_has_succeeded(bucket: Store, gcs_proxy: FaultProxy, kind: str) -> None:
    gcs_proxy.faults = [Fault(kind, "POST")]
    generation = bucket.create("x", b"1")
    assert bucket.read("x").generation == generation
    gcs_proxy.faults = [Fault(kind, "POST")]
    generation = bucket.replace("x", b"2", generation)
    assert (bucket.read("x").data, bucket.read("x").generation) == (b"2", generation)
    gcs_proxy.faults = [Fault(kind, "DELETE")]
    bucket.delete("x", generation)
    assert gcs_proxy.faults == []
    assert bucket.list() == []


def test_a_lost_answer_does_not_make_another_writers_equal_bytes_ones_own(bucket: Store, gcs_proxy: FaultProxy) -> None:
    other = open_store(bucket.uri)
    gcs_proxy.faults = [Fault("reset", "POST", before=lambda: other.create("x", b"same"))]
    with pytest.raises(AlreadyExists):
        bucket.create("x", b"same")
    generation = bucket.read("x").generation
    gcs_proxy.faults = [Fault("reset", "POST", before=lambda: other.replace("x", b"same 2", generation))]
    with pytest.raises(Changed):
        bucket.replace("x", b"same 2", generation)


def test_a_body_that_was_cut_short_is_read_again(bucket: Store, gcs_proxy: FaultProxy) -> None:
    bucket.create("x", b"whole" * 1000)
    gcs_proxy.requests.clear()
    # The first GET of a read asks for the generation, the second one for the bytes.
    gcs_proxy.faults = [Fault("cut", "GET"), Fault("cut", "GET")]
    assert bucket.read("x").data == b"whole" * 1000
    assert gcs_proxy.faults == []


def test_bytes_and_generation_agree_when_somebody_writes_in_between(bucket: Store, gcs_proxy: FaultProxy) -> None:
    generation = bucket.create("x", b"old")
    newer: list[str] = []

    def overwrite() -> None:
        gcs_proxy.faults = []
        newer.append(bucket.replace("x", b"new", generation))

    gcs_proxy.faults = [Fault("pass", "GET"), Fault("pass", "GET", before=overwrite)]
    item = bucket.read("x")
    assert (item.data, item.generation) == (b"new", newer[0])


def test_a_conditional_delete_asks_for_the_generation(bucket: Store, gcs_proxy: FaultProxy) -> None:
    generation = bucket.create("x", b"1")
    gcs_proxy.faults = [Fault("refuse", "DELETE", status=412, reason="conditionNotMet")]
    with pytest.raises(Changed, match=generation):
        bucket.delete("x", generation)
    (deleted,) = [path for method, path in gcs_proxy.requests if method == "DELETE"]
    assert f"ifGenerationMatch={generation}" in deleted
    assert bucket.read("x").data == b"1"


def test_a_storage_that_does_not_answer_is_unreachable(gcs_bucket: str, gcs_proxy: FaultProxy) -> None:
    store = open_store(f"gs://{gcs_bucket}/run", deadline=0.2)
    gcs_proxy.faults = [Fault("refuse", status=503) for _ in range(50)]
    with pytest.raises(Unreachable, match=r"run/claim\.json.*0\.2 s") as caught:
        store.read("claim.json")
    assert caught.value.code == ExitCode.INFRASTRUCTURE


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(Unreachable, match="gs://bucket/run/x"):
        open_store("gs://bucket/run", deadline=0.2).put("x", b"")


def test_a_bucket_that_does_not_exist_is_named(gcs_environment: str) -> None:
    del gcs_environment
    store = open_store("gs://no-such-bucket/runs/a", deadline=5)
    calls: list[Callable[[], object]] = [
        lambda: store.read("x"),
        lambda: store.digest("x"),
        lambda: store.create("x", b""),
        lambda: store.put("x", b""),
        lambda: store.replace("x", b"", "1"),
        lambda: store.list(),
        lambda: store.now(),
    ]
    for number, call in enumerate(calls):
        if number == 4:
            continue
        with pytest.raises(BadInput, match="no bucket no-such-bucket; create it"):
            call()


@pytest.mark.parametrize(("status", "cure"), [(403, "objectUser"), (401, "login")])
def test_a_refused_access_names_the_bucket_and_the_cure(
    bucket: Store, gcs_bucket: str, gcs_proxy: FaultProxy, status: int, cure: str
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: bucket.read("x"),
        lambda: bucket.create("x", b""),
        lambda: bucket.list(),
        lambda: bucket.now(),
    ]
    for call in calls:
        gcs_proxy.faults = [Fault("refuse", status=status, reason="forbidden")]
        with pytest.raises(BadInput, match=f"bucket {gcs_bucket} .*{cure}"):
            call()


def test_without_credentials_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with pytest.raises(BadInput, match="gcloud auth application-default login"):
        open_store("gs://bucket/run")


# ---- what somebody else put into a run directory


def test_a_file_that_is_too_large_for_a_run_is_refused_by_name(store: Store) -> None:
    store.put("a/large.json", bytes(LARGEST + 1))
    with pytest.raises(Damaged, match=r"a/large.json: has 16,777,217 bytes"):
        store.read("a/large.json")
    assert len(store.read_from("a/large.json", 0)) == CHUNK  # a log may be that large
    assert store.read_from("a/large.json", LARGEST) == b"\0"
    assert store.read_from("a/large.json", LARGEST + 1) == b""
    with pytest.raises(NotFound):
        store.read_from("a/none.log", 0)


@pytest.mark.parametrize("kind", ["fifo", "device", "link out", "folder link out"])
def test_what_is_no_file_of_the_run_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    root, secret = tmp_path / "run", tmp_path / "secret"
    root.mkdir()
    secret.mkdir()
    (secret / "x").write_text("of somebody else")
    name = "x/x" if kind == "folder link out" else "x"
    if kind == "fifo":
        os.mkfifo(root / "x")
    else:
        (root / "x").symlink_to({"device": Path("/dev/zero"), "link out": secret / "x"}.get(kind, secret))
    store = PosixStore(root)
    for read in (store.read, lambda name: store.read_from(name, 0)):
        with pytest.raises(Damaged, match=r"/run/x"):
            read(name)


def test_a_root_that_is_itself_a_link_and_links_inside_it_are_read(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "a").write_text("content")
    (tmp_path / "real" / "b").symlink_to("a")
    store = PosixStore(tmp_path / "link")
    assert store.read("a").data == store.read("b").data == b"content"
