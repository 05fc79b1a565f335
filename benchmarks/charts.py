"""Charts as SVG, written by hand: lines and groups of bars over logarithmic axes, and dashboards over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 74, 176, 44, 56
COLORS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#d44c47", "#787774", "#c29343", "#337ea9")
"""Of the series, in their order."""
_BAR_SHARE = 0.8

Points = Sequence[tuple[float, float]]


class Axis:
    """A logarithmic axis from place ``begin`` to ``end`` of the picture, in whole powers of ten."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        """``values``: what it must reach; those that are not above 0 and finite count for nothing.

        Raises:
            ValueError: there is none.
        """
        shown = [value for value in values if 0 < value < math.inf]
        if not shown:
            raise ValueError("there is nothing to be shown")
        self.low = math.floor(math.log10(min(shown)))
        self.high = max(math.ceil(math.log10(max(shown))), self.low + 1)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        """Where a value stands."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._begin + share * (self._end - self._begin)

    @property
    def ticks(self) -> list[float]:
        """The powers of ten."""
        return [10.0**power for power in range(self.low, self.high + 1)]


def lines(title: str, x_title: str, y_title: str, series: Mapping[str, Points]) -> str:
    """Points of each series, joined by lines.

    Raises:
        ValueError: there is none with both above 0 and finite.
    """
    shown = {name: _drawable(points) for name, points in series.items()}
    x = Axis([x for points in shown.values() for x, _ in points], LEFT, WIDTH - RIGHT)
    y = _y_axis([y for points in shown.values() for _, y in points])
    parts = [*_frame(title, x_title, y_title, y)]
    parts += [_text(x.at(tick), HEIGHT - BOTTOM + 18, _short(tick), "middle") for tick in x.ticks]
    for number, points in enumerate(shown.values()):
        color = COLORS[number % len(COLORS)]
        places = [(x.at(a), y.at(b)) for a, b in sorted(points)]
        drawn = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{color}"/>' for a, b in places]
    return _whole([*parts, *_legend(list(shown))])


