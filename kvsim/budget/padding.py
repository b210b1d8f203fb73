"""Padding of routed experts in MXFP4 to whole tiles of the GPU's kernels.

The alignments are those of vLLM's source. Logged weights: gpt-oss-20b on an A100 13.72 GiB (kvsim:
12.80 without padding, 13.65 with it); gpt-oss-120b on each of four GPUs with Marlin 17.22 GiB
(kvsim: 15.17 and 17.13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.catalog.generations import capability

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec

#: Tiles by compute capability: an expert's width on a rank is padded to a multiple of the first
#: number, the hidden size to a multiple of the second. They are Marlin's on GPUs without MXFP4
#: kernels (8, 12), those of TensorRT-LLM's kernels (10), and those of Triton's kernels on Hopper
#: (9), which pad only the width.
MXFP4_TILES = {8: (128, 256), 12: (128, 256), 10: (256, 256), 9: (64, 1)}


def padded_experts(
    model: ModelSpec, gpu: str, quantization: str | None, *, ranks_per_expert: int
) -> float:
    """Return the bytes of routed experts on a rank as a multiple of those without padding.

    Parameters
    ----------
    gpu : name of the GPU in the catalogue
    ranks_per_expert : GPUs over which each expert is split
    """
    tiles = MXFP4_TILES.get(capability(gpu) or 0)
    if quantization != "mxfp4" or tiles is None or not model.is_moe:
        return 1.0
    width, hidden = model.moe_intermediate_size / ranks_per_expert, model.hidden_size
    tiled = _round_up(width, tiles[0]) * _round_up(hidden, tiles[1])
    return tiled / (width * hidden)


def _round_up(size: float, multiple: int) -> int:
    return -int(-size // multiple) * multiple
