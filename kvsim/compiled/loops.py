"""Functions over arrays, records and numbers, translated with all functions that they call."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from kvsim.compiled.cache import cache_folder
from kvsim.compiled.entry import ENTRY
from kvsim.compiled.machine import address_in, library_of
from kvsim.compiled.translation.arrays import array_at
from kvsim.compiled.translation.expressions import packed
from kvsim.compiled.translation.kinds import POINTER, Array, Value
from kvsim.compiled.translation.unit import Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.compiled.translation.body import Body

FOLDER = cache_folder()


def translated(function: Any) -> Callable[..., int]:
    """Return a function that is compiled or loaded at its first call, for the kinds of that call.

    Parameters
    ----------
    function : its arguments are arrays, numbers and tuples of them; it returns a whole number
    """

    def call(*given: Any) -> int:
        words = struct.pack(*_packed(given))
        return int(_entry(function, _kind(given))(_address(words), 0, 0))

    return call


def _kind(value: Any) -> Any:
    """Return the kind of an argument."""
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    if not isinstance(value, np.ndarray):
        return float if isinstance(value, float) else int
    base = {"b": bool, "f": float}.get(value.dtype.kind, int)
    item = base if value.itemsize == 8 else Annotated[base, 8 * value.itemsize]
    return Array(item, value.ndim, not value.flags.c_contiguous)


def _packed(given: Any) -> list[Any]:
    """Return a format of ``struct``, and the words of the arguments."""
    words = [*_words(given)]
    return ["".join("d" if isinstance(word, float) else "q" for word in words), *words]


def _words(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for one in value:
            yield from _words(one)
    elif isinstance(value, np.ndarray):
        yield value.ctypes.data
        yield from value.shape
        if not value.flags.c_contiguous:
            yield value.strides[0]
    else:
        yield float(value) if isinstance(value, float) else int(value)


def _address(words: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(words), ctypes.c_void_p).value or 0


@cache
def _entry(function: Any, kinds: Any) -> Any:
    """Return the function's entry; its first word is the address of the words of all arguments."""
    name = f"{function.__name__}-{hashlib.sha256(repr(kinds).encode()).hexdigest()[:8]}"

    def text_of() -> str:
        unit = Unit("loops", {}, {}, lambda rule, _: rule, lambda _: False)

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
