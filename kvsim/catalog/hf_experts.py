"""Keys of ``config.json`` in mixtures of experts with special kinds of attention.

Sparse attention with an indexer (DeepSeek-V3.2, GLM-5, MiniMax-M3), windows with their own heads
(MiMo-V2, Step), KV shared between layers (Gemma 3n and the small Gemma 4).
"""

from __future__ import annotations

from typing import Any

from kvsim.catalog.compressed import HEAVY, INDEXED
from kvsim.catalog.hf_families import (
    FAMILIES,
    GEMMA3,
    GEMMA4,
    WINDOW,
    Config,
    Family,
    Fields,
    decoder,
    experts,
    layers,
    num_dense,
    period,
)


def _flags(config: Config, key: str, num_layers: int) -> list[bool]:
    """Return one boolean per layer, given as 0 and 1; all True if the key is missing."""
    given = config.entries(key)
    if given and len(given) != num_layers:
        raise config.error(f"{key} has {len(given)} entries for {num_layers} layers")
    return [bool(value) for value in given] or [True] * num_layers


# -- sparse attention -----------------------------------------------------------------------------


def _deepseek_sparse(config: Config) -> Fields:
    """DeepSeek-V3.2 and GLM-5: latents, and an indexer in all layers or in some.

    Layers without an indexer use the tokens that the layer before has chosen (GLM-5.2).
    """
    types = [str(kind) for kind in config.entries("indexer_types")]
    num_layers = config.integer("num_hidden_layers")
    if types and len(types) != num_layers:
        raise config.error(f"indexer_types has {len(types)} entries for {num_layers} layers")
    pattern = "".join("I" if kind == "full" else "-" for kind in types)
    return FAMILIES["deepseek_v3"].read(config) | {
        "index_num_heads": config.integer("index_n_heads"),
        "index_head_dim": config.integer("index_head_dim"),
        "index_pattern": period(pattern) if "-" in pattern else "",
    }


def _minimax(config: Config) -> Fields:
    """MiniMax-M2 and M3; M3 chooses blocks of keys by an indexer and begins with dense layers."""
    fields = decoder(config)
    per_layer = config.get("qk_norm_type") == "per_layer"
    has_norm = config.flag("use_qk_norm", True)
    fields |= experts(config, "num_local_experts", width_key="intermediate_size") | {
        "qk_norm": has_norm and not per_layer,
        "qk_norm_per_layer": has_norm and per_layer,
        "router_bias": config.flag("use_routing_bias"),
        "num_shared_experts": config.integer("n_shared_experts", default=0),
    }
    if config.get("dense_intermediate_size") is not None:
        sparse = _flags(config, "moe_layer_freq", fields["num_layers"])
        fields["intermediate_size"] = config.integer("dense_intermediate_size")
        fields["num_dense_layers"] = len(sparse) - sum(sparse)
    return fields | _minimax_indexer(config, fields["num_layers"])


def _minimax_indexer(config: Config, num_layers: int) -> Fields:
    settings = config.get("sparse_attention_config")
    if not isinstance(settings, dict) or not settings.get("use_sparse_attention"):
        return {}
    own = Config(settings, config.path)
    indexed = _flags(own, "sparse_attention_freq", num_layers)
    return {
        "index_num_heads": own.integer("sparse_num_index_heads"),
        "index_head_dim": own.integer("sparse_index_dim"),
        "index_pattern": period("".join("I" if has else "-" for has in indexed)),
    }


def _deepseek_v4(config: Config) -> Fields:
    """DeepSeek-V4: windows, and compressed tokens of one of two ratios in most layers."""
    width = config.integer("moe_intermediate_size")
    hashed = config.entries("mlp_layer_types").count("hash_moe")
    fields = decoder(Config({"intermediate_size": width, **config.values}, config.path))
    return (
        fields
        | experts(config, "n_routed_experts")
        | {
            "layer_pattern": "S",
            "window": config.integer("sliding_window", minimum=1),
            "compress_ratios": _ratios(config, fields["num_layers"]),
            "q_lora_rank": config.integer("q_lora_rank"),
            "qk_rope_head_dim": config.integer("qk_rope_head_dim"),
            "output_groups": config.integer("o_groups"),
            "output_lora_rank": config.integer("o_lora_rank"),
            "residual_streams": config.integer("hc_mult"),
            "num_hash_layers": config.integer("num_hash_layers", default=hashed),
            "index_num_heads": config.integer("index_n_heads"),
            "index_head_dim": config.integer("index_head_dim"),
            "num_shared_experts": config.integer("n_shared_experts"),
            "router_bias": True,
            "attention_sinks": True,
            "kv_cache_dtype": "fp8",
        }
    )


