"""Records as Numba types: a record is a pointer, a list a pointer to its first item.

``state.requests[k].num_tokens += 1`` compiles to an address computation, a load, an add and a
store. In the checked mode (KVSIM_BOUNDSCHECK=1) a list is a pointer to its address and length, and
every index is compared with the length.

The loops over replicas and the tables of keys read records so; rules are translated instead.
"""

from __future__ import annotations

import operator
import re
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global, signature
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    lower_setattr_generic,
    register_model,
)

from kvsim.compiled.cache import check_caching
from kvsim.compiled.machine import CHECKED
from kvsim.compiled.translation.calls import PRIMITIVES, prefetch_line
from kvsim.compiled.translation.unit import record_at as translated_at
from kvsim.records.record import Record, format_of, is_record, item_of, strip_width

check_caching()  # every module with compiled functions imports this one first

BYTES = ir.IntType(8).as_pointer()
WORD = ir.IntType(64)


class Ref(types.Type):
    """A record in memory."""

    def __init__(self, record: type[Record]) -> None:
        self.record = record
        super().__init__(name=f"Ref({record.__name__})")


class Rows(types.Type):
    """A list in memory, of records or of numbers of ``size`` bytes."""

    def __init__(self, item: Any, size: int) -> None:
        self.item, self.size = item, size
        super().__init__(name=f"Rows({item}, {size})")


@register_model(Ref)
@register_model(Rows)
class _Pointer(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, BYTES)


def numba_type(kind: Any) -> Any:
    item = item_of(kind)
    if item is not None:
        return Rows(numba_type(item), format_of(item).itemsize)
    if is_record(kind):
        return Ref(kind)
    return {int: types.int64, float: types.float64, bool: types.boolean}[strip_width(kind)]


# -- typing ---------------------------------------------------------------------------------------


@infer_getattr
class _Attributes(AttributeTemplate):
    key = Ref

    def generic_resolve(self, ref: Ref, name: str) -> Any:
        kind = ref.record.kinds().get(name)
        return None if kind is None else numba_type(kind)


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Rows) and isinstance(args[1], types.Integer):
            return signature(args[0].item, args[0], types.int64)
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Rows) and isinstance(args[1], types.Integer):
            return signature(types.none, args[0], types.int64, args[0].item)
        return None


# -- lowering -------------------------------------------------------------------------------------


def _load(builder: Any, kind: Any, address: Any, size: int) -> Any:
    if isinstance(kind, Ref) or (isinstance(kind, Rows) and CHECKED):
        return address
    if isinstance(kind, Rows):
        return builder.load(builder.bitcast(address, BYTES.as_pointer()))
    stored = ir.DoubleType() if kind == types.float64 else ir.IntType(8 * size)
    value = builder.load(builder.bitcast(address, stored.as_pointer()))
    if kind == types.boolean:
        return builder.trunc(value, ir.IntType(1))
    return builder.sext(value, WORD) if size < 8 and kind == types.int64 else value


def _store(builder: Any, kind: Any, address: Any, value: Any, size: int) -> None:
    if isinstance(kind, Rows) and CHECKED:
        cgutils.raw_memcpy(builder, address, value, ir.Constant(WORD, 16), 1)
        return
    if kind == types.boolean:
        value = builder.zext(value, ir.IntType(8 * size))
    elif kind == types.int64 and size < 8:
        value = builder.trunc(value, ir.IntType(8 * size))
    builder.store(value, builder.bitcast(address, value.type.as_pointer()))


def _field(builder: Any, ref: Ref, value: Any, name: str) -> tuple[Any, Any, int]:
    dtype, offset = ref.record.dtype().fields[name][:2]
    address = builder.gep(value, [ir.Constant(WORD, offset)], inbounds=True)
    return numba_type(ref.record.kinds()[name]), address, dtype.itemsize


@lower_getattr_generic(Ref)
def _getattr(context: Any, builder: Any, ref: Ref, value: Any, name: str) -> Any:
    kind, address, size = _field(builder, ref, value, name)
    return _load(builder, kind, address, size)


@lower_setattr_generic(Ref)
def _setattr(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
    kind, address, size = _field(builder, sig.args[0], args[0], name)
    _store(builder, kind, address, args[1], size)


def _plain_name(mangled: str) -> str:
    """Return the module and name of a function from its mangled name, as in ``_ZN3mod4name``."""
    found, at = [], len("_ZN")
    while length := re.match(r"\d+", mangled[at:]):
        at += length.end() + int(length[0])
        found.append(mangled[at - int(length[0]) : at])
    return ".".join(found) or mangled


def _item(context: Any, builder: Any, rows: Rows, value: Any, place: Any) -> Any:
    if CHECKED:
        words = builder.bitcast(value, WORD.as_pointer())
        length = builder.load(builder.gep(words, [ir.Constant(WORD, 1)]))
        with builder.if_then(builder.icmp_unsigned(">=", place, length), likely=False):
            message = f"an index is out of range: {rows}, in {_plain_name(builder.function.name)}"
            context.call_conv.return_user_exc(builder, IndexError, (message,))
        value = builder.inttoptr(builder.load(words), BYTES)
    size = rows.item.record.dtype().itemsize if isinstance(rows.item, Ref) else rows.size
    offset = builder.mul(place, ir.Constant(WORD, size), flags=["nsw"])
    return builder.gep(value, [offset], inbounds=True)


@lower_builtin(operator.getitem, Rows, types.int64)
def _getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    rows = sig.args[0]
    return _load(builder, rows.item, _item(context, builder, rows, *args), rows.size)


@lower_builtin(operator.setitem, Rows, types.int64, types.Any)
def _setitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    rows = sig.args[0]
    address = _item(context, builder, rows, args[0], args[1])
    _store(builder, rows.item, address, args[2], rows.size)
    return context.get_dummy_value()


@intrinsic
def prefetch(typing_context: Any, rows: Any, place: Any, line: Any) -> Any:
    """Prefetch 64 bytes of an item of a list; the index may be out of range."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if not CHECKED:
            flags = [ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1)]  # read, keep, data
            kind = ir.FunctionType(ir.VoidType(), [BYTES, *(flag.type for flag in flags)])
            name = "llvm.prefetch.p0i8"
            call = cgutils.get_or_insert_function(builder.module, kind, name)
            item = _item(context, builder, rows, *args[:2])
            offset = builder.mul(args[2], ir.Constant(WORD, 64))
            builder.call(call, [builder.gep(item, [offset]), *flags])
        return context.get_dummy_value()

    return types.none(rows, types.int64, types.int64), generate


PRIMITIVES[prefetch] = prefetch_line


def record_at(record: type[Record]) -> Any:
    """Return a compiled function that turns an address into a record."""

    @intrinsic
    def at(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], BYTES)

        return Ref(record)(types.int64), generate

    PRIMITIVES[at] = lambda body, word: translated_at(body, word, record)
    return at
