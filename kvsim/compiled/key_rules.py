"""The rules that make keys, compiled for tables of keys."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import lower_builtin, register_jitable, type_callable

from kvsim.rules.blocks.keys import fold, mix, mix_span, times_plus


@type_callable(times_plus)
def _type_times_plus(context: Any) -> Any:
    return lambda a, b, c: types.int64


@lower_builtin(times_plus, types.Integer, types.Integer, types.Integer)
def _times_plus(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    a, b, c = (
        context.cast(builder, value, kind, types.int64)
        for value, kind in zip(args, signature.args, strict=True)
    )
    return builder.add(builder.mul(a, b), c)  # without nsw flags: overflow wraps around


for _rule in (fold, mix, mix_span):
    register_jitable(_rule)
