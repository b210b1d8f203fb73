"""Metrics that a gateway scrapes: they are at most one interval and one step old."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.fleet.routing.view import Scraped
from kvsim.rules.routing.timing import last_scrape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.replica import Replica


class Scraper:
    """Scrapes the metrics of all replicas, at the same times.

    A replica stops at the time of a scrape only if a router will read its values. The values of an
    idle replica do not change, so it is scraped when a router reads them.

    Parameters
    ----------
    replicas : the replicas to scrape
    interval : seconds between two scrapes
    start_time : time of the first scrape
    """

    def __init__(self, replicas: Sequence[Replica], interval: float, start_time: float) -> None:
        self._replicas = list(replicas)
        self.interval = interval
        self.start_time = start_time
        self.values = [Scraped(start_time) for _ in replicas]

    def replace(self, place: int, replica: Replica, now: float) -> None:
        """Scrape a new replica in a slot from now on. Mutates."""
        self._replicas[place] = replica
        self.values[place] = Scraped(now)

    def last_time(self, now: float) -> float:
        """Return the time of the last scrape up to now."""
        return self.start_time + self._last(now) * self.interval

    def next_time(self, now: float) -> float:
        """Return the time of the first scrape after now."""
        return self.start_time + (self._last(now) + 1) * self.interval

    def _last(self, now: float) -> int:
        return last_scrape(now, self.start_time, self.interval)

    def ask(self, place: int, time: float) -> None:
        """Scrape a replica that has advanced to ``time``, the time of a scrape. Mutates."""
        self.values[place] = Scraped(time, *self._replicas[place].metrics())

    def scrape_idle_replicas(self, now: float) -> None:
        """Scrape the replicas that have been idle since their last scrape. Mutates."""
        time = self.last_time(now)
        for place, replica in enumerate(self._replicas):
            if self.values[place].as_of < time and replica.next_event_time() == math.inf:
                self.ask(place, time)
