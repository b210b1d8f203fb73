"""Keyed contents in a queue; the oldest entry is evicted first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.links import append, enter_bucket, find_in_bucket, leave_bucket, new_place, remove

if TYPE_CHECKING:
    from kvsim.records.contents import Contents


def find_content(contents: Contents, key: int) -> int:
    return find_in_bucket(contents, contents.rows, key)


def add_content(contents: Contents, key: int) -> None:
    """Append a content that is not in the queue; the caller has checked that there is room."""
    k = new_place(contents, contents.rows)
    contents.rows[k].key = key
    enter_bucket(contents, contents.rows, k)
    append(contents.queue, contents.rows, k)


def drop_content(contents: Contents, k: int) -> None:
    leave_bucket(contents, contents.rows, k)
    remove(contents.queue, contents.rows, k)
    contents.rows[k].chain = contents.first_free
    contents.first_free = k


def renew_content(contents: Contents, k: int) -> None:
    """Move the content at an index to the end of the queue."""
    remove(contents.queue, contents.rows, k)
    append(contents.queue, contents.rows, k)
