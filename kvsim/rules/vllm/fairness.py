"""Virtual token counters: who has been served least comes first (VTC, arXiv 2401.00588).

Every tenant has a counter of the service it got, one per prompt token and two per output token,
over its weight. It
pays for a prompt when the request is admitted first, and for every output token as it comes; work
done again after a preemption is free. A tenant that comes back after its queue was empty is lifted
to the least served of those that wait, so that it has no credit from when it asked for nothing.
Tenants that have as much as each other are served in the order of their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.fairness import INPUT_WEIGHT, OUTPUT_WEIGHT, VTC
from kvsim.records.record import NONE
from kvsim.rules.links import append, push_front, remove

if TYPE_CHECKING:
    from kvsim.records.engine import Replica

#: A head that nobody overtakes.
FOR_EVER = 2**62


def tenant_of(state: Replica, k: int) -> int:
    """Return the number of a request's tenant; without tenants all belong to one."""
    if not state.trace.has_tenants:
        return 0
    return state.trace.tenant[state.requests[k].request_id]


def first_tenant(state: Replica) -> int:
    """Return the tenant that has been served least of those with waiting requests, or NONE."""
    shares, first = state.shares, NONE
    for t in range(shares.num_tenants):
        tenant = shares.tenants[t]
        if tenant.queue.length > 0 and (
            first == NONE or tenant.counter < shares.tenants[first].counter
        ):
            first = t
    return first


def fair_head(state: Replica) -> int:
    """Return the oldest request of the tenant that has been served least."""
    return state.shares.tenants[first_tenant(state)].queue.head


def lift(state: Replica, t: int) -> None:
    """Take away the credit of a tenant whose queue was empty."""
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
    """Return a request to the front of its tenant's queue; it had its turn, so nobody is lifted."""
    push_front(state.shares.tenants[tenant_of(state, k)].queue, state.requests, k)
    state.waiting.length += 1


def dequeue_fair(state: Replica, k: int) -> None:
    """Take a request out of its tenant's queue, wherever it stands."""
    t = tenant_of(state, k)
    tenant = state.shares.tenants[t]
    remove(tenant.queue, state.requests, k)
    state.waiting.length -= 1
    if tenant.queue.length == 0:
        state.shares.last_active = t


def charge_admission(state: Replica, k: int, hit: int) -> None:
    """Let a tenant pay for a prompt that is admitted for the first time."""
    prompt = state.requests[k].num_prompt_tokens
    tenant = state.shares.tenants[tenant_of(state, k)]
    tenant.counter += tenant.price * INPUT_WEIGHT * prompt
    tenant.deficit -= prompt - hit


def charge_output(state: Replica, k: int, num_tokens: int) -> None:
    """Let a tenant pay for tokens that one of its requests has got."""
    tenant = state.shares.tenants[tenant_of(state, k)]
    tenant.counter += tenant.price * OUTPUT_WEIGHT * num_tokens
    tenant.deficit -= num_tokens


def charge_run(state: Replica, steps: int) -> None:
    """Let tenants pay for a run of steps, in each of which every running request got a token."""
    for place in range(state.num_running):
        charge_output(state, state.running[place], steps)


def can_stay_refused(state: Replica) -> bool:
    """Whether the head of the queue is who found no room last, so that it need not try again."""
    return state.limits.fairness == VTC and fair_head(state) == state.shares.refused


def steps_until_overtaken(state: Replica) -> int:
    """Return after how many steps of decodes another tenant has been served less than the head's.

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
