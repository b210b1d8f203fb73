"""Keys of a Hugging Face ``config.json``, family by family.

One small function per family turns a configuration into keyword arguments of ``ModelSpec``;
``FAMILIES`` lists them with transformers' defaults for keys that published files omit.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.catalog.sizes import MAX_LAYERS, MAX_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

Fields = dict[str, Any]  # keyword arguments of ModelSpec

#: Letters of ``ModelSpec.layer_pattern`` for the names in ``layer_types``.
LAYER_LETTERS = {"full_attention": "F", "sliding_attention": "S", "chunked_attention": "C"}


class Config:
    """The text part of a ``config.json``. A key that is null counts as missing.

    Parameters
    ----------
    values
        The mapping of the file, or of its ``text_config``.
    path
        The file, for error messages.
    """

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values = values
        self.path = path

    def error(self, what: str) -> ValueError:
        """Build a one-line error that names the file."""
        return ValueError(f"{self.path}: {what}")

    def get(self, key: str) -> Any:
        """Return a value, or None when it is null or missing."""
        return self.values.get(key)

    def integer(self, *keys: str, default: int | None = None, minimum: int = 0) -> int:
        """Return the value of the first key present, else the default; raise without either."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise self.error(f"{key} must be an integer, not {value!r}")
            if value < minimum:
                raise self.error(f"{key} must be at least {minimum}, not {value}")
            most = MAX_LAYERS if "layer" in key and "size" not in key else MAX_SIZE
            if value > most:
                raise self.error(f"{key} must be at most {most:,}, not {value:,}")
            return value
        if default is None:
            raise self.error(f"missing key {' or '.join(keys)}")
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean, or the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def entries(self, key: str) -> list[Any]:
        """Return a list, empty if the key is missing."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(f"{key} must be a list, not {value!r}")
        return value


# -- shared by several families ---------------------------------------------------------------


def decoder(config: Config) -> Fields:
    """Read sizes under the usual names; without num_key_value_heads each head has its own KV."""
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads", minimum=1)
    return {
        "num_layers": config.integer("num_hidden_layers", minimum=1),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": config.integer("num_key_value_heads", default=heads),
        "head_dim": config.integer("head_dim", default=hidden // heads),
        "intermediate_size": config.integer("intermediate_size"),
        "vocab_size": config.integer("vocab_size"),
        "max_position_embeddings": config.integer("max_position_embeddings"),
    }


def layers(config: Config, letters: str, window_key: str = "sliding_window") -> Fields:
    """Turn the kind of each layer into a pattern; ``layer_types`` overrides the family's rule."""
    num_layers = config.integer("num_hidden_layers")
    types = [str(kind) for kind in config.entries("layer_types")]
    if types:
        unknown = sorted(set(types) - LAYER_LETTERS.keys())
        if unknown:
            raise config.error(f"layer_types: {unknown[0]!r} is not supported")
        letters = "".join(LAYER_LETTERS[kind] for kind in types)
    if len(letters) != num_layers:
        raise config.error(f"layer_types has {len(letters)} entries for {num_layers} layers")
    if set(letters) == {"F"}:
        return {}
    window = config.integer(window_key)
    if window >= config.integer("max_position_embeddings"):
        return {}  # no context is longer than the window: Phi-3-128k, Qwen
    return {"layer_pattern": period(letters), "window": window}


def period(letters: str) -> str:
    """Return the shortest pattern that, repeated and perhaps cut at the end, gives the letters."""
    lengths = range(1, len(letters) + 1)
    return next(letters[:n] for n in lengths if (letters[:n] * len(letters)).startswith(letters))


def _window_everywhere(config: Config) -> Fields:
    letter = "F" if config.get("sliding_window") is None else "S"
    return layers(config, letter * config.integer("num_hidden_layers"))


def _every(n: int, letter: str, other: str, num_layers: int) -> str:
    """Return a letter per layer: ``letter`` for every n-th layer, ``other`` for the rest."""
    return "".join(letter if (i + 1) % n == 0 else other for i in range(num_layers))


