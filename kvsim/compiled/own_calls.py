"""Calls of a user's rules by address: the compiled counterpart of :mod:`kvsim.rules.python`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.compiled.translation.calls import address_of, call_float, call_int
from kvsim.rules import python

if TYPE_CHECKING:
    from kvsim.records.cost import Cost
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockPool
    from kvsim.records.part import Part
    from kvsim.records.request import Request


def _ask(part: Part, operation: int, first: int, second: int) -> int:
    entry = part.calls[operation]
    return call_int(entry, part.address, first, second) if entry != 0 else 0


def _insert(pool: BlockPool, k: int) -> None:
    _ask(pool.part, 0, k, 0)


def _remove(pool: BlockPool, k: int) -> None:
    _ask(pool.part, 1, k, 0)


def _evict(pool: BlockPool) -> int:
    return _ask(pool.part, 2, 0, 0)


def _cached(pool: BlockPool, k: int) -> None:
    _ask(pool.part, 3, k, pool.blocks[k].key)


def _hit(pool: BlockPool, k: int) -> None:
    _ask(pool.part, 4, k, 0)


def _allocate_room(kv: KV, request: Request, num_tokens: int) -> int:
    part = kv.own.part
    return call_int(part.calls[0], part.address, address_of(request), num_tokens)


def _free_room(kv: KV, request: Request) -> None:
    _ask(kv.own.part, 1, address_of(request), 0)


def _rank(state: Replica, k: int) -> float:
    order = state.order
    return call_float(order.calls[0], order.address, address_of(state.requests[k]), 0)


def _victim_score(state: Replica, k: int) -> float:
    order = state.order
    return call_float(order.calls[1], order.address, address_of(state.requests[k]), 0)


def _price_work(cost: Cost) -> float:
    return call_float(cost.part.calls[0], cost.part.address, address_of(cost.work), 0)


#: The compiled form of each call of a user's rules.
TEXTS: dict[Any, Any] = {
    python.python_insert: _insert,
    python.python_remove: _remove,
    python.python_evict: _evict,
    python.python_cached: _cached,
    python.python_hit: _hit,
    python.python_allocate_room: _allocate_room,
    python.python_free_room: _free_room,
    python.python_rank: _rank,
    python.python_victim_score: _victim_score,
    python.python_price_work: _price_work,
}
