"""NumPy arrays: items, rows, slices and shapes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvsim.compiled.translation.checks import check_index
from kvsim.compiled.translation.kinds import (
    Array,
    UntranslatableError,
    Value,
    constant,
    size_of,
    type_of,
)
from kvsim.compiled.translation.operators import binary, chosen, compared

if TYPE_CHECKING:
    from kvsim.compiled.translation.body import Body


def word_of(body: Body, array: Value, place: int) -> str:
    """Return the address of an array (word 0), its lengths, or the bytes between its items."""
    if not isinstance(array.kind, Array):
        raise UntranslatableError(f"length of {array.kind}")
    return body.write(f"extractvalue {type_of(array.kind)} {array.text}, {place}")


def length_of(body: Body, array: Value) -> Value:
    return Value(int, word_of(body, array, 1))


def shape_of(body: Body, array: Value) -> Value:
    """Return the shape of an array as a tuple."""
    kind, text = (int,) * array.kind.ndim, "undef"
    for axis in range(array.kind.ndim):
        length = word_of(body, array, 1 + axis)
        text = body.write(f"insertvalue {type_of(kind)} {text}, i64 {length}, {axis}")
    return Value(kind, text)


def address_at(body: Body, array: Value, places: list[Value]) -> str:
    """Return the address of an item, or of a row if there are fewer places than dimensions."""
    kind, size = array.kind, str(size_of(array.kind.item))
    if kind.is_strided:
        size = word_of(body, array, 2)
    if body.unit.checked:
        for axis, place in enumerate(places):
            check_index(body, place.text, word_of(body, array, 1 + axis))
    at = places[0].text
    if kind.ndim == 2:
        at = body.write(f"mul nsw i64 {at}, {word_of(body, array, 2)}")
        if len(places) == 2:
            at = body.write(f"add nsw i64 {at}, {places[1].text}")
    return body.offset(word_of(body, array, 0), body.write(f"mul nsw i64 {at}, {size}"))


def array_at(body: Body, kind: Array, address: str, words: list[str]) -> Value:
    """Return an array of its address, and its lengths (and the bytes between its items)."""
    text = body.write(f"insertvalue {type_of(kind)} undef, {body.unit.pointer} {address}, 0")
    for place, word in enumerate(words, 1):
        text = body.write(f"insertvalue {type_of(kind)} {text}, i64 {word}, {place}")
    return Value(kind, text)


def row_of(body: Body, array: Value, place: Value) -> Value:
    """Return a row of an array."""
    length = word_of(body, array, 2)
    return array_at(body, Array(array.kind.item), address_at(body, array, [place]), [length])


def cut(body: Body, array: Value, start: Value | None, stop: Value | None) -> Value:
    """Return a slice of an array; its ends are not negative, and are cut off as in Python."""
    if array.kind.ndim > 1:
        raise UntranslatableError("a slice of rows")
    length = length_of(body, array)
    first = constant(0) if start is None else _least(body, start, length)
    last = length if stop is None else _least(body, stop, length)
    left = binary(body, ast.Sub, last, first)
    left = chosen(body, compared(body, ast.Lt, left, constant(0)), constant(0), left)
    size = word_of(body, array, 2) if array.kind.is_strided else str(size_of(array.kind.item))
    offset = body.write(f"mul nsw i64 {first.text}, {size}")
    words = [left.text, size] if array.kind.is_strided else [left.text]
    return array_at(body, array.kind, body.offset(word_of(body, array, 0), offset), words)


def _least(body: Body, one: Value, other: Value) -> Value:
    return chosen(body, compared(body, ast.Lt, other, one), other, one)
