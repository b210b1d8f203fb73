"""HPT: fewest hits per token, as proposed for SGLang (sgl-project/sglang#30300, not merged)."""

from __future__ import annotations

from kvsim.kv.eviction import EVICTION_POLICIES, LFU


@EVICTION_POLICIES.register("hpt")
class HPT(LFU):
    """Fewest prefix hits per token first; among equals, least recently freed.

    Blocks have one number of tokens each, so this is ``lfu`` here. It differs where nodes of any
    length are evicted whole.
    """
