"""Room for what a fair queue counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.fairness import DLPM, NOBODY_COUNTS, VTC, Tenant

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory

#: Scheduling policies that share service out between tenants.
FAIR_POLICIES = {"vtc": VTC, "dlpm": DLPM}


def fairness_of(policy: str) -> int:
    """Return how a scheduling policy shares service out."""
    return FAIR_POLICIES.get(policy, NOBODY_COUNTS)


def lay_out_shares(state: Replica, memory: Memory, num_tenants: int) -> None:
    """Make as many tenants, none of whom has been served."""
    if state.limits.fairness != NOBODY_COUNTS:
        memory.replace(state.shares, tenants=memory.records(Tenant, num_tenants))
        state.shares.num_tenants = num_tenants
