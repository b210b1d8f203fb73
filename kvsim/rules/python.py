"""Calls from rules to a user's Python classes: allocator, eviction policy, scheduler, cost model.

Compiled code calls a user's compiled rules by address (:mod:`kvsim.compiled.own_calls`). It cannot
call other Python classes: the compiled backend refuses them with an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kvsim.rules.blocks.keys import extend_keys

T = TypeVar("T", int, float)

if TYPE_CHECKING:
    from kvsim.records.cost import Cost
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockPool, RequestBlocks
    from kvsim.records.request import Request
    from kvsim.records.routing import PrefillPrice


def number(kind: type[T], value: Any, part: object, operation: str) -> T:
    """Return the result of a user's operation as a number; raise ValueError if it is not one."""
    try:
        found = kind(value)
    except (TypeError, ValueError):
        raise wrong(value, part, operation, "a number") from None
    if kind is int and not hasattr(value, "__index__"):
        raise wrong(value, part, operation, "a whole number")
    return found


def wrong(value: Any, part: object, operation: str, allowed: str) -> ValueError:
    """Return the error for an invalid result of a user's operation."""
    return ValueError(f"{type(part).__name__}.{operation} returned {value!r}: must be {allowed}")


# -- a KV-cache manager ---------------------------------------------------------------------------


def python_lookup(kv: KV, request: Request) -> int:
    """Look up a prefix, and store the hit in the manager for the admission; return its tokens."""
    hit = kv.python.lookup(request)
    kv.python.last_hit = hit
    request.shared_prefix_boundary = hit.shared_prefix_boundary
    return int(hit.num_tokens)


def python_admit(kv: KV, request: Request, num_tokens: int, hit: int) -> bool:
    """Allocate a request's first slots, with the hit of the last look-up unless it is empty."""
    if hit == 0:
        return bool(kv.python.allocate_slots(request, num_tokens))
    return bool(kv.python.allocate_slots(request, num_tokens, kv.python.last_hit))


def python_allocate(kv: KV, request: Request, num_tokens: int) -> bool:
    return bool(kv.python.allocate_slots(request, num_tokens))


def python_reserve(kv: KV, request: Request) -> int:
    return int(kv.python.reserve(request))


def python_free(kv: KV, request: Request) -> None:
    kv.python.free(request)


def python_retire(kv: KV, request: Request) -> None:
    kv.python.retire(request)


def python_cache_computed(kv: KV, request: Request, num_tokens: int) -> None:
    kv.python.cache_computed(request, num_tokens)


def python_num_free(kv: KV) -> int:
    return int(kv.python.num_free)


def python_swap_out(kv: KV, request: Request) -> int:
    return int(kv.python.swap_out(request))


def python_swap_in(kv: KV, request: Request) -> int:
    return int(kv.python.swap_in(request))


def python_has_blocks(kv: KV, request: Request) -> bool:
    """Return True if a manager keeps block tables."""
    return bool(kv.python.block_ids(request))


def python_take_transfers(state: Replica, batch: Batch) -> None:
    """Set ``kv.moved`` to the bytes that a manager moves for a step."""
    if state.kv.python is None:
        return
    requests = [state.requests[batch.entries[at].request] for at in range(batch.size)]
    moved, kv = state.kv.python.take_transfers(requests), state.kv
    kv.moved.fetched, kv.moved.stored = moved.fetched, moved.stored
    kv.moved.paged_in, kv.moved.paged_out = moved.paged_in, moved.paged_out
    kv.moved.num_faults = moved.num_faults


def python_allocate_room(kv: KV, request: Request, num_tokens: int) -> int:
    """Make room for a request's first tokens by a user's rules; return the room in tokens."""
    rules = kv.own.part.python
    return number(int, rules.allocate(request, num_tokens), rules, "allocate")


def python_free_room(kv: KV, request: Request) -> None:
    kv.own.part.python.free(request)


