"""Small files: their bytes, their times, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from elastic_tpu.runs.errors import BadInput, Damaged
from elastic_tpu.runs.store import records
from hypothesis import given
from hypothesis import strategies as st

NOON = datetime(2026, 1, 31, 12, 0, 0, 7999, tzinfo=UTC)


def test_times_are_utc_with_milliseconds_and_read_back() -> None:
    assert records.timestamp(NOON) == "2026-01-31T12:00:00.007Z"
    assert records.timestamp(NOON.astimezone(timezone(timedelta(hours=5)))) == "2026-01-31T12:00:00.007Z"
    assert records.parse_time("2026-01-31T12:00:00.007Z") == NOON.replace(microsecond=7000)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        records.parse_time("2026-01-31T12:00:00")


def test_a_record_has_sorted_keys_and_a_schema() -> None:
    data = records.dump({"b": 1, "a": "ü"})
    assert list(json.loads(data)) == ["a", "b", "schema"]
    assert json.loads(data)["schema"] == 1
    assert "ü".encode() in data
    assert records.load(data, "x.json") == {"a": "ü", "b": 1, "schema": 1}


def test_a_sealed_record_has_a_digest_that_is_checked() -> None:
    data = records.seal({"loss": 2.94, "name": "ü", "files": ("a", "b")})
    loaded = records.load(data, "x.json")
    assert loaded == {**json.loads(data), "files": ["a", "b"]}
    assert loaded[records.DIGEST] == records.digest(loaded)
    with pytest.raises(Damaged, match=r"x.json: record_digest is .*, the content's is .*: it was changed or damaged"):
        records.load(data.replace(b"2.94", b"0.94"), "x.json")


def test_no_bit_of_a_sealed_record_can_be_flipped_unnoticed() -> None:
    whole = records.seal({"loss": 2.94, "step": 99, "name": "ü"})
    sound = records.load(whole, "x.json")
    for at, bit in [(at, bit) for at in range(len(whole)) for bit in range(8)]:
        try:
            loaded = records.load(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :], "x.json")
        except BadInput:
            continue
        # The name of the digest's own field has changed: a record that looks like those of older versions.
        assert records.DIGEST not in loaded
        assert records.unsealed_problem(loaded, sound.keys() - {records.DIGEST})


def test_what_json_cannot_hold_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.dump({"loss": float("nan")})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x.json: not valid JSON"),
        (b'{"a": 1', "x.json: not valid JSON"),
        (b"\xff\xfe", "x.json: not valid JSON"),
        (b"[" * 100_000, "x.json: not valid JSON"),
        (b"[1]", "x.json: a JSON object was expected, not list"),
        (b'{"schema": 2}', "x.json: schema 2 is newer than 1"),
        (b'{"schema": null}', "x.json: schema None is not a number"),
        (b'{"schema": "1"}', "x.json: schema '1' is not a number"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_by_name(data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message.replace("[", r"\[")):
        records.load(data, "x.json")


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.booleans(), max_size=5))
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    turned = dict(reversed(list(value.items())))
    assert records.canonical(value) == records.canonical(turned)
    assert json.loads(records.canonical(value)) == value
