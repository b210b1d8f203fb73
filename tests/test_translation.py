"""The translation of rules to LLVM: each expression and statement gives what Python gives."""

from __future__ import annotations

import ctypes
import math
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvsim.compiled import machine
from kvsim.compiled.translate import unit_of
from kvsim.compiled.translation.calls import call_float, call_int, float_at
from kvsim.compiled.translation.kinds import UntranslatableError
from kvsim.compiled.variants import CONSTANTS
from kvsim.records.memory import Flat, Objects
from kvsim.records.record import NONE, Record, Short, Tiny
from kvsim.rules import engine
from kvsim.rules.blocks.keys import times_plus

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
    nearest = round(a / 2) * 101 + math.trunc(b / 3) * 17
    return (
        nearest + math.floor(a / 7) * 31 + math.ceil(b / 7) + int(c / 7) + abs(a) + int(abs(b / 3))
    )


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


YES, MANY = True, 7


def constants(a: int, b: int, c: int) -> int:
    found = 1 if not YES else 2 if MANY < 7 or MANY > 7 else 3 if MANY <= 7 else 4
    if YES and MANY >= 7 and a > b:
        return found
    while MANY < 7 or (b > c and YES):
        return 5
    return 6 if MANY != 7 or MANY == 8 or b == c else 7


def loop_variables(a: int, b: int, c: int) -> int:
    total, most = 0, b % 7
    for k in range(a % 5, most):
        most = 3
        total = total * 3 + k
        k = 9 + abs(c)  # noqa: PLW2901 - does not change the range
    k = -1
    for k in range(most):
        if k > 3 and total > c:
            return total
        for _ in range(2):
            if total % 2 == k % 2:
                continue
            total += k
    return total * 10 + k


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


def wrapped(a: int, b: int, c: int) -> int:
    return (times_plus(times_plus(a, 2**64 - 59, b), 2**61 + 5, c) >> 3) & (2**60 - 1)


RULES = [
    *(constants, loop_variables, wrapped),
    *(divided, float_remainders, signs_of_zero, powers_and_roots, rounded, mantissas, extremes),
    *(bits, bools, lazy, mixed, nested_choices, loops, swapped, parts),
]


@cache
def compiled(rule, **options):
    name = f"tested-{rule.__name__}{options or ''}"
    with tempfile.TemporaryDirectory() as folder:
        unit = unit_of("", **options)
        library = machine.library_of(name, Path(folder), lambda: unit.entry_of(name, rule))
    return ctypes.PYFUNCTYPE(*[ctypes.c_int64] * 4)(machine.address_in(library, name))


small = st.integers(-12, 12)


@pytest.mark.parametrize("rule", RULES)
@given(a=small, b=small, c=small)
@example(a=-7, b=2, c=0)
@example(a=7, b=-2, c=1)
@example(a=-8, b=-4, c=3)
@example(a=0, b=0, c=0)
@example(a=5, b=3, c=4)
def test_translated_rules_give_what_python_gives(rule, a, b, c):
    assert compiled(rule)(a, b, c) == rule(a, b, c)


@dataclass(slots=True)
class Item(Record):
    """An item of a list of records."""

    number: Short = NONE
    weight: float = 0.25


@dataclass(slots=True)
class Sample(Record):
    """A record with a field of every width, and lists."""

    whole: int = 3
    short: Short = NONE
    tiny: Tiny = 5
    flag: bool = False
    real: float = 1.5
    other: float = 0.0
    rows: list[int] = field(default_factory=list)
    shorts: list[Short] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)

    @property
    def product(self) -> int:
        return self.short * self.tiny - self.whole


def widths(sample: Sample, a: int, b: int) -> int:
    sample.short = 1000 * a
    sample.tiny = b - 1
    sample.flag = a > b
    before = sample.flag + sample.short * 2 + sample.tiny
    sample.whole += a << 33
    sample.items[a % 3].number -= b
    sample.items[b % 3].weight *= a
    sample.shorts[b % 3] = a - b
    sample.rows[a % 3] += sample.shorts[(a - b) % 3] + sample.items[b % 3].number
    if a > 9:
        sample.reset()
        sample.items[2].reset()
    sample.real += sample.product
    return before


def noted(sample: Sample, value: int) -> int:
    """Note that it was called, and in which order."""
    sample.whole = sample.whole * 8 % 2**40 + value
    return value


def noted_flag(sample: Sample, value: int) -> bool:
    return noted(sample, value % 8) > 3


def last_digit(sample: Sample, first: int, second: int = 2, third: int = 3) -> int:
    return noted(sample, first) - 3 * second + 5 * third


def in_order(sample: Sample, a: int, b: int) -> int:
    if a > 0 and noted_flag(sample, a) and noted_flag(sample, b):
        sample.tiny += 1
    elif noted_flag(sample, b) or noted_flag(sample, a):
        sample.short -= 1
    sample.flag = (a > b and noted_flag(sample, 1)) or not noted_flag(sample, b)
    sample.rows[noted(sample, a % 3)] += noted(sample, b % 3) * 10
    sample.whole += last_digit(sample, noted(sample, 1), third=noted(sample, 2))
    sample.real = noted(sample, 3) if noted_flag(sample, a) else sample.whole * 0.5
    return last_digit(sample, noted(sample, a), b) - noted(sample, 4) % 3


