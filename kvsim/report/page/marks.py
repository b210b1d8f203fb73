"""SVG elements of a chart, styled by attributes, because a page has no inline styles."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def element(name: str, content: str = "", **attributes: Any) -> str:
    """Return an element; ``_`` in a name becomes ``-``."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}>{content}</{name}>" if content else f"<{name}{told}/>"


def _short(value: Any) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def text(x: float, y: float, words: str, anchor: str = "start", **look: Any) -> str:
    """Return a text at a position, by default in the page's text colour."""
    given: dict[str, Any] = {"fill": "currentColor", "font_size": 12, "text_anchor": anchor} | look
    return element("text", escape(words), x=x, y=y, **given)


def rect(x: float, y: float, width: float, height: float, fill: str, title: str) -> str:
    """Return a bar with a tooltip."""
    told = element("title", escape(title))
    return element("rect", told, x=x, y=y, width=width, height=height, fill=fill)


def line(x1: float, y1: float, x2: float, y2: float, **look: Any) -> str:
    """Return a straight line, faint by default."""
    given: dict[str, Any] = {"stroke": "currentColor", "stroke_opacity": 0.2} | look
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **given)


def path(points: Iterable[tuple[float, float]], colour: str, dash: str | None, title: str) -> str:
    """Return a line through points."""
    through = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    look = {"fill": "none", "stroke": colour, "stroke_width": 1.8, "stroke_dasharray": dash}
    return element("path", element("title", escape(title)), d=f"M{through}", **look)


def chart(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    """Return an ``svg`` element of marks; ``label`` is its text for screen readers."""
    return element(
        "svg",
        "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=label,
        class_="chart",
    )


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from ``low`` to ``high``, both above 0, few enough to be read."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if high < 150 * low else (1,)
    ticks = [m * 10.0**power for power in range(first, last + 1) for m in steps]
    return [one for one in ticks if low <= one <= high]


def linear_ticks(high: float) -> list[float]:
    """Return about five round numbers from 0 to ``high``."""
    if not high > 0:
        return [0.0]
    rough = high / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough)
    return [step * k for k in range(int(high / step) + 1)]
