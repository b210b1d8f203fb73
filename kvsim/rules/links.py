"""Linked lists threaded through records: queues, and the buckets of a hash map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kvsim.records.queue import Queue


def append(queue: Queue, rows: Sequence[Any], k: int) -> None:
    """Put the k-th record at the end of a list."""
    row = rows[k]
    row.previous = queue.tail
    row.next = NONE
    if queue.tail == NONE:
        queue.head = k
    else:
        rows[queue.tail].next = k
    queue.tail = k
    queue.length += 1


def push_front(queue: Queue, rows: Sequence[Any], k: int) -> None:
    """Put the k-th record at the front of a list."""
    row = rows[k]
    row.next = queue.head
    row.previous = NONE
    if queue.head == NONE:
        queue.tail = k
    else:
        rows[queue.head].previous = k
    queue.head = k
    queue.length += 1


def insert_after(queue: Queue, rows: Sequence[Any], k: int, before: int) -> None:
    """Put the k-th record right after another one."""
    if before == queue.tail:
        append(queue, rows, k)
        return
    row, after = rows[k], rows[before].next
    row.previous = before
    row.next = after
    rows[before].next = k
    rows[after].previous = k
    queue.length += 1


def remove(queue: Queue, rows: Sequence[Any], k: int) -> None:
    """Remove the k-th record from any position of a list."""
    row = rows[k]
    if row.previous == NONE:
        queue.head = row.next
    else:
        rows[row.previous].next = row.next
    if row.next == NONE:
        queue.tail = row.previous
    else:
        rows[row.next].previous = row.previous
    queue.length -= 1


def new_place(owner: Any, rows: Sequence[Any]) -> int:
    """Return the index of an unused record: from the free list, or the next that was never used."""
    k: int = owner.first_free
    if k == 0:
        owner.num_made += 1
        return int(owner.num_made)
    owner.first_free = rows[k].chain
    return k


def find_in_bucket(owner: Any, rows: Sequence[Any], key: int) -> int:
    """Return the index of the record of a key, 0 for none."""
    k: int = owner.buckets[key & owner.bucket_mask]
    while k != 0 and rows[k].key != key:
        k = rows[k].chain
    return k


def enter_bucket(owner: Any, rows: Sequence[Any], k: int) -> None:
    """Put the k-th record first in the bucket of its key."""
    bucket = rows[k].key & owner.bucket_mask
    rows[k].chain = owner.buckets[bucket]
    owner.buckets[bucket] = k


def leave_bucket(owner: Any, rows: Sequence[Any], k: int) -> None:
    """Take the k-th record out of the bucket of its key."""
    bucket = rows[k].key & owner.bucket_mask
    at = owner.buckets[bucket]
    if at == k:
        owner.buckets[bucket] = rows[k].chain
        return
    while rows[at].chain != k:
        at = rows[at].chain
    rows[at].chain = rows[k].chain
