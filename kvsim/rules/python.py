"""Calls from rules to a user's Python classes: allocator, scheduler, policy, cost model.

Compiled code calls rules of a user's by address (:mod:`kvsim.compiled.own_calls`), and none of the
rest: the compiled engine refuses such a class and says why.
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


def number(kind: type[T], value: Any, part: object, operation: str) -> T:
    """Return what an operation of a user's returned, as a number."""
    try:
        found = kind(value)
    except (TypeError, ValueError):
        raise wrong(value, part, operation, "a number") from None
    if kind is int and not hasattr(value, "__index__"):
        raise wrong(value, part, operation, "a whole number")
    return found


def wrong(value: Any, part: object, operation: str, allowed: str) -> ValueError:
    """Return the error for a wrong return value of a user's operation."""
    return ValueError(f"{type(part).__name__}.{operation} returned {value!r}: must be {allowed}")


# -- a KV-cache manager ---------------------------------------------------------------------------


def python_lookup(kv: KV, request: Request) -> int:
    """Ask a manager for a hit, and store it for the admission."""
    manager: Any = kv.python
    hit = manager.lookup(request)
    manager.last_hit = hit
    request.shared_prefix_boundary = hit.shared_prefix_boundary
    return int(hit.num_tokens)


def python_admit(kv: KV, request: Request, num_tokens: int, hit: int) -> bool:
    """Ask a manager to admit a request with the hit it found last, if that is not empty."""
    manager: Any = kv.python
    if hit == 0:
        return bool(manager.allocate_slots(request, num_tokens))
    return bool(manager.allocate_slots(request, num_tokens, manager.last_hit))


def python_allocate(kv: KV, request: Request, num_tokens: int) -> bool:
    """Ask a manager for the next tokens' slots."""
    manager: Any = kv.python
    return bool(manager.allocate_slots(request, num_tokens))


def python_reserve(kv: KV, request: Request) -> int:
    """Ask a contiguous manager how many slots a request asks for."""
    manager: Any = kv.python
    return int(manager.reserve(request))


def python_free(kv: KV, request: Request) -> None:
    manager: Any = kv.python
    manager.free(request)


def python_retire(kv: KV, request: Request) -> None:
    """Notify a manager that a request has ended while its batch keeps its slots."""
    manager: Any = kv.python
    manager.retire(request)


def python_cache_computed(kv: KV, request: Request, num_tokens: int) -> None:
    """Notify a manager that tokens are computed and known."""
    manager: Any = kv.python
    manager.cache_computed(request, num_tokens)


def python_num_free(kv: KV) -> int:
    """Ask a manager for its free blocks."""
    manager: Any = kv.python
    return int(manager.num_free)


def python_swap_out(kv: KV, request: Request) -> int:
    """Let a manager move a request to the host; return the bytes."""
    manager: Any = kv.python
    return int(manager.swap_out(request))


def python_swap_in(kv: KV, request: Request) -> int:
    """Let a manager move a request back; return the bytes."""
    manager: Any = kv.python
    return int(manager.swap_in(request))


def python_has_blocks(kv: KV, request: Request) -> bool:
    """Return True if a manager keeps block tables."""
    manager: Any = kv.python
    return bool(manager.block_ids(request))


def python_take_transfers(state: Replica, batch: Batch) -> None:
    """Ask a manager for the bytes that a step moves."""
    manager: Any = state.kv.python
    if manager is None:
        return
    requests = [state.requests[batch.entries[at].request] for at in range(batch.size)]
    moved, kv = manager.take_transfers(requests), state.kv
    kv.moved.fetched, kv.moved.stored = moved.fetched, moved.stored
    kv.moved.paged_in, kv.moved.paged_out = moved.paged_in, moved.paged_out
    kv.moved.num_faults = moved.num_faults


def python_allocate_room(kv: KV, request: Request, num_tokens: int) -> int:
    """Ask rules of a user's to make room for the first tokens of a request."""
    rules: Any = kv.own.part.python
    return number(int, rules.allocate(request, num_tokens), rules, "allocate")


def python_free_room(kv: KV, request: Request) -> None:
    """Notify rules of a user's that a request gives its memory back."""
    rules: Any = kv.own.part.python
    rules.free(request)


