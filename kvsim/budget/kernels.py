"""Tokens per KV block: vLLM's choice for its attention kernels, and unsupported sizes.

The rules of vLLM 0.33: GPU, attention and KV dtype determine the kernels. A block has 16 tokens if
all these kernels support that, else the smallest size that all of them support.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.compressed import BLOCK
from kvsim.budget.versions import FIRST_CHOICE, precedes
from kvsim.catalog.generations import capability

if TYPE_CHECKING:
    from kvsim.budget.layout import KVDtype
    from kvsim.catalog.spec import ModelSpec

#: Block size of most kernels, which also take any multiple of it.
USUAL = 16
#: Tokens per block of sparse MLA's kernels and their indexer (DeepSeek-V3.2, GLM-5).
SPARSE = 64
#: Tokens per block of MiniMax-M3 ("Setting KV cache block size to 128 to match MiniMax-M3 sparse
#: block size", public copy of log 60171799662).
SPARSE_HEADS = 128
#: Tokens per block of FLASHMLA, vLLM's choice for FP8 KV on Hopper, and of FLASHINFER_MLA and
#: CUTLASS_MLA on Blackwell.
FLASHMLA, FLASHINFER_MLA, CUTLASS_MLA = 64, 32, 128
#: Elements of a head, without its rotary part, that FLASHINFER_MLA supports.
FLASHINFER_DIMS = (64, 128, 192)
#: Tokens per block of FLASH_ATTN: with heads of 512 elements and FP8 KV on Hopper, and with heads
#: of 256 elements on Blackwell, where vLLM uses it only on request.
WIDE_HEADS, HALF_WIDE_HEADS = 64, 128
#: Tokens per block of each MLA backend that can be requested.
OF_BACKENDS = {
    **dict.fromkeys(("FLASH_ATTN_MLA", "TRITON_MLA", "ROCM_AITER_MLA"), USUAL),
    **dict.fromkeys(("FLASHINFER_MLA", "TOKENSPEED_MLA"), FLASHINFER_MLA),
    **{"FLASHMLA": FLASHMLA, "CUTLASS_MLA": CUTLASS_MLA},
}


def default_block_size(
    model: ModelSpec, gpu: str, kv: KVDtype, vllm_version: str, backend: str | None = None
) -> int:
    """Return the tokens per block that vLLM chooses for a model on a GPU.

    Parameters
    ----------
    gpu : name of the GPU in the catalogue
    kv : data type of keys and values
    backend : the requested attention backend of vLLM, None for vLLM's choice
    """
    card = capability(gpu)
    if card is None or precedes(vllm_version, FIRST_CHOICE):
        return USUAL
    if model.compress_ratios:
        return BLOCK
    if model.num_index_layers:
        return SPARSE if model.is_mla else SPARSE_HEADS
    asked = (backend or "").upper()
    if model.is_mla:
        return OF_BACKENDS.get(asked) or _of_latents(model, card, kv)
    widest = max((layer.head_dim for layer in model.layers), default=0)
    wide = {(9, 512): kv.bits == 8, (10, 256): asked == "FLASH_ATTN"}
    if not wide.get((card, widest)):
        return USUAL
    return WIDE_HEADS if card == 9 else HALF_WIDE_HEADS


def _of_latents(model: ModelSpec, card: int, kv: KVDtype) -> int:
    if card == 10:
        fits = model.qk_nope_head_dim in FLASHINFER_DIMS
        return FLASHINFER_MLA if fits else CUTLASS_MLA
    return FLASHMLA if card == 9 and kv.bits == 8 else USUAL


def unsupported(model: ModelSpec, block_size: int) -> str | None:
    """Return the reason why vLLM has no kernel for a block size; None if it has one."""
    unit = (
        BLOCK
        if model.compress_ratios
        else SPARSE
        if model.is_mla and model.num_index_layers
        else USUAL
    )
    if block_size % unit == 0:
        return None
    return (
        f"block_size {block_size}: vLLM's attention kernels for {model.name} take "
        f"multiples of {unit}; vLLM would not start"
    )
