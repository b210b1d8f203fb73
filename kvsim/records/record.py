"""The record: one declaration makes a Python class with slots and a NumPy dtype.

A field is an int, a float, a bool, another record (embedded), or a list of ints, floats or records.
Compiled code sees a list as the address of its first item and its length. A field annotated
``Any`` exists in Python only. Rules read and write fields by name in either form.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    import numpy as np

#: The index that stands for no block, no request or no table.
NONE = -1

#: An int of 32 bits in compiled code. Every step uses Short fields, few steps use Rare ones.
Short: TypeAlias = Annotated[int, 32]
Rare: TypeAlias = Annotated[int, 32, "rare"]
#: An int of 8 bits in compiled code.
Tiny: TypeAlias = Annotated[int, 8]
#: A float that compiled code stores next to the Short fields.
Hot: TypeAlias = Annotated[float, 64]


class Record:
    """Base of all records; subclasses are dataclasses with slots and a default for every field."""

    __slots__ = ()

    _kinds: ClassVar[dict[str, Any]]
    _dtype: ClassVar[Any]
    _initial: ClassVar[Any]
    _defaults: ClassVar[dict[str, Any]]

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Return the annotation of every field that compiled code has, in order."""
        if "_kinds" not in cls.__dict__:
            hints = get_type_hints(cls, include_extras=True)
            named = {f.name: hints[f.name] for f in fields(cls)}  # type: ignore[arg-type]
            cls._kinds = {name: kind for name, kind in named.items() if kind is not Any}
        return cls._kinds

    @classmethod
    def dtype(cls) -> np.dtype[Any]:
        """Return the memory layout: short and hot fields first, so that they share a cache line."""
        import numpy as np  # slow to load, and not needed by those who only name options

        if "_dtype" not in cls.__dict__:
            kinds = cls.kinds()
            formats = {name: format_of(kind) for name, kind in kinds.items()}
            offsets, end = {}, 0
            for name in sorted(kinds, key=lambda n: _rank(kinds[n])):
                end += -end % min(formats[name].itemsize, 8)
                offsets[name] = end
                end += formats[name].itemsize
            end += -end % (64 if end > 128 else 8)
            cls._dtype = np.dtype(
                {
                    "names": list(formats),
                    "formats": list(formats.values()),
                    "offsets": [offsets[name] for name in formats],
                    "itemsize": end,
                }
            )
        layout: np.dtype[Any] = cls._dtype
        return layout

    @classmethod
    def initial(cls) -> Any:
        """Return the memory of a record with initial values, shape (1,)."""
        import numpy as np

        if "_initial" not in cls.__dict__:
            memory = np.zeros(1, cls.dtype())
            for name, kind in cls.kinds().items():
                if is_record(kind):
                    memory[name] = kind.initial()
            for name, value in cls.defaults().items():
                memory[name] = value
            cls._initial = memory
        return cls._initial

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the initial value of every number and flag."""
        if "_defaults" not in cls.__dict__:
            numbers = [f for f in fields(cls) if f.default is not MISSING]  # type: ignore[arg-type]
            cls._defaults = {f.name: f.default for f in numbers if f.name in cls.kinds()}
        return cls._defaults

    def reset(self) -> None:
        """Reset every number and flag to its initial value; lists and embedded records stay."""
        for name, value in self.defaults().items():
            setattr(self, name, value)

    @classmethod
    def derived(cls) -> dict[str, Any]:
        """Return the getters of the properties."""
        return {n: p.fget for n, p in vars(cls).items() if isinstance(p, property)}


def _rank(kind: Any) -> int:
    """Return the order in memory: short and tiny fields, hot floats, the rest, rare fields."""
    return {Short: 0, Tiny: 1, Hot: 2, Rare: 4}.get(kind, 3)


@cache
def is_record(kind: object) -> bool:
    """Return True if a field is an embedded record."""
    return isinstance(kind, type) and issubclass(kind, Record)


@cache
def item_of(kind: object) -> Any:
    """Return the item type of a list; None for other fields."""
    return get_args(kind)[0] if get_origin(kind) is list else None


def format_of(kind: Any) -> np.dtype[Any]:
    """Return the memory format of a field; for a list, those of its address and its length."""
    import numpy as np

    if get_origin(kind) is Annotated:
        base, bits = get_args(kind)[:2]
        if not isinstance(bits, int):  # limits of a parameter
            return format_of(base)
        return np.dtype(f"{'f' if base is float else 'i'}{bits // 8}")
    if item_of(kind) is not None:
        return np.dtype([("address", np.int64), ("length", np.int64)])
    if is_record(kind):
        layout: np.dtype[Any] = kind.dtype()
        return layout
    return np.dtype(np.float64 if kind is float else np.int64)


@cache
def strip_width(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind
