"""The translation of rules to LLVM: each expression and statement gives what Python gives."""

from __future__ import annotations

import ctypes
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvsim.compiled import machine
from kvsim.compiled.translate import unit_of
from kvsim.compiled.translation.calls import call_float, call_int, float_at
from kvsim.compiled.translation.kinds import UntranslatableError
from kvsim.compiled.variants import CONSTANTS
from kvsim.rules import engine

BITS = math.ldexp(1.0, 20)  # a float is compared by its first 20 bits after the point


def divided(a: int, b: int, c: int) -> int:
    return a // b * 1000 + a % b if b != 0 else c


def divided_by_zero(a: int, b: int, c: int) -> int:
    return a // (b - b) + a % (b - b)


def float_remainders(a: int, b: int, c: int) -> int:
    if b == 0:
        return 0
    x, y = a / 8, b / 4
    return int(x // y) * 1000 + int(x % y * 8)


def signs_of_zero(a: int, b: int, c: int) -> int:
    if b == 0:
        return 0
    return int(math.inf > 1 / ((a - a) * 1.0 % b + 1e-9) > 0)


def powers_and_roots(a: int, b: int, c: int) -> int:
    return int((abs(a) + 0.5) ** 0.3 * BITS) + int(math.sqrt(abs(b)) * BITS) + 2**7


def rounded(a: int, b: int, c: int) -> int:
    return math.floor(a / 7) * 31 + math.ceil(b / 7) + int(c / 7) + abs(a) + int(abs(b / 3))


def mantissas(a: int, b: int, c: int) -> int:
    mantissa, exponent = math.frexp(a / 3)
    return int(mantissa * 4096) * 64 + exponent


def extremes(a: int, b: int, c: int) -> int:
    nan = math.inf - math.inf
    smallest, largest = min(a / 2, b, c), max(a, b / 2, c)
    return int(4 * smallest) + int(4 * largest) * 5 + int(math.isnan(min(nan, a / 2)))


def bits(a: int, b: int, c: int) -> int:
    return (a & b) + ((a | c) ^ b) + (a >> 2) + ((b & 15) << 3)


def bools(a: int, b: int, c: int) -> int:
    both, either = a > b, False
    either |= b > c
    either &= both
    return both + 2 * either + 4 * (not a) + 8 * int(a < b <= c) + 16 * bool(c)


def lazy(a: int, b: int, c: int) -> int:
    is_any = a > 0 or b > 0 or (c != 0 and a // c > 1)
    if a and not (b and c):
        return 1 + is_any
    return 3 if is_any else -a if b in (1, 2, 3) else a if c not in LISTED else 7


LISTED = (2, 4)


def mixed(a: int, b: int, c: int) -> int:
    first = a / 2 if b > c else c
    second = 1 if a > 0 else 0.5 if b > 0 else True
    return int(first * 4) + int(second * 2)


def nested_choices(a: int, b: int, c: int) -> int:
    return (1 if a else 2) if (b if c > 0 else a) > 0 else (3 if (a > b) == (b > c) else 4)


def loops(a: int, b: int, c: int) -> int:
    total, k = 0, 0
    for k in range(a % 9):
        if k == b:
            continue
        for j in range(10, k, -3):
            if j == c:
                break
            total += j
    for step in (a % 3 + 1, 2):
        for at in range(0, b % 20, step):
            total = total * 3 % 1009 + at
            if at > 7:
                break
    while True:
        total -= 5
        if total < 0:
            break
    while total > -20 and k < 4:
        total, k = total - k, k + 1
    return total * 10 + k


def swapped(a: int, b: int, c: int) -> int:
    a, b = b, a
    first, (second, third) = pair(a, c)[0], (b, c)
    c = x = first - second
    x += third
    return a * 7 + b * 3 + c + x


def pair(a: int, b: int) -> tuple[int, float]:
    if a > b:
        return b, True
    return a, 1.5


def parts(a: int, b: int, c: int) -> int:
    low, weight = pair(a, b)
    return low + int(weight * 2) + scaled(b, number=c) + nothing(a)


def scaled(value: float, factor: int = 3, number: int = 0) -> int:
    return int(value * factor) - number


def nothing(a: int) -> bool:
    return a > 3


RULES = [
    *(divided, float_remainders, signs_of_zero, powers_and_roots, rounded, mantissas, extremes),
    *(bits, bools, lazy, mixed, nested_choices, loops, swapped, parts),
]


def compiled(rule, **options):
    name = f"tested-{rule.__name__}{options or ''}"
    with tempfile.TemporaryDirectory() as folder:
        unit = unit_of("", **options)
        library = machine.library_of(name, Path(folder), lambda: unit.entry_of(name, rule))
    return ctypes.PYFUNCTYPE(*[ctypes.c_int64] * 4)(machine.address_in(library, name))


COMPILED = {rule: compiled(rule) for rule in (*RULES, divided_by_zero)}
small = st.integers(-12, 12)


@pytest.mark.parametrize("rule", RULES)
@given(a=small, b=small, c=small)
@example(a=-7, b=2, c=0)
@example(a=7, b=-2, c=1)
@example(a=-8, b=-4, c=3)
@example(a=0, b=0, c=0)
@example(a=5, b=3, c=4)
def test_translated_rules_give_what_python_gives(rule, a, b, c):
    assert COMPILED[rule](a, b, c) == rule(a, b, c)


def called_by_address(entry: int, a: int, b: int) -> int:
    return call_int(entry, a, b, 7)


def called_for_a_float(entry: int, a: int, b: int) -> int:
    return int(call_float(entry, a, b, 7) * 8)


def read_by_address(address: int, b: int, c: int) -> int:
    return int(float_at(address) * 8) + b - c


def test_calls_and_reads_by_address_give_what_python_gives():
    whole = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(lambda a, b, c: a - b * c)
    part = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_int64] * 3)(lambda a, b, c: a / 8 - b * c)
    value = ctypes.c_double(2.5)
    for rule, address, expected in (
        (called_by_address, ctypes.cast(whole, ctypes.c_void_p).value, 3 - 4 * 7),
        (called_for_a_float, ctypes.cast(part, ctypes.c_void_p).value, 3 - 4 * 7 * 8),
        (read_by_address, ctypes.addressof(value), 20 + 3 - 4),
    ):
        assert rule(address, 3, 4) == compiled(rule)(address, 3, 4) == expected


def test_a_division_by_zero_gives_zero():
    assert COMPILED[divided_by_zero](7, 3, 0) == 0


@pytest.mark.parametrize("variant", CONSTANTS)
@pytest.mark.parametrize("checked", [False, True])
def test_every_rule_of_a_variant_is_translated(variant, checked):
    unit = unit_of(variant, checked=checked)
    assert "define i64" in unit.entry_of("entry", engine.serve)


def in_words(a: int, b: int, c: int) -> int:
    return len("words")


def else_of_a_loop(a: int, b: int, c: int) -> int:
    for k in range(a):
        if k == b:
            break
    else:
        return b
    return c


def truncated(a: int, b: int, c: int) -> int:
    a = b / c
    return a + 1


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (in_words, "call of len"),
        (else_of_a_loop, "else of a loop"),
        (truncated, "<class 'float'> as <class 'int'>"),
    ],
)
def test_what_is_not_translated_is_said_with_the_rule(rule, reason):
    with pytest.raises(UntranslatableError, match=rf"{__file__}:\d+: ") as told:
        unit_of("").entry_of("entry", rule)
    first = rule.__code__.co_firstlineno
    assert first < told.value.line <= first + 6
    assert told.value.args == (reason,)
