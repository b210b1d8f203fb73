"""Flags that take several values: the command line repeats the flag before each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Flags that take KEY:NUMBER pairs, and the form of a pair, for errors.
PAIRS = {
    "goodput": "METRIC:MS, e.g. ttft:500 tpot:50",
    "logged": "PART:GIB, e.g. weights:14.99 activations:1.23, or a file of kvsim calibrate",
}

#: Flags that take several values, and the marks of a value: each value contains one of them.
LISTS = {
    **{"--slo": ("<", ">", "="), "--over": ("=",), "--vary": ("=",), "--price": ("=",)},
    **{"--gpu-price": ("=",), "--bench": ("",)},
}


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def join_pairs(arguments: Sequence[str]) -> list[str]:
    """Repeat a flag before each of its values, so that ``--goodput ttft:500 tpot:50`` works."""
    joined: list[str] = []
    inside = ""
    for argument in arguments:
        marks = LISTS.get(inside, (":",))
        if inside and not argument.startswith("-") and any(mark in argument for mark in marks):
            if joined[-1] != inside:
                joined.append(inside)
            joined.append(argument)
            continue
        inside = argument if argument in LISTS or argument in map(flag, PAIRS) else ""
        joined.append(argument)
    return joined
