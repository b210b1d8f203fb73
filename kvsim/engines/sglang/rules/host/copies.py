"""Copies in flight in one direction, in the order of their ends: a ring of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Copies, Copy


def begin_copy(copies: Copies) -> Copy:
    """Append the record of a new copy, and return it."""
    copy = copies.rows[(copies.first + copies.count) % copies.most]
    copies.count += 1
    return copy


def is_done(copies: Copies, now: float) -> bool:
    """Return True if the oldest copy has ended."""
    return copies.count > 0 and copies.rows[copies.first].time <= now


def end_copy(copies: Copies) -> Copy:
    """Remove and return the oldest copy; its record stays until another copy reuses it."""
    copy = copies.rows[copies.first]
    copies.first = (copies.first + 1) % copies.most
    copies.count -= 1
    return copy
