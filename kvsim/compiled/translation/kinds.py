"""Kinds of values: int, float, bool, a record, a list as annotated, an array, a tuple, or None."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from kvsim.records.record import format_of, is_record, item_of, strip_width

_binding: Any = import_module("llvmlite.binding")

#: LLVM 15 and older have a type of pointer for each type of value.
IS_OPAQUE = _binding.llvm_version_info[0] > 15
POINTER = "ptr" if IS_OPAQUE else "i8*"

NUMBERS = {int: "i64", float: "double", bool: "i1", None: "void"}


class Value(NamedTuple):
    """An operand of LLVM.

    Attributes
    ----------
    kind : int, float, bool, a record class, the annotation of a list, a tuple of kinds, or None
    text : its name or number
    known : the value if it is constant, else None
    """

    kind: Any
    text: str
    known: Any = None


@dataclass(frozen=True)
class Array:
    """The kind of a NumPy array: its address and shape, and the bytes between items if strided.

    Attributes
    ----------
    item : annotation of its items
    ndim : 1, or 2 for contiguous rows
    is_strided : its items are not adjacent
    """

    item: Any
    ndim: int = 1
    is_strided: bool = False


class UntranslatableError(Exception):
    """A rule uses what the translation does not know.

    Attributes
    ----------
    file, line : the place in the rule; None and 0 until it is known
    """

    file: str | None = None
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.args[0]}"


def kind_of(annotation: Any) -> Any:
    """Return the kind of a field, a parameter or a result."""
    if annotation is None or is_record(annotation) or item_of(annotation) is not None:
        return annotation
    if getattr(annotation, "__origin__", None) is tuple:
        return tuple(map(kind_of, annotation.__args__))
    kind = strip_width(annotation)
    if kind not in NUMBERS:
        raise UntranslatableError(f"kind {annotation}")
    return kind


def is_list(kind: Any) -> bool:
    return not isinstance(kind, tuple) and item_of(kind) is not None


def type_of(kind: Any) -> str:
    """Return the LLVM type of a kind."""
    if isinstance(kind, tuple):
        return f"{{ {', '.join(map(type_of, kind))} }}"
    if isinstance(kind, Array):
        return f"{{ {POINTER}{', i64' * (kind.ndim + kind.is_strided)} }}"
    return NUMBERS.get(kind, POINTER)


def stored_type(annotation: Any) -> str:
    """Return the LLVM type of a number in memory."""
    size = format_of(annotation).itemsize
    return "double" if strip_width(annotation) is float else f"i{8 * size}"


def size_of(item: Any) -> int:
    return int(item.dtype().itemsize if is_record(item) else format_of(item).itemsize)


def constant(value: Any) -> Value:
    """Return a number of Python as an operand."""
    if isinstance(value, bool):
        return Value(bool, str(int(value)), value)
    if isinstance(value, int):
        number = int(value)
        return Value(int, str((number + 2**63) % 2**64 - 2**63), number)
    if isinstance(value, float):
        return Value(float, f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}", value)
    raise UntranslatableError(f"constant {value!r}")
