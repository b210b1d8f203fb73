"""A cost model with the same time for every step, to compare with theory or isolate scheduling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from kvsim.cost.model import COST_MODELS, CostConfig, StepCost
from kvsim.records.cost import CONSTANT, Cost, Layers
from kvsim.registry import overridden

if TYPE_CHECKING:
    from kvsim.records.memory import Memory
    from kvsim.sched.scheduler import StepPlan

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@COST_MODELS.register("constant")
class ConstantCost:
    """``seconds`` per step, independent of its tokens."""

    rules_of: ClassVar[int] = CONSTANT

    def __init__(self, config: CostConfig | None, *, seconds: Seconds = 0.02) -> None:
        self.seconds = seconds
        self._cost = StepCost(seconds, 0.0, 0.0)

    @property
    def runs_by_rules(self) -> bool:
        """Return True if the compiled rules cover this class."""
        return not overridden(self, ("step",))

    def init_price(self, record: Cost, memory: Memory) -> None:
        """Fill an empty record with the constant."""
        record.price, record.seconds, record.num_layers = CONSTANT, self.seconds, 1
        record.layers = memory.records(Layers, 1)
        record.experts.touched = memory.list_of([0.0])
        record.experts.fetched = memory.list_of([0.0])

    def step(self, plan: StepPlan) -> StepCost:
        return self._cost
