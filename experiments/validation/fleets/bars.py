"""Rows of the fleet's bars: a published figure beside ours, the band, and a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class Row(NamedTuple):
    """One figure of a bar.

    Attributes
    ----------
    what : the figure in words, with its unit
    theirs, ours : as published or measured, and as computed; texts where several belong together
    band : how far ours may be off, as stated before it was computed; empty: for information
    holds : whether it is inside; None without a band, or where the data lacks what it needs
    note : conventions, and the cause of a miss where one was found
    """

    what: str
    theirs: float | str
    ours: float | str
    band: str
    holds: bool | None
    note: str = ""


class Bar(NamedTuple):
    """A bar: its title, the sets of data that it reads, and what computes its rows."""

    title: str
    sets: tuple[str, ...]
    rows: Callable[[Path], list[Row]]


def near(what: str, theirs: float, ours: float, *, percent: float, note: str = "") -> Row:
    """Hold ours within some percent of theirs."""
    holds = abs(ours - theirs) <= percent / 100 * abs(theirs)
    return Row(what, theirs, ours, f"±{percent:g} %", holds, note)


def close(what: str, theirs: float, ours: float, *, points: float, note: str = "") -> Row:
    """Hold ours within some units of theirs."""
    return Row(what, theirs, ours, f"±{points:g}", abs(ours - theirs) <= points, note)


def between(
    what: str, theirs: float | str, ours: float, low: float, high: float, note: str = ""
) -> Row:
    """Hold ours between two figures."""
    return Row(what, theirs, ours, f"{low:g} to {high:g}", low <= ours <= high, note)


def above(what: str, theirs: float | str, ours: float, low: float, note: str = "") -> Row:
    """Hold ours above a figure."""
    return Row(what, theirs, ours, f"> {low:g}", ours > low, note)


def shown(what: str, theirs: float | str, ours: float | str, note: str = "") -> Row:
    """Show figures that no band was stated for."""
    return Row(what, theirs, ours, "", None, note)


def worst(errors: Sequence[float]) -> float:
    """Return the error that is furthest from 0."""
    return max(errors, key=abs)
