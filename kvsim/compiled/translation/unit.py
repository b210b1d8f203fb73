"""One module of LLVM with a rule and all rules that it calls, for one variant."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.compiled.translation.body import Body
from kvsim.compiled.translation.kinds import (
    NUMBERS,
    POINTER,
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
    """

    pointer = POINTER

    def __init__(
        self,
        variant: str,
        constants: Mapping[str, int],
        records: Mapping[str, type[Record]],
        text_of: Callable[[Any, bool], Any],
        is_inlined: Callable[[Any], bool],
    ) -> None:
        self.variant, self.constants, self.records = variant, constants, records
        self._text_of, self._is_inlined = text_of, is_inlined
        self._declared: dict[str, None] = {}
        self._functions: dict[str, str] = {}
        self._returns: dict[str, Any] = {}
        self._missing: list[tuple[str, Any, Any, list[Any]]] = []

    def text(self) -> str:
        """Write the functions that are still missing; return the module."""
        while self._missing:
            self._define(*self._missing.pop())
        return "\n".join([*self._declared, *self._functions.values()])

    def entry(self, name: str, rule: Any) -> str:
        """Return the module with a function over numbers that calls a rule by its name."""
        code = rule.__code__
        named = code.co_varnames[: code.co_argcount]
        kinds = [self.annotated(rule.__annotations__[one], rule.__globals__) for one in named]
        function = self.named(rule, rule, kinds)
        lines = [f'define i64 @"{name}"(i64 %a0, i64 %a1, i64 %a2) {{']
        given = []
        for place, kind in enumerate(kinds):
            if kind is int:
                given.append(f"i64 %a{place}")
            else:
                lines.append(f"%r{place} = inttoptr i64 %a{place} to {POINTER}")
                given.append(f"{POINTER} %r{place}")
        lines += [f"%found = call i64 {function}({', '.join(given)})", "ret i64 %found", "}"]
        return self.text() + "\n" + "\n".join(lines)

    def declare(self, line: str) -> None:
        self._declared[line] = None

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
            return Value(None, "")
        return Value(returns, body.write(called))

    def named(self, rule: Any, text: Any, kinds: list[Any]) -> str:
        """Return the name of a rule's function for arguments of these kinds."""
        fixed = self._parameters(rule)
        free = [_short(one) for one, kind in zip(kinds, fixed, strict=True) if kind is None]
        name = f'@"{".".join(["kvsim", self.variant, rule.__module__, rule.__qualname__, *free])}"'
        if name not in self._functions:
            self._functions[name] = ""
            self._missing.append((name, text, self._kind_returned(rule), kinds))
        return name

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

    def _define(self, name: str, text: Any, returns: Any, kinds: list[Any]) -> None:
        """Write a function."""
        definition = definition_of(text)
        body = Body(self, text.__globals__, returns)
        parameters = [one.arg for one in definition.args.args]
        for parameter, kind in zip(parameters, kinds, strict=True):
            body.slots[parameter] = (kind, body.reserve(kind))
            body.put(body.slots[parameter], Value(kind, f"%a.{parameter}"))
        try:
            if isinstance(definition.body, list):
                block(body, definition.body)
            else:
                block(body, [ast.Return(definition.body)])
        except UntranslatableError as error:
            raise UntranslatableError(f"{name}: {error}") from None
        if body.is_open:
            body.do("ret void" if returns is None else "unreachable")
        head = ", ".join(f"{type_of(k)} %a.{p}" for p, k in zip(parameters, kinds, strict=True))
        options = "alwaysinline " if self._is_inlined(text) else ""
        self._functions[name] = (
            f"define linkonce_odr hidden {type_of(returns)} {name}({head}) {options}"
            f"{{\n{body.text()}\n}}"
        )


def _zero(kind: Any) -> Value:
    """Return the result of a rule that is never called."""
    if isinstance(kind, tuple) or kind not in (int, float, bool):
        return Value(kind, "zeroinitializer" if isinstance(kind, tuple) else "null")
    return constant(kind(0))._replace(known=None)


def _short(kind: Any) -> str:
    named = not isinstance(kind, tuple) and not is_list(kind)
    return f"{kind.__module__}.{kind.__name__}" if named else str(kind).replace('"', "'")


@cache
def _definitions(path: str) -> dict[int, Any]:
    """Return the functions of a file by their first line."""
    found: dict[int, Any] = {}
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            first = node.decorator_list[0] if node.decorator_list else node
            found[first.lineno] = node
    return found


def definition_of(function: Any) -> Any:
    """Return the syntax tree of a function."""
    code = function.__code__
    return _definitions(code.co_filename)[code.co_firstlineno]
