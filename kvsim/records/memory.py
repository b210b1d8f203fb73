"""The memory of records: Python objects, or flat memory that compiled code shares.

Both kinds have the same methods, so the same code lays out a replica in either. Python code reads
and writes flat records through views that act like objects; this is slow.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect, insort
from copy import deepcopy
from functools import cache, partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from kvsim.records.record import Record, Short, format_of, is_record, item_of, strip_width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

R = TypeVar("R", bound=Record)

#: The layout of a field in flat memory; ABSENT: it exists in Python only.
ABSENT, NUMBER, FLAG, LIST, RECORD = range(5)

#: Most records in a list of Python objects; this number takes ten seconds and gigabytes.
MOST_OBJECTS = 20_000_000
#: Longer lists of Python objects are made as they are touched, such as the blocks of a pool.
LONG = 4096
#: Arrays of at least this number of bytes are mapped from the operating system.
MAPPED = 1 << 20


class Memory(Protocol):
    """Makes records and lists of them."""

    compiled: bool

    def one(self, record: type[R]) -> R:
        """Make a record."""

    def records(self, record: type[R], count: int) -> list[R]:
        """Make a list of records."""

    def room(self, record: type[R], count: int) -> list[R]:
        """Make a long list of records in which only touched ones take memory."""

    def blank(self, record: type[R], count: int) -> list[R]:
        """Make a list of records without initial values; rules fill each before they read it."""

    def ints(self, count: int, value: int = 0) -> list[int]:
        """Make a list of equal ints; untouched memory is not allocated."""

    def shorts(self, count: int, value: int = 0) -> list[int]:
        """Make a list of equal ints of 32 bits."""

    def floats(self, count: int) -> list[float]:
        """Make a list of zeros."""

    def list_of(self, values: Iterable[float] | NDArray[Any]) -> Any:
        """Make a list of the given numbers; an array is shared, not copied, if possible."""

    def replace(self, record: Record, **lists: Any) -> None:
        """Replace lists of a record; the old ones are released."""

    def share_out(self, rows: Any, name: str, item: Any, count: int) -> Any:
        """Set field ``name`` of every row to a new list of ``count`` items.

        The items are records, or zeros if ``item`` is a number. Returns the items of all lists, one
        list after another.
        """


class Zeros(dict[int, int]):
    """A list of zeros in which only written items take memory."""

    def __missing__(self, place: int) -> int:
        return 0


class Scrap(list[Any]):
    """A list that returns the same scratch record at every index, so that nothing is stored."""

    def __init__(self, record: type[Record]) -> None:
        super().__init__()
        self._record = record()

    def __getitem__(self, place: Any) -> Any:
        return self._record


class Room(dict[int, R]):
    """A list of records that are created when touched."""

    def __init__(self, record: type[R]) -> None:
        super().__init__()
        self.record = record

    def __missing__(self, place: int) -> R:
        made = self[place] = self.record()
        return made


class LongList(Room[R]):
    """A room with a number of records: it has a length, and yields records untouched before."""

    def __init__(self, record: type[R], count: int) -> None:
        super().__init__(record)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[R]:  # type: ignore[override]
        return (self[place] for place in range(self.count))

    def column(self, name: str) -> NDArray[Any]:
        """Return one numeric field of all records, without creating any."""
        values = np.full(self.count, getattr(self.record(), name))
        values[[*self.keys()]] = [getattr(record, name) for record in self.values()]
        return values


class Objects:
    """The memory in which records are Python objects and lists are Python lists."""

    compiled = False

    def one(self, record: type[R]) -> R:
        return record()

    def records(self, record: type[R], count: int) -> list[R]:
        if count > MOST_OBJECTS:
            size = count * (record().__sizeof__() + 8)
            raise MemoryError(
                f"{size:,} bytes for {count:,} records of kind {record.__name__} as Python objects"
            )
        if count > LONG:
            return LongList(record, count)  # type: ignore[return-value]
        return [record() for _ in range(count)]

    def room(self, record: type[R], count: int) -> Any:
        del count
        return Room(record)

    blank = records

    def ints(self, count: int, value: int = 0) -> Any:
        return [value] * count if value or count <= 64 else Zeros()

    shorts = ints

    def floats(self, count: int) -> Any:
        return [0.0] * count

    def replace(self, record: Record, **lists: Any) -> None:
        for name, new in lists.items():
            setattr(record, name, new)

    def share_out(self, rows: Any, name: str, item: Any, count: int) -> Any:
        shares = [items_of(self, item, count) for _ in rows]
        for row, share in zip(rows, shares, strict=True):
            setattr(row, name, share)
        return [one for share in shares for one in share] if is_record(item) else []

    def list_of(self, values: Iterable[float] | NDArray[Any]) -> Any:
        return Numbers(values) if isinstance(values, np.ndarray) else list(values)


class Flat:
    """The memory in which records and lists are NumPy arrays; it keeps these arrays alive."""

    compiled = True

    def __init__(self) -> None:
        self.lists: dict[int, Numbers | Views] = {}  # by address
        self.objects: dict[tuple[int, str], Any] = {}  # values of fields that exist in Python only
        self._shared: list[tuple[int, int, Numbers | Views]] = []  # address, items per list, array

    def list_at(self, address: int) -> Any:
        """Return the list at an address, () for address 0.

        A list made by ``share_out`` is created here on demand, since there may be a million lists.
        """
        if address in self.lists or not address:
            return self.lists.get(address, ())
        first, count, whole = self._shared[bisect(self._shared, address, key=itemgetter(0)) - 1]
        place = (address - first) // whole.array.strides[0]
        return whole[place : place + count]

    def one(self, record: type[R]) -> R:
        return View(filled(record, 1), record, self)  # type: ignore[return-value]

    def records(self, record: type[R], count: int) -> list[R]:
        return Views(filled(record, count), record, self)  # type: ignore[return-value]

    def room(self, record: type[R], count: int) -> list[R]:
        return self.records(record, count)

    def blank(self, record: type[R], count: int) -> list[R]:
        return Views(zeros(record, count).view(record.dtype()), record, self)  # type: ignore[return-value]

    def ints(self, count: int, value: int = 0) -> Any:
        if not value:
            return Numbers(untouched(8 * count).view(np.int64))
        return Numbers(np.full(count, value, np.int64))

    def shorts(self, count: int, value: int = 0) -> Any:
        if not value:
            return Numbers(untouched(4 * count).view(np.int32))
        return Numbers(np.full(count, value, np.int32))

    def floats(self, count: int) -> Any:
        return Numbers(np.zeros(count))

    def replace(self, record: Any, **lists: Any) -> None:
        for name, new in lists.items():
            old = int(record._array[name]["address"][0])
            setattr(record, name, new)
            if old:
                self.lists.pop(old, None)  # absent if another field shared it and was replaced

    def share_out(self, rows: Any, name: str, item: Any, count: int) -> Any:
        total = len(rows) * count
        whole = items_of(self, item, total)
        size = whole.array.strides[0] * count
        first = whole.array.ctypes.data
        rows.array[name]["address"] = first + size * np.arange(len(rows)) if count else 0
        rows.array[name]["length"] = count
        if total:
            insort(self._shared, (first, count, whole), key=itemgetter(0))
        return whole

    def list_of(self, values: Iterable[float] | NDArray[Any]) -> Any:
        if isinstance(values, range):
            values = np.arange(values.start, values.stop, values.step)
        array = values if isinstance(values, np.ndarray) else np.array(list(values))
        return Numbers(np.ascontiguousarray(array))


def items_of(memory: Memory, item: Any, count: int) -> Any:
    """Make a list of ``count`` items: records, or zeros of 32 or 64 bits for a number type."""
    if is_record(item):
        return memory.records(item, count)
    return memory.shorts(count) if item is Short else memory.ints(count)


def untouched(num_bytes: int) -> NDArray[np.uint8]:
    """Return zeroed bytes; a large array takes memory and time only where it is touched.

    The C library would clear all of a reused allocation, even if little of it is used.
    """
    if num_bytes < MAPPED:
        return np.zeros(num_bytes, np.uint8)
    try:
        return _mapped(num_bytes)
    except (OSError, OverflowError, MemoryError):
        raise MemoryError(f"{num_bytes:,} bytes for lists of a replica") from None


def _mapped(num_bytes: int) -> NDArray[np.uint8]:
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    return np.frombuffer(mmap.mmap(-1, num_bytes, **private), np.uint8)


def zeros(record: type[Record], count: int) -> NDArray[Any]:
    """Return zeroed bytes for ``count`` records, aligned to a cache line of 64 bytes."""
    size = count * record.dtype().itemsize
    try:
        raw = untouched(size + 64)
    except MemoryError:
        what = f"{count:,} records of kind {record.__name__}"
        raise MemoryError(f"{size:,} bytes for {what}") from None
    first = -raw.ctypes.data % 64
    return raw[first : first + size]


def filled(record: type[Record], count: int) -> NDArray[Any]:
    """Return an array of ``count`` records with initial values."""
    array, initial = zeros(record, count), record.initial().view(np.uint8)
    if initial.any():
        array.reshape(count, len(initial))[:] = initial
    return array.view(record.dtype())


class Numbers:
    """A list of numbers in flat memory; its items are read as Python numbers, without overflow."""

    def __init__(self, array: Any) -> None:
        self.array: NDArray[Any] = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: Any) -> Any:
        found = self.array[place]
        return Numbers(found) if isinstance(place, slice) else found.item()

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

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Views(self.array[place], self.record, self.memory)
        return View(self.array[place : place + 1], self.record, self.memory)

    def __iter__(self) -> Iterator[View]:
        return (self[place] for place in range(len(self)))


class View:
    """A record in flat memory with fields as attributes; a list field holds an address."""

    __slots__ = ("_array", "_memory", "_record")

    def __init__(self, array: NDArray[Any], record: type[Record], memory: Flat) -> None:
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_memory", memory)

    @property
    def address(self) -> int:
        return int(self._array.ctypes.data)

    def reset(self) -> None:
        """Reset every number and flag to its initial value; lists and embedded records stay."""
        for name, value in self._record.defaults().items():
            self._array[name] = value

    def __getattr__(self, name: str) -> Any:
        form = _form_of(self._record, name)
        if form == NUMBER:
            return self._array[name].item()
        if form == LIST:
            return self._memory.list_at(int(self._array[name]["address"][0]))
        if form == RECORD:
            return View(self._array[name], strip_width(self._record.kinds()[name]), self._memory)
        if form == FLAG:
            return bool(self._array[name][0])
        if name in self._record.__slots__:  # a field that exists in Python only
            return self._memory.objects.get((self.address, name))
        getter = self._record.derived().get(name)
        return getter(self) if getter else getattr(self._record, name).__get__(self)  # or a method

    def __setattr__(self, name: str, value: Any) -> None:
        form = _form_of(self._record, name)
        if form == ABSENT:  # a field that exists in Python only
            self._memory.objects[self.address, name] = value
            return
        if form != LIST:
            self._array[name] = value
            return
        width = format_of(item_of(self._record.kinds()[name])).itemsize
        if len(value) and value.array.itemsize != width:
            given = value.array.itemsize
            raise TypeError(f"{self._record.__name__}.{name}: {given} bytes an item, not {width}")
        address = value.array.ctypes.data if len(value) else 0
        self._memory.lists[address] = value
        self._array[name][0] = (address, len(value))


@cache
def _form_of(record: type[Record], name: str) -> int:
    """Return the layout of a field, such as LIST; cached, since millions of fields are read."""
    kind = record.kinds().get(name)
    if kind is None:
        return ABSENT
    kind = strip_width(kind)
    if item_of(kind) is not None:
        return LIST
    return RECORD if is_record(kind) else FLAG if kind is bool else NUMBER


def reader_of(record: Any, *names: str) -> Callable[[], Any]:
    """Return a function that reads a number of a record, or several, faster than its attributes."""
    if isinstance(record, View):
        items: list[Callable[[], Any]] = [record._array[name].item for name in names]
        if len(items) == 1:
            return items[0]
        return lambda: tuple([item() for item in items])
    return partial(attrgetter(*names), record)


def column(rows: Any, name: str, count: int | None = None) -> list[Any]:
    """Return one field of the first ``count`` records of a list, or of all records."""
    if isinstance(rows, Views | LongList):
        values: list[Any] = array_of(rows, name)[:count].tolist()
        return values
    if count is None:
        return [getattr(row, name) for row in rows]
    return [getattr(rows[k], name) for k in range(count)]


def array_of(rows: Any, name: str) -> NDArray[Any]:
    """Return one numeric field of all records of a list; not to be written to."""
    if isinstance(rows, Views):
        return rows.array[name]
    if isinstance(rows, LongList):
        return rows.column(name)
    return np.array([getattr(row, name) for row in rows])


def head(numbers: Any, count: int) -> list[Any]:
    """Return the first ``count`` numbers of a list."""
    if isinstance(numbers, Numbers):
        values: list[Any] = numbers.array[:count].tolist()
        return values
    if type(numbers) is list:
        return numbers[:count]
    return [numbers[place] for place in range(count)]


def assign(record: Any, settings: object) -> None:
    """Set each numeric field to the setting of the same name, if it exists and is not None."""
    for name, kind in getattr(record, "_record", record).kinds().items():
        value = getattr(settings, name, None)
        if value is not None and strip_width(kind) in (int, float, bool):
            setattr(record, name, value)


def copied(row: Any) -> Any:
    """Return a deep copy of a record, as Python objects."""
    if not isinstance(row, View):
        return deepcopy(row)
    twin = row._record()
    for name in row._record.kinds():
        value = getattr(row, name)
        if isinstance(value, View):
            value = copied(value)
        elif isinstance(value, Views):
            value = [copied(one) for one in value]
        elif isinstance(value, Numbers):
            value = list(value)
        setattr(twin, name, value)
    return twin
