"""Names for authors of cost models: base classes, declarations, the work of a step, a check."""

from kvsim.cost.cost_rules import CostRules
from kvsim.cost.model import COST_MODELS, CostConfig, CostModel, StepCost
from kvsim.own_rules.part import per_replica
from kvsim.records.cost import Work
from kvsim.testing.cost_model import check_cost_model

__all__ = [
    "COST_MODELS",
    "CostConfig",
    "CostModel",
    "CostRules",
    "StepCost",
    "Work",
    "check_cost_model",
    "per_replica",
]
