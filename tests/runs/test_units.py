"""Durations, sizes and long texts, for people."""

from __future__ import annotations

import pytest
from elastic_tpu.runs.units import format_duration, parse_duration, show_duration, show_size, without_middle
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("4h", 14400),
        ("20m", 1200),
        ("45s", 45),
        ("1.5d", 129600),
        ("250ms", 0.25),
        (" 3 s ", 3),
        (20, 20),
        (0.5, 0.5),
        ("20", 20),
        ("20.0", 20),
        ("1.15h", 4140),  # exact, though 1.15 * 3600 is not
        ("1h30m", 5400),
        ("1d 12h", 129600),
        (" 1 h 30 m 1.5s", 5401.5),
        ("2s250ms", 2.25),
        ("0h5m", 300),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            " ",
            "h",
            "4 hours",
            "-4h",
            "0s",
            0,
            -1,
            True,
            None,
            [],
            "1e3s",
            float("nan"),
            float("inf"),
            10**400,
            "1µs",
        ],
        *["30m1h", "1h1h", "1h30", "1 2", "0h0m", "1:30", "1h-30m", "h30m", "9" * 20 + "d1h"],
    ],
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(14400, "4h"), (90, "90s"), (86400, "1d"), (0.2, "200ms"), (2.3, "2300ms"), (1 / 3, f"{1 / 3}s")],
)
def test_durations_are_written_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0.001, 36500 * 86400.0))
def test_a_duration_that_is_written_and_read_is_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(parse_duration(seconds))) == seconds


@given(*(st.integers(0, 99),) * 5)
def test_a_duration_in_parts_is_their_sum_and_is_written_in_one_unit(d: int, h: int, m: int, s: int, ms: int) -> None:
    if seconds := d * 86400 + h * 3600 + m * 60 + s + ms / 1000:
        read = parse_duration(f"{d}d{h}h{m}m{s}s{ms}ms")
        assert read == pytest.approx(seconds)
        assert parse_duration(format_duration(read)) == read


@pytest.mark.parametrize(
    ("seconds", "text", "with_tenths"),
    [
        (0, "0 s", "0.0 s"),
        (3.14, "3 s", "3.1 s"),
        (59.4, "59 s", "59.4 s"),
        (59.96, "1 min", "1 min"),
        (60, "1 min", "1 min"),
        (252, "4 min 12 s", "4 min 12 s"),
        (3599.7, "1 h", "1 h"),
        (7500, "2 h 5 min", "2 h 5 min"),
        (86400 * 3 + 3600 * 4 + 59, "3 d 4 h", "3 d 4 h"),
    ],
)
def test_measured_durations(seconds: float, text: str, with_tenths: str) -> None:
    assert (show_duration(seconds), show_duration(seconds, tenths=True)) == (text, with_tenths)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (999.7 * 2**10, "1000 KiB"),
        (12.34 * 2**20, "12.3 MiB"),
        (6.656 * 2**30, "6.66 GiB"),
        (131.4 * 2**30, "131 GiB"),
        (5 * 2**40, "5 TiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_sizes_have_three_digits(count: float, text: str) -> None:
    assert show_size(count) == text


def test_a_text_is_cut_in_its_middle_only_when_it_is_long() -> None:
    assert without_middle("short\n  and   plain") == "short and plain"
    long = "begin " + "x" * 5000 + " end"
    assert without_middle(long, 100).startswith("begin x")
    assert without_middle(long, 100).endswith("x end")
    assert len(without_middle(long, 100)) == 100 + len(" [...] ")
