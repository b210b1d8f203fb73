"""Names for authors of autoscalers: the base class, the load of a pool, a check."""

from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, Load, PoolLoad
from kvsim.fleet.scaling.traffic import Traffic
from kvsim.testing.autoscaler import check_autoscaler

__all__ = ["AUTOSCALERS", "Autoscaler", "Load", "PoolLoad", "Traffic", "check_autoscaler"]
