"""Keys of ``config.json`` in families with Mamba or linear-attention layers."""

from __future__ import annotations

import math
from typing import Any

from kvsim.catalog.hf_families import FAMILIES, Config, Family, Fields, experts, num_shared, period

#: Letters of ``ModelSpec.layer_pattern`` for those of Nemotron-H's ``hybrid_override_pattern``.
NEMOTRON_LETTERS = {"M": "M", "*": "F", "-": "-", "E": "E"}
#: Letters of ``hybrid_override_pattern`` for the names in ``layers_block_type``.
NEMOTRON_BLOCKS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


def _sizes(config: Config, **renamed: Any) -> Fields:
    """Return the sizes under Llama's keys; arguments replace the file's values."""
    fields = FAMILIES["llama"].read(Config({**config.values, **renamed}, config.path))
    return {key: value for key, value in fields.items() if not key.endswith("_bias")}


def _pattern(letters: str) -> Fields:
    return {"layer_pattern": period(letters)}


def _jamba(config: Config) -> Fields:
    """Jamba: Mamba layers, with attention layers and experts at fixed intervals."""
    fields = _sizes(config)
    layers = range(fields["num_layers"])
    period, offset = config.integer("attn_layer_period", minimum=1), "attn_layer_offset"
    letters = "".join("F" if i % period == config.integer(offset) else "M" for i in layers)
    step = config.integer("expert_layer_period", minimum=1)
    dense = sum(i % step != config.integer("expert_layer_offset") for i in layers)
    return (
        fields
        | _pattern(letters)
        | experts(config, "num_experts", width_key="intermediate_size")
        | {
            "num_dense_layers": dense,
            "state_form": "mamba1",
            "state_num_heads": 1,
            "state_head_dim": config.integer("mamba_expand") * fields["hidden_size"],
            "state_size": config.integer("mamba_d_state"),
            "conv_kernel": config.integer("mamba_d_conv"),
        }
    )


def _nemotron_h(config: Config) -> Fields:
    """Nemotron-H: each layer is a Mamba-2 mixer, attention, an MLP of two matrices or experts."""
    blocks = config.entries("layers_block_type")
    letters = str(config.get("hybrid_override_pattern") or "")
    letters = letters or "".join(NEMOTRON_BLOCKS.get(str(kind), "?") for kind in blocks)
    unknown = sorted(set(letters) - NEMOTRON_LETTERS.keys())
    if unknown or len(letters) != config.integer("num_hidden_layers", default=len(blocks)):
        raise config.error(
            "hybrid_override_pattern must have a letter of M, *, - and E for each layer, not "
            f"{letters!r}"
        )
    head_dim = config.integer("attention_head_dim", "head_dim")
    return (
        _sizes(config, head_dim=head_dim, num_hidden_layers=len(letters))
        | _pattern("".join(NEMOTRON_LETTERS[letter] for letter in letters))
        | (_nemotron_experts(config, letters) if "E" in letters else {})
        | {
            "gated_mlp": False,
            "norms_per_layer": 1,
            "state_form": "mamba2",
            "state_num_heads": config.integer("mamba_num_heads"),
            "state_head_dim": config.integer("mamba_head_dim"),
            "state_num_groups": config.integer("n_groups"),
            "state_size": config.integer("ssm_state_size"),
            "conv_kernel": config.integer("conv_kernel"),
            "state_chunk": config.integer("mamba_chunk_size", default=64),
            "state_dtype": _state_dtype(config, "mamba_ssm_cache_dtype"),
        }
    )


def _nemotron_experts(config: Config, letters: str) -> Fields:
    """Experts of Nemotron 3, which may work on fewer dimensions than the layers."""
    routed = experts(config, "n_routed_experts")
    width = routed["moe_intermediate_size"]
    return routed | {
        "moe_latent_size": config.integer("moe_latent_size", default=0),
        "num_shared_experts": num_shared(config, "moe_shared_expert_intermediate_size", width),
        "num_dense_layers": letters.count("-"),
    }


def _state_dtype(config: Config, key: str) -> str | None:
    """Return fp32 if the file sets it as the dtype of states, else None."""
    return "fp32" if config.get(key) == "float32" else None


