"""The loss curve as SVG, drawn by pygal: without script, with every colour set by the page's style sheet.

Text in an SVG shrinks with the drawing, so the page gets two drawings and shows the one that fits the screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from ..runs.record.loss_log import Loss
from .story import Curve

_SPAN = 8.0  # a loss rarely falls further than from ln(vocabulary) to 1.5
_POINTS = 800  # points of a line: more than a phone has pixels across, about as many as a desktop screen

Point = tuple[float, float | None] | dict[str, Any] | None


@dataclass(frozen=True)
class Mark:
    """A recovery on the axis of steps, with the number that the table gives it."""

    step: int
    number: int


def loss_chart(curve: Curve, marks: Sequence[Mark], steps: int, width: int, height: int) -> str:
    """An ``<svg>`` element: loss over steps, lost steps that were done again, recoveries as numbered lines.

    The axis of losses is logarithmic when `is_logarithmic`; pygal's own would make that of steps logarithmic as well.

    Args:
      curve: what to draw; it must have finite losses.
      marks: where recoveries were.
      steps: of the whole run, to which the axis reaches when more than half of it is done.
      width: of the drawing in CSS pixels; at this width text has its normal size.
      height: of the drawing in CSS pixels.
    """
    import pygal
    from pygal.style import Style

    scale = math.log10 if is_logarithmic(curve) else float
    low, high = (scale(bound) for bound in _bounds(curve))
    room = (high - low) * 0.08 or 0.5
    reached = max(p.step for line in (curve.kept, *curve.repeated) for p in line)
    last = max(1, steps - 1 if 2 * reached >= steps else reached)
    chart = pygal.XY(
        style=Style(label_font_size=13, major_label_font_size=13, value_label_font_size=13),
        css=[],
        js=[],
        width=width,
        height=height,
        margin=4,
        margin_right=24,
        show_dots=False,
        show_legend=False,
        allow_interruptions=True,
        print_labels=True,
        range=(low - room, high + room),
        xrange=(0, last),
        max_scale=6,
        no_prefix=True,
    )
    chart.x_labels = _ticks(last, 8 if width > 600 else 4)
    if scale is math.log10:
        powers = range(math.floor(low), math.ceil(high) + 1)
        rounds = [m * 10.0**power for power in powers for m in ((1, 2, 5) if len(powers) < 5 else (1,))]
        chart.y_labels = [
            {"value": scale(y), "label": f"{y:g}"} for y in rounds if low - room <= scale(y) <= high + room
        ]
    chart.add("repeated", _joined(curve.repeated, scale))
    chart.add("loss", _joined([curve.kept], scale))
    for mark, label in _labelled(marks, apart=last * 40 / width):
        at = max(0, mark.step)
        top = {"value": (at, high + room / 2), "label": label}
        chart.add("recovery", [(at, low - room), top], show_dots=bool(label), dots_size=9)
    return _plain(chart.render_tree())


def _labelled(marks: Sequence[Mark], apart: float) -> list[tuple[Mark, str]]:
    """Marks with their labels; marks less than `apart` steps after the first of a group share its label."""
    groups: list[list[Mark]] = []
    for mark in sorted(marks, key=lambda mark: mark.step):
        if not groups or mark.step - groups[-1][0].step >= apart:
            groups.append([])
        groups[-1].append(mark)
    found: list[tuple[Mark, str]] = []
    for group in groups:
        numbers = sorted(mark.number for mark in group)
        label = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        found += [(group[0], label), *((mark, "") for mark in group[1:])]
    return found


def is_logarithmic(curve: Curve) -> bool:
    """Whether the losses span so much that a linear axis would show nothing but the fall from the first one."""
    low, high = _bounds(curve)
    return low > 0 and high / low > _SPAN


def _bounds(curve: Curve) -> tuple[float, float]:
    finite = [p.loss for line in (curve.kept, *curve.repeated) for p in line if p.loss is not None]
    return min(finite), max(finite)


def _joined(lines: Iterable[Sequence[Loss]], scale: Callable[[float], float]) -> list[Point]:
    """Several lines as one series, with gaps between them."""
    points: list[Point] = []
    for line in lines:
        every = 1 + len(line) // _POINTS
        thinned = [p for i, p in enumerate(line) if i % every == 0 or p is line[-1]]
        points += [(p.step, scale(p.loss)) if p.loss is not None else None for p in thinned]
        points.append(None)
    return points


def _ticks(last: int, count: int) -> list[float]:
    """Round numbers of steps from 0 to `last`, about `count` of them."""
    rough = max(1.0, last / count)
    power = 10 ** (len(str(int(rough))) - 1)
    every = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    return [float(step) for step in range(0, last + 1, every)]


def _plain(root: Any) -> str:
    """The drawing without pygal's own script, style and dates, which the page's policy does not allow."""
    unwanted = ("defs", "title", "desc")
    for element in list(root.iter()):
        for child in list(element):
            if not isinstance(child.tag, str) or child.tag in unwanted or "tooltip" in child.get("class", ""):
                element.remove(child)
    root.attrib.pop("id", None)
    root.set("aria-hidden", "true")
    return ElementTree.tostring(root, encoding="unicode")
