"""HPT: fewest hits per token, a proposal for radix caches (docs/howto/hits.md has its source)."""

from __future__ import annotations

from kvsim.kv.eviction import EVICTION_POLICIES, LFU


@EVICTION_POLICIES.register("hpt")
class HPT(LFU):
    """Fewest prefix hits per token first; among equals, least recently freed.

    Blocks have one number of tokens each, so this is ``lfu`` here. It differs where nodes of any
    length are evicted whole.
    """
