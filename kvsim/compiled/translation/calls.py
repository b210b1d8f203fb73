"""Calls: of functions of Python, of primitives with a text of their own, and of other rules."""

from __future__ import annotations

import ast
import ctypes
import inspect
import math
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.compiled.translation.arrays import length_of
from kvsim.compiled.translation.checks import check_fault
from kvsim.compiled.translation.hooks import call_by_kind, call_hook
from kvsim.compiled.translation.kinds import (
    IS_OPAQUE,
    POINTER,
    UntranslatableError,
    Value,
    constant,
    size_of,
    stored_type,
)
from kvsim.compiled.translation.operators import binary, chosen, compared
from kvsim.dispatch import ByKind, Hook
from kvsim.records.record import is_record, item_of, strip_width
from kvsim.rules import fetching
from kvsim.rules.blocks.keys import times_plus

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.compiled.translation.body import Body
    from kvsim.records.record import Record


def call(body: Body, node: ast.Call, value_of: Any, global_of: Any) -> Value:
    """Write a call; return its result."""
    called = global_of(body, node.func)
    if called is None:
        return _method(body, node, value_of)
    primitive = PRIMITIVES.get(called)
    if primitive is not None:
        return primitive(body, *[value_of(body, one) for one in node.args])
    if isinstance(called, ByKind):
        return call_by_kind(body, called, *[value_of(body, one) for one in node.args])
    if isinstance(called, Hook):
        return call_hook(body, called, *[value_of(body, one) for one in node.args])
    if not inspect.isfunction(called):
        raise UntranslatableError(f"call of {ast.unparse(node.func)}")
    return _call_rule(body, called, [], node, value_of)


def _call_rule(
    body: Body, called: Any, arguments: list[Any], node: ast.Call, value_of: Any
) -> Value:
    """Write a call of a function of Python, with ``arguments`` before those of the call."""
    arguments += [value_of(body, one) for one in node.args]
    if node.keywords or len(arguments) != called.__code__.co_argcount:
        given = {str(one.arg): value_of(body, one.value) for one in node.keywords}
        bound = inspect.signature(called).bind(*arguments, **given)
        bound.apply_defaults()
        found = bound.arguments.values()
        arguments = [one if isinstance(one, Value) else constant(one) for one in found]
    result: Value = body.unit.call(body, called, arguments)
    return result


def _method(body: Body, node: ast.Call, value_of: Any) -> Value:
    """Write ``record.reset()``, or a method of a user's part."""
    if not isinstance(node.func, ast.Attribute):
        raise UntranslatableError(f"call of {ast.unparse(node.func)}")
    record = value_of(body, node.func.value)
    method = body.unit.method(record.kind, node.func.attr)
    if method is not None:
        return _call_rule(body, method, [record], node, value_of)
    if not is_record(record.kind) or node.func.attr != "reset" or node.args:
        raise UntranslatableError(f"call of {ast.unparse(node.func)}")
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


def _is_infinite(body: Body, value: Value) -> Value:
    return compared(body, ast.Eq, _function("fabs")(body, value), constant(math.inf))


def _is_finite(body: Body, value: Value) -> Value:
    return compared(body, ast.Lt, _function("fabs")(body, value), constant(math.inf))


def _power(body: Body, base: Value, exponent: Value) -> Value:
    return binary(body, ast.Pow, body.cast(base, float), body.cast(exponent, float))


def _frexp(body: Body, value: Value) -> Value:
    """Call C's ``frexp``, which may leave the exponent of infinity and NaN as it is: 0."""
    pointer = "ptr" if IS_OPAQUE else "i32*"
    body.unit.declare(f"declare double @frexp(double, {pointer})")
    memory = body.reserve("i32")
    body.do(f"store i32 0, {pointer} {memory}")
    text = f"call double @frexp(double {value.text}, {pointer} {memory})"
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
    """Return the writer of a prefetch of an item of a list; the index may be out of range."""

    def write(body: Body, rows: Value, place: Value) -> Value:
        name = "llvm.prefetch.p0" if IS_OPAQUE else "llvm.prefetch.p0i8"
        body.unit.declare(f"declare void @{name}({POINTER}, i32, i32, i32)")
        index = f"{body.cast(place, int).text}, {size_of(item_of(rows.kind))}"
        item = body.offset(rows.text, body.write(f"mul nsw i64 {index}"))
        for line in range(num_lines):
            at = body.offset(item, str(64 * line)) if line else item
            body.do(f"call void @{name}({POINTER} {at}, i32 0, i32 3, i32 1)")
        return Value(None, "")

    return write


def _call_address(kind: Any) -> Callable[..., Value]:
    """Return the writer of a call of a user's rule by its address."""

    def write(body: Body, entry: Value, *given: Value) -> Value:
        type_ = {int: "i64", float: "double"}[kind]
        to = "ptr" if IS_OPAQUE else f"{type_} (i64, i64, i64)*"
        function = body.write(f"inttoptr i64 {entry.text} to {to}")
        words = ", ".join(f"i64 {body.cast(one, int).text}" for one in given)
        found = Value(kind, body.write(f"call {type_} {function}({words})"))
        check_fault(body)
        return found

    return write


def _address_of(body: Body, record: Value) -> Value:
    if not is_record(record.kind):
        raise UntranslatableError(f"address of {record.kind}")
    return Value(int, body.write(f"ptrtoint {POINTER} {record.text} to i64"))


def _float_at(body: Body, address: Value) -> Value:
    pointer = body.write(f"inttoptr i64 {address.text} to {POINTER}")
    return Value(float, body.load("double", pointer))


def _function_at(result: Any, address: int) -> Any:
    return ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * 3)(address)


def call_int(entry: int, own: int, first: int, second: int) -> int:
    """Call a user's rule at an address in this process."""
    return int(_function_at(ctypes.c_int64, entry)(own, first, second))


def call_float(entry: int, own: int, first: int, second: int) -> float:
    """Call a user's rule at an address in this process."""
    return float(
        ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_int64] * 3)(entry)(own, first, second)
    )


def address_of(record: Any) -> int:
    """Return the address of a record in flat memory."""
    return int(record.address)


def float_at(address: int) -> float:
    return ctypes.c_double.from_address(address).value


def record_at(record: type[Record]) -> Any:
    """Return a name that translated code calls with an address, for the record at it."""
    at = object()  # Python cannot call it
    PRIMITIVES[at] = lambda body, word: Value(
        record, body.write(f"inttoptr i64 {word.text} to {POINTER}")
    )
    return at


#: The writer of each function that is no rule.
PRIMITIVES: dict[Any, Callable[..., Value]] = {
    min: _least,
    max: _most,
    int: _int,
    float: _float,
    bool: _bool,
    abs: _abs,
    len: length_of,
    math.isnan: _is_nan,
    math.isinf: _is_infinite,
    math.isfinite: _is_finite,
    math.ceil: _rounded("ceil"),
    math.floor: _rounded("floor"),
    math.trunc: _rounded("trunc"),
    round: _rounded("rint"),
    math.frexp: _frexp,
    math.log: _function("log"),
    math.pow: _power,
    times_plus: _times_plus,
    np.int64: _int,
    fetching.prefetch_item: _prefetch(1),
    fetching.prefetch_whole: _prefetch(2),
    call_int: _call_address(int),
    call_float: _call_address(float),
    address_of: _address_of,
    float_at: _float_at,
}
for _called in (math.sqrt, math.exp, math.log2, math.log10, math.sin, math.cos, math.fabs):
    PRIMITIVES[_called] = _function(_called.__name__)
