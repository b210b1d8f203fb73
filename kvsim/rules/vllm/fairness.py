"""Virtual token counters: the least served tenant comes first (VTC, arXiv 2401.00588).

Every tenant has a counter of the service it got, one per prompt token and two per output token,
over its weight. It pays for a prompt when the request is admitted first, and for every output token
as it is sampled; work repeated after a preemption is free. A tenant that returns after its queue
was empty is lifted to the least served of the waiting tenants, so it has no credit from its idle
time. Tenants with equal counters are served in the order of their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.fairness import INPUT_WEIGHT, OUTPUT_WEIGHT, VTC
from kvsim.records.record import NONE
from kvsim.rules.links import append, push_front, remove

if TYPE_CHECKING:
    from kvsim.records.engine import Replica

#: A head that no tenant overtakes.
FOR_EVER = 2**62


def tenant_of(state: Replica, k: int) -> int:
    """Return the number of a request's tenant; without tenants, all requests belong to one."""
    if not state.trace.has_tenants:
        return 0
    return state.trace.tenant[state.requests[k].request_id]


def first_tenant(state: Replica) -> int:
    """Return the least served tenant of those with waiting requests, or NONE."""
    shares, first = state.shares, NONE
    for t in range(shares.num_tenants):
        tenant = shares.tenants[t]
        if tenant.queue.length > 0 and (
            first == NONE or tenant.counter < shares.tenants[first].counter
        ):
            first = t
    return first


def fair_head(state: Replica) -> int:
    """Return the oldest request of the least served tenant."""
    return state.shares.tenants[first_tenant(state)].queue.head


def lift(state: Replica, t: int) -> None:
    """Remove the credit of a tenant that had an empty queue."""
    tenants, other = state.shares.tenants, first_tenant(state)
    if other == NONE:
        other = state.shares.last_active
    if other != NONE:
        tenants[t].counter = max(tenants[t].counter, tenants[other].counter)


def enqueue_fair(state: Replica, k: int) -> None:
    """Add a new arrival to its tenant's queue."""
    t = tenant_of(state, k)
    tenant = state.shares.tenants[t]
    if tenant.queue.length == 0:
        lift(state, t)
    append(tenant.queue, state.requests, k)
    state.waiting.length += 1


def requeue_fair(state: Replica, k: int) -> None:
    """Return a request to the front of its tenant's queue, without a change of the counter."""
    push_front(state.shares.tenants[tenant_of(state, k)].queue, state.requests, k)
    state.waiting.length += 1


def dequeue_fair(state: Replica, k: int) -> None:
    """Remove a request from any position of its tenant's queue."""
    t = tenant_of(state, k)
    tenant = state.shares.tenants[t]
    remove(tenant.queue, state.requests, k)
    state.waiting.length -= 1
    if tenant.queue.length == 0:
        state.shares.last_active = t


def charge_admission(state: Replica, k: int, hit: int) -> None:
    """Charge a tenant for a prompt that is admitted for the first time."""
    prompt = state.requests[k].num_prompt_tokens
    tenant = state.shares.tenants[tenant_of(state, k)]
    tenant.counter += tenant.price * INPUT_WEIGHT * prompt
    tenant.deficit -= prompt - hit


def charge_output(state: Replica, k: int, num_tokens: int) -> None:
    """Charge a tenant for tokens that one of its requests has received."""
    tenant = state.shares.tenants[tenant_of(state, k)]
    tenant.counter += tenant.price * OUTPUT_WEIGHT * num_tokens
    tenant.deficit -= num_tokens


def charge_run(state: Replica, steps: int) -> None:
    """Charge tenants for a run of steps, in each of which every running request got a token."""
    for place in range(state.num_running):
        charge_output(state, state.running[place], steps)


def can_stay_refused(state: Replica) -> bool:
    """Return True if the head found no room last time, so that it need not try again."""
    return state.limits.fairness == VTC and fair_head(state) == state.shares.refused


def steps_until_overtaken(state: Replica) -> int:
    """Return the number of decode steps until another tenant has less service than the head's.

    Counters grow per step by what a tenant pays for its running requests.
    """
    tenants, first, steps = state.shares.tenants, first_tenant(state), FOR_EVER
    for t in range(state.shares.num_tenants):
        tenants[t].num_running = 0
    for place in range(state.num_running):
        tenants[tenant_of(state, state.running[place])].num_running += 1
    own = tenants[first].price * tenants[first].num_running
    for t in range(state.shares.num_tenants):
        gain = OUTPUT_WEIGHT * (own - tenants[t].price * tenants[t].num_running)
        if tenants[t].queue.length > 0 and gain > 0:
            lead = tenants[t].counter - tenants[first].counter
            # At a tie the smaller number comes first.
            steps = min(steps, (lead + gain - 1) // gain if t < first else lead // gain + 1)
    return steps
