"""Calls: of functions of Python, of primitives with a text of their own, and of other rules."""

from __future__ import annotations

import ast
import inspect
import math
from functools import reduce
from typing import TYPE_CHECKING, Any

from kvsim.compiled.translation.kinds import (
    IS_OPAQUE,
    POINTER,
    UntranslatableError,
    Value,
    constant,
    size_of,
    stored_type,
)
from kvsim.compiled.translation.operators import chosen, compared
from kvsim.records.record import is_record, item_of, strip_width
from kvsim.rules import fetching
from kvsim.rules.blocks.keys import times_plus

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.compiled.translation.body import Body


def call(body: Body, node: ast.Call, value_of: Any, global_of: Any) -> Value:
    """Write a call; return its result."""
    called = global_of(body, node.func)
    if called is None:
        return _method(body, node, value_of)
    arguments = [value_of(body, one) for one in node.args]
    primitive = PRIMITIVES.get(called)
    if primitive is not None:
        return primitive(body, *arguments)
    if not inspect.isfunction(called):
        raise UntranslatableError(f"call of {ast.unparse(node.func)}")
    if node.keywords or len(arguments) != called.__code__.co_argcount:
        given = {str(one.arg): value_of(body, one.value) for one in node.keywords}
        bound = inspect.signature(called).bind(*arguments, **given)
        bound.apply_defaults()
        found = bound.arguments.values()
        arguments = [one if isinstance(one, Value) else constant(one) for one in found]
    result: Value = body.unit.call(body, called, arguments)
    return result


def _method(body: Body, node: ast.Call, value_of: Any) -> Value:
    """Write ``record.reset()``, the only method of a record."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "reset" or node.args:
        raise UntranslatableError(f"call of {ast.unparse(node.func)}")
    record = value_of(body, node.func.value)
    for name, value in record.kind.defaults().items():
        annotation = record.kind.kinds()[name]
        address = body.offset(record.text, str(record.kind.dtype().fields[name][1]))
        stored = stored_type(annotation)
        given = float(value) if strip_width(annotation) is float else int(value)
        body.store(stored, constant(given).text, address)
    return Value(None, "")


# -- functions of Python --------------------------------------------------------------------------


def _least(body: Body, *values: Value) -> Value:
    return reduce(lambda a, b: chosen(body, compared(body, ast.Lt, b, a), b, a), values)


def _most(body: Body, *values: Value) -> Value:
    return reduce(lambda a, b: chosen(body, compared(body, ast.Gt, b, a), b, a), values)


def _int(body: Body, value: Value) -> Value:
    if value.kind is float:
        return Value(int, body.write(f"fptosi double {value.text} to i64"))
    return body.cast(value, int)


def _float(body: Body, value: Value) -> Value:
    return body.cast(value, float)


def _bool(body: Body, value: Value) -> Value:
    return body.truth(value)


def _abs(body: Body, value: Value) -> Value:
    if value.kind is float:
        return _function("fabs")(body, value)
    negative = Value(int, body.write(f"sub nsw i64 0, {body.cast(value, int).text}"))
    return _most(body, value, negative)


def _function(name: str) -> Callable[[Body, Value], Value]:
    """Return the writer of a function of LLVM over floats."""

    def write(body: Body, value: Value) -> Value:
        body.unit.declare(f"declare double @llvm.{name}.f64(double)")
        text = body.cast(value, float).text
        return Value(float, body.write(f"call double @llvm.{name}.f64(double {text})"))

    return write


def _rounded(name: str) -> Callable[[Body, Value], Value]:
    return lambda body, value: _int(body, _function(name)(body, value))


def _is_nan(body: Body, value: Value) -> Value:
    return Value(bool, body.write(f"fcmp uno double {value.text}, {value.text}"))


def _frexp(body: Body, value: Value) -> Value:
    """Call Numba's ``numba_frexp``."""
    pointer = "ptr" if IS_OPAQUE else "i32*"
    body.unit.declare(f"declare double @numba_frexp(double, {pointer})")
    memory = body.reserve("i32")
    text = f"call double @numba_frexp(double {value.text}, {pointer} {memory})"
    mantissa = body.write(text)
    short = body.write(f"load i32, {pointer} {memory}")
    exponent = body.write(f"sext i32 {short} to i64")
    pair = body.write(f"insertvalue {{ double, i64 }} undef, double {mantissa}, 0")
    both = body.write(f"insertvalue {{ double, i64 }} {pair}, i64 {exponent}, 1")
    return Value((float, int), both)


# -- primitives of kvsim --------------------------------------------------------------------------


def _times_plus(body: Body, a: Value, b: Value, c: Value) -> Value:
    """Write a product that wraps around."""
    x, y, z = (body.cast(one, int).text for one in (a, b, c))
    product = body.write(f"mul i64 {x}, {y}")
    return Value(int, body.write(f"add i64 {product}, {z}"))


def _prefetch(num_lines: int) -> Callable[[Body, Value, Value], Value]:
    def write(body: Body, rows: Value, place: Value) -> Value:
        name = "llvm.prefetch.p0" if IS_OPAQUE else "llvm.prefetch.p0i8"
        body.unit.declare(f"declare void @{name}({POINTER}, i32, i32, i32)")
        index = f"{body.cast(place, int).text}, {size_of(item_of(rows.kind))}"
        address = body.offset(rows.text, body.write(f"mul nsw i64 {index}"))
        for line in range(num_lines):
            at = body.offset(address, str(64 * line)) if line else address
            body.do(f"call void @{name}({POINTER} {at}, i32 0, i32 3, i32 1)")
        return Value(None, "")

    return write


def call_address(kind: Any) -> Callable[..., Value]:
    """Return the writer of a call of a user's rule, by Numba's calling convention."""

    def write(body: Body, entry: Value, own: Value, first: Value, second: Value) -> Value:
        type_ = {int: "i64", float: "double"}[kind]
        pointers = ("ptr", "ptr", "ptr") if IS_OPAQUE else (f"{type_}*", "i8**", "i32*")
        result, error, _ = pointers
        slot = (kind, body.reserve(kind))
        signature = f"i32 ({result}, {error}, i64, i64, i64)"
        to = "ptr" if IS_OPAQUE else f"{signature}*"
        function = body.write(f"inttoptr i64 {entry.text} to {to}")
        no_error = body.reserve(POINTER)
        given = ", ".join(f"i64 {body.cast(one, int).text}" for one in (own, first, second))
        text = f"call {signature} {function}({result} {slot[1]}, {error} {no_error}, {given})"
        body.write(text)
        return body.get(slot)

    return write


def address_of(body: Body, record: Value) -> Value:
    if not is_record(record.kind):
        raise UntranslatableError(f"address of {record.kind}")
    return Value(int, body.write(f"ptrtoint {POINTER} {record.text} to i64"))


#: The writer of each function that is no rule.
PRIMITIVES: dict[Any, Callable[..., Value]] = {
    min: _least,
    max: _most,
    int: _int,
    float: _float,
    bool: _bool,
    abs: _abs,
    math.isnan: _is_nan,
    math.sqrt: _function("sqrt"),
    math.ceil: _rounded("ceil"),
    math.floor: _rounded("floor"),
    math.frexp: _frexp,
    times_plus: _times_plus,
    fetching.prefetch_item: _prefetch(1),
    fetching.prefetch_whole: _prefetch(2),
}
