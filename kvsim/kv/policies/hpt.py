"""HPT: fewest hits per token, a proposal for radix caches (docs/howto/hits.md has its source)."""

from __future__ import annotations

from kvsim.kv.eviction import EVICTION_POLICIES, LFU


@EVICTION_POLICIES.register("hpt")
class HPT(LFU):
    """Evicts the block with the fewest prefix hits per token; among equals, the first one freed.

    All blocks have the same number of tokens, so the policy equals ``lfu``. It differs in a radix
    cache, which evicts whole nodes of different lengths.
    """