def python_measure(kv: KV) -> None:
    """Ask a manager for its bytes by cause."""
    manager: Any = kv.python
    now, usage = manager.usage, kv.usage
    usage.token_states, usage.reservation, usage.internal = now[0], now[1], now[2]
    usage.external, usage.unallocated, usage.cached = now[3], now[4], now[5]


def python_kv_usage(kv: KV) -> float:
    """Ask a manager for its share of blocks in use."""
    manager: Any = kv.python
    return float(manager.kv_usage)


def python_heap(state: Replica, seconds: float) -> None:
    """Integrate the bytes of a caching allocator, if there is one."""
    manager: Any = state.kv.python
    heap = None if manager is None else manager.heap_bytes
    if heap is not None:
        state.totals.heap_active_seconds += heap[0] * seconds
        state.totals.heap_reserved_seconds += heap[1] * seconds


def python_paint(state: Replica, first: int) -> None:
    """Ask a manager for its memory map."""
    manager: Any = state.kv.python
    causes = manager.memory_map(state.num_bins).tolist()
    for b in range(state.num_bins):
        state.maps[first + b] = causes[b]


# -- an eviction policy ---------------------------------------------------------------------------


def python_arrived(
    pool: BlockPool, request: Request, own_blocks: RequestBlocks, block_size: int
) -> None:
    """Notify a policy that a prompt with these keys has been admitted."""
    policy: Any = pool.python
    if policy.foresees:
        num_keys = (request.num_prompt_tokens - 1) // block_size
        extend_keys(own_blocks, request, num_keys, block_size, 0)
        policy.arrived([own_blocks.keys[place] for place in range(num_keys)])


def python_insert(pool: BlockPool, k: int) -> None:
    """Notify a policy that a block has lost its last reference."""
    policy: Any = pool.python
    policy.insert(k)


def python_remove(pool: BlockPool, k: int) -> None:
    """Notify a policy that a block is referenced again."""
    policy: Any = pool.python
    policy.remove(k)


def python_evict(pool: BlockPool) -> int:
    """Ask a policy for a victim."""
    policy: Any = pool.python
    return number(int, policy.evict(), policy, "evict")


def python_cached(pool: BlockPool, k: int) -> None:
    """Notify a policy that a block has got its key."""
    policy: Any = pool.python
    policy.cached(k, pool.blocks[k].key)


def python_hit(pool: BlockPool, k: int) -> None:
    """Notify a policy of a hit."""
    policy: Any = pool.python
    policy.hit(k)


# -- a scheduler ----------------------------------------------------------------------------------


def python_add(state: Replica, k: int) -> None:
    """Pass a new arrival to a scheduler."""
    scheduler: Any = state.scheduler
    scheduler.add(state.requests[k])


def python_schedule(state: Replica, batch: Batch) -> None:
    """Let a scheduler schedule the next step."""
    scheduler: Any = state.scheduler
    scheduler.run_step(batch)


def python_complete(state: Replica, batch: Batch) -> None:
    """Pass a step's output to a scheduler."""
    scheduler: Any = state.scheduler
    scheduler.take_in(batch)


def python_has_work(state: Replica) -> bool:
    """Ask a scheduler whether any request is unfinished."""
    scheduler: Any = state.scheduler
    return bool(scheduler.has_work)


def python_rank(state: Replica, k: int) -> float:
    """Ask a user's order for the priority of a request."""
    order: Any = state.order.python
    return number(float, order.priority(state.requests[k], state.clock), order, "priority")


def python_victim_score(state: Replica, k: int) -> float:
    """Ask a user's order for the preemption score of a request."""
    order: Any = state.order.python
    return number(float, order.victim(state.requests[k], state.clock), order, "victim")


# -- a cost model ---------------------------------------------------------------------------------


def python_price_work(cost: Cost) -> float:
    """Ask the rules of a user's cost model for the time of the work that is counted."""
    model: Any = cost.python
    return number(float, model.price(cost.work), model, "price")


def python_price(state: Replica, batch: Batch) -> float:
    """Ask a cost model for a step's time."""
    model: Any = state.cost.python
    plan: Any = state.plan_of
    cost = model.step(plan(state, batch).close())
    if not hasattr(cost, "flops"):
        raise ValueError(f"{type(model).__name__}.step returned {cost!r}: must be a StepCost")
    state.cost.flops, state.cost.bytes = cost.flops, cost.bytes
    return float(cost.time)
