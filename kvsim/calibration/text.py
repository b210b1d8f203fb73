"""Logs as plain lines without terminal or container prefixes, and values in them."""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from typing import Any

#: Colours and other escapes of terminals.
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_OPENING, _CLOSING, _QUOTES = "([{<", ")]}>", "'\""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


def plain(text: str) -> str:
    r"""Return a log without escapes, progress bars' overwritten states and Docker's JSON.

    A truncated last line gets no line end, so that patterns can ignore an incomplete number in it.
    Prefixes of Docker Compose, Kubernetes and the engines' processes stay: patterns match anywhere
    in a line.

    Examples
    --------
    >>> plain('{"log":"\\u001b[32mINFO\\u001b[0m ready\\n","stream":"stderr"}')
    'INFO ready'
    """
    lines = []
    for line in text.splitlines():
        if line.startswith("{") and '"log"' in line:
            with suppress(ValueError, TypeError, KeyError):
                line = str(json.loads(line)["log"]).rstrip("\n")  # noqa: PLW2901
        lines.append(ESCAPES.sub("", line).rsplit("\r", 1)[-1])
    return "\n".join(lines) + "\n" * text.endswith(("\n", "\r"))


def pairs(text: str) -> dict[str, Any]:
    """Read comma-separated ``key=value`` or ``'key': value``, even if nested or truncated.

    A text that begins with an opening bracket ends at its closing one, any other text at the end of
    the line. A value that the end of the line truncates is omitted.

    Examples
    --------
    >>> pairs("{'model': 'a/b', 'served': ['x', 'y'], 'max_model_len': 81")
    {'model': 'a/b', 'served': ['x', 'y']}
    >>> pairs("model='a/b', dtype=torch.bfloat16, sizes=[1, 2], on=True)")
    {'model': 'a/b', 'dtype': 'torch.bfloat16', 'sizes': [1, 2], 'on': True}
    """
    line = text.split("\n", 1)[0]
    inside = bool(line) and line[0] in _OPENING
    found: dict[str, Any] = {}
    begin, depth, quote = int(inside), 0, ""
    for place in range(begin, len(line)):
        letter = line[place]
        if quote:
            quote = "" if letter == quote and line[place - 1] != "\\" else quote
        elif letter in _QUOTES:
            quote = letter
        elif letter in _OPENING:
            depth += 1
        elif letter == "," and depth == 0:
            found |= _pair(line[begin:place])
            begin = place + 1
        elif letter in _CLOSING and line[place - 1 : place + 1] not in ("->", "=>"):
            if depth == 0:
                return found | _pair(line[begin:place])
            depth -= 1
    return found


def _pair(text: str) -> dict[str, Any]:
    found = re.fullmatch(r"\s*(?:(\w+)\s*=|['\"](\w+)['\"]\s*:)\s*(.*?)\s*", text, re.DOTALL)
    if found is None:
        return {}
    value: Any = found[3]
    try:
        value = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if _NUMBER.fullmatch(value):
            value = float(value)
    return {found[1] or found[2]: value}


def numbers(pattern: str, text: str) -> list[tuple[float, ...]]:
    """Return the groups of every match, as numbers; thousands may have commas."""
    found = re.findall(pattern, text, re.IGNORECASE)
    rows = [(row,) if isinstance(row, str) else row for row in found]
    return [tuple(float(cell.replace(",", "")) for cell in row) for row in rows]