def _qwen3_next(config: Config) -> Fields:
    """Qwen3-Next and 3.5: gated delta nets, and full attention with a gate in every n-th layer."""
    has_experts = config.get("num_experts") is not None
    renamed = {"intermediate_size": config.values.get("intermediate_size")}
    if has_experts and renamed["intermediate_size"] is None:  # no layer is dense
        renamed["intermediate_size"] = config.get("moe_intermediate_size")
    fields = _sizes(config, **renamed)
    every = config.integer("full_attention_interval", minimum=1)
    kinds = [str(kind) for kind in config.entries("layer_types")]
    full = [kind == "full_attention" for kind in kinds]
    full = full or [(i + 1) % every == 0 for i in range(fields["num_layers"])]
    return (
        fields
        | _pattern("".join("F" if is_full else "M" for is_full in full))
        | (_qwen_experts(config) if has_experts else {})
        | {
            "qk_norm": True,
            "attention_gate": True,
            "state_form": "gdn",
            "state_num_heads": config.integer("linear_num_value_heads"),
            "state_head_dim": config.integer("linear_value_head_dim"),
            "state_num_groups": config.integer("linear_num_key_heads"),
            "state_size": config.integer("linear_key_head_dim"),
            "conv_kernel": config.integer("linear_conv_kernel_dim"),
            "state_dtype": _state_dtype(config, "mamba_ssm_dtype"),
        }
    )


def _qwen_experts(config: Config) -> Fields:
    routed = experts(config, "num_experts")
    width = routed["moe_intermediate_size"]
    return routed | {
        "num_shared_experts": num_shared(config, "shared_expert_intermediate_size", width),
        "shared_expert_gate": True,
    }


def _granite(config: Config) -> Fields:
    """Granite 4: Mamba-2 or attention, then routed experts and a shared one, or an MLP."""
    kinds = [str(kind) for kind in config.entries("layer_types")]
    width = config.integer("shared_intermediate_size")
    fields = _sizes(config, intermediate_size=width)
    letters = "".join("F" if kind == "attention" else "M" for kind in kinds)
    if len(letters) != fields["num_layers"]:
        raise config.error(f"layer_types has {len(letters)} entries")
    fields |= _pattern(letters or "F" * fields["num_layers"])
    if config.integer("num_local_experts", default=0):
        fields |= experts(config, "num_local_experts", width_key="intermediate_size")
        routed = fields["moe_intermediate_size"]
        fields["num_shared_experts"] = num_shared(config, "shared_intermediate_size", routed)
    return fields | {
        "state_form": "mamba2",
        "state_num_heads": config.integer("mamba_n_heads"),
        "state_head_dim": config.integer("mamba_d_head"),
        "state_num_groups": config.integer("mamba_n_groups"),
        "state_size": config.integer("mamba_d_state"),
        "conv_kernel": config.integer("mamba_d_conv"),
        "state_chunk": config.integer("mamba_chunk_size", default=64),
    }


def _kimi_linear(config: Config) -> Fields:
    """Kimi delta attention, and MLA in the layers of ``full_attn_layers`` (the first is 1)."""
    linear = config.get("linear_attn_config")
    if not isinstance(linear, dict):
        raise config.error("missing key linear_attn_config")
    own = Config(linear, config.path)
    head_dim = config.integer("v_head_dim")
    longest = config.integer("max_position_embeddings", "model_max_length")
    fields = _sizes(config, head_dim=head_dim, max_position_embeddings=longest)
    full = set(own.entries("full_attn_layers"))
    heads, dim = own.integer("num_heads"), own.integer("head_dim")
    return (
        fields
        | _pattern("".join("F" if i + 1 in full else "M" for i in range(fields["num_layers"])))
        | experts(config, "num_experts")
        | {
            "num_shared_experts": config.integer("num_shared_experts", default=0),
            "num_dense_layers": config.integer("first_k_dense_replace", default=0),
            "router_bias": True,
            "kv_lora_rank": config.integer("kv_lora_rank"),
            "q_lora_rank": config.integer("q_lora_rank", default=0),
            "qk_nope_head_dim": config.integer("qk_nope_head_dim"),
            "qk_rope_head_dim": config.integer("qk_rope_head_dim"),
            "v_head_dim": head_dim,
            "state_form": "kda",
            "state_num_heads": heads,
            "state_head_dim": dim,
            "state_num_groups": heads,
            "state_size": dim,
            "conv_kernel": own.integer("short_conv_kernel_size"),
            "state_dtype": "fp32",
            "state_full_gate": own.flag("use_full_rank_gate"),
            "attention_gate": config.flag("mla_use_output_gate"),
            "moe_latent_size": config.integer("routed_expert_hidden_size", default=0),
        }
    )