def experts(config: Config, *count_keys: str, width_key: str = "moe_intermediate_size") -> Fields:
    return {
        "num_experts": config.integer(*count_keys),
        "num_experts_per_token": config.integer(
            *("num_experts_per_tok", "num_experts_per_token"),
            *("experts_per_token", "top_k_experts"),
        ),
        "moe_intermediate_size": config.integer(width_key),
    }


def num_dense(moe_layers: Iterable[int], num_layers: int) -> int:
    return num_layers - len(set(moe_layers))


def num_shared(config: Config, key: str, width: int, default: int | None = 0) -> int:
    """Return the width of the shared experts as a multiple of that of a routed one."""
    shared = config.integer(key, default=default)
    if shared % width:
        raise config.error(
            f"{key} ({shared}) must be a multiple of moe_intermediate_size ({width})"
        )
    return shared // width


def _attention_bias(config: Config, default: bool = False) -> Fields:
    bias = config.flag("attention_bias", default)
    return {"qkv_bias": bias, "output_bias": bias}


# -- families ---------------------------------------------------------------------------------


def _llama(config: Config) -> Fields:
    return decoder(config) | _attention_bias(config) | {"mlp_bias": config.flag("mlp_bias")}


def _llama4(config: Config) -> Fields:
    """Llama 4: layers with rotary positions have chunked attention, the others full attention."""
    fields = decoder(config)
    num_layers = fields["num_layers"]
    step = config.integer("interleave_moe_layer_step", minimum=1)
    moe_layers = config.entries("moe_layers") or range(step - 1, num_layers, step)
    rope = config.entries("no_rope_layers")  # 1 for rotary positions, despite the name
    if rope:
        letters = "".join("C" if uses_rope else "F" for uses_rope in rope)
    else:
        letters = _every(config.integer("no_rope_layer_interval", minimum=1), "F", "C", num_layers)
    return (
        fields
        | _attention_bias(config)
        | layers(config, letters, window_key="attention_chunk_size")
        | experts(config, "num_local_experts", width_key="intermediate_size")
        | {
            "intermediate_size": config.integer("intermediate_size_mlp"),
            "num_shared_experts": 1,
            "num_dense_layers": num_dense(moe_layers, num_layers),
        }
    )


def _mistral(config: Config) -> Fields:
    return decoder(config) | _window_everywhere(config)


def _mixtral(config: Config) -> Fields:
    return _mistral(config) | experts(config, "num_local_experts", width_key="intermediate_size")


def _qwen_window(config: Config) -> Fields:
    """Qwen: windows only if switched on, and only from layer ``max_window_layers`` on."""
    num_layers = config.integer("num_hidden_layers")
    num_full = num_layers
    if config.flag("use_sliding_window") and config.get("sliding_window") is not None:
        num_full = min(num_layers, config.integer("max_window_layers"))
    return layers(config, "F" * num_full + "S" * (num_layers - num_full))


def _qwen_experts(config: Config) -> Fields:
    num_layers = config.integer("num_hidden_layers")
    step = config.integer("decoder_sparse_step", minimum=1)
    dense = set(config.entries("mlp_only_layers"))
    moe_layers = (i for i in range(num_layers) if i not in dense and (i + 1) % step == 0)
    dense_layers = num_dense(moe_layers, num_layers)
    return experts(config, "num_experts") | {"num_dense_layers": dense_layers}


def _qwen2(config: Config) -> Fields:
    return decoder(config) | _qwen_window(config) | {"qkv_bias": True}


def _qwen2_moe(config: Config) -> Fields:
    """Qwen 2 with experts; the shared expert's gate (one row per layer) is not counted."""
    routed = _qwen_experts(config)
    width, key = routed["moe_intermediate_size"], "shared_expert_intermediate_size"
    return _qwen2(config) | routed | {"num_shared_experts": num_shared(config, key, width, None)}


def _qwen3(config: Config) -> Fields:
    return decoder(config) | _qwen_window(config) | _attention_bias(config) | {"qk_norm": True}


def _qwen3_moe(config: Config) -> Fields:
    return _qwen3(config) | _qwen_experts(config)


