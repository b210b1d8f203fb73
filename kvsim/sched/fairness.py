"""Setup of fair queues: policies, tenants and prices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import unknown_name
from kvsim.records.fairness import DLPM, NOBODY_COUNTS, VTC, Tenant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory
    from kvsim.trace import Trace

#: Scheduling policies that share service between tenants.
FAIR_POLICIES = {"vtc": VTC, "dlpm": DLPM}


def fairness_of(policy: str) -> int:
    """Return the rule by which a scheduling policy shares service between tenants."""
    return FAIR_POLICIES.get(policy, NOBODY_COUNTS)


def tenant_prices(weights: str, names: Sequence[str]) -> list[int]:
    """Return each tenant's price of a unit of service, from ``NAME=WEIGHT[,NAME=WEIGHT]...``.

    Raises
    ------
    ValueError
        For an unknown tenant, a tenant given twice, or a weight that is no whole number above 0.

    Examples
    --------
    >>> tenant_prices("a=2,b=3", ["a", "b", "c"])
    [3, 2, 6]
    """
    given: dict[str, int] = {}
    for part in weights.split(","):
        name, equals, weight = (text.strip() for text in part.partition("="))
        if name not in names:
            raise unknown_name("tenant of tenant_weights", name, names)
        if not equals or not weight.isdecimal() or not int(weight):
            raise ValueError(f"tenant_weights: {part!r}: must be NAME=WEIGHT, a whole number")
        if name in given:
            raise ValueError(f"tenant_weights: {name!r} is given twice")
        given[name] = int(weight)
    each = [given.get(name, 1) for name in names]
    together = math.lcm(*each)
    return [together // weight for weight in each]


def tenants_of(trace: Trace) -> list[str]:
    """Return the names of a trace's tenants, in the order of their numbers."""
    first = np.unique(trace.tenant, return_index=True)[1]
    return [str(trace.tenant_of(row)) for row in first.tolist()]


def init_shares(state: Replica, memory: Memory, num_tenants: int) -> None:
    """Lay out ``num_tenants`` tenants without service."""
    if state.limits.fairness != NOBODY_COUNTS:
        memory.replace(state.shares, tenants=memory.records(Tenant, num_tenants))
        state.shares.num_tenants = num_tenants
        for tenant in state.shares.tenants[:num_tenants]:
            tenant.price = 1