def _ratios(config: Config, num_layers: int) -> tuple[int, ...]:
    """Return the tokens per compressed token of each layer; later entries are of drafters."""
    rates = config.get("compress_rates")
    given = config.entries("compress_ratios")
    if isinstance(rates, dict) and not given:
        given = [rates.get(kind, 0) for kind in config.entries("layer_types")]
    if len(given) < num_layers:
        raise config.error(f"compress_ratios has {len(given)} entries for {num_layers} layers")
    found = tuple(0 if ratio == 1 else ratio for ratio in given[:num_layers])
    if wrong := [ratio for ratio in found if ratio not in (0, INDEXED, HEAVY)]:
        raise config.error(f"compress_ratios: {wrong[0]!r} is not supported (0, 1, 4 or 128)")
    return found


# -- windows with their own heads -----------------------------------------------------------------


def _mimo_v2(config: Config) -> Fields:
    """MiMo-V2: windows with their own KV heads and with sinks; values narrower than keys."""
    fields = decoder(config)
    num_layers = fields["num_layers"]
    letters = _flags(config, "hybrid_layer_pattern", num_layers)
    for key, other in (("head_dim", "swa_head_dim"), ("v_head_dim", "swa_v_head_dim")):
        if config.integer(other, default=config.integer(key)) != config.integer(key):
            raise config.error(f"{other} unlike {key} is not supported")
    sparse = _flags(config, "moe_layer_freq", num_layers)
    return (
        fields
        | experts(config, "n_routed_experts")
        | {
            "num_kv_heads": config.integer("swa_num_key_value_heads"),
            "full_num_kv_heads": fields["num_kv_heads"],
            "v_head_dim": config.integer("v_head_dim"),
            "layer_pattern": period("".join("S" if window else "F" for window in letters)),
            "window": config.integer("sliding_window"),
            "num_dense_layers": num_layers - sum(sparse),
            "num_shared_experts": config.integer("n_shared_experts", default=0),
            "attention_sinks": config.flag("add_swa_attention_sink_bias"),
            "router_bias": config.get("topk_method") == "noaux_tc",
        }
    )


def _step(config: Config) -> Fields:
    """Step-3.5 and 3.7: windows with more query heads, outputs gated head by head."""
    fields = decoder(config)
    width = config.integer("share_expert_dim", default=0)
    settings = config.get("attention_other_setting")
    own = Config(settings if isinstance(settings, dict) else {}, config.path)
    heads = own.integer("num_attention_heads", default=fields["num_heads"])
    routed = experts(config, "num_experts", "moe_num_experts")
    return (
        fields
        | layers(config, "F" * fields["num_layers"])
        | routed
        | {
            "window_num_heads": heads if heads != fields["num_heads"] else None,
            "num_shared_experts": width // routed["moe_intermediate_size"],
            "num_dense_layers": config.integer("first_k_dense_replace", default=0),
            "qk_norm": config.flag("use_qk_norm", True),
            "head_gate": config.flag("use_head_wise_attn_gate", True),
            "router_bias": config.flag("use_moe_router_bias"),
        }
    )


# -- KV shared between layers ---------------------------------------------------------------------