def _gemma(config: Config, full_every: int) -> Fields:
    fields = decoder(config) | _attention_bias(config) | {"norms_per_layer": 4}
    return fields | layers(config, _every(full_every, "F", "S", fields["num_layers"]))


def _gemma3(config: Config) -> Fields:
    keys = ("_sliding_window_pattern", "sliding_window_pattern")  # the default has the second name
    return _gemma(config, full_every=config.integer(*keys, minimum=1)) | {"qk_norm": True}


def _gemma4(config: Config) -> Fields:
    """Gemma 4 without the additions of its small models (those are in ``hf_experts.py``)."""
    fields = _gemma3(config) | {"full_head_dim": config.integer("global_head_dim")}
    if config.flag("attention_k_eq_v"):
        fields["full_key_is_value"] = True
        fields["full_num_kv_heads"] = config.integer("num_global_key_value_heads")
    if not config.flag("enable_moe_block"):
        return fields
    routed = experts(config, "num_experts")
    # The dense MLP runs in parallel with the experts in every layer, as shared experts do.
    shared = num_shared(config, "intermediate_size", routed["moe_intermediate_size"])
    return fields | routed | {"num_shared_experts": shared, "norms_per_layer": 7}


def _gpt_oss(config: Config) -> Fields:
    fields = decoder(config)
    return (
        fields
        | layers(config, _every(2, "F", "S", fields["num_layers"]))
        | _attention_bias(config, default=True)
        | experts(config, "num_local_experts", width_key="intermediate_size")
        | {"mlp_bias": True, "router_bias": True, "attention_sinks": True}
    )


def _deepseek(config: Config) -> Fields:
    """DeepSeek-V2 and V3; the multi-token-prediction module is not part of the model served."""
    fields = decoder(config) | {
        "kv_lora_rank": config.integer("kv_lora_rank"),
        "q_lora_rank": config.integer("q_lora_rank", default=0),
        "qk_nope_head_dim": config.integer("qk_nope_head_dim"),
        "qk_rope_head_dim": config.integer("qk_rope_head_dim"),
        "v_head_dim": config.integer("v_head_dim"),
        "head_dim": config.integer("v_head_dim"),
    }
    if config.get("n_routed_experts") is None:
        return fields
    first = config.integer("first_k_dense_replace")
    step = config.integer("moe_layer_freq", minimum=1)
    moe_layers = (i for i in range(fields["num_layers"]) if i >= first and i % step == 0)
    return (
        fields
        | experts(config, "n_routed_experts")
        | {
            "num_shared_experts": config.integer("n_shared_experts", default=0),
            "num_dense_layers": num_dense(moe_layers, fields["num_layers"]),
            "router_bias": config.get("topk_method") == "noaux_tc",
        }
    )


