"""Use of the slots of a radix cache, by cause.

Tokens of requests count once, in the tree or outside. Unlocked tokens in the tree may be evicted:
they count as unallocated, and as cached. Future output tokens hold no slots. So only the rest of a
request's last page counts as reserved, or as internal if it will never be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.records.kv import KV


def num_available(tree: Radix) -> int:
    """Return the slots that are free or have evictable tokens."""
    return tree.pages.num_unused_slots + tree.num_evictable


def num_windows_available(tree: Radix) -> int:
    """Return the window slots that are free or may be taken from the tree."""
    return tree.window_pages.num_unused_slots + tree.window_evictable


def radix_usage(tree: Radix) -> float:
    """Return the share of the slots that requests hold, in the fuller pool."""
    size = tree.pages.page_size
    num_slots = tree.pages.num_pages * size
    usage = (num_slots - num_available(tree)) / num_slots if num_slots > 0 else 0.0
    if tree.window > 0:
        num_slots = tree.window_pages.num_pages * size
        usage = max(usage, (num_slots - num_windows_available(tree)) / num_slots)
    return usage


def measure_radix(kv: KV) -> None:
    """Count a radix cache's slots by cause."""
    tree, usage = kv.radix, kv.usage
    own = tree.num_own_pages * tree.pages.page_size
    usage.token_states = (tree.num_protected + tree.num_own_tokens) * tree.token_bytes
    usage.reservation = (own - tree.num_own_tokens - tree.num_internal) * tree.token_bytes
    usage.internal = tree.num_internal * tree.token_bytes
    usage.external = 0
    usage.unallocated = num_available(tree) * tree.token_bytes
    usage.cached = tree.num_evictable * tree.token_bytes
    if tree.window > 0:
        measure_windows(kv)


def measure_windows(kv: KV) -> None:
    """Add the slots of the sliding-window pool to the use by cause."""
    tree, usage, each = kv.radix, kv.usage, kv.radix.window_bytes
    tokens = tree.num_own_tokens - tree.num_slid_tokens
    own = tree.num_own_pages * tree.pages.page_size - tree.num_slid_tokens
    usage.token_states += (tree.window_protected + tokens) * each
    usage.reservation += (own - tokens - tree.num_internal) * each
    usage.internal += tree.num_internal * each
    usage.unallocated += num_windows_available(tree) * each
    usage.cached += tree.window_evictable * each
