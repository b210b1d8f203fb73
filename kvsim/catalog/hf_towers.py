"""Parameters of the vision and audio towers of multimodal checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.catalog.hf_families import Config

#: Parameters of Gemma 3n's towers and projectors: its checkpoint less the text backbone.
GEMMA3N = 983_281_504
#: Families whose projector merges patches, in two layers as wide as the merged patches.
MERGERS = ("qwen3_5", "qwen3_vl", "qwen2_5_vl", "qwen2_vl", "kimi")
#: Families of towers for which the memory of a server's profile run is known.
PROFILED = ("qwen3_5", "qwen3_vl")
#: Families with a tower of three-matrix MLPs and without any biases.
GATED = ("pixtral", "gemma4_vision")


def num_tower_params(config: Config, hidden_size: int) -> int:
    """Count the parameters of a file's towers with their projectors; 0 without towers.

    The number is exact for Qwen's (deepstack mergers included), Kimi's and Gemma 3's. Other towers
    are assumed to have the layers and the projector of a SigLIP.
    """
    towers = [config.get(key) for key in ("vision_config", "audio_config")]
    if config.get("model_type") == "gemma3n" and all(towers):
        return GEMMA3N
    return sum(_tower(tower, hidden_size) for tower in towers if isinstance(tower, dict))


def _first(tower: Mapping[str, Any], *keys: str, default: int = 0) -> int:
    """Return the first of these sizes that exists, with or without Kimi's prefix ``vt_``."""
    for key in keys:
        for name in (key, f"vt_{key}"):
            if isinstance(tower.get(name), int):
                return int(tower[name])
    return default


def _tower(tower: Mapping[str, Any], text_hidden: int) -> int:
    hidden = _first(tower, "hidden_size")
    layers = _first(tower, "num_hidden_layers", "depth", "num_layers")
    width = _first(tower, "intermediate_size", default=4 * hidden)
    if not hidden or not layers:
        return 0
    kind = str(tower.get("model_type", ""))
    if kind.startswith("qwen2_5_vl"):
        return _qwen2_5(tower, hidden, layers, width, text_hidden)
    if kind in GATED:
        body = layers * (4 * hidden * hidden + 3 * hidden * width + 2 * hidden)
    else:
        body = layers * (4 * hidden * (hidden + 1) + 2 * hidden * width + width + 5 * hidden)
    patch = _first(tower, "patch_size", default=14) ** 2 * 3
    frames = _first(tower, "temporal_patch_size", default=1)
    side = _first(tower, "image_size") // _first(tower, "patch_size", default=14)
    rows = _first(tower, "num_position_embeddings", default=side * side)
    if "init_pos_emb_height" in tower:
        rows = _first(tower, "init_pos_emb_height") * _first(tower, "init_pos_emb_width")
    ends = (patch * frames + 1 + rows) * hidden
    return body + ends + _projector(tower, kind, hidden, text_hidden)


def _qwen2_5(
    tower: Mapping[str, Any], hidden: int, layers: int, width: int, text_hidden: int
) -> int:
    """Count Qwen2.5-VL's parameters: MLPs have three matrices with biases, norms have none."""
    attention = (hidden + 1) * 3 * hidden + (hidden + 1) * hidden
    mlp = 3 * hidden * width + 2 * width + hidden
    patch = 3 * _first(tower, "patch_size", default=14) ** 2
    patches = hidden * patch * _first(tower, "temporal_patch_size", default=2)
    merged = hidden * _merged_patches(tower)
    merger = hidden + (merged + 1) * merged + (merged + 1) * text_hidden
    return layers * (attention + mlp + 2 * hidden) + patches + merger


def _projector(tower: Mapping[str, Any], kind: str, hidden: int, text_hidden: int) -> int:
    if kind.startswith(MERGERS) or "merge_kernel_size" in tower:
        merged = hidden * _merged_patches(tower)
        norms = 2 * hidden * (2 if "merge_kernel_size" in tower else 1)
        mlp = (merged + 1) * merged + (merged + 1) * text_hidden
        deep = tower.get("deepstack_visual_indexes")  # mergers of Qwen3-VL for its first layers
        deepstack = len(deep) * (2 * merged + mlp) if isinstance(deep, list) else 0
        return norms + mlp + deepstack
    return 3 * hidden + hidden * text_hidden


def patches_per_token(config: Config) -> int:
    """Return the number of patches of a file's vision tower per prompt token."""
    tower, tokens = config.get("vision_config"), config.get("mm_tokens_per_image")
    if not isinstance(tower, dict):
        return 4
    side = _first(tower, "image_size") // _first(tower, "patch_size", default=14)
    return side * side // tokens if isinstance(tokens, int) and side else _merged_patches(tower)


def tower_hidden_size(config: Config) -> int:
    """Return the width of a file's vision tower if it is one of Qwen3-VL's kind, else 0."""
    tower = config.get("vision_config")
    if not isinstance(tower, dict) or not str(tower.get("model_type", "")).startswith(PROFILED):
        return 0
    return _first(tower, "hidden_size")


def _merged_patches(tower: Mapping[str, Any]) -> int:
    kernel = tower.get("merge_kernel_size")
    if isinstance(kernel, list) and len(kernel) == 2:
        return int(kernel[0]) * int(kernel[1])
    return _first(tower, "spatial_merge_size", default=2) ** 2
