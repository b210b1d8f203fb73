"""Layers with attention and Mamba side by side, and short convolutions."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

import kvsim
from kvsim.attention.mamba import StateCache
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.budget.lora import lora_bytes
from kvsim.budget.planner import plan_groups
from kvsim.catalog import get_model
from kvsim.catalog.hf_config import read_hf_config
from kvsim.lora import LoRAConfig

if TYPE_CHECKING:
    from pathlib import Path

FALCON: dict[str, Any] = {
    **{"model_type": "falcon_h1", "hidden_size": 3072, "intermediate_size": 12288},
    **{"num_hidden_layers": 44, "num_attention_heads": 12, "num_key_value_heads": 2},
    **{"head_dim": 128, "vocab_size": 130049, "max_position_embeddings": 262144},
    **{"mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_head": 128, "mamba_rms_norm": True},
}
LFM2: dict[str, Any] = {
    **{"model_type": "lfm2", "hidden_size": 2048, "block_ff_dim": 12288, "vocab_size": 65536},
    **{"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, "block_multiple_of": 256},
    **{"block_auto_adjust_ff_dim": True, "max_position_embeddings": 128000},
}
LFM2_MOE = {
    **LFM2,
    **{"model_type": "lfm2_moe", "intermediate_size": 7168, "num_hidden_layers": 24},
    **{"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792},
    **{"num_dense_layers": 2, "full_attn_idxs": [2, 6, 10, 14, 18, 21]},
}
del LFM2_MOE["block_ff_dim"], LFM2_MOE["block_auto_adjust_ff_dim"]
MISTRAL4: dict[str, Any] = {
    **{"model_type": "mistral4", "hidden_size": 4096, "intermediate_size": 12288},
    **{"num_hidden_layers": 36, "num_attention_heads": 32, "vocab_size": 131072},
    "max_position_embeddings": 1048576,
}
FILES = {"falcon-h1-7b": FALCON, "lfm2-1.2b": LFM2, "lfm2-8b-a1b": LFM2_MOE}


@pytest.mark.parametrize("name", [*FILES, "mistral-small-4"])
def test_a_file_gives_the_catalogues_model(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(FILES.get(name, MISTRAL4)))
    read, known = read_hf_config(file), get_model(name)
    assert read.num_params == known.num_params
    assert read.mixers == known.mixers
    assert read.num_active_params == known.num_active_params


def test_a_layer_of_both_kinds_has_keys_and_a_state() -> None:
    """Falcon-H1-7B: 24 heads of 128 x 256, and 3 inputs of 3,072 + 2 x 256 channels."""
    layout = kv_layout(get_model("falcon-h1-7b"), kv_dtype("bf16"))
    assert [layer.kind for layer in layout.layers[:4]] == ["full", "mamba"] * 2
    assert len(layout.layers) == 88
    assert layout.bytes_per_token == 44 * 2 * 2 * 128 * 2
    assert layout.layers[1].state_bytes == (24 * 128 * 256 + 3 * 3584) * 2
    groups = plan_groups(layout, 16, state=StateCache("align")).groups
    assert [(group.kind, group.num_layers) for group in groups] == [("full", 44), ("mamba", 44)]


def test_half_the_layers_of_a_stage_have_half_the_states() -> None:
    layout = kv_layout(get_model("falcon-h1-7b"), kv_dtype("bf16"), pipeline_parallel_size=2)
    assert len(layout.layers) == 44


def test_a_short_convolution_keeps_its_last_inputs() -> None:
    """LFM2-1.2B: 81,920 bytes of state per request, 12,288 of KV per token."""
    layout = kv_layout(get_model("lfm2-1.2b"), kv_dtype("bf16"))
    assert layout.bytes_per_token == 12_288
    assert sum(layer.state_bytes for layer in layout.layers) == 10 * 2 * 2048 * 2 == 81_920
    halves = kv_layout(get_model("lfm2-1.2b"), kv_dtype("bf16"), tensor_parallel_size=2)
    assert sum(layer.state_bytes for layer in halves.layers) == 40_960
    # A log of vLLM: ten convolutions and six layers of attention, two layers of padding.
    groups = plan_groups(layout, 16, state=StateCache("align")).groups
    assert sorted(group.num_layers for group in groups) == [5, 5, 6]


def test_adapters_have_one_mlp_in_a_layer_of_both_kinds() -> None:
    """Rank 1: queries to output, the state's projections, and three matrices of the MLP."""
    attention = (3072 + 1536) * 2 + (3072 + 256) * 2
    state = 3072 + 6656 + 2 * 3072
    mlp = 3 * (3072 + 12288)
    size = lora_bytes(get_model("falcon-h1-7b"), LoRAConfig(1, 1))
    assert size == 44 * (attention + state + mlp) * 2


@pytest.mark.parametrize("model", ["falcon-h1-0.5b", "lfm2-350m", "lfm2-8b-a1b"])
def test_they_run(model: str) -> None:
    trace = kvsim.Trace.from_arrays([0.0, 0.1], [700, 700], [6, 6], segments=[[(1, 0, 700)]] * 2)
    small = {"num_gpu_blocks_override": 400, "backend": "python", "check_invariants": True}
    result = kvsim.simulate(trace, model=model, gpu="h100-sxm", **small)
    assert result.summary["completed"] == 2


def test_what_their_files_lack_is_said(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for change, message in (
        ({"layer_types": ["conv"]}, "layer_types has 1 entries for 16 layers"),
        ({"block_ffn_dim_multiplier": "x"}, "block_ffn_dim_multiplier must be a positive number"),
        ({"block_ffn_dim_multiplier": math.inf}, "block_ffn_dim_multiplier must be a positive"),
    ):
        file.write_text(json.dumps({**LFM2, **change}))
        with pytest.raises(ValueError, match=message):
            read_hf_config(file)


def test_keys_that_are_null_or_absent_have_the_defaults_of_their_families(tmp_path: Path) -> None:
    """LFM2 has attention in all layers; Falcon-H1's state is twice as wide as a hidden vector."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({key: LFM2[key] for key in LFM2 if key != "full_attn_idxs"}))
    assert read_hf_config(file).num_state_layers == 0
    falcon = {**FALCON, "mamba_d_ssm": None, "mamba_n_heads": 48}
    file.write_text(json.dumps(falcon))
    assert read_hf_config(file).state_head_dim == 2 * 3072 // 48
    file.write_text(json.dumps({**falcon, "mamba_n_heads": 47}))
    with pytest.raises(ValueError, match="mamba_n_heads 47 must divide the state's width, 6144"):
        read_hf_config(file)


def test_defaults_are_those_of_the_configuration_classes(tmp_path: Path) -> None:
    """Of transformers: 8 KV heads; null is a head each. An LFM2 with experts has 2 dense layers."""
    file = tmp_path / "config.json"
    heads = []
    for change in ({}, {"num_key_value_heads": None}):
        values = {key: FALCON[key] for key in FALCON if key != "num_key_value_heads"}
        file.write_text(json.dumps({**values, "num_attention_heads": 24, **change}))
        heads.append(read_hf_config(file).num_kv_heads)
    assert heads == [8, 24]
    experts = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_dense_layers")
    file.write_text(json.dumps({key: LFM2_MOE[key] for key in LFM2_MOE if key not in experts}))
    assert read_hf_config(file).num_params == get_model("lfm2-8b-a1b").num_params
