"""Deficit longest prefix match: locality first, within a tenant's quota (arXiv 2501.14312).

Every tenant has a quota of tokens. Of the waiting requests of tenants with tokens left, the one
with the longest cached prefix comes first; on a tie, the oldest. Computed prompt tokens and output
tokens are deducted; cached tokens are free. If no waiting request is eligible before the first
admission of a step, every tenant without tokens left gets a quantum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.record import NONE
from kvsim.rules.kv import look_up
from kvsim.rules.vllm.fairness import tenant_of

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def match_prefixes(state: Replica) -> None:
    """Set ``shares.matched`` to the cached tokens of every waiting request, once per step."""
    k = state.waiting.head
    while k != NONE:
        state.shares.matched[k] = 0
        if state.kv.enable_prefix_caching:
            state.shares.matched[k] = look_up(state.kv, state.requests[k])
        k = state.requests[k].next


def has_left(state: Replica, k: int) -> bool:
    return state.shares.tenants[tenant_of(state, k)].deficit > 0


def has_eligible(state: Replica) -> bool:
    k = state.waiting.head
    while k != NONE:
        if has_left(state, k):
            return True
        k = state.requests[k].next
    return False


def refill(state: Replica) -> None:
    """Add a quantum to every tenant without tokens left."""
    for t in range(state.shares.num_tenants):
        tenant = state.shares.tenants[t]
        if tenant.deficit <= 0:
            tenant.deficit += state.shares.quantum


def may_admit(state: Replica) -> bool:
    """Return True if a request may be admitted; refill first if the step has admitted none.

    Refills repeat until a request is eligible.
    """
    if state.connector.kind != NO_CONNECTOR and state.connector.waiting_for_kv.length > 0:
        return True
    if has_eligible(state):
        return True
    if state.num_admitted > 0:
        return False
    while not has_eligible(state):
        refill(state)
    return True


def best_match(state: Replica) -> int:
    """Return the eligible request with the longest cached prefix, the oldest on a tie.

    If no request is eligible, return the oldest one.
    """
    k, best = state.waiting.head, NONE
    while k != NONE:
        if has_left(state, k) and (
            best == NONE or state.shares.matched[k] > state.shares.matched[best]
        ):
            best = k
        k = state.requests[k].next
    return state.waiting.head if best == NONE else best
