"""Draws small charts as SVG text: lines, stacked bars, a matrix, a time axis. Colors are the page's variables.

By hand: clusters lack matplotlib, which makes a page 2.5 times as large and has no words at a mark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WIDTH, HEIGHT = 460, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 34
COLORS = ("#2f6fb0", "#d1672a", "#3a8f5c", "#a04a9a", "#8a6d1d", "#4f5bd5", "#c23b57", "#4b8c94", "#777777")
Points = Sequence[tuple[float, float]]


def number(value: float) -> str:
    """Write a number in few characters."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.3g}{letter}"
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:.0f}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Choose round values within [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def text(x: float, y: float, content: str, anchor: str = "middle", extra: str = "") -> str:
    """Write a label."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{html.escape(content)}</text>'


def svg(body: list[str], label: str, height: float = HEIGHT) -> str:
    """Wrap shapes into a picture of the usual width."""
    name = html.escape(label, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">' + "".join(body) + "</svg>"


def legend(names: Sequence[str]) -> str:
    """Write names beside their colors, as HTML."""
    items = (
        f'<span><i style="background:{COLORS[i % len(COLORS)]}"></i>{html.escape(name)}</span>'
        for i, name in enumerate(names)
    )
    return f'<div class="legend">{"".join(items)}</div>'


class Axes:
    """Maps values to places in the picture and draws the frame; log: both axes are logarithmic."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], log: bool = False):
        self._scale = math.log2 if log else float
        self._x, self._y = (_widened(*map(self._scale, limits)) for limits in (x, y))
        self._log = log

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point lies in the picture."""
        (x0, x1), (y0, y1) = self._x, self._y
        across, down = (self._scale(x) - x0) / (x1 - x0), (y1 - self._scale(y)) / (y1 - y0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), TOP + down * (HEIGHT - TOP - BOTTOM)

    def _ticks(self, limits: tuple[float, float]) -> list[float]:
        """Choose round values: on logarithmic axes powers of two, at most ten of them."""
        if not self._log:
            return ticks(*limits)
        first, last = math.ceil(limits[0] - 1e-9), math.floor(limits[1] + 1e-9)
        return [2.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 9)))]

    def frame(self, x_label: str, has_ticks: bool = True) -> list[str]:
        """Draw grid lines, ticks and the label of the axis of x."""
        shapes = []
        corner = [2 ** limits[0] if self._log else limits[0] for limits in (self._x, self._y)]
        for value in self._ticks(self._y):
            y = self.place(corner[0], value)[1]
            shapes.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            shapes.append(text(LEFT - 6, y + 4, number(value), "end"))
        for value in self._ticks(self._x) if has_ticks else ():
            shapes.append(text(self.place(value, corner[1])[0], HEIGHT - BOTTOM + 16, number(value)))
        return [*shapes, text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_label)]


def _widened(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def lines(series: Mapping[str, Points], label: str, x_label: str = "epoch", log: bool = False) -> str:
    """Draw curves of (x, y) by name, with a legend where there are several; log: on logarithmic axes."""
    points = [point for curve in series.values() for point in curve if math.isfinite(point[1])]
    if not points:
        return ""
    xs, ys = zip(*points, strict=True)
    axes = Axes((min(xs), max(xs)), (min(ys), max(ys)), log)
    body = axes.frame(x_label)
    for index, curve in enumerate(series.values()):
        color = COLORS[index % len(COLORS)]
        places = [axes.place(*point) for point in curve if math.isfinite(point[1])]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        body.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        if len(places) <= 30:
            body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{color}"/>' for x, y in places]
    return svg(body, label) + (legend(list(series)) if len(series) > 1 else "")


def stacked_bars(
    parts: Mapping[str, np.ndarray], label: str, x_label: str = "rank", names: Sequence[str] | None = None
) -> str:
    """Draw a bar for each rank, of parts [R] by name, one on the other; names: of the bars, else their numbers."""
    total: Any = sum(parts.values())
    axes = Axes((-0.5, len(total) - 0.5), (0.0, float(total.max()) or 1.0))
    body, below = axes.frame(x_label, names is None), np.zeros(len(total))
    every = math.ceil(len(total) / 20)
    body += [text(axes.place(i, 0)[0], HEIGHT - BOTTOM + 16, str(name)) for i, name in enumerate(names or ())
             if i % every == 0]  # fmt: skip
    for index, values in enumerate(parts.values()):
        for rank, value in enumerate(values):
            x0, y0 = axes.place(rank - 0.36, below[rank])
            x1, y1 = axes.place(rank + 0.36, below[rank] + value)
            shape = f'x="{x0:.1f}" y="{y1:.1f}" width="{x1 - x0:.1f}" height="{max(0.0, y0 - y1):.1f}"'
            body.append(f'<rect {shape} fill="{COLORS[index % len(COLORS)]}"/>')
        below = below + values
    return svg(body, label) + legend(list(parts))


def matrix(values: np.ndarray, label: str, log: bool = False) -> str:
    """Draw cells [R, R], the darker the higher their value, or its logarithm; rows send, columns receive."""
    count = len(values)
    shades = np.log1p(values) if log else values
    cell = min(48.0, (WIDTH - LEFT - RIGHT) / count)
    most, body = float(shades.max()) or 1.0, []
    every = math.ceil(14 / cell)
    for row in range(count):
        if row % every == 0:
            body.append(text(LEFT - 6, TOP + 22 + (row + 0.5) * cell, f"{row}", "end"))
            body.append(text(LEFT + (row + 0.5) * cell, TOP + 12, f"{row}"))
        for column in range(count):
            share = float(shades[row, column]) / most
            x, y = LEFT + column * cell, TOP + 18 + row * cell
            body.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{cell - 1:.1f}" height="{cell - 1:.1f}" '
                        f'fill="{COLORS[0]}" fill-opacity="{0.06 + 0.94 * share:.3f}"/>')  # fmt: skip
            if cell >= 30:
                shade = 'class="on-dark"' if share > 0.5 else ""
                body.append(text(x + cell / 2, y + cell / 2 + 4, number(float(values[row, column])), extra=shade))
    return svg(body, label, TOP + 24 + count * cell)


def time_axis(rows: dict[str, list[tuple[float, str, bool]]], label: str) -> str:
    """Draw the marks (seconds, words, whether a start) of every row, from the first to the last."""
    moments = [moment for marks in rows.values() for moment, _, _ in marks]
    if not moments:
        return ""
    first, last = min(moments), max(moments)
    width, body, height = WIDTH - LEFT - 2 * RIGHT, [], 30.0
    for index, (name, marks) in enumerate(rows.items()):
        y = 24 + 34 * index
        color = COLORS[index % len(COLORS)]
        body.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        body.append(text(LEFT - 6, y + 4, name[:8], "end"))
        for moment, words, is_start in marks:
            x = LEFT + width * ((moment - first) / (last - first) if last > first else 0.5)
            shape = (
                f'<path d="M{x:.1f},{y - 9} l6,9 l-6,9 l-6,-9 z" fill="{color}">'
                if is_start
                else f'<circle cx="{x:.1f}" cy="{y}" r="2.6" fill="{color}">'
            )
            body.append(f"{shape}<title>{html.escape(words)}</title>{'</path>' if is_start else '</circle>'}")
        height = y + 34.0
    for value in ticks(0, last - first):
        share = value / (last - first) if last > first else 0.0
        body.append(text(LEFT + width * share, height - 8, f"{number(value)} s"))
    return svg(body, label, height)
