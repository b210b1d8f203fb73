"""A user's router as rules: the same text runs as Python and in the compiled loop over arrivals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from kvsim.own_rules.part import RulePart
from kvsim.records.routing import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.records.record import Record


class RouterRules(RulePart):
    """Base of a user's router that runs at the speed of the built-in routers.

    A subclass defines :meth:`choose` over a :class:`kvsim.records.routing.Placement`. Its fields
    are parameters of the router, or, with :func:`kvsim.plugins.routing.per_replica`, its state: one
    value per gateway. The class attributes declare its inputs; the lengths of outputs are not among
    them. The number of replicas must be constant.

    Attributes
    ----------
    knows : source of a candidate's ``cached_tokens``: ``approximate``, the requests sent to it;
        ``precise``, the events of its cache; None: they are 0
    entry_tokens : tokens per entry of an approximate index
    max_entries : largest number of entries per replica of an approximate index
    event_delay : seconds until events are in a precise index
    watches_requests : the rule reads the candidates' prompt tokens and uncached tokens in flight
    scrape_interval : seconds between two scrapes of the metrics; None if the rule reads none
    branches : names of the numbers that ``choose`` writes into ``placement.branch``

    Examples
    --------
    A user's file, such as ``docs/examples/parts/prefix_cap.py``::

        from kvsim.plugins.routing import Placement, RouterRules, longest_match

        class Longest(RouterRules):
            def choose(self, placement: Placement) -> int:
                return longest_match(placement)
    """

    OPERATIONS: ClassVar[tuple[str, ...]] = ("choose",)
    RETURNS: ClassVar[Mapping[str, type]] = {"choose": int}
    TAKES: ClassVar[Mapping[str, type[Record]]] = {"choose": Placement}
    WRITES: ClassVar[tuple[str, ...]] = ("branch", "costs")
    SIZES: ClassVar[tuple[str, ...]] = ("replica",)
    BY_C: ClassVar[bool] = True

    knows: ClassVar[Literal["approximate", "precise"] | None] = "approximate"
    entry_tokens: ClassVar[int] = 16
    max_entries: ClassVar[float] = math.inf
    event_delay: ClassVar[float] = 0.01
    watches_requests: ClassVar[bool] = False
    scrape_interval: ClassVar[float | None] = None
    branches: ClassVar[tuple[str, ...]] = ("",)

    def __init__(self, **parameters: object) -> None:
        super().__init__(**parameters)
        rule = type(self).choose
        if rule is RouterRules.choose or rule.__code__.co_argcount != 2:
            raise ValueError(self._lacks_choose())
        if self.knows not in (None, "approximate", "precise"):
            what = "must be 'approximate', 'precise' or None"
            raise ValueError(f"{type(self).__name__}: knows={self.knows!r}: {what}")

    def choose(self, placement: Placement) -> int:
        """Return the index of the candidate that serves the request."""
        raise ValueError(self._lacks_choose())

    def _lacks_choose(self) -> str:
        return f"{type(self).__name__}: must define choose(self, placement)"
