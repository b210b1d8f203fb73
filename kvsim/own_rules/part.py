"""The base of a user's rules: parameters and sized state as annotated fields, rules as methods.

In Python, an instance has its state in attributes. In compiled code, the state is in flat memory,
and a record has the address of each operation's machine code (:mod:`kvsim.compiled.user_rules`).
"""

from __future__ import annotations

import sys
from copy import deepcopy
from dataclasses import dataclass
from inspect import Parameter, Signature, get_annotations
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    dataclass_transform,
    get_origin,
    get_type_hints,
)

import numpy as np

from kvsim.compiled.rule_check import check_promises
from kvsim.parametric import Parametric
from kvsim.records.memory import Numbers, View, Views, copied
from kvsim.records.record import Record, is_record, item_of, strip_width
from kvsim.registry import convert_params

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.records.memory import Memory

#: Fields with addresses, in every state in flat memory: those of the replica's clock, and of the
#: values ``goes_on`` and ``hint`` of the request that frees blocks.
CLOCK, GOES_ON, HINT = "clock_address", "goes_on_address", "hint_address"


class Sized(NamedTuple):
    """Declared state of a part: ``per`` (block, request or replica), and the initial value."""

    per: str
    value: Any


def per_block(value: Any = 0, *, init: Literal[False] = False) -> Any:
    """Declare a list with an item for each block of the pool, by block id.

    Parameters
    ----------
    value : initial number of every item, or the record class of the items
    init : for type checkers only: the field is no parameter of the class
    """
    return Sized("block", value)


def per_request(value: Any = 0, *, init: Literal[False] = False) -> Any:
    """Declare a list with an item for each request with KV memory; index ``request.own_blocks``.

    These indices are reused: reset the item when a request frees its memory.
    """
    return Sized("request", value)


def per_replica(value: Any = 0, *, init: Literal[False] = False) -> Any:
    """Declare one number or record, such as ``per_replica(Queue)``, per replica (or gateway)."""
    return Sized("replica", value)


class Slots(dict[int, Any]):
    """A Python list in which only touched items take memory; indices are checked."""

    def __init__(self, size: float, value: Any) -> None:
        super().__init__()
        self.size, self.value = size, value

    def __missing__(self, place: int) -> Any:
        self._check(place)
        if not isinstance(self.value, type):
            return self.value
        made = self.value()
        super().__setitem__(place, made)
        return made

    def __setitem__(self, place: int, value: Any) -> None:
        self._check(place)
        super().__setitem__(place, value)

    def __len__(self) -> int:
        return int(self.size)

    def _check(self, place: int) -> None:
        if not 0 <= place < self.size:
            raise IndexError(f"index {place} of a list of {self.size}")


class _Signature:
    """Descriptor that returns the signature of a class of rules."""

    def __get__(self, instance: object, cls: type[RulePart]) -> Signature:
        return signature_of(cls, *cls.BEFORE)


