"""KV of attention over compressed tokens (DeepSeek-V4), as read in vLLM's code (0.26 to 0.30).

A layer has up to five stores: its window, its compressed tokens, the compressor's states, and the
same two for an indexer. Each has its own tokens per block, and pages padded for the kernels. The
start-up error of vLLM 0.22 in issue 44376 agrees: 6.66 GiB for 30,000 tokens of V4-Flash are 6,800
blocks of 22 x (37,440 + 8,640 + 1,728) bytes. Later versions pack blocks, which makes them smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.layer import SCALED, LayerKV
from kvsim.catalog.compressed import INDEXED, num_overlaps
from kvsim.engines.registry import get_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.budget.layout import KVDtype
    from kvsim.catalog.spec import ModelSpec
    from kvsim.config import Config

#: Tokens per block of compressed tokens, and of windows.
BLOCK, WINDOW_BLOCK = 256, 64
#: Tokens per block of compressors' states, by ratio.
STATE_BLOCKS = {4: 4, 128: 8}
#: Bytes to which a page is padded.
ALIGNMENT = 576
#: Elements per scale of one byte; the rotary part stays in 16 bits (fp8_ds_mla, 584 bytes).
SCALED_KV = 64


def check_compressed(config: Config, model: ModelSpec) -> None:
    """Raise ValueError for options whose effect on compressed attention is not known."""
    if not model.compress_ratios:
        return
    refused = {
        "speculative_config": config.speculative_config is not None,
        "disable_hybrid_kv_cache_manager": config.disable_hybrid_kv_cache_manager,
        "disable_sliding_window": config.disable_sliding_window,
        "lora": config.lora is not None,
    }
    for option, given in refused.items():
        if given:
            raise ValueError(f"{option}: not modelled for {model.name}; leave it out")
    if not get_engine(config.engine).has_compressed_kv:
        raise ValueError(
            f"engine {config.engine}: its pools for the compressed KV of {model.name} are not "
            "known; leave engine out for the rules of vLLM"
        )


def compressed_layers(model: ModelSpec, dtype: KVDtype, num_layers: int) -> Iterator[LayerKV]:
    """Yield the stores of the first layers, in the order in which vLLM registers them.

    Raises
    ------
    ValueError
        For KV that is not in FP8.
    """
    if dtype.name != "fp8":
        raise ValueError(
            f"KV cache dtype {dtype.name!r}: {model.name} is modelled with the FP8 KV of vLLM's "
            "kernels (allowed: auto, fp8)"
        )
    rotary = model.qk_rope_head_dim
    scales = -(-(model.head_dim - rotary) // SCALED_KV) + 1  # one for padding
    slot = model.head_dim - rotary + 2 * rotary + scales
    index_slot = model.index_head_dim + 4 * (model.index_head_dim // SCALED)
    for ratio in model.compress_ratios[:num_layers]:
        if ratio == INDEXED:
            yield _tokens(index_slot, ratio, is_index=True)
            yield _states(ratio, model.index_head_dim)
        yield LayerKV(
            "sliding", model.window, slot, 1, block_size=WINDOW_BLOCK, alignment=ALIGNMENT
        )
        if ratio:
            yield _tokens(slot, ratio)
            yield _states(ratio, model.head_dim)


def _tokens(slot: int, ratio: int, *, is_index: bool = False) -> LayerKV:
    return LayerKV(
        "full", None, slot, 1, is_index=is_index, tokens_per_slot=ratio, alignment=ALIGNMENT
    )


def _states(ratio: int, dim: int) -> LayerKV:
    """Return a compressor's states: keys and scores in FP32, for the tokens not compressed yet."""
    overlaps = num_overlaps(ratio)
    return LayerKV(
        "sliding",
        overlaps * ratio,
        2 * overlaps * dim * 4,
        1,
        block_size=STATE_BLOCKS[ratio],
        alignment=ALIGNMENT,
    )
