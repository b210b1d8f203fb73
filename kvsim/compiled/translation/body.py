"""The text of one function while it is written: instructions, labels and local names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvsim.compiled.translation.kinds import (
    IS_OPAQUE,
    NUMBERS,
    POINTER,
    UntranslatableError,
    Value,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class WiderError(Exception):
    """A local name needs a wider kind than it was declared with; write the function again."""


class Body:
    """One function.

    Attributes
    ----------
    unit : the translation to which it belongs
    names : globals of the rule
    returns : the kind that it returns
    where : the name of the rule, for errors
    infers : kinds follow from the text, not from annotations
    returned : kinds of all results so far; None if the kind that it returns is known
    wider : kinds of local names that hold values of several kinds
    line : the line of the current statement
    slots : by local name: kind and address
    loops : labels (next, end) of the loops around the current statement
    is_open : False after a return or a jump, until the next label
    """

    def __init__(self, unit: Any, names: dict[str, Any], returns: Any, where: str = "") -> None:
        self.unit, self.names, self.returns, self.where = unit, names, returns, where
        self.infers = False
        self.returned: list[Any] | None = None
        self.wider: dict[str, Any] = {}
        self.line = 0
        self.slots: dict[str, tuple[Any, str]] = {}
        self.loops: list[tuple[str, str]] = []
        self.is_open = True
        self._reserved: list[str] = []
        self._lines: list[str] = []
        self._targets: set[str] = set()
        self._count = 0

    def text(self) -> str:
        return "\n".join(["entry:", *self._reserved, *self._lines])

    def new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def write(self, instruction: str) -> str:
        """Write an instruction with a result; return the result's name."""
        name = f"%{self.new()}"
        self._lines.append(f"{name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        self._lines.append(instruction)

    def label(self, name: str) -> None:
        """Begin a block, to which an open one goes on."""
        if self.is_open:
            self.do(f"br label %{name}")
        self.do(f"{name}:")
        self.is_open = True

    def jump(self, label: str) -> None:
        if self.is_open:
            self.do(f"br label %{label}")
            self._targets.add(label)
            self.is_open = False

    def branch(self, condition: Value, yes: str, no: str) -> None:
        self.do(f"br i1 {condition.text}, label %{yes}, label %{no}")
        self._targets |= {yes, no}
        self.is_open = False

    def leave(self) -> None:
        """Return zero."""
        is_empty = self.returns is None
        self.do("ret void" if is_empty else f"ret {type_of(self.returns)} zeroinitializer")
        self.is_open = False

    def has_branch_to(self, label: str) -> bool:
        return label in self._targets

    def mark(self) -> int:
        """Return the current place in the text, for :meth:`at`."""
        return len(self._lines)

    @contextmanager
    def at(self, place: int) -> Iterator[None]:
        """Write inside the block at an earlier place."""
        after = self._lines[place:]
        del self._lines[place:]
        yield
        self._lines += after

    # -- memory -----------------------------------------------------------------------------------

    def reserve(self, kind: Any) -> str:
        """Return the address of memory on the stack for a value, or for one of an LLVM type."""
        name = f"%{self.new()}"
        type_ = kind if isinstance(kind, str) else type_of(kind)
        self._reserved.append(f"{name} = alloca {type_}")
        return name

    def load(self, type_: str, address: str) -> str:
        return self.write(f"load {type_}, {self._typed(type_, address)}")

    def store(self, type_: str, value: str, address: str) -> None:
        self.do(f"store {type_} {value}, {self._typed(type_, address)}")

    def get(self, slot: tuple[Any, str]) -> Value:
        kind, address = slot
        pointer = "ptr" if IS_OPAQUE else f"{type_of(kind)}*"
        return Value(kind, self.write(f"load {type_of(kind)}, {pointer} {address}"))

    def put(self, slot: tuple[Any, str], value: Value) -> None:
        kind, address = slot
        pointer = "ptr" if IS_OPAQUE else f"{type_of(kind)}*"
        self.do(f"store {type_of(kind)} {self.cast(value, kind).text}, {pointer} {address}")

    def offset(self, address: str, place: str) -> str:
        """Return an address plus a number of bytes."""
        return self.write(f"getelementptr inbounds i8, {POINTER} {address}, i64 {place}")

    def _typed(self, type_: str, address: str) -> str:
        if IS_OPAQUE:
            return f"ptr {address}"
        return f"{type_}* " + self.write(f"bitcast i8* {address} to {type_}*")

    # -- casts ------------------------------------------------------------------------------------

    def cast(self, value: Value, kind: Any) -> Value:
        """Return a value as a kind that can hold it."""
        if value.kind == kind or (type_of(kind) == POINTER and type_of(value.kind) == POINTER):
            return value
        if value.kind is bool and kind is int:
            return Value(int, self.write(f"zext i1 {value.text} to i64"), _plus(value.known))
        if value.kind in (int, bool) and kind is float:
            number = self.cast(value, int)
            return Value(float, self.write(f"sitofp i64 {number.text} to double"))
        raise UntranslatableError(f"{value.kind} as {kind}")

    def truth(self, value: Value) -> Value:
        """Return ``bool(value)``."""
        if value.kind is bool:
            return value
        known = None if value.known is None else bool(value.known)
        if value.kind is int:
            return Value(bool, self.write(f"icmp ne i64 {value.text}, 0"), known)
        if value.kind is float:
            return Value(bool, self.write(f"fcmp une double {value.text}, 0.0"), known)
        raise UntranslatableError(f"truth of {value.kind}")


def _plus(known: Any) -> Any:
    return None if known is None else int(known)


def joined(first: Any, second: Any) -> Any:
    """Return the kind that holds values of both kinds."""
    if first == second:
        return first
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        return tuple(map(joined, first, second))
    if first in NUMBERS and second in NUMBERS and None not in (first, second):
        return float if float in (first, second) else int
    if type_of(first) == type_of(second) == POINTER:
        return first
    raise UntranslatableError(f"{first} or {second}")
