"""A small bar chart with a logarithmic axis, written as SVG without any library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

_LEFT, _WIDTH, _RIGHT, _BAR, _GAP, _TOP, _BOTTOM = 330, 420, 70, 16, 6, 34, 26
_OURS, _PEERS, _INK, _GRID = "#1b6ca8", "#a9b4bd", "#222", "#ddd"


def write_chart(
    path: Path, title: str, bars: Sequence[tuple[str, float, bool]], *, unit: str
) -> None:
    """Draw ``bars``, each a label, a value above 0 in ``unit``, and whether it is ours."""
    low = math.floor(math.log10(min(value for _, value, _ in bars)))
    high = math.ceil(math.log10(max(value for _, value, _ in bars)))
    height = _TOP + len(bars) * (_BAR + _GAP) + _BOTTOM
    width = _LEFT + _WIDTH + _RIGHT

    def x(value: float) -> float:
        return _LEFT + _WIDTH * (math.log10(value) - low) / max(high - low, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f'<g font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        at = x(10**power)
        parts.append(
            f'<line x1="{at:.1f}" y1="{_TOP - 4}" x2="{at:.1f}" y2="{height - _BOTTOM}" '
            f'stroke="{_GRID}"/><text x="{at:.1f}" y="{height - 8}" text-anchor="middle">'
            f"{10**power:g} {unit}</text>"
        )
    for number, (label, value, ours) in enumerate(bars):
        top = _TOP + number * (_BAR + _GAP)
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + 12}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{_LEFT}" y="{top}" width="{max(x(value) - _LEFT, 1):.1f}" height="{_BAR}" '
            f'fill="{_OURS if ours else _PEERS}"/>'
            f'<text x="{x(value) + 4:.1f}" y="{top + 12}">{value:,.3g}</text>'
        )
    path.write_text("\n".join([*parts, "</g>", "</svg>"]) + "\n", encoding="utf-8")
