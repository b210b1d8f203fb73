"""A user's scheduler as rules: the order of the queue, and which request is preempted."""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, ClassVar

from kvsim.compiled.rule_check import rules_of
from kvsim.own_rules.part import CLOCK, RulePart
from kvsim.records.request import Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory
    from kvsim.records.record import Record


class SchedulerRules(RulePart):
    """Base of a user's scheduler: vLLM's scheduler with another order, at its compiled speed.

    A subclass defines :meth:`priority`, :meth:`victim` or both, which read the fields of a
    :class:`kvsim.records.request.Request` and do not change them. The class's own fields are
    parameters, or, with :func:`kvsim.plugins.scheduling.per_replica`, state of a replica.

    ``priority`` is called when a request enters the queue. If it reads ``now`` or state, it is
    called again for every waiting request before each step that may admit one.

    Raises
    ------
    ValueError
        For a class without a rule, a rule with wrong arguments, a field of a wrong type, an unknown
        parameter, or a parameter of the wrong type.

    Examples
    --------
    A user's file, such as ``docs/examples/parts/shortest_first.py``::

        from kvsim.plugins.scheduling import Request, SchedulerRules

        class ShortestFirst(SchedulerRules):
            def priority(self, request: Request, now: float) -> float:
                return request.num_prompt_tokens
    """

    OPERATIONS: ClassVar[tuple[str, ...]] = ("priority", "victim")
    RETURNS: ClassVar[Mapping[str, type]] = {"priority": float, "victim": float}
    TAKES: ClassVar[Mapping[str, type[Record]]] = {"priority": Request, "victim": Request}
    SIZES: ClassVar[tuple[str, ...]] = ("replica",)

    def __init__(self, **parameters: object) -> None:
        super().__init__(**parameters)
        if not (self.has_priority or self.has_victim):
            raise ValueError(f"{type(self).__name__}: must define priority, victim or both")
        for name in self.OPERATIONS:
            if getattr(type(self), name).__code__.co_argcount != 3:
                raise ValueError(f"{type(self).__name__}.{name}: must take (self, request, now)")

    def priority(self, request: Request, now: float) -> float:
        """Return the priority of a request in the queue: lowest first, then by arrival.

        Without :meth:`victim`, the running request with the highest priority is preempted.
        """
        del request, now
        return 0.0

    def victim(self, request: Request, now: float) -> float:
        """Return a running request's rank; the highest is preempted, and on a tie the newest."""
        del request, now
        return 0.0

    @property
    def now(self) -> float:
        """Seconds on the replica's clock."""
        return self.clock()

    @property
    def has_priority(self) -> bool:
        """True if the class orders the queue."""
        return type(self).priority is not SchedulerRules.priority

    @property
    def has_victim(self) -> bool:
        """True if the class chooses the request to preempt."""
        return type(self).victim is not SchedulerRules.victim

    @property
    def moves(self) -> bool:
        """True if priorities may change while requests wait: by time, or by state."""
        own = rules_of(type(self))
        if not self.has_priority or self._sized:
            return self.has_priority
        rule = own["priority"].__code__
        time = rule.co_varnames[2]
        reads = any(one.argval == time for one in dis.get_instructions(rule))
        return reads or any("now" in rule.__code__.co_names for rule in own.values())

    def attach(self, state: Replica, memory: Memory) -> None:
        """Lay out a copy of the rules for a replica."""
        given = {name: getattr(self, name) for name in self.parameters()}
        made = type(self)(**given).init_state(state.order, memory, {})
        state.order.python = made
        made.clock = lambda: float(state.clock)
        view = getattr(made, "view", None)
        if view is not None:
            where: int = state.address + state._record.dtype().fields["clock"][1]  # type: ignore[attr-defined]
            setattr(view, CLOCK, where)
