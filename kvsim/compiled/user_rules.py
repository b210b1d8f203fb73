"""Machine code of a user's rules: one entry per operation, cached by a hash of the sources."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvsim.compiled.entry import FOLDER as COMMON
from kvsim.compiled.machine import CHECKED, address_in, library_of
from kvsim.compiled.rule_check import check_rules, rules_of, sources
from kvsim.compiled.translation.calls import float_at
from kvsim.compiled.translation.kinds import UntranslatableError, Value
from kvsim.compiled.translation.unit import Unit, record_at

if TYPE_CHECKING:
    from kvsim.compiled.translation.body import Body

FOLDER = COMMON / "parts"

#: The error for a result that would be truncated to a whole number.
WRONG_TYPE = "must return a whole number (// and int() make one)"

_addresses: dict[type[Any], list[int]] = {}


def addresses(cls: type[Any]) -> list[int]:
    """Return the address of each operation of a class of rules; 0 for one that is not defined.

    Raises
    ------
    ValueError
        If a rule uses syntax that is not allowed, with its file and line.
    """
    if cls not in _addresses:
        check_rules(cls)
        _addresses[cls] = _load(cls)
    return _addresses[cls]


def _load(cls: type[Any]) -> list[int]:
    """Compile or load the operations of a class; return their addresses."""
    if CHECKED and cls.BY_C:
        return [0] * len(cls.OPERATIONS)
    with suppress(OSError):
        FOLDER.mkdir(exist_ok=True)
    name = f"part_{hashlib.sha256(sources(cls).encode()).hexdigest()[:16]}_{cls.__name__}"
    library = library_of(name, FOLDER, PartUnit(cls, name).module)
    own = rules_of(cls)
    return [address_in(library, f"{name}.{one}") if one in own else 0 for one in cls.OPERATIONS]


def now(part: Any) -> float:
    return float_at(part.clock_address)


def goes_on(part: Any) -> float:
    return float_at(part.goes_on_address)


def hint(part: Any) -> float:
    return float_at(part.hint_address)


class PartUnit(Unit):
    """The translation of a class of a user's; kinds follow from the text of its rules."""

    def __init__(self, cls: type[Any], name: str) -> None:
        super().__init__(name, {}, {}, lambda rule, _: rule, lambda _: False, checked=CHECKED)
        self.cls, self.rules = cls, rules_of(cls)

    def module(self) -> str:
        """Return the module with an entry per operation.

        The first word is the address of the state.

        Raises
        ------
        ValueError
            If a rule cannot be translated, with its file and line.
        """
        for name in self.cls.OPERATIONS:
            if name in self.rules:
                try:
                    self._operation(name)
                except UntranslatableError as error:
                    raise self._told(name, error) from None
        return self.text()

    def _operation(self, name: str) -> None:
        rule, returns = self.rules[name], self.cls.RETURNS.get(name)

        def write(body: Body, words: list[Value]) -> Value:
            given = [record_at(body, words[0], self.cls.record()), *words[1:]]
            if name in self.cls.TAKES:
                given[1] = record_at(body, words[1], self.cls.TAKES[name])
                if hasattr(self.cls, "now"):
                    given[2] = self.call(body, now, given[:1])
            found = self.call(body, rule, given[: rule.__code__.co_argcount])
            if returns is int and found.kind not in (int, bool):
                raise UntranslatableError(f"{WRONG_TYPE}, not {found.kind.__name__}")
            return found if returns is not None else Value(None, "")

        self.entry(f"{self.variant}.{name}", returns or int, write)

    def derived(self, record: Any, name: str) -> Any:
        if record is not self.cls.record():
            return super().derived(record, name)
        return {"now": now, "goes_on": goes_on, "hint": hint}.get(name)

    def method(self, record: Any, name: str) -> Any:
        is_own = record is self.cls.record() and hasattr(self.cls, name)
        return self.rules.get(name) if is_own else None

    def infers(self, rule: Any) -> bool:
        return rule in self.rules.values()

    def _told(self, name: str, error: UntranslatableError) -> ValueError:
        """Return an error of one line with the place and the reason."""
        code = self.rules[name].__code__
        place = f"{error.file or code.co_filename}:{error.line or code.co_firstlineno}"
        said = str(error.args[0])
        if not said.startswith(WRONG_TYPE):
            said = f"does not compile: {said}; rules use numbers, records and lists of a fixed size"
            said += " (backend python runs it for debugging)"
        return ValueError(f"{self.cls.__name__}.{name}: {place}: {said}")
