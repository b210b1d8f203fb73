"""Overrides of values in a ``config.json`` (vLLM's ``--hf-overrides``)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.catalog.spec import ModelSpec

#: Keys of ``config.json``, and the fields of a ModelSpec that they override.
SIZES = {
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length"),
        "max_position_embeddings",
    ),
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "sliding_window": "window",
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), "num_experts"),
    "num_experts_per_tok": "num_experts_per_token",
    "moe_intermediate_size": "moe_intermediate_size",
    "n_shared_experts": "num_shared_experts",
    "first_k_dense_replace": "num_dense_layers",
    **{key: key for key in ("kv_lora_rank", "q_lora_rank", "v_head_dim")},
    **{key: key for key in ("qk_rope_head_dim", "qk_nope_head_dim", "index_head_dim")},
}
#: Rotary embeddings for which ``max_position_embeddings`` already is the longest sequence.
NOT_SCALED = ("su", "longrope", "llama3")
ROPE = ("rope_parameters", "rope_scaling")
LETTERS_WITHOUT_WINDOW = str.maketrans("S", "F")


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's values with overrides; objects are merged key by key."""
    made = dict(values)
    for key, value in overrides.items():
        old = made.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        made[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return made


def scaled_length(values: Mapping[str, Any], longest: int) -> int:
    """Return the longest sequence that scaled rotary positions allow.

    As in vLLM, this is ``factor`` times the longest sequence of the file; for YaRN, ``factor``
    times its ``original_max_position_embeddings``.
    """
    for key in ROPE:
        rope = values.get(key)
        if not isinstance(rope, dict) or "gemma3" in str(values.get("model_type")):
            continue
        kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
        if kind in NOT_SCALED or not isinstance(factor, int | float):
            continue
        if kind == "yarn":
            longest = rope.get("original_max_position_embeddings", longest)
        return int(longest * factor)
    return longest


def _size_of(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FieldError("hf_overrides", f"{key} must be a whole number, not {value!r}")
    return value


def override_fields(model: ModelSpec, overrides: Mapping[str, Any]) -> ModelSpec:
    """Return a model of the catalogue with overridden fields; other keys are ignored.

    Raises
    ------
    ValueError
        If sizes are not whole numbers, or no longer fit together.
    """
    inner = overrides.get("text_config")
    values = merged(overrides, inner) if isinstance(inner, dict) else dict(overrides)
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key == "sliding_window" and value is None:
            changes["window"] = None
            changes["layer_pattern"] = model.layer_pattern.translate(LETTERS_WITHOUT_WINDOW)
        elif key in SIZES:
            changes[SIZES[key]] = _size_of(key, value)
        elif key in ROPE and value is not None and not isinstance(value, dict):
            raise FieldError("hf_overrides", f"{key} must be an object or null, not {value!r}")
        elif key == "tie_word_embeddings" and isinstance(value, bool):
            changes[key] = value
    longest = changes.get("max_position_embeddings", model.max_position_embeddings)
    family = {"model_type": "gemma3" if model.name.startswith("gemma-3-") else ""}
    changes["max_position_embeddings"] = scaled_length(values | family, longest)
    try:
        return replace(model, **changes)
    except ValueError as error:
        raise FieldError("hf_overrides", str(error)) from None
