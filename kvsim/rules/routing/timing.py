"""Times at which a gateway scrapes metrics, or evicts from its trees."""

from __future__ import annotations

import math


def last_scrape(now: float, start: float, interval: float) -> int:
    """Return the number of the last scrape up to now, corrected for rounding."""
    number = math.floor((now - start) / interval)
    while start + (number + 1) * interval <= now:
        number += 1
    while start + number * interval > now:
        number -= 1
    return number


def next_eviction(now: float, due: float, interval: float) -> float:
    """Return the first time after now on a grid of intervals from a due time."""
    return due + interval * (1 + (now - due) // interval)
