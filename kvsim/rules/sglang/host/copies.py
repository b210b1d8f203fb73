"""Copies under way in one direction, in the order in which they end: a ring of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.radix import Copies, Copy


def begin_copy(copies: Copies) -> Copy:
    """Return the record of a copy behind all others."""
    copy = copies.rows[(copies.first + copies.count) % copies.most]
    copies.count += 1
    return copy


def is_done(copies: Copies, now: float) -> bool:
    """Whether the copy that began first has ended."""
    return copies.count > 0 and copies.rows[copies.first].time <= now


def end_copy(copies: Copies) -> Copy:
    """Take out the copy that began first; its record stays until another one takes its place."""
    copy = copies.rows[copies.first]
    copies.first = (copies.first + 1) % copies.most
    copies.count -= 1
    return copy
