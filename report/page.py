"""Lays a story out as one HTML page: no script, nothing to fetch, readable on a phone, in dark mode and on paper.

Jinja2 escapes every text that comes from the run; the page's Content-Security-Policy also forbids scripts and network.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from ..runs.record import paths
from ..runs.record.recovery_events import RECOVERY_PARTS
from ..runs.units import GIB, show_duration, show_size
from .chart import Mark, is_logarithmic, loss_chart
from .run_records import AttemptRow
from .story import Curve, Story
from .timeline import Timeline

_FOLDER = Path(__file__).parent


def page(story: Story) -> str:
    """The page as HTML."""
    records, curve = story.records, story.curve
    marks = [Mark(r.reached, number) for number, r in enumerate(story.goodput.recoveries, start=1)]
    steps = records.spec.train.steps
    sizes = {"wide": (940, 320), "narrow": (350, 260)} if curve.finite else {}
    spec = records.spec.model_dump(mode="json", exclude_none=True)
    return (
        _environment()
        .get_template("page.html")
        .render(
            story=story,
            records=records,
            plan=records.plan,
            charts={name: Markup(loss_chart(curve, marks, steps, *size)) for name, size in sizes.items()},
            speed_charts=_speed_charts(story, steps),
            logarithmic=bool(sizes) and is_logarithmic(curve),
            ticks=_ticks(story.timeline) if story.timeline else [],
            parts=RECOVERY_PARTS,
            kinds=sorted(story.goodput.seconds_by_kind.items(), key=lambda pair: (pair[0] != "training", -pair[1])),
            metrics=_flat(records.evaluation["metrics"]) if records.evaluation else [],
            spec_text=yaml.safe_dump(spec, sort_keys=False, allow_unicode=True),
            spec_hash=records.spec.hash(),
            style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        )
    )


def _speed_charts(story: Story, steps: int) -> dict[str, Markup]:
    """Step time over steps, without the recoveries: a stretch's first step has no time."""
    line = Curve(kept=story.step_times, repeated=())
    sizes = {"wide": (940, 200), "narrow": (350, 200)} if story.speed and len(line.finite) > 1 else {}
    return {name: Markup(loss_chart(line, [], steps, *size)) for name, size in sizes.items()}


@functools.cache  # it keeps the compiled template: compiling takes longer than all else here
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": show_time,
        "seconds": lambda seconds: show_duration(seconds, tenths=True),
        "number": show_number,
        "size": show_size,
        "words": lambda name: str(name).replace("_", " "),
    }
    environment.globals |= {"share": _share, "GIB": GIB, "log_of": _log_of}
    return environment


def _log_of(attempt: AttemptRow) -> str:
    """The log of an attempt, relative to the page."""
    name = "trainer" if attempt.job == "train" else attempt.job
    return f"{paths.attempts(attempt.job)}/{attempt.number}/{name}.log"


def show_time(when: datetime | None) -> str:
    """UTC, to the second: the head of the page says that all times are UTC."""
    return "" if when is None else when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def show_number(value: object) -> str:
    """Four significant digits of a fraction, all of a whole number, and any other value as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    if not math.isfinite(value):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if 0.001 <= abs(value) < 1e4 else f"{value:.4g}"


def _share(part: float, whole: float) -> str:
    """`part` of `whole` in per cent for the style sheet, from 0 to 100 whatever the numbers are."""
    return f"{100 * min(1.0, max(0.0, part / whole)):.3f}" if whole > 0 else "0"


def _ticks(timeline: Timeline) -> list[str]:
    """Labels of a time axis: begin, quarters, end; with the date if the axis spans more than one day."""
    length = timeline.end - timeline.begin
    times = [(timeline.begin + length * quarter / 4).astimezone(UTC) for quarter in range(5)]
    many_days = times[0].date() != times[-1].date()
    clock = "%H:%M:%S" if length.total_seconds() < 7200 else "%H:%M"
    return [when.strftime(f"%d %b {clock}" if many_days else clock) for when in times]


def _flat(metrics: Any, prefix: str = "") -> Sequence[tuple[str, object]]:
    """Nested metrics by dotted names; a value that is neither a number nor text is left out."""
    found: list[tuple[str, object]] = []
    for name, value in metrics.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float, str)):
            found.append((f"{prefix}{name}", value))
    return found
