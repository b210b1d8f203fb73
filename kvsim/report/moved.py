"""Columns that a table of several runs shows only if their values differ between the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Column(NamedTuple):
    """A number of the summary, shown in a table as ``scale * value + offset``.

    ``least`` is the smallest change for which the column is shown.
    """

    key: str
    heading: str
    scale: float = 1.0
    offset: float = 0.0
    least: float = 0.0

    def of(self, row: Mapping[str, Any]) -> float | None:
        """Return the value that the table shows for a row; None if undefined."""
        value = value_of(row, self.key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return self.scale * value + self.offset


#: Columns shown if their values differ between the runs, in this order.
MOVED = (
    Column("kv_cache.bytes", "KV memory\nGiB", 1 / 2**30),
    Column("kv_cache.token_states", "waste\n%", -100.0, 100.0, least=0.1),
    Column("prefix_cache_hit_rate", "hit\n%", 100.0, least=0.1),
    Column("external_prefix_cache_hit_rate", "external\nhit %", 100.0, least=0.1),
    Column("sessions.p50_turn_ttft_ms", "turn's TTFT\np50, ms"),
    Column("sessions.mean_duration", "session\nmean, s"),
    Column("acceptance_rate", "accepted\n%", 100.0, least=0.1),
    Column("num_preemptions", "pre-\nempted"),
    Column("num_gpus", "GPUs"),
    Column("cost.dollars", "dollars"),
    Column("cost.dollars_per_million_output_tokens", "dollars/M\noutput"),
)
#: Smallest range of a shown column, as a share of its largest absolute value.
LEAST = 0.01


def value_of(row: Mapping[str, Any], key: str) -> Any:
    """Return the value of ``part.key`` from a summary or from a row of a flat table."""
    if key in row:
        return row[key]
    found: Any = row
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def moved(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns of :data:`MOVED` with values that differ enough between rows."""
    found = []
    for column in MOVED:
        values = [value for row in rows if (value := column.of(row)) is not None]
        span = max(values) - min(values) if values else 0.0
        if span > max(column.least, LEAST * max(map(abs, values), default=0.0)):
            found.append(column)
    return found


def three_digits(value: float | None) -> str:
    """Write a value with four significant digits; from 1,000 on, as a whole number."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
