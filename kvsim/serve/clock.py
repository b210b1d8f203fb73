"""The clock of a live engine: simulated seconds that follow real time."""

from __future__ import annotations

import asyncio
import math
import select
import selectors
import time

#: A wait longer than SHORT seconds is split in two: the share NEARLY of its time, and the rest.
NEARLY, SHORT = 0.99, 0.001


class Clock:
    """Simulated time: ``speed`` simulated seconds per real second.

    Parameters
    ----------
    speed : simulated seconds per real second
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self.restart()

    def restart(self) -> None:
        """Start again at 0 s. Mutates."""
        self._start = time.monotonic()

    @property
    def now(self) -> float:
        """Simulated seconds since the server started."""
        return self.at(time.monotonic())

    def at(self, moment: float) -> float:
        """Simulated seconds from the start to a moment of Python's monotonic clock."""
        return (moment - self._start) * self.speed

    def delay(self, instant: float) -> float | None:
        """Return the real seconds until an instant; None for never."""
        if math.isinf(instant):
            return None
        return max(0.0, (instant - self.now) / self.speed)


class Precise(selectors.DefaultSelector):
    """A selector with exact time-outs.

    An epoll may wait up to 2 ms too long, a select up to 0.5 % too long.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for a ready file, at most ``timeout`` seconds; a long wait ends slightly earlier."""
        if timeout is not None and timeout > 0:
            timeout *= NEARLY if timeout > SHORT else 1.0
            select.select([self], [], [], timeout)  # an epoll is ready if one of its files is
            timeout = 0
        return super().select(timeout)


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with exact timers, if the system has epoll."""
    has_epoll = hasattr(selectors, "EpollSelector")
    return asyncio.SelectorEventLoop(Precise() if has_epoll else None)


def speed_of(text: str) -> float:
    """Return the speed given by ``--clock``.

    Raises
    ------
    ValueError
        If the speed is not a positive number; ``virtual`` needs all requests beforehand.
    """
    if text == "wall":
        return 1.0
    if text == "virtual":
        raise ValueError(
            "--clock virtual: live clients need a real clock; use kvsim run to serve a trace in "
            "virtual time, or --clock 10 to run ten times faster than real time"
        )
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0 < speed < math.inf:
        raise ValueError(f"--clock {text}: must be wall, or a positive speed such as 10")
    return speed