@dataclass_transform(kw_only_default=True, field_specifiers=(per_block, per_request, per_replica))
class RulePart(Parametric):
    """Base of a user's rules.

    A field with a number as its default is a parameter, ``NAME+KEY=VALUE``; its annotation may have
    limits, as in ``Annotated[float, Field(ge=0)]``. A field with :func:`per_block`,
    :func:`per_request` or :func:`per_replica` is state.
    """

    #: Operations that kvsim calls, in the order of their addresses; a class may omit those that its
    #: base omits.
    OPERATIONS: ClassVar[tuple[str, ...]] = ()
    #: Result type of each operation, and record type of its first argument, if this is no number; a
    #: second argument is then the time, if the rules have a clock.
    RETURNS: ClassVar[Mapping[str, type]] = {}
    TAKES: ClassVar[Mapping[str, type[Record]]] = {}
    #: Fields of the first argument that operations may write.
    WRITES: ClassVar[tuple[str, ...]] = ()
    #: Compiled code calls the operations as C functions, which cannot raise exceptions.
    BY_C: ClassVar[bool] = False
    #: Objects for which state may be declared.
    SIZES: ClassVar[tuple[str, ...]] = ("block", "replica")
    #: Parameters of the class before those of its fields.
    BEFORE: ClassVar[tuple[Parameter, ...]] = ()
    __signature__: ClassVar[Any] = _Signature()
    #: Returns the time in seconds; a replica sets it to its own clock.
    clock: Callable[[], float] = staticmethod(lambda: 0.0)

    #: The user's class, set on an instance over flat memory.
    plain: type[Any] | None = None

    _kinds: ClassVar[dict[str, Any]]
    _sized: ClassVar[dict[str, Sized]]
    _record: ClassVar[Any]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        base: Any = next(one for one in cls.__mro__ if "OPERATIONS" in vars(one))
        for name, kind in [] if base is cls else get_annotations(cls).items():
            if _is_taken(base, name) and "ClassVar" not in str(kind):
                label = f"{cls.__module__}:{cls.__name__}.{name}"
                raise ValueError(f"{label}: kvsim uses this name itself: rename the field")
        cls._sized = {n: v for c in cls.__mro__[::-1] for n, v in _declared(c).items()}
        for name in [n for n, v in vars(cls).items() if isinstance(v, Sized)]:
            delattr(cls, name)  # state lives in instances

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Return the type of every field, parameters first."""
        if "_kinds" not in cls.__dict__:
            found: dict[str, Any] = {}
            for one in cls.__mro__[::-1]:
                if issubclass(one, RulePart):
                    found |= _annotated(one)
            for name, kind in found.items():
                _check_field(cls, name, kind)
            cls._kinds = dict(sorted(found.items(), key=lambda field: field[0] in cls._sized))
        return cls._kinds

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Return the default of every parameter."""
        return {name: getattr(cls, name) for name in cls.kinds() if name not in cls._sized}

    @classmethod
    def record(cls) -> type[Record]:
        """Return the record type of the class's fields, for flat memory."""
        if "_record" not in cls.__dict__:
            kinds = cls.kinds() | {CLOCK: int, GOES_ON: int, HINT: int}
            given = cls.parameters() | {CLOCK: 0, GOES_ON: 0, HINT: 0}
            given |= {n: s.value for n, s in cls._sized.items() if not isinstance(s.value, type)}
            scalar = {n: given[n] for n, kind in kinds.items() if strip_width(kind) in SCALARS}
            lists = {n: None for n in kinds if n not in scalar}
            body = {"__annotations__": kinds, "__module__": cls.__module__, **lists, **scalar}
            made: Any = dataclass(slots=True)(type(cls.__name__, (Record,), body))
            made._defaults = scalar
            cls._record = made
        found: type[Record] = cls._record
        return found

    def __init__(self, **parameters: Any) -> None:
        given = convert_params(type(self).__name__, type(self), parameters)
        for name, value in (self.parameters() | given).items():
            setattr(self, name, value)
        self.fill(self, None, {})

    def fill(self, target: Any, memory: Memory | None, sizes: Mapping[str, int]) -> None:
        """Create the state in a record or in the instance; lists without a size are unbounded."""
        for name, (per, value) in self._sized.items():
            kind = self.kinds()[name]
            if item_of(kind) is not None:
                setattr(target, name, _items(kind, value, memory, sizes.get(per, float("inf"))))
            elif target is self:
                setattr(self, name, value() if isinstance(value, type) else value)

    def resize(self, per: str, number: int) -> None:
        """Change the length of the Python lists with an item per block or per request."""
        for name, sized in self._sized.items():
            if sized.per == per:
                getattr(self, name).size = number

    def init_state(self, part: Any, memory: Memory, sizes: Mapping[str, int]) -> Any:
        """Lay out the state in a replica's memory; return the instance that Python calls.

        Parameters
        ----------
        part : the :class:`kvsim.records.part.Part` that receives the addresses
        memory : objects, or flat memory
        sizes : number of blocks and of requests, as ``block`` and ``request``
        """
        if not memory.compiled:
            cls: Any = type(self)
            check_promises(cls)
            self.fill(self, None, sizes)
            return self
        view: Any = memory.one(self.record())
        for name in self.parameters():
            setattr(view, name, getattr(self, name))
        self.fill(view, memory, sizes)
        part.address = view.address
        from kvsim.compiled.user_rules import addresses

        part.calls = memory.list_of(np.array(addresses(type(self)), np.int64))
        return over(self, view)

    def twin(self) -> Any:
        """Return a copy in plain Python, on which the rules can be tried."""
        made = object.__new__(self.plain or type(self))
        for name in self.kinds():
            value = getattr(self, name)
            if isinstance(value, View):
                value = copied(value)
            elif isinstance(value, Views):
                value = [copied(one) for one in value]
            else:
                value = list(value) if isinstance(value, Numbers) else deepcopy(value)
            setattr(made, name, value)
        made.clock = self.clock
        return made


