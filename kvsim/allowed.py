"""Descriptions of the values that an option allows, from its type annotation."""

from __future__ import annotations

import re
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Literal

from kvsim.errors import FieldError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

#: Bounds of an annotation, by the attribute that holds them.
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_POWER = re.compile(r"(\d+)(?:\.(\d+))?[eE]\+?(\d{1,2})")


def allowed(annotation: Any, metadata: typing.Iterable[Any] = ()) -> str | None:
    """Return the values that an annotation allows, in words.

    Return None for an annotation without literals that is not a bool, int, float or str.
    ``metadata`` holds bounds given outside the annotation, as pydantic stores them.

    Examples
    --------
    >>> from pydantic import Field
    >>> allowed(Annotated[int, Field(ge=1)] | None)
    'must be a whole number, at least 1, or none'
    >>> allowed(Literal["pull", "push"])
    'must be pull or push'
    """
    kinds, bounds, is_optional = _read(annotation, [*metadata])
    literals = [value for kind in kinds for value in _literals(kind)]
    if literals:
        words = _list(literals)
    elif len(kinds) == 1 and kinds[0] in _KINDS:
        words = ", ".join([_KINDS[kinds[0]], *_bounds(bounds)])
    else:
        return None
    return f"must be {words}{', or none' if is_optional else ''}"


def is_optional(annotation: Any) -> bool:
    """Return True if None is allowed, and the text ``none`` is not itself an allowed literal."""
    kinds, _, optional = _read(annotation, [])
    return optional and not any("none" in _literals(kind) for kind in kinds)


def whole_number(text: str) -> int | str:
    """Return a text such as ``1e3`` or ``2.5e4`` as a whole number, any other text unchanged.

    Examples
    --------
    >>> whole_number("1e3"), whole_number("2.5e1"), whole_number("1.25e1"), whole_number("x")
    (1000, 25, '1.25e1', 'x')
    """
    found = _POWER.fullmatch(text.strip())
    if found is None or len(found[2] or "") > int(found[3]):
        return text
    digits = str(found[1]) + (found[2] or "")
    return int(digits + "0" * (int(found[3]) - len(found[2] or "")))


def takes_whole_numbers(annotation: Any) -> bool:
    """Return True if an annotation allows whole numbers only."""
    return _read(annotation, [])[0] == [int]


def _read(annotation: Any, metadata: list[Any]) -> tuple[list[Any], list[Any], bool]:
    """Return the types in an annotation, their bounds, and whether None is allowed."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        inner, *more = typing.get_args(annotation)
        return _read(inner, [*metadata, *more])
    if origin in (typing.Union, types.UnionType):
        kinds: list[Any] = []
        bounds, optional = metadata, False
        for part in typing.get_args(annotation):
            if part is type(None):
                optional = True
                continue
            found, bounds, _ = _read(part, bounds)
            kinds += found
        return kinds, bounds, optional
    return [annotation], metadata, False


def _literals(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _list(values: list[Any]) -> str:
    """Join one or two values with "or"; return more values as a list."""
    texts = [str(value) for value in values]
    return " or ".join(texts) if len(texts) < 3 else f"one of {', '.join(texts)}"


def _bounds(metadata: list[Any]) -> list[str]:
    parts = [one for item in metadata for one in (item, *getattr(item, "metadata", ()))]
    found = []
    for name, words in _BOUNDS.items():
        for part in parts:
            bound = getattr(part, name, None)
            if bound is not None and type(part).__name__.lower() == name:
                found.append(f"{words} {bound}")
    return list(dict.fromkeys(found))


def field_error(error: ValidationError, model: type[BaseModel]) -> FieldError:
    """Return a one-line message for pydantic's first error in a configuration."""
    first = error.errors()[0]
    name, *inner = [str(part) for part in first["loc"]] or ["config"]
    if first["type"] == "value_error":  # raised by a validator, not by pydantic
        return FieldError(name, str(first["ctx"]["error"]))
    field = model.model_fields.get(name)
    kind, metadata, of = (None, [], "") if field is None else (field.annotation, field.metadata, "")
    values = [part for part in typing.get_args(kind) if typing.get_origin(part) is dict]
    if inner and values:  # a value of a table, such as a target of --goodput
        kind, metadata, of = typing.get_args(values[0])[1], [], f"{inner[0]} "
    message = first["msg"]
    what = allowed(kind, metadata) or f"{message[0].lower()}{message[1:]}"
    return FieldError(name, f"{of}is {first['input']!r}: {what}")
