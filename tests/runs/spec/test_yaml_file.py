"""What a user's YAML is read as, and what is refused: with the line, at once, and never with a traceback."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_tpu.runs.errors import BadInput
from elastic_tpu.runs.record.run import create_run, open_run
from elastic_tpu.runs.spec import yaml_file
from elastic_tpu.runs.spec.load import read_spec
from elastic_tpu.runs.spec.yaml_file import parse, parse_stored, read_file
from elastic_tpu.runs.store.open import open_store
from elastic_tpu.tests.tools.fault_proxy import FaultProxy
from elastic_tpu.tests.tools.small import document, spec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st


def refused(text: str) -> str:
    """What a user reads about this text of a file `spec.yaml`."""
    with pytest.raises(BadInput) as raised:
        parse(text.encode(), "/specs/spec.yaml")
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),  # YAML 1.1: 90
        ("010", 10),  # YAML 1.1: 8
        ("089", 89),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("3e-5", 3e-5),  # YAML 1.1: text
        ("-.5", -0.5),
        ("1.", 1.0),
        ("1.5E+3", 1500.0),
        (".inf", float("inf")),
        ("-.Inf", float("-inf")),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("2026-01-31", "2026-01-31"),
        ("=", "="),
        ("'010'", "010"),
        ("!!str 010", "010"),
        ("!!int '010'", 10),
        ("!!float 1", 1.0),
        ("[1, a]", [1, "a"]),
    ],
)
def test_values_follow_yaml_1_2(text: str, value: object) -> None:
    read = parse(f"a: {text}".encode(), "x.yaml")["a"]
    assert read == value
    assert type(read) is type(value)


def test_words_are_keys_too_and_anchors_are_merged() -> None:
    text = "base: &b {on: 1, no: 2}\nother: {<<: *b, no: 3, yes: {<<: [*b, {y: 4}]}}\n"
    assert parse(text.encode(), "x.yaml")["other"] == {"on": 1, "no": 3, "yes": {"on": 1, "no": 2, "y": 4}}


@pytest.mark.parametrize("text", ["\ufeffa: ü", "a: ü"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_encodings(text: str, encoding: str) -> None:
    assert parse(text.removeprefix("\ufeff" * (encoding == "utf-16")).encode(encoding), "x.yaml") == {"a": "ü"}


# -- errors: the line, and a caret ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run: {name: x", ["line 1, column 14", "run: {name: x\n", "^", "expected ',' or '}'"]),
        ("run:\n  name: x\n steps: 1\n", ["line 3, column 2", "     steps: 1\n       ^"]),
        ("run:\n\tname: x\n", ["line 2, column 1", "'\\t'"]),
        ("a: &x 1\nb: *y\n", ["line 2, column 4", "undefined alias"]),
        ("a: 1\n---\nb: 1\n", ["line 2, column 1", "another document"]),
        ("a: 1\na: 2\n", ["the key 'a' stands twice", "line 1, column 1", "line 2, column 1"]),
        ("r:\n  'on': 1\n  x: 2\n  on: 3\n", ["the key 'on' stands twice", "line 2, column 3", "line 4, column 3"]),
        ("a: [{b: 1, b: 1}]", ["the key 'b' stands twice", "column 6", "column 12"]),
        ("b: &b {}\na:\n  <<: *b\n  <<: *b\n", ["the key '<<' stands twice", "line 3", "line 4"]),
        ("a: &a\n  b: *a\n", ["'a' contains itself", "line 2, column 6"]),
        ("a: " + "[" * 5000, ["nested more than 64 deep", "line 1, column "]),
        ("a: " + "1" * 5000, ["a number of more than 1,000 digits", "line 1, column 4"]),
        ("a: !!python/object:os.system x", ["line 1, column 4", "python/object"]),
        ("a: !!timestamp 2026-01-31", ["line 1, column 4", "timestamp"]),
        ("a: !!binary xx", ["line 1, column 4", "binary"]),
        ("a: !!int ''", ["line 1, column 4", "'' is no int"]),
        ("a: !!bool x", ["line 1, column 4", "'x' is no bool"]),
        ("a: !!float x", ["line 1, column 4", "'x' is no float"]),
        ("? [a]\n: b", ["line 1, column 3", "unhashable key"]),
        ('a: "\\Uffffffff"', ["line 1"]),
        ('a: "\\U00110000"', ["line 1"]),
        ("%YAML " + "9" * 5000 + ".1\n--- a", ["line 1"]),
        ("a: 1\nb: \x00", ["line 2", "#x0000"]),
    ],
)
def test_an_error_shows_where(text: str, expected: list[str]) -> None:
    told = refused(text)
    assert told.startswith("/specs/spec.yaml: not readable as YAML:\n")
    for part in expected:
        assert part in told
    assert len(told) < 1000


def test_what_is_not_text_is_said() -> None:
    with pytest.raises(BadInput, match=r"x\.yaml: not readable as YAML:\n  not text in UTF-8"):
        parse(b"PAR1\xff\xfe\x80", "x.yaml")


# -- size ---------------------------------------------------------------------------------------------------------

BOMB = "x-0: &a0 [a, a, a, a, a, a, a, a, a]\n" + "".join(
    f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)
MERGE_BOMB = "x-0: &a0 {a: 1}\n" + "".join(
    f"x-{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 30)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        MERGE_BOMB,
        BOMB + "? *a29\n: 1\n",
        "a: [" + "1, " * 20_000 + "]",
        "".join(f"k{n}: 1\n" for n in range(20_000)),
        "a: [" + "[], " * 200_000 + "]",
    ],
    ids=["aliases", "merges", "a key", "items", "keys", "lists"],
)
def test_too_many_values_are_refused_at_once(text: str) -> None:
    begin = time.process_time()
    told = refused(text)
    assert time.process_time() - begin < 5
    assert "holds more than 10,000 values" in told
    assert "line " in told
    assert len(told) < 1000


def test_an_alias_may_be_used_often(tmp_path: Path) -> None:
    text = "x-e: &e [" + "1, " * 50 + "]\nb: [" + "*e, " * 100 + "]\n"
    assert len(parse(text.encode(), "x.yaml")["b"]) == 100


def test_a_large_spec_in_a_bucket_is_refused_before_it_is_downloaded(gcs_bucket: str, gcs_proxy: FaultProxy) -> None:
    open_store(f"gs://{gcs_bucket}").put("spec.yaml", b"#" * 2**20 + b"\n")
    gcs_proxy.requests.clear()
    with pytest.raises(BadInput, match=r"spec\.yaml: cannot read this spec \(larger than 1 MiB\)"):
        read_file(f"gs://{gcs_bucket}/spec.yaml")
    assert not [path for _, path in gcs_proxy.requests if "alt=media" in path]


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    with path.open("wb") as file:
        file.truncate(50 * 2**20)
    with pytest.raises(BadInput, match=r"spec\.yaml: cannot read this spec \(larger than 1 MiB\)"):
        read_file(str(path))


def test_a_fifo_and_a_device_are_refused_without_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "spec.yaml"
    os.mkfifo(fifo)
    device = tmp_path / "zero.yaml"
    device.symlink_to("/dev/zero")
    for path in (fifo, device):
        with pytest.raises(BadInput, match=r"cannot read this spec \(not a regular file\)"):
            read_file(str(path))


# -- specs that this package wrote --------------------------------------------------------------------------------


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
        | st.sampled_from(["089", "3e-5", "-.5", "1:30", "010", "0o17", "yes", "on", "2026-01-31", "1_000", "=", "<<"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=8,
    )
)  # fmt: skip
def test_a_stored_spec_is_read_as_it_was_written(value: Any) -> None:
    data = yaml.safe_dump({"a": value}, sort_keys=False, allow_unicode=True).encode()
    assert parse_stored(data, "x") == yaml.safe_load(data)


def test_a_run_has_the_spec_and_the_hash_that_it_was_created_with(tmp_path: Path) -> None:
    labels = {"a": "089", "b": "3e-5", "c": "010", "d": "yes", "e": "2026-01-31", "f": "1_000", "g": "0o17"}
    run = {"output": str(tmp_path), "labels": labels}
    created = create_run(spec(run=run, limits={"total": "1h30m"}))
    opened = open_run(created.uri)
    assert opened.spec == created.spec
    assert opened.spec.run.labels == labels
    assert opened.spec_hash == created.spec_hash


@pytest.mark.parametrize("text", [BOMB, "a: 1\na: 2", "a: &a [*a]", "{", "a: 2026-99-99", "a: !!bool x", "a: !!set"])
def test_a_damaged_stored_spec_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match=r"runs/r/spec\.yaml: not readable as YAML"):
        parse_stored(text.encode(), "runs/r/spec.yaml")


# -- any text -----------------------------------------------------------------------------------------------------

_PIECES = [
    *"{}[],:?-&*!|>'\"%@`#~=\n\t\\ ", "\n  ", "---", "...", "<<", "&a ", "*a", "!!int ", "!!bool ", "!!map ", "!x ",
    "%YAML 1.1\n", "\\U00110000", "\\Uffffffff", "\\x", "\ufeff", "\x00", "\x85", "\u2028", "1e999", "0x", "1" * 5000,
    ".nan", "run: ", "name: ", "platform: local\n", "slices: ", "train: {maxtext: {", "data: ", "$HOME", "~nobody",
    "x-a: ", "profile: ", "ü", "yes", "\r\n",
]  # fmt: skip
_pieces = st.lists(st.sampled_from(_PIECES), max_size=25).map(lambda pieces: "".join(pieces).encode())


def told(read: Callable[[], object]) -> str:
    """The message of a BadInput, or nothing."""
    try:
        read()
    except BadInput as error:
        return str(error)
    return ""


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_pieces | st.binary(max_size=80))
@example(b'"\\Uffffffff"')
@example(b"a: !<%ff> b")
@example(b"\xff\xfea")
def test_any_bytes_are_a_document_or_bad_input(tmp_path: Path, data: bytes) -> None:
    for read in (parse, parse_stored):
        message = told(partial(read, data, "x.yaml"))
        assert not message or message.startswith("x.yaml: ")
    path = tmp_path / "spec.yaml"
    path.write_bytes(data)
    with pytest.raises(BadInput):
        read_spec(str(path), {})


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.integers(0, 30), st.sampled_from(_PIECES) | st.text(max_size=5))
def test_a_spec_with_any_change_is_a_spec_or_bad_input(tmp_path: Path, at: int, cut: int, put: str) -> None:
    text = yaml.safe_dump(document())
    path = tmp_path / "spec.yaml"
    path.write_bytes((text[:at] + put + text[at + cut :]).encode("utf-8", "surrogatepass"))
    assert len(told(partial(read_spec, str(path), {}, with_inputs=False))) < 20_000


def test_the_limits_leave_room_for_the_largest_example() -> None:
    examples = Path(__file__).resolve().parents[3] / "examples"
    for path in examples.glob("*.yaml"):
        assert len(path.read_bytes()) < yaml_file.LARGEST / 20
        assert parse(path.read_bytes(), str(path))
