"""Driving a KV-cache manager by hand, without a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.request import Request, Status

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheManager


def request(index: int, prompt: int, output: int) -> Request:
    """Make a request of its own content."""
    return Request(index, 0.0, prompt, output, [(100 + index, 0, prompt)], 1000 + index)


def compute(kv: KVCacheManager, r: Request, num_tokens: int) -> bool:
    """Do what a scheduler does when it schedules tokens that are done at once."""
    if not kv.allocate_slots(r, num_tokens):
        return False
    r.status = Status.RUNNING
    r.num_computed_tokens += num_tokens
    r.num_tokens = max(r.num_tokens, r.num_computed_tokens)
    kv.check_integrity()
    return True
