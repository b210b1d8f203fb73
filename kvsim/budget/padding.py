"""Padding of routed experts in MXFP4 to whole tiles of the kernels that a card has.

The alignments of vLLM's source. Logged: gpt-oss-20b on an A100 13.72 GiB of weights (12.80 without
padding, 13.65 with it), gpt-oss-120b over four cards with Marlin 17.22 (15.17 and 17.13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.catalog.generations import capability

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec

#: By capability: multiples of an expert's width on a rank, and of the hidden size. Marlin's on
#: cards without kernels of the format, and those of the TensorRT-LLM kernels; Hopper's Triton
#: kernels pad only the width.
MXFP4_TILES = {8: (128, 256), 12: (128, 256), 10: (256, 256), 9: (64, 1)}


def padded_experts(
    model: ModelSpec, gpu: str, quantization: str | None, *, ranks_per_expert: int
) -> float:
    """Return the bytes of routed experts on a rank as a multiple of those without padding.

    Parameters
    ----------
    gpu : the catalogue's name
    ranks_per_expert : GPUs over which each expert is cut
    """
    tiles = MXFP4_TILES.get(capability(gpu) or 0)
    if quantization != "mxfp4" or tiles is None or not model.is_moe:
        return 1.0
    width, hidden = model.moe_intermediate_size / ranks_per_expert, model.hidden_size
    tiled = _round_up(width, tiles[0]) * _round_up(hidden, tiles[1])
    return tiled / (width * hidden)


def _round_up(size: float, multiple: int) -> int:
    return -int(-size // multiple) * multiple
