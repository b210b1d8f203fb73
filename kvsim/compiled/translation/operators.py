"""Arithmetic with the results of Python, and of NumPy for a division by zero, as in Numba."""

from __future__ import annotations

import ast
from typing import Any

from kvsim.compiled.translation.body import Body, joined
from kvsim.compiled.translation.kinds import UntranslatableError, Value, constant
from kvsim.compiled.translation.remainders import FLOAT_DIVMOD

PAIR = "{ double, double }"

#: Instructions by operator, for ints and for floats.
PLAIN: dict[type[ast.operator], tuple[str, str | None]] = {
    ast.Add: ("add nsw i64", "fadd double"),
    ast.Sub: ("sub nsw i64", "fsub double"),
    ast.Mult: ("mul nsw i64", "fmul double"),
    ast.BitAnd: ("and i64", None),
    ast.BitOr: ("or i64", None),
    ast.BitXor: ("xor i64", None),
    ast.LShift: ("shl i64", None),
    ast.RShift: ("ashr i64", None),
}

BITS: dict[type[ast.operator], str] = {ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor"}

#: Conditions by comparison, for ints and for floats.
COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("eq", "oeq"),
    ast.NotEq: ("ne", "une"),
    ast.Lt: ("slt", "olt"),
    ast.LtE: ("sle", "ole"),
    ast.Gt: ("sgt", "ogt"),
    ast.GtE: ("sge", "oge"),
}

FOLDED: dict[type[ast.cmpop], Any] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def binary(body: Body, operator: type[ast.operator], left: Value, right: Value) -> Value:
    """Write ``left operator right``."""
    if operator is ast.Pow:
        return _power(body, left, right)
    if left.kind is right.kind is bool and operator in BITS:
        return Value(bool, body.write(f"{BITS[operator]} i1 {left.text}, {right.text}"))
    kind = float if operator is ast.Div else joined(left.kind, right.kind)
    kind = int if kind is bool else kind
    a, b = body.cast(left, kind).text, body.cast(right, kind).text
    if operator is ast.Div:
        return Value(float, body.write(f"fdiv double {a}, {b}"))
    if operator in (ast.FloorDiv, ast.Mod):
        if kind is int:
            return _divided(body, a, b, is_quotient=operator is ast.FloorDiv)
        body.unit.declare("declare double @llvm.floor.f64(double)")
        body.unit.declare(FLOAT_DIVMOD)
        both = body.write(f"call {PAIR} @kvsim.float_divmod(double {a}, double {b})")
        return Value(float, body.write(f"extractvalue {PAIR} {both}, {int(operator is ast.Mod)}"))
    instruction = PLAIN.get(operator, (None, None))[kind is float]
    if instruction is None:
        raise UntranslatableError(f"{operator.__name__} of {kind}")
    return Value(kind, body.write(f"{instruction} {a}, {b}"))


def _divided(body: Body, a: str, b: str, *, is_quotient: bool) -> Value:
    """Write a quotient rounded down, or its remainder; a division by zero gives zero."""
    is_zero = body.write(f"icmp eq i64 {b}, 0")
    divisor = body.write(f"select i1 {is_zero}, i64 1, i64 {b}")
    rest = body.write(f"srem i64 {a}, {divisor}")
    signs = body.write(f"xor i64 {rest}, {divisor}")
    differ = body.write(f"icmp slt i64 {signs}, 0")
    is_rest = body.write(f"icmp ne i64 {rest}, 0")
    is_down = body.write(f"and i1 {differ}, {is_rest}")
    if is_quotient:
        quotient = body.write(f"sdiv i64 {a}, {divisor}")
        less = body.write(f"sext i1 {is_down} to i64")
        found = body.write(f"add i64 {quotient}, {less}")
    else:
        more = body.write(f"select i1 {is_down}, i64 {divisor}, i64 0")
        found = body.write(f"add i64 {rest}, {more}")
    return Value(int, body.write(f"select i1 {is_zero}, i64 0, i64 {found}"))


def _power(body: Body, left: Value, right: Value) -> Value:
    if left.known is not None and right.known is not None:
        return constant(left.known**right.known)
    if left.kind is not float or right.kind is not float:
        raise UntranslatableError("power of whole numbers")
    body.unit.declare("declare double @llvm.pow.f64(double, double)")
    text = f"call double @llvm.pow.f64(double {left.text}, double {right.text})"
    return Value(float, body.write(text))


def negated(body: Body, value: Value) -> Value:
    if value.known is not None:
        return constant(-value.known)
    if value.kind is float:
        return Value(float, body.write(f"fneg double {value.text}"))
    return binary(body, ast.Sub, constant(0), value)


def compared(body: Body, operator: type[ast.cmpop], left: Value, right: Value) -> Value:
    """Write a comparison of two numbers, or of two records by their addresses."""
    if operator in (ast.Is, ast.IsNot):
        condition = "eq" if operator is ast.Is else "ne"
        kind = body.unit.pointer
        return Value(bool, body.write(f"icmp {condition} {kind} {left.text}, {right.text}"))
    if operator not in COMPARED:
        raise UntranslatableError(operator.__name__)
    kind = joined(left.kind, right.kind)
    kind = int if kind is bool else kind
    a, b = body.cast(left, kind).text, body.cast(right, kind).text
    known = None
    if left.known is not None and right.known is not None:
        known = FOLDED[operator](left.known, right.known)
    whole, real = COMPARED[operator]
    if kind is float:
        return Value(bool, body.write(f"fcmp {real} double {a}, {b}"), known)
    return Value(bool, body.write(f"icmp {whole} i64 {a}, {b}"), known)


def chosen(body: Body, condition: Value, first: Value, second: Value) -> Value:
    """Write a choice between two values that are computed in either case."""
    kind = joined(first.kind, second.kind)
    type_ = {int: "i64", float: "double", bool: "i1"}[kind]
    a, b = body.cast(first, kind).text, body.cast(second, kind).text
    return Value(kind, body.write(f"select i1 {condition.text}, {type_} {a}, {type_} {b}"))