def python_measure(kv: KV) -> None:
    now, usage = kv.python.usage, kv.usage
    usage.token_states, usage.reservation, usage.internal = now[0], now[1], now[2]
    usage.external, usage.unallocated, usage.cached = now[3], now[4], now[5]


def python_kv_usage(kv: KV) -> float:
    return float(kv.python.kv_usage)


def python_heap(state: Replica, seconds: float) -> None:
    """Add a caching allocator's bytes times ``seconds`` to the totals, if the manager has one."""
    manager = state.kv.python
    heap = None if manager is None else manager.heap_bytes
    if heap is not None:
        state.totals.heap_active_seconds += heap[0] * seconds
        state.totals.heap_reserved_seconds += heap[1] * seconds


def python_paint(state: Replica, first: int) -> None:
    """Write a manager's memory map into ``state.maps``, from index ``first`` on."""
    causes = state.kv.python.memory_map(state.num_bins).tolist()
    for b in range(state.num_bins):
        state.maps[first + b] = causes[b]


# -- an eviction policy ---------------------------------------------------------------------------


def python_arrived(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Notify a policy that a prompt with these keys has been admitted."""
    policy = kv.pool.python
    if policy.foresees:
        size, lookahead = kv.hash_block_size, kv.num_hash_lookahead_tokens
        num_keys = (request.num_prompt_tokens - 1) // size
        extend_keys(own_blocks, request, num_keys, size, lookahead)
        policy.arrived([own_blocks.keys[place] for place in range(num_keys)])


def python_insert(pool: BlockPool, k: int) -> None:
    pool.python.insert(k)


def python_remove(pool: BlockPool, k: int) -> None:
    pool.python.remove(k)


def python_evict(pool: BlockPool) -> int:
    return number(int, pool.python.evict(), pool.python, "evict")


def python_cached(pool: BlockPool, k: int) -> None:
    pool.python.cached(k, pool.blocks[k].key)


def python_hit(pool: BlockPool, k: int) -> None:
    pool.python.hit(k)


# -- a scheduler ----------------------------------------------------------------------------------


def python_add(state: Replica, k: int) -> None:
    state.scheduler.add(state.requests[k])


def python_schedule(state: Replica, batch: Batch) -> None:
    state.scheduler.run_step(batch)


def python_complete(state: Replica, batch: Batch) -> None:
    state.scheduler.update_from_output(batch)


def python_has_work(state: Replica) -> bool:
    return bool(state.scheduler.has_work)


def python_rank(state: Replica, k: int) -> float:
    order = state.order.python
    return number(float, order.priority(state.requests[k], state.clock), order, "priority")


def python_victim_score(state: Replica, k: int) -> float:
    order = state.order.python
    return number(float, order.victim(state.requests[k], state.clock), order, "victim")


# -- a cost model ---------------------------------------------------------------------------------


def python_price_work(cost: Cost) -> float:
    """Return the seconds of the counted work by a user's cost rules."""
    return number(float, cost.python.price(cost.work), cost.python, "price")


def python_price(state: Replica, batch: Batch) -> float:
    model = state.cost.python
    cost = model.step(state.plan_of(state, batch).close())
    if not hasattr(cost, "flops"):
        raise ValueError(f"{type(model).__name__}.step returned {cost!r}: must be a StepCost")
    state.cost.flops, state.cost.bytes = cost.flops, cost.bytes
    return float(cost.time)


# -- a router --------------------------------------------------------------------------------------


def python_prefill_time(prefill: PrefillPrice, num_tokens: int, num_cached: int) -> float:
    """Return the seconds to compute a prompt on an idle replica."""
    return float(prefill.python.prefill_time(num_tokens, num_cached))


def python_fetch_time(prefill: PrefillPrice, num_tokens: int) -> float:
    """Return the seconds to read the KV of tokens from another replica."""
    return float(prefill.python.fetch_time(num_tokens))
