"""Every step takes the same time: for queueing theory and for isolating scheduling effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kvsim.cost.model import COST_MODELS, CostConfig, StepCost

if TYPE_CHECKING:
    from kvsim.sched.scheduler import StepPlan

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@COST_MODELS.register("constant")
class ConstantCost:
    """``seconds`` per step, whatever it holds."""

    def __init__(self, config: CostConfig, *, seconds: Seconds = 0.02) -> None:
        del config
        self.seconds = seconds
        self._cost = StepCost(seconds, 0.0, 0.0)

    def step(self, plan: StepPlan) -> StepCost:  # noqa: D102 - see CostModel
        del plan
        return self._cost
