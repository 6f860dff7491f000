"""Curves as SVG: how much of the requests or tokens came within which time.

Owns the drawing; must not know what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 640, 320, 56
COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8a5a9e")
MAX_POINTS = 200


def distribution_svg(title: str, unit: str, curves: Mapping[str, Sequence[float]]) -> str:
    """Cumulative shares of positive values, on a logarithmic axis; empty curves are left out."""
    shown = {name: sorted(values) for name, values in curves.items() if values}
    low = min((values[0] for values in shown.values()), default=0.001)
    high = max((values[-1] for values in shown.values()), default=1.0)
    first = math.floor(math.log10(max(low, 1e-5)))
    last = max(first + 1, math.ceil(math.log10(max(high, 1e-5))))

    def x(value: float) -> float:
        share = (math.log10(max(value, 1e-5)) - first) / (last - first)
        return MARGIN + min(max(share, 0.0), 1.0) * (WIDTH - 2 * MARGIN)

    def y(share: float) -> float:
        return HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)

    def text(at_x: float, at_y: float, anchor: str, words: str, style: str = "") -> str:
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" {style}>{escape(words)}</text>'

    def grid(x1: float, y1: float, x2: float, y2: float) -> str:
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'

    right = WIDTH - MARGIN
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(MARGIN, 24, "start", title, 'font-size="15"'),
    ]
    for share in (0.0, 0.5, 0.9, 0.99, 1.0):
        parts.append(grid(MARGIN, y(share), right, y(share)))
        if share != 1.0:  # its label would stand on that of 0.99
            parts.append(text(MARGIN - 6, y(share) + 4, "end", f"{share:.0%}"))
    for power in range(first, last + 1):
        at = x(10.0**power)
        parts += [grid(at, y(0), at, y(1)), text(at, y(0) + 18, "middle", f"{10.0**power:g} {unit}")]
    for number, (name, values) in enumerate(shown.items()):
        colour = COLOURS[number % len(COLOURS)]
        count = len(values)
        ranks = sorted({round(i * (count - 1) / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})
        points = " ".join(f"{x(values[rank]):.1f},{y((rank + 1) / count):.1f}" for rank in ranks)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(right, y(0) - 8 - 16 * number, "end", name, f'fill="{colour}"'))
    return "\n".join([*parts, "</svg>"])
