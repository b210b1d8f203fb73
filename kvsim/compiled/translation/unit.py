"""One module of LLVM with a rule and all rules that it calls, for one variant."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

from kvsim.compiled.translation.body import Body, WiderError, joined
from kvsim.compiled.translation.checks import check_fault
from kvsim.compiled.translation.kinds import (
    NUMBERS,
    POINTER,
    Array,
    UntranslatableError,
    Value,
    constant,
    is_list,
    kind_of,
    type_of,
)
from kvsim.compiled.translation.statements import block

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.records.record import Record


class Unit:
    """A translation.

    Attributes
    ----------
    constants : values by "Record.field"
    records : record classes by name
    text_of : returns the function to translate for a rule, None if the variant never calls it; its
        second argument is False for a rule over numbers, which all variants share
    is_inlined : returns True for a rule that its callers contain
    checked : every index is compared with the length of its list
    """

    pointer = POINTER

    def __init__(
        self,
        variant: str,
        constants: Mapping[str, int],
        records: Mapping[str, type[Record]],
        text_of: Callable[[Any, bool], Any],
        is_inlined: Callable[[Any], bool],
        *,
        checked: bool = False,
    ) -> None:
        self.variant, self.constants, self.records = variant, constants, records
        self.checked = checked
        self._text_of, self._is_inlined = text_of, is_inlined
        self._declared: dict[str, None] = {}
        self._functions: dict[str, str] = {}
        self._returns: dict[Any, Any] = {}
        self._missing: list[tuple[str, Any, Any, list[Any]]] = []

    def text(self) -> str:
        """Write the functions that are still missing; return the module."""
        while self._missing:
            self._define(*self._missing.pop())
        return "\n".join([*self._declared, *self._functions.values()])

    def entry(self, name: str, kind: Any, write: Callable[[Body, list[Value]], Value]) -> None:
        """Define a function over three words that returns an int or a float.

        Parameters
        ----------
        write : writes the function of its words; returns the result, which may have kind None
        """
        body = Body(self, {}, kind)
        found = write(body, [Value(int, f"%a{place}") for place in range(3)])
        found = constant(0) if found.kind is None else body.cast(found, kind)
        body.do(f"ret {type_of(kind)} {found.text}")
        head = f'define {type_of(kind)} @"{name}"(i64 %a0, i64 %a1, i64 %a2)'
        self._functions[name] = f"{head} {{\n{body.text()}\n}}"

    def entry_of(self, name: str, rule: Any, first: int = 0) -> str:
        """Return the module with a function over three words that calls a rule.

        For a record, its address is given. The rule takes the words from ``first`` on.
        """
        code = rule.__code__
        named = code.co_varnames[: code.co_argcount]
        kinds = [self.annotated(rule.__annotations__[one], rule.__globals__) for one in named]

        def write(body: Body, words: list[Value]) -> Value:
            given = [record_at(body, *one) for one in zip(words[first:], kinds, strict=False)]
            return self.call(body, rule, given)

        self.entry(name, int, write)
        return self.text()

    def declare(self, line: str) -> None:
        self._declared[line] = None

    def method(self, record: Any, name: str) -> Any:
        """Return a method of a record; None if it has none."""

    def infers(self, rule: Any) -> bool:
        """Return True for a rule whose kinds follow from its text, not from annotations."""
        return bool(rule.__annotations__.get("return", "Any") == "Any")

    def derived(self, record: type[Record], name: str) -> Any:
        """Return the getter of a property of a record."""
        return record.derived().get(name)

    def annotated(self, annotation: Any, names: Mapping[str, Any]) -> Any:
        """Return the kind of an annotation; UntranslatableError if it names none."""
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, {**names, **self.records})
            except NameError as error:
                raise UntranslatableError(str(error)) from None
        return kind_of(annotation)

    def call(self, body: Body, rule: Any, arguments: list[Value]) -> Value:
        """Write a call of a rule; translate the rule if this is its first call."""
        text = self._text_of(rule, any(one.kind not in NUMBERS for one in arguments))
        if text is not None and self.infers(rule):
            name, returns = self._inferred(rule, [one.kind for one in arguments])
            given = arguments
        else:
            returns = self._kind_returned(rule)
            if text is None:  # a rule that this variant never calls
                return Value(None, "") if returns is None else _zero(returns)
            kinds = self._kinds(rule, arguments)
            given = [body.cast(*one) for one in zip(arguments, kinds, strict=True)]
            name = self.named(rule, text, [one.kind for one in given])
        operands = ", ".join(f"{type_of(one.kind)} {one.text}" for one in given)
        called = f"call {type_of(returns)} {name}({operands})"
        if returns is None:
            body.do(called)
            found = Value(None, "")
        else:
            found = Value(returns, body.write(called))
        check_fault(body)
        return found

    def named(self, rule: Any, text: Any, kinds: list[Any]) -> str:
        """Return the name of a rule's function for arguments of these kinds."""
        fixed = self._parameters(rule)
        free = [_short(one) for one, kind in zip(kinds, fixed, strict=True) if kind is None]
        name = self._name(rule, free)
        if name not in self._functions:
            self._functions[name] = ""
            self._missing.append((name, text, self._kind_returned(rule), kinds))
        return name

    def _name(self, rule: Any, kinds: list[str]) -> str:
        return f'@"{".".join(["kvsim", self.variant, rule.__module__, rule.__qualname__, *kinds])}"'

    def _inferred(self, rule: Any, kinds: list[Any]) -> tuple[str, Any]:
        """Return the name of a rule's function, and the kind of its results by its text."""
        name = self._name(rule, [_short(one) for one in kinds])
        if name not in self._functions:
            self._functions[name] = ""
            first = self._define(name, rule, None, kinds, infers=True)
            found = [*(first.returned or ()), *([None] if first.is_open else ())]
            if None in found and found != [None] * len(found):
                raise UntranslatableError("a path without a result")
            self._returns[name] = reduce(joined, found)
            self._define(name, rule, self._returns[name], kinds)
        if name not in self._returns:
            raise UntranslatableError("a function that calls itself")
        return name, self._returns[name]

    def _kind_returned(self, rule: Any) -> Any:
        if rule not in self._returns:
            annotation = inspect.unwrap(rule).__annotations__["return"]
            self._returns[rule] = self.annotated(annotation, rule.__globals__)
        return self._returns[rule]

    def _parameters(self, rule: Any) -> list[Any]:
        """Return by parameter its kind; None for a record or a list, which each call gives."""
        found = []
        for name in rule.__code__.co_varnames[: rule.__code__.co_argcount]:
            try:
                kind = self.annotated(rule.__annotations__[name], rule.__globals__)
            except (KeyError, UntranslatableError):
                kind = None
            found.append(kind if isinstance(kind, tuple) or kind in NUMBERS else None)
        return found

    def _kinds(self, rule: Any, arguments: list[Value]) -> list[Any]:
        fixed = self._parameters(rule)
        return [
            one.kind if kind is None else kind for one, kind in zip(arguments, fixed, strict=True)
        ]

    def _define(
        self, name: str, text: Any, returns: Any, kinds: list[Any], *, infers: bool = False
    ) -> Body:
        """Write a function; without the kind of its results, note what kinds they have."""
        definition = definition_of(text)
        given = dict(zip((one.arg for one in definition.args.args), kinds, strict=True))
        body, wider = None, dict[str, Any]()
        while body is None:
            body = Body(self, text.__globals__, returns, f"{text.__module__}.{text.__qualname__}")
            body.infers, body.wider = self.infers(text), wider
            body.returned = [] if infers else None
            try:
                _write(body, definition, given)
            except WiderError:
                body = None
            except UntranslatableError as error:
                if error.file is not None:
                    raise
                error.file = text.__code__.co_filename
                raise
        head = ", ".join(f"{type_of(kind)} %a.{one}" for one, kind in given.items())
        options = "alwaysinline " if self._is_inlined(text) else ""
        self._functions[name] = (
            f"define linkonce_odr hidden {type_of(returns)} {name}({head}) {options}"
            f"{{\n{body.text()}\n}}"
        )
        return body