def _falcon_h1(config: Config) -> Fields:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, then an MLP."""
    doubled = config.integer("mamba_expand", default=2) * config.integer("hidden_size")
    width = config.integer("mamba_d_ssm", default=doubled)
    heads = config.integer("mamba_n_heads", minimum=1)
    if width % heads:
        raise config.error(f"mamba_n_heads {heads} must divide the state's width, {width}")
    return FAMILIES["llama"].read(config) | {
        "layer_pattern": "P",
        "state_form": "mamba2",
        "state_num_heads": heads,
        "state_head_dim": width // heads,
        "state_num_groups": config.integer("mamba_n_groups"),
        "state_size": config.integer("mamba_d_state"),
        "conv_kernel": config.integer("mamba_d_conv"),
        "state_chunk": config.integer("mamba_chunk_size"),
        "state_norm": config.flag("mamba_rms_norm"),
    }


def _lfm2(config: Config) -> Fields:
    """LFM2: short convolutions, and attention in the named layers."""
    num_layers = config.integer("num_hidden_layers", minimum=1)
    kinds = [str(kind) for kind in config.entries("layer_types")]
    named = config.entries("full_attn_idxs")
    if config.get("full_attn_idxs") is None:  # all layers have attention
        named = list(range(num_layers))
    full = [kind == "full_attention" for kind in kinds] or [i in named for i in range(num_layers)]
    if len(full) != num_layers:
        raise config.error(f"layer_types has {len(full)} entries for {num_layers} layers")
    width = config.integer("block_ff_dim", "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim", "num_experts" not in config.values):
        unit = config.integer("block_multiple_of", default=256, minimum=1)
        width = -(-int(_factor(config) * int(2 * width / 3)) // unit) * unit
    fields = _sizes(config, intermediate_size=width)
    if config.get("num_experts") is not None:
        fields |= experts(config, "num_experts")
        fields["num_dense_layers"] = config.integer("num_dense_layers", default=0)
    return (
        fields
        | _pattern("".join("F" if is_full else "M" for is_full in full))
        | {
            "qk_norm": True,
            "state_form": "conv",
            "state_num_heads": 1,
            "state_head_dim": fields["hidden_size"],
            "state_size": 1,
            "conv_kernel": config.integer("conv_L_cache"),
        }
    )


def _factor(config: Config) -> float:
    """Return the factor of the width of LFM2's MLPs."""
    factor = config.get("block_ffn_dim_multiplier")
    if factor is None:
        return 1.0
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not is_number or not 0 < factor < math.inf:
        raise config.error(f"block_ffn_dim_multiplier must be a positive number, not {factor!r}")
    return float(factor)


# Defaults of the configuration classes in transformers.
FALCON_H1 = {
    **{"mamba_chunk_size": 256, "mamba_d_conv": 4, "mamba_d_ssm": 1024, "mamba_d_state": 256},
    **{"mamba_n_groups": 1, "mamba_n_heads": 128, "max_position_embeddings": 8192},
    "num_key_value_heads": 8,
}
LFM2 = {
    **{"conv_L_cache": 3, "max_position_embeddings": 128_000, "num_key_value_heads": 8},
    "vocab_size": 65_536,
}
LFM2_MOE = LFM2 | {
    **{"moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 32},
    "num_experts_per_tok": 4,
}

JAMBA = {
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "max_position_embeddings": 262_144,
}

QWEN_NEXT = {"full_attention_interval": 4}

HYBRIDS: dict[str, Family] = {
    "falcon_h1": Family(
        _falcon_h1, FALCON_H1, null_means_none=frozenset({"mamba_d_ssm", "num_key_value_heads"})
    ),
    "granitemoehybrid": Family(_granite, ties=True),
    "jamba": Family(_jamba, JAMBA),
    "lfm2": Family(_lfm2, LFM2, ties=True),
    "lfm2_moe": Family(_lfm2, LFM2_MOE, ties=True),
    "kimi_k3": Family(_kimi_linear),
    "kimi_linear": Family(_kimi_linear),
    "nemotron_h": Family(_nemotron_h),
    "qwen3_5": Family(_qwen3_next, QWEN_NEXT),
    "qwen3_5_moe": Family(_qwen3_next, QWEN_NEXT),
    "qwen3_next": Family(_qwen3_next, QWEN_NEXT),
}
