"""Policies of live migration: which running requests move to another replica, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when one is made
    Count,
    Finite,
    Interval,
    Whole,
)
from kvsim.parametric import Parametric
from kvsim.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

Victim = Literal["shortest", "longest", "first"]


class Fullness(NamedTuple):
    """Free and wanted KV blocks of a replica.

    Attributes
    ----------
    num_free : unused blocks
    num_wanted : blocks that the prompts of its waiting requests need
    num_requests : running and waiting requests
    is_leaving : the replica drains
    """

    num_free: int
    num_wanted: int
    num_requests: int
    is_leaving: bool = False

    @property
    def freeness(self) -> float:
        """(Free blocks - wanted blocks) / requests."""
        return (self.num_free - self.num_wanted) / max(self.num_requests, 1)

    def with_one(self, num_blocks: int) -> Fullness:
        """Return the values with one request of ``num_blocks`` blocks added; negative: removed."""
        one = 1 if num_blocks > 0 else -1
        return self._replace(
            num_free=self.num_free - num_blocks, num_requests=self.num_requests + one
        )


class Candidate(NamedTuple):
    """A running request: its row of the trace, and its number of tokens."""

    row: int
    num_tokens: int


class Migration(Parametric, ABC):
    """Chooses the requests that move, and their targets.

    Attributes
    ----------
    interval : seconds between two checks of the replicas
    most_stages : number of copies while a request runs, after which it is stopped for the last one
    last_blocks : a request is stopped as soon as fewer blocks than this are left to copy
    """

    interval: float = 0.05
    most_stages: int = 3
    last_blocks: int = 16

    @abstractmethod
    def pairs(self, replicas: Sequence[Fullness]) -> list[tuple[int, int]]:
        """Return pairs (source, target) of indices; one request of each pair may move."""

    @abstractmethod
    def pick(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the request that moves; there is at least one candidate."""

    @abstractmethod
    def pays(self, source: Fullness, target: Fullness, num_blocks: int) -> bool:
        """Return True if a request of ``num_blocks`` blocks should move."""


#: Factories take keyword parameters only.
MIGRATIONS: Registry[Migration] = Registry("migration", None, Migration, "kvsim.migrations")


@MIGRATIONS.register("llumnix")
class Freest(Migration):
    """Move requests from the fullest and the draining replicas to the freest, one per pair.

    Freeness is (free blocks - blocks that waiting requests need) / requests. Replicas below
    ``threshold`` are sources, the others targets; the least free source pairs with the freest
    target. A pair moves a request if the target is then still freer than the source, but by less
    than before; from a draining replica, a request moves whenever the target has room.

    Source: AlibabaPAI/llumnix at 24220fb8, docs/Arguments.md (``remaining_steps``, 3.0, 50 ms,
    shortest running, 16 blocks, three stages); Llumnix, OSDI'24, section 4.

    Parameters
    ----------
    threshold : freeness, blocks per request
    victim : the running request that moves: shortest, longest (in tokens), or first (to arrive)
    interval, most_stages, last_blocks : see :class:`Migration`
    """

    def __init__(
        self,
        *,
        threshold: Finite = 3.0,
        victim: Victim = "shortest",
        interval: Interval = 0.05,
        most_stages: Count = 3,
        last_blocks: Whole = 16,
    ) -> None:
        self._threshold, self._victim = threshold, victim
        self.interval, self.most_stages, self.last_blocks = interval, most_stages, last_blocks

    def pairs(self, replicas: Sequence[Fullness]) -> list[tuple[int, int]]:
        order = sorted(range(len(replicas)), key=lambda k: replicas[k].freeness)
        leaving = [k for k in order if replicas[k].is_leaving]
        staying = [k for k in order if not replicas[k].is_leaving]
        gives = [k for k in staying if replicas[k].freeness < self._threshold]
        takes = [k for k in staying if replicas[k].freeness >= self._threshold]
        return list(zip(leaving + gives, reversed(takes), strict=False))

    def pick(self, candidates: Sequence[Candidate]) -> Candidate:
        if self._victim == "first":
            return min(candidates)
        sign = 1 if self._victim == "shortest" else -1
        return min(candidates, key=lambda one: (sign * one.num_tokens, one.row))

    def pays(self, source: Fullness, target: Fullness, num_blocks: int) -> bool:
        if source.is_leaving:
            return target.num_free - target.num_wanted >= num_blocks
        left, taken = source.with_one(-num_blocks), target.with_one(num_blocks)
        after = taken.freeness - left.freeness
        return 0 < after < target.freeness - source.freeness
