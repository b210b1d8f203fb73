"""Times at which a gateway scrapes metrics, or evicts entries of its prefix trees."""

from __future__ import annotations

import math


def last_scrape(now: float, start: float, interval: float) -> int:
    """Return the number k of the last scrape, at ``start + k * interval``, that is not after now.

    The result is exact despite rounding.
    """
    number = math.floor((now - start) / interval)
    while start + (number + 1) * interval <= now:
        number += 1
    while start + number * interval > now:
        number -= 1
    return number


def next_eviction(now: float, due: float, interval: float) -> float:
    """Return the first time ``due + k * interval`` after now."""
    return due + interval * (1 + (now - due) // interval)
