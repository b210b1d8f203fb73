"""Columns of many kinds of logs: times in several units, and session ids."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.readers.table import Table

#: Seconds, milliseconds, microseconds and nanoseconds since 1970 lie this far apart.
_EPOCHS = ((1e17, "nanoseconds", 1e9), (1e14, "microseconds", 1e6), (1e11, "milliseconds", 1e3))
#: The least that is a number of seconds since 1970 and no time in a run: the year 2001.
_SINCE_1970 = 1e9
_TIMES = "a number of seconds, or a date as 2026-01-31T12:00:00Z"
_UNITS = {"seconds": 1.0, "milliseconds": 1e3}
#: Names of conversations, the best first.
SESSIONS = ("session_id", "conversation_id", "chat_id")


def log_times(table: Table, name: str, small: str = "seconds") -> tuple[list[float], str]:
    """Return the times of a column in seconds after its earliest, and the unit they had.

    Parameters
    ----------
    small : unit of numbers too small to count from 1970, seconds or milliseconds
    """
    ticks = table.convert(name, _tick, _TIMES)
    words, per_second = _unit(max(abs(tick) for tick in ticks), small)
    if any(isinstance(cell, str) and not _is_number(cell) for cell in table.columns[name]):
        words = "dates"
    first = min(ticks)
    return [(tick - first) / per_second for tick in ticks], words


def _unit(greatest: float, small: str) -> tuple[str, float]:
    """Return the unit of times, judged by their size, and its number per second."""
    for least, words, per_second in _EPOCHS:
        if greatest >= least:
            return words, per_second
    return ("seconds", 1.0) if greatest >= _SINCE_1970 else (small, _UNITS[small])


def _tick(cell: Any) -> float:
    if isinstance(cell, bool) or cell is None:
        raise TypeError
    if isinstance(cell, datetime):
        return cell.replace(tzinfo=cell.tzinfo or UTC).timestamp()
    if isinstance(cell, str) and not _is_number(cell):
        time = datetime.fromisoformat(cell.strip())
        return time.replace(tzinfo=time.tzinfo or UTC).timestamp()
    if type(cell) is int:
        return cell  # nanoseconds since 1970 are more than a float holds
    number = float(cell)
    if not math.isfinite(number):
        raise ValueError
    return number


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def session_numbers(table: Table, names: Sequence[str] = SESSIONS) -> list[int] | None:
    """Return a number per session, from the first of some columns that exists; -1 is none."""
    named = next((name for name in names if name in table), None)
    if named is None:
        return None
    numbers: dict[str | int | float, int] = {}

    def number(cell: Any) -> int:
        if cell in ("", None):
            return -1
        if not isinstance(cell, str | int | float):
            raise TypeError
        return numbers.setdefault(cell, len(numbers))

    return table.convert(named, number, "a text or a number")
