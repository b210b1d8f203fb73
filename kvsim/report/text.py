"""Numbers formatted for people."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GIB = 2**30
#: Labels of cost figures, by key of the summary; undefined figures are omitted.
COSTS = {
    "dollars_per_million_input_tokens": "per million input tokens",
    "dollars_per_million_cached_tokens": "per million cached input tokens",
    "dollars_per_million_output_tokens": "per million output tokens",
    "dollars_per_session": "per session",
}
#: A file or module before a part's name; a parameter, KEY=VALUE after a colon, does not match.
_PATH = re.compile(r"[\w./~-]+:(?=[A-Za-z_]\w*(?![\w=]))")


def number(value: float | None, digits: int = 0) -> str:
    """Format with thousands separators; a dash for an undefined number.

    Examples
    --------
    >>> number(12345.678, 1), number(None)
    ('12,345.7', '-')
    """
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Format a fraction as a percentage without its sign.

    Examples
    --------
    >>> percent(0.0885)
    '8.8'
    """
    return "-" if fraction is None else f"{100 * fraction:.{digits}f}"


def milliseconds(value: float | None) -> str:
    """Format milliseconds with about three digits; 10 s and more are shown in seconds.

    Examples
    --------
    >>> milliseconds(22.31), milliseconds(290161.0)
    ('22.3 ms', '290 s')
    """
    if value is None:
        return "-"
    if value >= 100_000:
        return f"{value / 1000:,.0f} s"
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"


def gib(num_bytes: float) -> str:
    """Format bytes in GiB.

    Examples
    --------
    >>> gib(12 * 2**30)
    '12.00 GiB'
    """
    return f"{num_bytes / GIB:,.2f} GiB"


def rate(per_second: float) -> str:
    """Format a rate with the prefix of its unit, which the caller adds.

    Examples
    --------
    >>> rate(3.35e12) + "B/s", rate(51.03e9) + "B/s", rate(989.4e12) + "FLOP/s"
    ('3.35 TB/s', '51.0 GB/s', '989 TFLOP/s')
    """
    if per_second >= 1e15:
        return f"{per_second / 1e15:.3g} P"
    value, prefix = (per_second / 1e12, "T") if per_second >= 1e12 else (per_second / 1e9, "G")
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {prefix}"


#: Formats of :func:`filled` in addition to Python's own; digits may follow ``n`` and ``p``.
FORMATS: dict[str, Callable[..., str]] = {"n": number, "p": percent, "ms": milliseconds, "gib": gib}


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        kind = format_spec.rstrip("0123456789")
        if kind not in FORMATS:
            return format(value, format_spec)
        digits = format_spec[len(kind) :]
        return FORMATS[kind](value, *([int(digits)] if digits else []))


def without_paths(texts: Sequence[str]) -> list[str]:
    """Return names of parts without their files or modules, unless two names would then be equal.

    Examples
    --------
    >>> without_paths(["a/b.py:Mine+k=1", "paged+eviction=m.n:Own:ttl=3", "paged"])
    ['Mine+k=1', 'paged+eviction=Own:ttl=3', 'paged']
    """
    short = [_PATH.sub("", text) for text in texts]
    return short if len(set(short)) == len(set(texts)) else list(texts)


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Fill a text with values of a summary, each in a format of :data:`FORMATS`.

    Examples
    --------
    >>> filled("{ttft:ms}, {kv[usage]:p} %", {"ttft": 22.3, "kv": {"usage": 0.5}})
    '22.3 ms, 50.0 %'
    """
    return _Formatter().vformat(template, (), values)


def costs(summary: Mapping[str, Any]) -> str | None:
    """Describe the cost of a run; None if prices were not given."""
    cost = summary.get("cost")
    if cost is None:
        return None
    parts = [f"{cost[key]:.4g} {words}" for key, words in COSTS.items() if cost[key] is not None]
    each = f": {', '.join(parts)}" if parts else ""
    return f"{cost['dollars']:.4g} dollars in all{each}"