def sums(sample: Sample, a: int, b: int) -> int:
    sample.real = ((2.0**53 + a) - 2.0**53) + b / 3
    for k in range(5):
        sample.real += a / 7 * (k - 1.5) * 0.1
    sample.other += a / 3 + b / 7 * 1.1 - 0.3 * sample.real
    return int(sample.real - sample.other)


def zeros(sample: Sample, a: int, b: int) -> int:
    sample.real = min(a * 0.0, b * 0.0)
    sample.other = max(a * 0.0, b * 0.0)
    sample.items[0].weight = a / 8 % (b / 4 + 0.125)
    sample.items[1].weight = abs(a * 0.0) if a != b else -(b * 0.0)
    return 1 if a * 0.0 else 2


def nans(sample: Sample, a: int, b: int) -> int:
    nan, same = sample.real * math.inf - math.inf, sample.real * math.inf - math.inf
    sample.real, sample.other = min(nan, a / 2), min(b / 2, nan)
    sample.items[0].weight, sample.items[1].weight = max(nan, a / 2), max(b / 2, nan)
    sample.flag = not (nan == same or nan < b or nan >= a or nan > a or nan <= b)
    sample.rows[0] = (nan != same) + 2 * bool(nan) + 4 * math.isfinite(nan) + 8 * math.isinf(-nan)
    return 1 if nan else 2


def quotients(sample: Sample, a: int, b: int) -> int:
    divisor = b / 10 + 0.05
    sample.real, sample.other = a / 10 // divisor, a / 10 % divisor
    sample.items[0].weight = a * 0.1 / 3 // 0.1
    sample.items[1].weight = (a * 1e15 + 0.7) // divisor
    return a // (2 * b + 1) - a % (2 * b + 1) * 7


OF_RECORDS = [widths, in_order, sums, zeros, nans, quotients]


def sample_in(memory: Any) -> Any:
    sample = memory.one(Sample)
    lists = memory.ints(3, 4), memory.shorts(3, NONE), memory.records(Item, 3)
    memory.replace(sample, **dict(zip(("rows", "shorts", "items"), lists, strict=True)))
    return sample


def content_of(sample: Any) -> list[str]:
    """Return all numbers of a sample, with the signs of zeros."""
    items = [sample.items[k] for k in range(3)]
    whole = [getattr(sample, name) for name in ("whole", "short", "tiny", "flag")]
    for k, item in enumerate(items):
        whole += [sample.rows[k], sample.shorts[k], item.number]
    floats = [sample.real, sample.other, *(item.weight for item in items)]
    return [*map(repr, whole), *(repr(float(number)) for number in floats)]


@pytest.mark.parametrize("rule", OF_RECORDS)
@given(a=small, b=small)
@example(a=-7, b=2)
@example(a=4, b=-4)
@example(a=0, b=0)
@example(a=11, b=12)
@example(a=11, b=3)
def test_translated_rules_change_records_as_python_does(rule, a, b):
    memory = Flat()
    plain, flat = sample_in(Objects()), sample_in(memory)
    assert compiled(rule)(flat.address, a, b) == rule(plain, a, b)
    assert content_of(flat) == content_of(plain)
    if rule in (widths, in_order):
        again = sample_in(memory)
        assert compiled(rule, checked=True)(again.address, a, b) == rule(sample_in(Objects()), a, b)
        assert content_of(again) == content_of(plain)


def read_at(sample: Sample, place: int, a: int) -> int:
    return sample.rows[place] + a


def test_checked_code_notes_an_index_out_of_range():
    sample, read = sample_in(Flat()), compiled(read_at, checked=True)
    for place in (-1, 0, 2, 3, 2**32):
        found = read(sample.address, place, 7)
        fault, machine.FAULT.value = machine.FAULT.value, 0
        if place in (0, 2):
            assert (found, fault) == (11, 0)
        else:
            line = read_at.__code__.co_firstlineno + 1
            text = ctypes.string_at(fault).decode()
            assert text == f"an index is out of range: {__file__}:{line}, in {__name__}.read_at"


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
    assert compiled(divided_by_zero)(7, 3, 0) == 0


@pytest.mark.parametrize(
    "variant", [pytest.param(one, marks=[pytest.mark.long] * bool(one)) for one in CONSTANTS]
)
@pytest.mark.parametrize("checked", [pytest.param(False, marks=pytest.mark.long), True])
def test_every_rule_of_a_variant_is_translated(variant, checked):
    unit = unit_of(variant, checked=checked)
    assert "define i64" in unit.entry_of("entry", engine.serve)


def in_two_parts(a: int, b: int, c: int) -> int:
    return divmod(a, b)[0]


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
        (in_two_parts, "call of divmod"),
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
