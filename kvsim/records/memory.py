"""Where records lie: as Python objects, or in flat memory that compiled code shares.

Both memories make the same things, so one text lays out a replica in either. Flat records read and
write like objects; that is slow, and for the host only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from kvsim.records.record import Record, is_record, item_of, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

R = TypeVar("R", bound=Record)


class Memory(Protocol):
    """Makes records and lists of them."""

    compiled: bool

    def one(self, record: type[R]) -> R:
        """Make a record."""

    def records(self, record: type[R], count: int) -> list[R]:
        """Make a list of records."""

    def ints(self, count: int, value: int = 0) -> list[int]:
        """Make a list of equal ints; memory that is never touched is never really taken."""

    def list_of(self, values: Iterable[float] | NDArray[Any]) -> Any:
        """Make a list of given numbers; an array is shared, not copied, where that can be."""


class Zeros(dict[int, int]):
    """A list of zeros of which only what was written takes room."""

    def __missing__(self, place: int) -> int:
        return 0


class Objects:
    """Records are Python objects, lists are lists."""

    compiled = False

    def one(self, record: type[R]) -> R:  # noqa: D102 - see Memory
        return record()

    def records(self, record: type[R], count: int) -> list[R]:  # noqa: D102
        return [record() for _ in range(count)]

    def ints(self, count: int, value: int = 0) -> Any:  # noqa: D102
        return [value] * count if value or count <= 64 else Zeros()

    def list_of(self, values: Iterable[float] | NDArray[Any]) -> Any:  # noqa: D102
        return Numbers(values) if isinstance(values, np.ndarray) else list(values)


class Flat:
    """Records and lists are NumPy memory, kept alive here; see :class:`View`."""

    compiled = True

    def __init__(self) -> None:
        self.lists: dict[int, Numbers | Views] = {}  # by address

    def one(self, record: type[R]) -> R:  # noqa: D102
        return Views(filled(record, 1), record, self)[0]  # type: ignore[return-value]

    def records(self, record: type[R], count: int) -> list[R]:  # noqa: D102
        return Views(filled(record, count), record, self)  # type: ignore[return-value]

    def ints(self, count: int, value: int = 0) -> Any:  # noqa: D102
        if not value:
            return Numbers(np.zeros(count, np.int64))
        return Numbers(np.full(count, value, np.int64))

    def list_of(self, values: Iterable[float] | NDArray[Any]) -> Any:  # noqa: D102
        array = values if isinstance(values, np.ndarray) else np.array(list(values))
        return Numbers(np.ascontiguousarray(array))


def filled(record: type[Record], count: int) -> NDArray[Any]:
    """Return the memory of new records; it begins a cache line."""
    dtype, initial = record.dtype(), record.initial()
    raw = np.zeros(count * dtype.itemsize + 64, np.uint8)
    first = -raw.ctypes.data % 64
    array = raw[first : first + count * dtype.itemsize].view(dtype)
    if initial.tobytes().strip(b"\0"):
        array[:] = initial
    return array


class Numbers:
    """A list of numbers in flat memory that gives Python's own, which never wrap around."""

    def __init__(self, array: Any) -> None:
        self.array: NDArray[Any] = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: int) -> Any:
        return self.array[place].item()

    def __setitem__(self, place: int, value: float) -> None:
        self.array[place] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array.tolist())


class Views:
    """A list of records in flat memory."""

    def __init__(self, array: NDArray[Any], record: type[Record], memory: Flat) -> None:
        self.array, self.record, self.memory = array, record, memory

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: int) -> View:
        return View(self.array[place : place + 1], self.record, self.memory)

    def __iter__(self) -> Iterator[View]:
        return (self[place] for place in range(len(self)))


class View:
    """A record in flat memory, by attributes. A list's address changes when it is replaced."""

    __slots__ = ("_array", "_memory", "_record")

    def __init__(self, array: NDArray[Any], record: type[Record], memory: Flat) -> None:
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_memory", memory)

    @property
    def address(self) -> int:
        """Where it lies."""
        return int(self._array.ctypes.data)

    def __getattr__(self, name: str) -> Any:
        kind = self._record.kinds().get(name)
        if kind is None:
            return self._record.derived()[name](self)
        kind, value = plain(kind), self._array[name]
        if is_record(kind):
            return View(value, kind, self._memory)
        if item_of(kind) is not None:
            return self._memory.lists.get(int(value["address"][0]), ())
        return bool(value[0]) if kind is bool else value[0].item()

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self._record.kinds().get(name)
        if kind is None:  # a field that exists in Python only
            return
        if item_of(kind) is None:
            self._array[name] = value
            return
        address = value.array.ctypes.data if len(value) else 0
        self._memory.lists[address] = value
        self._array[name][0] = (address, len(value))
