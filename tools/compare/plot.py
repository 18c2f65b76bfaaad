"""Plots as SVG, written by hand: no scripts, readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 760
_LABELS = 250
_VALUES = 80
_ROW = 22
_GAP = 34
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 } .small { font-size: 11px; fill: #59636e }
.ours { fill: #0969da; stroke: #0969da } .theirs { fill: #8c959f; stroke: #8c959f }
.other { fill: #bc4c00; stroke: #bc4c00 } .grid { stroke: #d1d9e0 }
polyline { fill: none !important; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d }
.ours { fill: #4493f8; stroke: #4493f8 } .theirs { fill: #9198a1; stroke: #9198a1 }
.other { fill: #db6d28; stroke: #db6d28 } }
"""
CLASSES = ("ours", "theirs", "other")


@dataclass(frozen=True, kw_only=True)
class Bars:
    """One group of bars with a scale of its own: labels, values, and whether they are ours."""

    title: str
    values: Sequence[tuple[str, float, bool]]
    digits: int = 0


@dataclass(frozen=True, kw_only=True)
class Lines:
    """One panel of lines over a logarithmic axis: for each label, points of x and y."""

    title: str
    x: str
    y: str
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    digits: int = 0


def bar_chart(title: str, groups: Sequence[Bars]) -> str:
    """Groups of horizontal bars, one below the other."""
    parts: list[str] = []
    y = 16
    for group in groups:
        parts.append(_text(0, y, group.title, "title"))
        most = max(value for _, value, _ in group.values) or 1.0
        for label, value, ours in group.values:
            y += _ROW
            wide = max(1.0, value / most * (WIDTH - _LABELS - _VALUES))
            parts.append(_text(_LABELS - 8, y, label, anchor="end"))
            look = "ours" if ours else "theirs"
            parts.append(
                f'<rect class="{look}" x="{_LABELS}" y="{y - 12}" width="{wide:.1f}" height="15"/>'
            )
            parts.append(_text(_LABELS + wide + 6, y, f"{value:,.{group.digits}f}", "small"))
        y += _GAP
    return _svg(title, y - _GAP + 12, parts)


def line_chart(title: str, panels: Sequence[Lines]) -> str:
    """Panels of lines, one below the other."""
    parts: list[str] = []
    for number, panel in enumerate(panels):
        parts += _panel(panel, 230 * number)
    return _svg(title, 230 * len(panels), parts)


def _panel(panel: Lines, top: int) -> list[str]:
    left, right, high, low = 70, WIDTH - 170, top + 34, top + 180
    points = [point for _, line in panel.lines for point in line]
    xs = sorted({x for x, _ in points})
    most = max(y for _, y in points) * 1.05 or 1.0
    span = math.log(xs[-1] / xs[0]) or 1.0

    def across(x: float) -> float:
        return left + math.log(x / xs[0]) / span * (right - left)

    def up(y: float) -> float:
        return low - y / most * (low - high)

    parts = [_text(0, top + 16, f"{panel.title}: {panel.y}", "title")]
    for share in (0.0, 0.5, 1.0):
        y = up(most * share)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 6, y + 4, f"{most * share:,.{panel.digits}f}", "small", "end"))
    parts += [_text(across(x), low + 16, f"{x:,.0f}", "small", "middle") for x in xs]
    parts.append(_text(left, low + 32, panel.x, "small"))
    for number, (label, line) in enumerate(panel.lines):
        look = CLASSES[number % len(CLASSES)]
        drawn = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line)
        parts.append(f'<polyline class="{look}" points="{drawn}"/>')
        parts += [
            f'<rect class="{look}" x="{across(x) - 3:.1f}" y="{up(y) - 3:.1f}"'
            ' width="6" height="6"/>'
            for x, y in line
        ]
        parts.append(
            f'<rect class="{look}" x="{right + 16}" y="{high + 20 * number}" width="9" height="9"/>'
        )
        parts.append(_text(right + 32, high + 9 + 20 * number, label, "small"))
    return parts


def _text(x: float, y: float, words: str, look: str = "", anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{look}" {place}>{escape(words)}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    lines = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}"'
        f' viewBox="0 0 {WIDTH} {height:.0f}" role="img">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n{lines}\n</svg>\n"
    )
