"""Block counts and groups of layers as vLLM's own planner recorded them, beside kvsim's."""

from __future__ import annotations

import gzip
import json
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from kvsim.attention.mamba import StateCache
from kvsim.budget.layout import KV_DTYPES, KVLayout, LayerKV
from kvsim.budget.pages import Page
from kvsim.budget.planner import plan_groups, plan_pages

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.budget.layout import LayerKind
    from kvsim.budget.planner import KVGroup, KVPlan

#: vLLM's names of the kinds of layers; MLA is full attention here.
NAMES = {"full": "FullAttentionSpec", "sliding": "SlidingWindowSpec", "mamba": "MambaSpec"}
LATENT = "MLAAttentionSpec"

#: Layers (kind, window, bytes per token) behind the recorded plans, by the beginning of their name.
SHAPES = {
    "llama3_8b": [("full", None, 4096)] * 32,
    "llama3_70b": [("full", None, 4096)] * 80,
    "mistral7b": [("sliding", 4096, 4096)] * 32,
    "gemma3_27b": [
        ("full", None, 8192) if i % 6 == 5 else ("sliding", 1024, 8192) for i in range(62)
    ],
    "gpt_oss_20b": [("full", None, 2048) if i % 2 else ("sliding", 128, 2048) for i in range(24)],
    "13full+12swa": [("sliding", 128, 2048) if i % 2 else ("full", None, 2048) for i in range(25)],
    "mixed heads": [("sliding", 512, 4096) if i % 4 else ("full", None, 2048) for i in range(16)],
}


def layout_of(name: str) -> KVLayout:
    """Return the layers behind a recorded plan."""
    layers = next(layers for start, layers in SHAPES.items() if name.startswith(start))
    return KVLayout(tuple(LayerKV(*layer) for layer in layers), KV_DTYPES["bf16"], 0)


def recorded_plans(data: Path) -> list[dict[str, Any]]:
    """Return what vLLM's planner said; the plans of the second file name every layer."""
    plans: list[dict[str, Any]] = json.loads((data / "vllm_planner.json").read_text())
    second = data / "vllm_planner2.json"
    if second.exists():
        plans += json.loads(second.read_text())
    elif (compressed := second.with_name(f"{second.name}.gz")).exists():
        plans += json.loads(gzip.decompress(compressed.read_bytes()))
    return plans


def pages_of(recorded: dict[str, Any]) -> list[Page]:
    """Return the pages that vLLM's planner was given, of a plan that records no state."""
    block_size = min(group["block_size"] for group in recorded["groups"])
    pages = []
    for _, kind, size, window in recorded["layers"]:
        if kind == "MambaSpec":
            state = StateCache(recorded["mamba_cache_mode"])
            pages.append(Page("mamba", None, block_size, 0, size, size, state=state))
            continue
        slot, latent = size // block_size, kind == "MLAAttentionSpec"
        name: LayerKind = "sliding" if window else "full"
        pages.append(Page(name, window, block_size, slot, size, size, latent))
    return pages


def hybrid_layout(recorded: dict[str, Any]) -> KVLayout:
    """Return the layers of a plan that records its state, before anything is padded."""
    kinds = [kind for _, kind, _, _ in recorded["layers"]]
    slot, state = recorded["attention_bytes_per_token"], recorded["state_bytes"]
    tensors = 1 if "MLAAttentionSpec" in kinds else 2
    attention, mamba = LayerKV("full", None, slot, tensors), LayerKV("mamba", None, 0, 1, state)
    layers = tuple(mamba if kind == "MambaSpec" else attention for kind in kinds)
    return KVLayout(layers, KV_DTYPES["bf16"], 0)


def plan_of(recorded: dict[str, Any]) -> KVPlan:
    """Plan what a recorded plan was made for."""
    packed = recorded["layout"] != "LBNHC"
    if "layers" not in recorded:
        return plan_groups(layout_of(recorded["model"]), 16, packed=packed)
    if recorded["state_bytes"] is None:
        return plan_pages(pages_of(recorded), packed=packed)
    return plan_groups(
        hybrid_layout(recorded),
        16,
        packed=packed,
        state=StateCache(recorded["mamba_cache_mode"], recorded["spec_blocks"]),
        max_model_len=recorded["max_model_len"],
    )


def difference(recorded: dict[str, Any]) -> str | None:
    """Return where kvsim's plan departs from a recorded one; None if nowhere.

    Packed groups are recorded without their window, and the page of all layers instead of one. The
    largest concurrency is recorded to four decimals.
    """
    plan = plan_of(recorded)
    longest = recorded["max_model_len"]
    blocks = plan.reserved_blocks(recorded["max_in_flight_tokens"], longest)
    ours = {
        "bytes_per_block": plan.bytes_per_block,
        "num_blocks": recorded["available_bytes"] // plan.bytes_per_block,
        "block_sizes": [plan.scheduler_block_size, plan.hash_block_size],
        "groups": [
            _group(group, told, recorded)
            for group, told in zip_longest(plan.groups, recorded["groups"])
        ],
        "max_concurrency": round(recorded["num_blocks"] / blocks, 4),
    }
    theirs = {name: recorded[name] for name in ours}
    for name, value in ours.items():
        if value != theirs[name]:
            return f"{name}: {value}, recorded {theirs[name]}"
    return None


def _group(
    group: KVGroup | None, told: dict[str, Any] | None, recorded: dict[str, Any]
) -> dict[str, Any] | None:
    if group is None or told is None:
        return None
    uniform = told["kind"] == "UniformTypeKVCacheSpecs"
    latent = LATENT if told["kind"] == LATENT else NAMES["full"]
    ours = {
        "kind": told["kind"] if uniform else {**NAMES, "full": latent}[group.kind],
        "block_size": group.block_size,
        "n_layers": group.num_layers,
        "page": group.page_bytes // (1 if uniform else group.num_layers),
    }
    if "window" in told:
        ours["window"] = None if uniform else group.window
    if "layers" in told:
        ours["layers"] = [recorded["layers"][place][0] for place in group.layers]
    return ours