def bars(title: str, y_title: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """A bar of each series in each group; none where a value is not above 0 and finite.

    Raises:
        ValueError: there is none at all.
    """
    y = _y_axis([value for values in series.values() for value in values])
    parts = [*_frame(title, "", y_title, y)]
    step = (WIDTH - LEFT - RIGHT) / len(groups)
    width = step * _BAR_SHARE / len(series)
    for place, group in enumerate(groups):
        middle = LEFT + (place + 0.5) * step
        parts.append(_text(middle, HEIGHT - BOTTOM + 18, group, "middle"))
        for number, values in enumerate(series.values()):
            if 0 < values[place] < math.inf:
                left, top = middle - step * _BAR_SHARE / 2 + number * width, y.at(values[place])
                color = COLORS[number % len(COLORS)]
                size = f'width="{width * 0.92:.1f}" height="{HEIGHT - BOTTOM - top:.1f}"'
                parts.append(f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{color}"/>')
                parts.append(_text(left + width * 0.46, top - 4, _short(values[place]), "middle", size=9))
    return _whole([*parts, *_legend(list(series))])


CELL, LEGENDS = (50, 22), 6
"""Of a dashboard: pixels of its grid, and so many series of a panel are named, the largest."""


def dashboard(title: str, panels: Sequence[Mapping[str, Any]], seconds: float) -> str:
    """Panels at their places, with lines over so many seconds, from the least value (0 at most) to the largest.

    Of each: ``title``, ``place`` (x, y, w, h in a grid of 24 columns), ``unit`` (as Grafana names it, or None) and
    ``series`` (points by name, None for the heading of those below).
    """
    top = 40
    bottom = top + CELL[1] * max(panel["place"]["y"] + panel["place"]["h"] for panel in panels)
    parts = [_text(12, 26, title, size=16)]
    for panel in panels:
        place = panel["place"]
        x, y = place["x"] * CELL[0] + 6, top + place["y"] * CELL[1]
        parts += [
            f'<g transform="translate({x} {y})">',
            *_panel(panel, place["w"] * CELL[0] - 12, seconds),
            "</g>",
        ]
    return _whole(parts, 24 * CELL[0], bottom + 8)


def _panel(panel: Mapping[str, Any], width: float, seconds: float) -> list[str]:
    height = panel["place"]["h"] * CELL[1] - 8
    if panel["series"] is None:
        return [_text(2, height, panel["title"], size=14)]
    frame = f'<rect width="{width}" height="{height}" fill="none" stroke="#d8d8d8"/>'
    unit = f" [{panel['unit']}]" if panel["unit"] not in (None, "short") else ""
    parts = [frame, _text(8, 15, f"{panel['title']}{unit}", size=11)]
    given = {name: [one for one in points if math.isfinite(one[1])] for name, points in panel["series"].items()}
    largest = {name: max(abs(value) for _, value in points) for name, points in given.items() if points}
    named = sorted(largest, key=lambda name: -largest[name])
    # What is 0 all the time is the same line for all.
    drawn = {name: given[name] for place, name in enumerate(named) if place < LEGENDS or largest[name] > 0}
    if not drawn:
        return [*parts, _text(width / 2, height / 2, "no data", "middle", size=11)]
    values = [value for points in drawn.values() for _, value in points]
    low, high = min(*values, 0.0), max(*values, 0.0)
    span = (high - low) or 1.0
    left, right, begin, end = 48.0, width - 110, height - 10.0, 24.0
    parts += [_text(left - 4, at, _short(value), "end", size=9) for at, value in ((end + 6, high), (begin, low))]
    for number, (name, points) in enumerate(drawn.items()):
        color = COLORS[number % len(COLORS)]
        places = [
            f"{left + at / seconds * (right - left):.1f},{begin - (value - low) / span * (begin - end):.1f}"
            for at, value in points
        ]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{color}" stroke-width="1.3"/>')
        if number < LEGENDS:
            parts.append(f'<rect x="{right + 6}" y="{20 + 14 * number}" width="7" height="7" fill="{color}"/>')
            parts.append(_text(right + 16, 27 + 14 * number, name if len(name) < 19 else f"{name[:17]}…", size=9))
    if len(named) > LEGENDS:
        parts.append(_text(right + 6, 27 + 14 * LEGENDS, f"and {len(named) - LEGENDS} more", size=9))
    return parts


def _drawable(points: Points) -> Points:
    return [(x, y) for x, y in points if 0 < x < math.inf and 0 < y < math.inf]


def _y_axis(values: Sequence[float]) -> Axis:
    return Axis(values, HEIGHT - BOTTOM, TOP)


def _frame(title: str, x_title: str, y_title: str, y: Axis) -> list[str]:
    right = WIDTH - RIGHT
    parts = [_text(LEFT, 24, title, size=15), _text((LEFT + right) / 2, HEIGHT - 14, x_title, "middle")]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 18 {middle})">{_text(18, middle, y_title, "middle")}</g>')
    for tick in y.ticks:
        at = y.at(tick)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#d8d8d8"/>')
        parts.append(_text(LEFT - 8, at + 4, _short(tick), "end"))
    return parts


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for number, name in enumerate(names):
        at, color = TOP + 8 + 20 * number, COLORS[number % len(COLORS)]
        parts.append(f'<rect x="{WIDTH - RIGHT + 16}" y="{at}" width="12" height="12" fill="{color}"/>')
        parts.append(_text(WIDTH - RIGHT + 34, at + 10, name))
    return parts


def _text(x: float, y: float, words: str, anchor: str = "start", *, size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(words)}</text>"


_UNITS: tuple[tuple[float, str], ...] = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def _short(value: float) -> str:
    for size, letter in _UNITS:
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _whole(parts: Sequence[str], width: int = WIDTH, height: int = HEIGHT) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>\n"])
