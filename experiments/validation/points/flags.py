"""Numbers in a table's cells, in a server's command line and in a shell's arithmetic."""

from __future__ import annotations

import ast
import math
import operator
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,  # a shell's division
}
#: Variables of InferenceX's scripts: columns of the table.
VARIABLES = {"ISL": "isl", "OSL": "osl", "CONC": "concurrency", "TP": "tp", "EP_SIZE": "ep"}


def flag(flags: str, name: str) -> str:
    """Return what a command line or a YAML file passes for a flag; empty if nothing."""
    found = re.search(rf"(?:--|; ){name}(?:[ =]|: )\s*\"?(\$\(\(.*?\)\)|[^\s\";]+)", flags)
    return found[1] if found else ""


def evaluated(text: str, row: Mapping[str, str]) -> int:
    """Return the value of a shell's arithmetic over a row's lengths, clients and GPUs.

    Raises
    ------
    ValueError
        For anything but sums and products of numbers and of those variables.

    Examples
    --------
    >>> evaluated("$((ISL * 2 ))", {"isl": "8192", "osl": "1024", "concurrency": "4", "tp": "1"})
    16384
    """

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() | float() as number):
                return int(number)
            case ast.Name(id=name) if name in VARIABLES:
                return whole(row[VARIABLES[name]])
            case ast.BinOp(left, how, right) if type(how) in OPERATORS:
                return OPERATORS[type(how)](value(left), value(right))
        raise ValueError(f"{text!r}: not arithmetic over {', '.join(VARIABLES)}")

    plain = re.sub(r"\$\(\(|\)\)|[${}]", " ", text).strip()
    try:
        return value(ast.parse(plain, mode="eval").body)
    except SyntaxError:
        raise ValueError(f"{text!r}: not arithmetic over {', '.join(VARIABLES)}") from None


def whole(text: str, default: int | None = None) -> int:
    """Return a whole number, which the table writes as ``4`` or ``4.0``.

    Raises
    ------
    ValueError
        If it is none and there is no default.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if number.is_integer():
        return int(number)
    if default is None:
        raise ValueError(f"{text!r}: not a whole number")
    return default
