"""The scheduler's limits and cache for the encoder of a multimodal model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.records.encoder import Encoded

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory


@dataclass(frozen=True)
class EncoderConfig:
    """Limits of the encoder: its tokens in a step, and its cache.

    Parameters
    ----------
    budget : largest number of encoder tokens in a step (vLLM's max_num_encoder_input_tokens)
    cache_size : tokens of the cache (vLLM's encoder_cache_size)
    disable_chunked_mm_input : no prefill chunk ends inside an item
    names_blocks : keys of blocks cover the encoder items in them, since placeholder tokens are all
        alike; False if the trace's segments already identify the items
    """

    budget: int
    cache_size: int
    disable_chunked_mm_input: bool = False
    names_blocks: bool = True


def check_encoder(state: Replica) -> None:
    """Recount an encoder cache.

    Raises
    ------
    RuntimeError
        If the cache's counters differ from a recount.
    """
    encoder, trace = state.encoder, state.trace
    needed: dict[int, int] = {}
    for place in range(len(trace.items)):
        if encoder.is_needed[place]:
            content = trace.items[place].content
            needed[content] = needed.get(content, 0) + 1
    size = state.limits.encoder_cache_size
    num_free = num_reclaimable = size
    for content in range(len(encoder.contents)):
        encoded = encoder.contents[content]
        counted = needed.get(content, 0)
        if encoded.num_references != counted or (counted and not encoded.is_cached):
            raise RuntimeError(f"content {content}: {counted} items refer to it, not {encoded}")
        num_free -= encoded.num_tokens * encoded.is_cached
        num_reclaimable -= encoded.num_tokens * (counted > 0)
    if (num_free, num_reclaimable) != (encoder.num_free_tokens, encoder.num_reclaimable_tokens):
        raise RuntimeError(
            f"encoder cache: {encoder.num_free_tokens} tokens free and "
            f"{encoder.num_reclaimable_tokens} reclaimable counted, {num_free} and "
            f"{num_reclaimable} found"
        )


def init_encoder(state: Replica, memory: Memory, config: EncoderConfig | None) -> None:
    """Write the encoder items of the trace, and an empty encoder cache, into the state."""
    trace = state.trace
    num_items = len(trace.items)
    names_blocks = num_items > 0 and (config is None or config.names_blocks)
    for h in range(state.kv.num_request_blocks if names_blocks else 0):
        own_blocks = state.kv.request_blocks[h]
        own_blocks.has_items = True
        own_blocks.items, own_blocks.item_offsets = trace.items, trace.item_offsets
    if config is None:
        return
    state.limits.has_encoder = True
    state.limits.encoder_budget = config.budget
    state.limits.encoder_cache_size = config.cache_size
    state.limits.whole_items = config.disable_chunked_mm_input
    encoder = state.encoder
    encoder.num_free_tokens = encoder.num_reclaimable_tokens = config.cache_size
    num_contents = 1 + max((trace.items[place].content for place in range(num_items)), default=0)
    encoder.contents = memory.records(Encoded, num_contents)
    encoder.evicted = memory.ints(num_contents)
    for name in ("is_needed", "chosen", "duplicates", "encoded", "owners", "is_met"):
        setattr(encoder, name, memory.ints(num_items))
