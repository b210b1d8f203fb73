"""Docstrings of kvsim's public names as Markdown."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

#: Sections whose entries are ``name : meaning``.
ENTRIES = ("Parameters", "Attributes", "Other Parameters")
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.*)$")
ROLE = re.compile(r":(?:class|func|meth|data|mod|attr):`~?([^`]*)`")
#: A longer signature tells nobody anything; the docstring lists the parameters.
LONGEST_SIGNATURE = 400


class _Written(str):
    """An annotation as the source has it, without the quotes of a text."""

    __slots__ = ()
    __repr__ = str.__str__


def _written(annotation: Any) -> Any:
    return _Written(annotation) if isinstance(annotation, str) else annotation


def described(name: str, members: list[str]) -> str:
    """Return what a name is: its signature, its docstring, and those of its members."""
    found = _find(name)
    text = [f"### `{_signed(name, found)}`", "", *_prose(_doc(name, found))]
    if isinstance(found, type) and issubclass(found, enum.Enum) and not members:
        text += ["", ", ".join(f"`{one.name}` = {one.value}" for one in found)]
    for member in members:
        inner = _member(found, member)
        text += ["", f"#### `{_signed(member, inner)}`", "", *_prose(inspect.getdoc(inner) or "")]
    return "\n".join(text).rstrip()


def _find(name: str) -> Any:
    """Import a dotted name: a module, and attributes of it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ValueError(f"{name}: nothing of that name")


def _member(found: Any, name: str) -> Any:
    inner = inspect.getattr_static(found, name)
    return inner.__func__ if isinstance(inner, classmethod | staticmethod) else inner


def _signed(name: str, found: Any) -> str:
    """Return a name with its signature, as far as it helps."""
    if not callable(found) or (isinstance(found, type) and issubclass(found, enum.Enum)):
        return name
    try:
        signature = inspect.signature(found)
    except ValueError:
        return name
    own = [
        parameter.replace(annotation=_written(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    returned = _written(signature.return_annotation)
    text = str(signature.replace(parameters=own, return_annotation=returned))
    text = text.removesuffix(" -> None")
    if isinstance(found, type):
        text = text.partition(" -> ")[0]
        if len(text) > 100 or "Parameters\n---" in (inspect.getdoc(found) or ""):
            return name
    return f"{name}{text}" if len(text) <= LONGEST_SIGNATURE else f"{name}(...)"


def _doc(name: str, found: Any) -> str:
    """Return a docstring; of a constant, the comment ``#:`` above it."""
    if callable(found) or inspect.ismodule(found):
        return inspect.getdoc(found) or ""
    module, _, constant = name.rpartition(".")
    source = Path(inspect.getsourcefile(importlib.import_module(module)) or "").read_text("utf-8")
    above = re.search(rf"((?:^#:.*\n)+)^{constant}\b", source, re.M)
    return above[1].replace("#:", "").strip() if above else ""


def _prose(doc: str) -> list[str]:
    """Turn a NumPy docstring into Markdown."""
    lines = ROLE.sub(r"``\1``", doc).replace("``", "`").splitlines()
    out: list[str] = []
    section = ""
    index = 0
    while index < len(lines):
        line = lines[index]
        below = lines[index + 1] if index + 1 < len(lines) else ""
        if line and len(below) >= 3 and set(below) == {"-"}:
            section = line
            out += [f"**{section}**", ""]
            index += 2
            if section == "Examples":
                rest = _until_section(lines, index)
                out += ["```pycon", *_stripped(lines[index:rest]), "```", ""]
                index = rest
            continue
        out.append(_item(line, section))
        index += 1
    return out


def _until_section(lines: list[str], start: int) -> int:
    for index in range(start, len(lines) - 1):
        if lines[index] and len(lines[index + 1]) >= 3 and set(lines[index + 1]) == {"-"}:
            return index
    return len(lines)


def _stripped(lines: list[str]) -> list[str]:
    return "\n".join(lines).strip("\n").splitlines()


def _item(line: str, section: str) -> str:
    """Return a line of a section as part of a list, other lines as they are."""
    entry = ENTRY.match(line) if section in ENTRIES else None
    if entry is not None:
        return f"- `{entry[1]}`: {entry[2]}"
    if section in ("Raises", "Returns", "Yields") and line and not line.startswith(" "):
        return f"- `{line}`:"
    if section and line.startswith("    "):
        return line[2:]
    return line
