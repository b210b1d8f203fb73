"""Deficit longest prefix match: locality first, within a tenant's quota (arXiv 2501.14312).

Of the waiting requests of tenants with tokens left, the one with the longest cached prefix comes
first, and of equal ones the oldest. Computed prompt tokens and output tokens are deducted; cached
tokens are free. When a pass over the queue admits none for lack of tokens, every tenant without
tokens left gets a quantum.
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
    """Count the cached tokens of every waiting request, once per step."""
    k = state.waiting.head
    while k != NONE:
        state.shares.matched[k] = 0
        if state.kv.enable_prefix_caching:
            state.shares.matched[k] = look_up(state.kv, state.requests[k])
        k = state.requests[k].next


def has_left(state: Replica, k: int) -> bool:
    """Return True if a request's tenant has tokens left."""
    return state.shares.tenants[tenant_of(state, k)].deficit > 0


def has_eligible(state: Replica) -> bool:
    """Return True if the tenant of any waiting request has tokens left."""
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
    """Return True if any request may be admitted; refill if the pass has admitted none so far.

    Refills follow each other until a request is eligible: nothing else changes between them.
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
    """Return the eligible request with the longest cached prefix, the oldest of equals.

    If none is eligible, return the oldest of all.
    """
    k, best = state.waiting.head, NONE
    while k != NONE:
        if has_left(state, k) and (
            best == NONE or state.shares.matched[k] > state.shares.matched[best]
        ):
            best = k
        k = state.requests[k].next
    return state.waiting.head if best == NONE else best
