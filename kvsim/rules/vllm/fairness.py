"""Virtual token counters: the least served tenant comes first (VTC, arXiv 2401.00588).

A tenant's counter measures its service divided by its weight: 1 per prompt token, 2 per output
token. A prompt is charged at the request's first admission, an output token when it is sampled;
recomputation is free. When a request arrives at a tenant's empty queue, the tenant's counter is
raised to the lowest counter of the waiting tenants, so idle time gives no credit. Tenants with
equal counters are served in the order of their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.fairness import INPUT_WEIGHT, OUTPUT_WEIGHT, VTC
from kvsim.records.record import NONE
from kvsim.rules.links import append, push_front, remove

if TYPE_CHECKING:
    from kvsim.records.engine import Replica

#: Steps until the head is overtaken, if no tenant overtakes it.
FOR_EVER = 2**62


def tenant_of(state: Replica, k: int) -> int:
    """Return the number of a request's tenant; 0 if the trace has no tenants."""
    if not state.trace.has_tenants:
        return 0
    return state.trace.tenant[state.requests[k].request_id]


def first_tenant(state: Replica) -> int:
    """Return the tenant with the lowest counter among those with waiting requests, or NONE."""
    shares, first = state.shares, NONE
    for t in range(shares.num_tenants):
        tenant = shares.tenants[t]
        if tenant.queue.length > 0 and (
            first == NONE or tenant.counter < shares.tenants[first].counter
        ):
            first = t
    return first


def fair_head(state: Replica) -> int:
    """Return the first waiting request of the least served tenant."""
    return state.shares.tenants[first_tenant(state)].queue.head


def lift(state: Replica, t: int) -> None:
    """Raise the counter of a tenant with an empty queue to the lowest one of waiting tenants."""
    tenants, other = state.shares.tenants, first_tenant(state)
    if other == NONE:
        other = state.shares.last_active
    if other != NONE:
        tenants[t].counter = max(tenants[t].counter, tenants[other].counter)


def enqueue_fair(state: Replica, k: int) -> None:
    t = tenant_of(state, k)
    tenant = state.shares.tenants[t]
    if tenant.queue.length == 0:
        lift(state, t)
    append(tenant.queue, state.requests, k)
    state.waiting.length += 1


def requeue_fair(state: Replica, k: int) -> None:
    """Return a request to the front of its tenant's queue; the counter stays."""
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
    tenant = state.shares.tenants[tenant_of(state, k)]
    tenant.counter += tenant.price * OUTPUT_WEIGHT * num_tokens
    tenant.deficit -= num_tokens


def charge_run(state: Replica, steps: int) -> None:
    """Charge tenants for a run of steps, each with one token per running request."""
    for place in range(state.num_running):
        charge_output(state, state.running[place], steps)


def can_stay_refused(state: Replica) -> bool:
    """Return True if the head of the queue is the request that was refused last."""
    return state.limits.fairness == VTC and fair_head(state) == state.shares.refused


def steps_until_overtaken(state: Replica) -> int:
    """Return the number of decode steps until a tenant is less served than the head's tenant.

    A tenant's counter grows per step by the charge for its running requests.
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
