"""Functions over arrays, records and numbers, translated with all functions that they call."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from kvsim.compiled.entry import ENTRY, FOLDER
from kvsim.compiled.machine import CHECKED, address_in, check_fault, library_of
from kvsim.compiled.translation.arrays import array_at
from kvsim.compiled.translation.expressions import packed
from kvsim.compiled.translation.kinds import POINTER, Array, Value
from kvsim.compiled.translation.unit import Unit
from kvsim.records.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.compiled.translation.body import Body


def translated(function: Any) -> Callable[..., int]:
    """Return a function that is compiled or loaded at its first call, for the kinds of that call.

    Parameters
    ----------
    function : its arguments are arrays, numbers and tuples of them; it returns a whole number or
        nothing. A call is fast if its arrays and tuples are the objects of the last call.
    """
    held: Any = ()  # the last arguments, their kinds, and the offset of their words in bytes
    kinds: Any = ()
    offsets: list[int] = []
    entry: Any = None
    words, address = bytearray(), 0

    def call(*given: Any) -> int:
        nonlocal held, kinds, offsets, entry, words, address
        for one, other, kind, offset in zip(given, held, kinds, offsets, strict=False):
            if one is other:
                continue
            if type(one) is kind:  # a number
                struct.pack_into("q" if kind is int else "d", words, offset, one)
                continue
            if type(one) is np.ndarray and type(other) is np.ndarray and _is_like(one, other):
                start = one.__array_interface__["data"][0]
                struct.pack_into("qq", words, offset, start, len(one))
                continue
            if _kind(one) != kind:
                held = ()
                break
            struct.pack_into(_format(one), words, offset, *_words(one))
        if len(given) != len(held):
            kinds, offsets = _kind(given), _offsets(given)
            words = bytearray(struct.pack(_format(given), *_words(given)))
            address = ctypes.addressof(ctypes.c_char.from_buffer(words))
            entry = _entry(function, kinds)
        held = given
        found: int = entry(address, 0, 0)
        check_fault()
        return found

    return call


def _kind(value: Any) -> Any:
    """Return the kind of an argument."""
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    if not isinstance(value, np.ndarray):
        return float if isinstance(value, float) else int
    if value.dtype.names:
        return Array(Event)
    base = {"b": bool, "f": float}.get(value.dtype.kind, int)
    item = base if value.itemsize == 8 else Annotated[base, 8 * value.itemsize]
    return Array(item, value.ndim, not value.flags.c_contiguous)


def _is_like(one: Any, other: Any) -> bool:
    """Return True if two arrays of one dimension are of the same kind, for sure."""
    is_flat = one.ndim == other.ndim == 1 and one.dtype is other.dtype
    return is_flat and one.flags.c_contiguous and other.flags.c_contiguous


def _format(value: Any) -> str:
    """Return the format of an argument's words, as in ``struct``."""
    if isinstance(value, tuple):
        return "".join(map(_format, value))
    if isinstance(value, np.ndarray):
        return "q" * (1 + value.ndim + (not value.flags.c_contiguous))
    return "d" if isinstance(value, float) else "q"


def _words(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for one in value:
            yield from _words(one)
    elif isinstance(value, np.ndarray):
        yield value.__array_interface__["data"][0]
        yield from value.shape
        if not value.flags.c_contiguous:
            yield value.strides[0]
    else:
        yield value


def _offsets(given: Any) -> list[int]:
    """Return by argument the offset of its first word, in bytes."""
    numbers = [sum(1 for _ in _words(one)) for one in given]
    return [8 * sum(numbers[:place]) for place in range(len(given))]


@cache
def _entry(function: Any, kinds: Any) -> Any:
    """Return the function's entry; its first word is the address of the words of all arguments."""
    name = f"{function.__name__}-{hashlib.sha256(repr(kinds).encode()).hexdigest()[:8]}"

    def text_of() -> str:
        unit = Unit("loops", {}, {}, lambda rule, _: rule, lambda _: False, checked=CHECKED)

        def write(body: Body, words: list[Value]) -> Value:
            start = body.write(f"inttoptr i64 {words[0].text} to {POINTER}")
            given = _read(body, kinds, start, iter(range(10**4)))
            return unit.call(body, function, [*given])

        unit.entry(name, int, write)
        return unit.text()

    return ENTRY(address_in(library_of(name, FOLDER, text_of), name))


def _read(body: Body, kinds: Any, start: str, places: Iterator[int]) -> Iterator[Value]:
    """Read arguments from their words."""
    for kind in kinds:
        if isinstance(kind, tuple):
            yield packed(body, [*_read(body, kind, start, places)], kind)
            continue
        types = [kind]
        if isinstance(kind, Array):
            types = [POINTER, *[int] * (kind.ndim + kind.is_strided)]
        words = [_load(body, one, body.offset(start, str(8 * next(places)))) for one in types]
        is_array = isinstance(kind, Array)
        yield array_at(body, kind, words[0], words[1:]) if is_array else Value(kind, words[0])


def _load(body: Body, kind: Any, address: str) -> str:
    return body.load({int: "i64", float: "double"}.get(kind, POINTER), address)