#: Names of attributes that no field may have.
TAKEN = frozenset(("plain", "pool", "laid_out", "config", "counter", "view", CLOCK, GOES_ON, HINT))
#: Types of numbers.
SCALARS = (int, float, bool)


def _declared(cls: type) -> dict[str, Sized]:
    own = {n: v for n, v in vars(cls).items() if isinstance(v, Sized)}
    return {**vars(cls).get("_sized", {}), **own}


def _annotated(cls: type) -> dict[str, Any]:
    """Return the types of the fields that a class declares; of kvsim's bases only the state."""
    given = get_annotations(cls)
    if "OPERATIONS" in vars(cls):
        given = {n: k for n, k in given.items() if n in vars(cls).get("_sized", {})}
    one: Any = type(cls.__name__, (), {"__annotations__": given})  # which may have a ClassVar
    module = sys.modules.get(cls.__module__)  # none if defined by exec
    names = {**getattr(module, "__dict__", {}), **vars(cls)}
    try:
        hints = get_type_hints(one, names, include_extras=True)
    except NameError as error:
        raise ValueError(f"{cls.__module__}:{cls.__name__}: type of a field: {error}") from None
    return {n: k for n, k in hints.items() if k is not ClassVar and get_origin(k) is not ClassVar}


def _is_taken(base: Any, name: str) -> bool:
    """Return True if a field of this name would hide an attribute that kvsim calls or writes."""
    there = getattr(base, name, None)
    is_method = callable(there) or isinstance(there, property)
    return is_method or name in TAKEN or hasattr(Record, name) or hasattr(View, name)


def _check_field(cls: type[RulePart], name: str, kind: Any) -> None:
    """Refuse a field that cannot be laid out in memory."""
    label = f"{cls.__module__}:{cls.__name__}.{name}"
    item, scalar = item_of(kind), strip_width(kind) in SCALARS
    if name not in cls._sized:
        if not scalar:
            raise ValueError(f"{label}: a parameter is int, float or bool")
        if not isinstance(getattr(cls, name, None), SCALARS):
            raise ValueError(f"{label}: a parameter needs a number as its default")
    elif cls._sized[name].per not in cls.SIZES:
        allowed = " and ".join(f"per_{one}()" for one in cls.SIZES)
        raise ValueError(f"{label}: per_{cls._sized[name].per}(): here state is {allowed}")
    elif cls._sized[name].per == "replica":
        if not (scalar or is_record(kind)):
            raise ValueError(f"{label}: per_replica() is for int, float, bool and records")
    elif item is None or (strip_width(item) not in (int, float) and not is_record(item)):
        raise ValueError(f"{label}: its type must be list[int], list[float] or a list of records")


def _items(kind: Any, value: Any, memory: Memory | None, size: float) -> Any:
    """Make a list of the type of a field, with ``size`` items."""
    item = item_of(kind)
    if memory is None:
        return Slots(size, item if is_record(item) else strip_width(item)(value))
    if is_record(item):
        return memory.room(item, int(size))
    if strip_width(item) is float:
        return memory.list_of(np.full(int(size), value, np.float64))
    return memory.ints(int(size), value) if item is int else memory.shorts(int(size), value)


def signature_of(cls: type[RulePart], *before: Parameter) -> Signature:
    """Return the signature of a class: its keyword parameters, after those ``before``."""
    kinds, given = cls.kinds(), cls.parameters()
    own = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=kinds[name])
        for name, value in given.items()
    ]
    return Signature([*before, *own])


def over(part: RulePart, view: Any) -> Any:
    """Return an instance with fields that read and write a record in flat memory."""
    cls = type(part)
    body: dict[str, Any] = {name: _seen_through(name) for name in cls.kinds()}
    body |= {"OPERATIONS": cls.OPERATIONS, "_kinds": cls.kinds()}
    made: Any = object.__new__(type(cls.__name__, (cls,), body))
    made.view, made.plain = view, cls
    return made


def _seen_through(name: str) -> property:
    def put(part: Any, value: Any) -> None:
        setattr(part.view, name, value)

    return property(lambda part: getattr(part.view, name), put)