def _write(body: Body, definition: Any, kinds: Mapping[str, Any]) -> None:
    """Write the parameters and statements of a function."""
    for parameter, kind in kinds.items():
        wide = body.wider.get(parameter, kind)
        body.slots[parameter] = (wide, body.reserve(wide))
        body.put(body.slots[parameter], Value(kind, f"%a.{parameter}"))
    if isinstance(definition.body, list):
        block(body, definition.body)
    else:
        block(body, [ast.Return(definition.body)])
    if body.is_open and body.returned is None:
        body.do("ret void" if body.returns is None else "unreachable")


def record_at(body: Body, address: Value, kind: Any) -> Value:
    """Return the record at an address; a number stays what it is."""
    if kind in NUMBERS:
        return address
    return Value(kind, body.write(f"inttoptr i64 {address.text} to {POINTER}"))


def _zero(kind: Any) -> Value:
    """Return the result of a rule that is never called."""
    if isinstance(kind, tuple) or kind not in (int, float, bool):
        return Value(kind, "zeroinitializer" if isinstance(kind, tuple) else "null")
    return constant(kind(0))._replace(known=None)


def _short(kind: Any) -> str:
    named = not isinstance(kind, tuple | Array) and not is_list(kind)
    return f"{kind.__module__}.{kind.__name__}" if named else str(kind).replace('"', "'")


@cache
def definition_of(function: Any) -> Any:
    """Return the syntax tree of a function, with the lines of its file."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):  # defined at a prompt or by exec
        raise ValueError(
            f"{function.__qualname__}: its source is not available to the compiler; "
            "save it in a file, or run it with backend python"
        ) from None
    tree = ast.parse(textwrap.dedent("".join(lines)))
    return ast.increment_lineno(tree, first - 1).body[0]
