"""Links that carry KV, and the time of a transfer on an idle link."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path

from kvsim.errors import unknown_name

TABLE = Path(__file__).with_name("fabrics.toml")


@cache
def fabrics() -> dict[str, Fabric]:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Fabric(name, **figures) for name, figures in table.items()}


def fabric_of(name: str) -> Fabric:
    """Return a fabric by its name.

    Raises
    ------
    ValueError
        If the name is unknown; the message lists the known ones.

    Examples
    --------
    >>> round(1e3 * fabric_of("h800-8x-roce-mooncake").time(1_213_328_261), 2)
    8.68
    """
    known = fabrics()
    if name not in known:
        raise unknown_name("fabric", name, known)
    return known[name]


@dataclass(frozen=True)
class Fabric:
    """A link between two memories.

    Parameters
    ----------
    name : name in ``fabrics.toml``, or the user's own
    base : fixed seconds of a transfer
    bandwidth : bytes per second in one direction
    per_descriptor : seconds per descriptor, one contiguous range of memory; with many small ranges
        these seconds, not the bandwidth, dominate
    source : source of the figures

    Raises
    ------
    ValueError
        For a time below 0, or a bandwidth that is not above 0.
    """

    name: str
    base: float
    bandwidth: float
    per_descriptor: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("base", "per_descriptor"):
            value = getattr(self, field)
            if not 0 <= value < inf:
                raise ValueError(f"fabric {self.name}: {field} is {value}: must be at least 0")
        if not self.bandwidth > 0:
            raise ValueError(f"fabric {self.name}: bandwidth is {self.bandwidth}: must be above 0")

    def time(self, num_bytes: float, num_descriptors: int = 0) -> float:
        """Return the seconds of one transfer on an idle link."""
        return self.base + num_descriptors * self.per_descriptor + num_bytes / self.bandwidth
