"""Block counts and groups of layers as vLLM's own planner recorded them, beside kvsim's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvsim.budget.layout import KV_DTYPES, KVLayout, LayerKV
from kvsim.budget.planner import plan_groups

if TYPE_CHECKING:
    from pathlib import Path

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
    """Return what vLLM's planner said."""
    plans: list[dict[str, Any]] = json.loads((data / "vllm_planner.json").read_text())
    return plans


def difference(recorded: dict[str, Any]) -> str | None:
    """Return where kvsim's plan departs from a recorded one; None if nowhere.

    Packed groups are recorded without their window. The largest concurrency is recorded to four
    decimals.
    """
    plan = plan_groups(layout_of(recorded["model"]), 16, packed=recorded["layout"] != "LBNHC")
    packed = any(group["kind"] == "UniformTypeKVCacheSpecs" for group in recorded["groups"])
    longest = recorded["max_model_len"]
    blocks = plan.blocks_for(longest, recorded["max_in_flight_tokens"], longest)
    ours = {
        "bytes_per_block": plan.bytes_per_block,
        "num_blocks": recorded["available_bytes"] // plan.bytes_per_block,
        "groups": [
            (group.num_layers, group.block_size, None if packed else group.window)
            for group in plan.groups
        ],
        "max_concurrency": round(recorded["num_blocks"] / blocks, 4),
    }
    theirs = {name: recorded[name] for name in ours}
    theirs["groups"] = [(g["n_layers"], g["block_size"], g["window"]) for g in recorded["groups"]]
    for name, value in ours.items():
        if value != theirs[name]:
            return f"{name}: {value}, recorded {theirs[name]}"
    return None
