"""Rules of prefix caches that are trees, called by the rules of KV-cache managers."""

from __future__ import annotations

from kvsim.engines.sglang.rules.causes import measure_radix, num_available, radix_usage
from kvsim.engines.sglang.rules.paint import mark_radix, pool_bins
from kvsim.engines.sglang.rules.tree.walk import count_match

__all__ = [
    "count_match",
    "mark_radix",
    "measure_radix",
    "num_available",
    "pool_bins",
    "radix_usage",
]