def _gemma_small(config: Config) -> Fields:
    """Gemma 3n and the small Gemma 4: the last layers read the KV of earlier ones.

    Every layer has its own embedding; Gemma 3n has small additional blocks (LAuReL, AltUp).
    """
    widths = config.get("intermediate_size")
    if isinstance(widths, list):  # Gemma 3n names one per layer, all equal
        config = Config({**config.values, "intermediate_size": max(widths)}, config.path)
    fields = FAMILIES["gemma4"].read(config)
    width = config.integer("hidden_size_per_layer_input", default=0)
    inputs = fields["num_layers"] * width
    rows = config.integer("vocab_size_per_layer_input", default=fields["vocab_size"])
    hidden = fields["hidden_size"]
    per_layer = inputs * (rows + hidden) + 2 * inputs * hidden + width
    if config.flag("use_double_wide_mlp"):
        wide = config.integer("num_kv_shared_layers", default=0)
        per_layer += wide * 3 * hidden * fields["intermediate_size"]
    rank = config.integer("laurel_rank", default=0)
    copies = config.integer("altup_num_inputs", default=0)
    side = 2 * hidden * rank + hidden if rank else 0
    side += (copies + 2) * hidden + copies**2 * (copies + 1) if copies else 0
    side = fields["num_layers"] * side + 2 * max(copies - 1, 0) * hidden**2
    return fields | {
        "num_kv_shared_layers": config.integer("num_kv_shared_layers", default=0),
        "num_other_params": per_layer + side + (fields["num_layers"] * hidden if width else 0),
    }


# -- plainer mixtures -----------------------------------------------------------------------------


def _glm4_moe(config: Config) -> Fields:
    """GLM-4.5 to 4.7: leading dense layers, a shared expert, biases on queries, keys and values."""
    fields = decoder(config)
    first = config.integer("first_k_dense_replace", default=0)
    return (
        fields
        | experts(config, "n_routed_experts")
        | {
            "num_shared_experts": config.integer("n_shared_experts", default=0),
            "num_dense_layers": num_dense(range(first, fields["num_layers"]), fields["num_layers"]),
            "qkv_bias": config.flag("attention_bias"),
            "qk_norm": config.flag("use_qk_norm"),
            "router_bias": True,
        }
    )


def _phimoe(config: Config) -> Fields:
    """Phi-3.5-MoE: Mixtral with biases."""
    bias = config.flag("attention_bias")
    return FAMILIES["mixtral"].read(config) | {
        "qkv_bias": bias,
        "output_bias": bias,
        "lm_head_bias": config.flag("lm_head_bias"),
        "norm_bias": True,
    }


DEEPSEEK: dict[str, Any] = dict(FAMILIES["deepseek_v3"].defaults)
GEMMA3N = {
    **GEMMA3,
    "altup_num_inputs": 4,
    "global_head_dim": 256,
    "laurel_rank": 64,
    "sliding_window": 512,
    "sliding_window_pattern": 5,
}
STEP = {"max_position_embeddings": 262_144}

EXPERTS: dict[str, Family] = {
    "deepseek_v4": Family(_deepseek_v4),
    "deepseek_v32": Family(_deepseek_sparse, DEEPSEEK),
    "gemma3n": Family(_gemma_small, GEMMA3N, ties=True),
    "gemma4": Family(_gemma_small, GEMMA4, ties=True),
    "glm4_moe": Family(_glm4_moe),
    "glm4_moe_lite": Family(FAMILIES["deepseek_v3"].read, DEEPSEEK),
    "glm_moe_dsa": Family(_deepseek_sparse, DEEPSEEK),
    "kimi_k2": Family(FAMILIES["deepseek_v3"].read, DEEPSEEK),
    "kimi_k25": Family(FAMILIES["deepseek_v3"].read, DEEPSEEK),
    "mimo_v2_flash": Family(_mimo_v2),
    "minimax_m2": Family(_minimax),
    "minimax_m3": Family(_minimax),
    "ministral3": FAMILIES["mistral"],
    "mistral3": Family(FAMILIES["mistral"].read, null_means_none=WINDOW),
    "phimoe": Family(_phimoe),
    "qwen2_5_vl": FAMILIES["qwen2"],
    "qwen3_vl": FAMILIES["qwen3"],
    "qwen3_vl_moe": FAMILIES["qwen3_moe"],
    "step3p5": Family(_step, STEP),
    "step3p7": Family(_step, STEP),
}
