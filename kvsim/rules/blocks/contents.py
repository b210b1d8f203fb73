"""Keyed contents in a queue; the oldest entry is evicted first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.contents import NO_CONTENT
from kvsim.rules.links import append, remove

if TYPE_CHECKING:
    from kvsim.records.contents import Contents


def find_content(contents: Contents, key: int) -> int:
    k = contents.buckets[key & contents.bucket_mask]
    while k != NO_CONTENT and contents.rows[k].key != key:
        k = contents.rows[k].chain
    return k


def add_content(contents: Contents, key: int) -> None:
    """Append a content that is not in the queue; the caller has checked that there is room."""
    k = contents.first_free
    if k == NO_CONTENT:
        contents.num_made += 1
        k = contents.num_made
    else:
        contents.first_free = contents.rows[k].chain
    row, bucket = contents.rows[k], key & contents.bucket_mask
    row.key = key
    row.chain = contents.buckets[bucket]
    contents.buckets[bucket] = k
    append(contents.queue, contents.rows, k)


def drop_content(contents: Contents, k: int) -> None:
    row = contents.rows[k]
    bucket = row.key & contents.bucket_mask
    at = contents.buckets[bucket]
    if at == k:
        contents.buckets[bucket] = row.chain
    else:
        while contents.rows[at].chain != k:
            at = contents.rows[at].chain
        contents.rows[at].chain = row.chain
    remove(contents.queue, contents.rows, k)
    row.chain = contents.first_free
    contents.first_free = k


def renew_content(contents: Contents, k: int) -> None:
    """Move the content at an index to the end of the queue."""
    remove(contents.queue, contents.rows, k)
    append(contents.queue, contents.rows, k)
