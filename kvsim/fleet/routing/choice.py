"""Rules of many routers that pick one of several replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from kvsim.fleet.routing.view import ReplicaView


def argmin(values: Sequence[float], among: Iterable[int] | None = None) -> int:
    """Return the index of the smallest value, the first among equals."""
    if among is None:
        return values.index(min(values))
    return min(among, key=lambda place: (values[place], place))


def uniform_argmin(values: Sequence[float] | NDArray[np.float64], rng: Generator) -> int:
    """Return the index of the smallest value, at random among equals."""
    if isinstance(values, np.ndarray):
        equal: list[int] = (values == values.min()).nonzero()[0].tolist()
    else:
        smallest = min(values)
        equal = [place for place, value in enumerate(values) if value == smallest]
    return equal[0] if len(equal) == 1 else equal[int(rng.integers(len(equal)))]


def queues(replicas: Sequence[ReplicaView]) -> list[int]:
    """Return the number of this gateway's requests in flight at each replica."""
    return [replica.num_outstanding() for replica in replicas]
