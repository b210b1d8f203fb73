"""Calls of a user's rules by address: the compiled counterpart of :mod:`kvsim.rules.python`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload, register_jitable

from kvsim.compiled.types import WORD
from kvsim.rules import python

if TYPE_CHECKING:
    from kvsim.records.part import Part


def _caller(result: Any) -> Any:
    @intrinsic
    def call(context: Any, entry: Any, own: Any, first: Any, second: Any) -> Any:
        kinds = (types.int64,) * 3

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            convention = context.call_conv
            function = convention.get_function_type(result, kinds)
            entry = builder.inttoptr(args[0], function.as_pointer())
            status, value = convention.call_function(builder, entry, result, kinds, args[1:])
            # Only the checked mode raises.
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return value

        return result(types.int64, *kinds), generate

    return call


call_int, call_float = _caller(types.int64), _caller(types.float64)


@intrinsic
def address_of(context: Any, ref: Any) -> Any:
    """Return the address of a record."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], WORD)

    return types.int64(ref), generate


@intrinsic
def float_at(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.DoubleType().as_pointer()))

    return types.float64(types.int64), generate


@register_jitable(forceinline=True)
def _ask(part: Part, operation: int, first: int, second: int) -> int:
    entry = part.calls[operation]
    return call_int(entry, part.address, first, second) if entry != 0 else 0


def _insert(pool, k):
    return _ask(pool.part, 0, k, 0)


def _remove(pool, k):
    return _ask(pool.part, 1, k, 0)


def _evict(pool):
    return _ask(pool.part, 2, 0, 0)


def _cached(pool, k):
    return _ask(pool.part, 3, k, pool.blocks[k].key)


def _hit(pool, k):
    return _ask(pool.part, 4, k, 0)


def _allocate_room(kv, request, num_tokens):
    part = kv.own.part
    return call_int(part.calls[0], part.address, address_of(request), num_tokens)


def _free_room(kv, request):
    return _ask(kv.own.part, 1, address_of(request), 0)


def _rank(state, k):
    order = state.order
    return call_float(order.calls[0], order.address, address_of(state.requests[k]), 0)


def _victim_score(state, k):
    order = state.order
    return call_float(order.calls[1], order.address, address_of(state.requests[k]), 0)


def _price_work(cost):
    return call_float(cost.part.calls[0], cost.part.address, address_of(cost.work), 0)


#: The compiled form of each call of a user's rules.
TEXTS = {
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


def register_calls(**options: Any) -> None:
    """Compile each call of a user's rules to a call by address."""
    for rule, text in TEXTS.items():
        overload(rule, jit_options=options, strict=False)(lambda *args, text=text: text)