def _gpt2(config: Config) -> Fields:
    hidden, heads = config.integer("n_embd"), config.integer("n_head", minimum=1)
    positions = config.integer("n_positions", "n_ctx")
    return _gpt2_block() | {
        "num_layers": config.integer("n_layer"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "intermediate_size": config.integer("n_inner", default=4 * hidden),
        "vocab_size": config.integer("vocab_size"),
        "max_position_embeddings": positions,
        "num_position_embeddings": positions,
    }


def _gpt2_block(bias: bool = True) -> Fields:
    biases = {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bias}
    return {"gated_mlp": False, "norm_bias": True, **biases}


def _opt(config: Config) -> Fields:
    if config.integer("word_embed_proj_dim", default=0) not in (0, config.integer("hidden_size")):
        raise config.error("word_embed_proj_dim unlike hidden_size (OPT-350M) is not supported")
    renamed = {"intermediate_size": config.integer("ffn_dim")}
    fields = decoder(Config({**config.values, **renamed}, config.path))
    positions = fields["max_position_embeddings"] + 2  # two rows are never used
    return (
        fields
        | _gpt2_block(config.flag("enable_bias", True))
        | {"num_position_embeddings": positions}
    )


def _falcon(config: Config) -> Fields:
    """Falcon; the key num_kv_heads counts only in its second architecture (40B, 180B, 11B)."""
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads", "n_head", minimum=1)
    new = config.flag("new_decoder_architecture")
    kv_heads = 1 if config.flag("multi_query", True) and not new else heads
    if new:
        kv_heads = config.integer("num_kv_heads", "n_head_kv", default=heads)
    parallel = new or config.flag("parallel_attn", True)
    num_norms = config.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    return _gpt2_block(config.flag("bias")) | {
        "num_layers": config.integer("num_hidden_layers", "n_layer"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": hidden // heads,
        "intermediate_size": config.integer("ffn_hidden_size", default=4 * hidden),
        "vocab_size": config.integer("vocab_size"),
        "max_position_embeddings": config.integer("max_position_embeddings"),
        "norms_per_layer": num_norms if parallel else 2,
    }


def _phi(config: Config) -> Fields:
    """Phi-1 and Phi-2: attention and MLP in parallel under one norm, biases everywhere."""
    if config.flag("qk_layernorm"):
        raise config.error("qk_layernorm is not supported")
    return decoder(config) | _gpt2_block() | {"norms_per_layer": 1, "lm_head_bias": True}


class Family(NamedTuple):
    """Reader of one ``model_type``."""

    read: Callable[[Config], Fields]
    defaults: Mapping[str, Any] = {}
    ties: bool = False  # default of tie_word_embeddings: the LM head is the embedding
    null_means_none: frozenset[str] = frozenset()  # keys for which null is a value


WINDOW = frozenset({"sliding_window"})
QWEN_MOE = {"decoder_sparse_step": 1}
LLAMA4 = {"attention_chunk_size": 8192, "interleave_moe_layer_step": 1, "no_rope_layer_interval": 4}
GEMMA3 = {
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "vocab_size": 262_208,
}
GEMMA4 = {"global_head_dim": 512, "sliding_window_pattern": 6}
DEEPSEEK = {"moe_layer_freq": 1, "first_k_dense_replace": 0}
#: Mistral 4's, by transformers' Mistral4Config.
MISTRAL4 = {
    **DEEPSEEK,
    **{"kv_lora_rank": 256, "q_lora_rank": 1024, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64},
    **{"v_head_dim": 128, "n_routed_experts": 128, "n_shared_experts": 1},
    **{"num_experts_per_tok": 4, "moe_intermediate_size": 2048},
}

FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(_deepseek, DEEPSEEK),
    "deepseek_v3": Family(_deepseek, {**DEEPSEEK, "topk_method": "noaux_tc"}),
    "falcon": Family(_falcon, {"max_position_embeddings": 2048}, ties=True),
    "gemma2": Family(
        partial(_gemma, full_every=2), {"head_dim": 256, "sliding_window": 4096}, ties=True
    ),
    "gemma3": Family(_gemma3, GEMMA3, ties=True),
    "gemma4": Family(_gemma4, GEMMA4, ties=True),
    "gpt2": Family(_gpt2, ties=True),
    "gpt_oss": Family(_gpt_oss, {"head_dim": 64, "sliding_window": 128}),
    "llama": Family(_llama, {"max_position_embeddings": 2048}),
    "llama4": Family(_llama4, LLAMA4),
    "mistral": Family(
        _mistral, {"num_key_value_heads": 8, "sliding_window": 4096}, null_means_none=WINDOW
    ),
    "mistral4": Family(_deepseek, MISTRAL4),
    "mixtral": Family(_mixtral, {"num_key_value_heads": 8}),
    "opt": Family(_opt, ties=True),
    "phi": Family(_phi),
    "phi3": Family(_mistral),
    "qwen2": Family(_qwen2, {"max_window_layers": 28}),
    "qwen2_moe": Family(_qwen2_moe, {**QWEN_MOE, "max_window_layers": 28}),
    "qwen3": Family(_qwen3, {"head_dim": 128, "max_window_layers": 28}),
    "qwen3_moe": Family(_qwen3_moe, {**QWEN_MOE, "max_window_layers": 28}),
}
