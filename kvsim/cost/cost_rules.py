"""A user's cost model as rules, which run as Python or compiled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from inspect import Parameter
from typing import TYPE_CHECKING, ClassVar

from kvsim.cost.drafter import init_drafter
from kvsim.cost.host_link import init_link
from kvsim.cost.model import CostConfig, StepCost, check_times
from kvsim.cost.work import WorkCounter
from kvsim.own_rules.part import RulePart
from kvsim.records.cost import PRICED_BY_OWN_RULES, Cost, Work
from kvsim.records.kv import Moved
from kvsim.rules.price import computing_time, with_transfers

if TYPE_CHECKING:
    from kvsim.records.memory import Memory
    from kvsim.sched.scheduler import StepPlan


class CostRules(RulePart, ABC):
    """Base of a user's cost model that runs at the speed of the built-in ones.

    A subclass declares parameters as fields, and defines ``price``. It declares state that lasts
    from step to step with :func:`kvsim.own_rules.part.per_replica`. kvsim counts the work of each
    step, and adds the time of swaps and transfers between GPU and host.

    Parameters
    ----------
    config : configuration of the run; :meth:`step` needs it, :meth:`price` does not

    Raises
    ------
    ValueError
        For a field that cannot be laid out, an unknown parameter, or a value of the wrong type.

    Examples
    --------
    A user's file, such as ``docs/examples/parts/my_gpu.py``::

        from kvsim.plugins.cost import CostRules, Work

        class Affine(CostRules):
            step: float = 0.01  # seconds
            token: float = 1e-5

            def price(self, work: Work) -> float:
                return self.step + self.token * work.num_tokens
    """

    OPERATIONS: ClassVar[tuple[str, ...]] = ("price",)
    RETURNS: ClassVar[dict[str, type]] = {"price": float}
    TAKES: ClassVar[dict[str, type]] = {"price": Work}
    SIZES: ClassVar[tuple[str, ...]] = ("replica",)
    BEFORE: ClassVar[tuple[Parameter, ...]] = (
        Parameter("config", Parameter.POSITIONAL_ONLY, annotation=CostConfig),
    )
    #: A subclass has no methods that run in Python only.
    runs_by_rules: ClassVar[bool] = True

    def __init__(self, config: CostConfig | None = None, /, **parameters: float) -> None:
        super().__init__(**parameters)
        if config is not None:
            self.counter = counter = WorkCounter(config)
            counter.record.price, counter.record.python = PRICED_BY_OWN_RULES, self
            init_link(counter.record, config)
            if config.speculation is not None:
                init_drafter(counter.record, config, config.speculation)

    @abstractmethod
    def price(self, work: Work) -> float:
        """Return the seconds of a step's computation, more than 0."""

    def init_price(self, record: Cost, memory: Memory) -> None:
        """Fill an empty record with the constants that count work, and with the rules."""
        self.counter.init_price(record, memory)
        record.python = self.twin()  # each replica has its own state
        self.init_state(record.part, memory, {})

    def step(self, plan: StepPlan) -> StepCost:
        """Price a step in Python; see :class:`kvsim.cost.model.CostModel`."""
        if not plan.batch.size:
            return StepCost(0.0, 0.0, 0.0)
        work, record = self.counter.count(plan), self.counter.record
        record.work, record.python = replace(work), self.twin()
        time = with_transfers(record, computing_time(record), Moved(*plan.transfers))
        check_times(record, type(self).__name__)
        return StepCost(time, *self.counter.totals(work))
