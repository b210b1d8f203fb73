"""Weight format of a checkpoint, from ``config.json`` and ``hf_quant_config.json``."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.catalog.hf_families import Config, Fields

#: ``quant_method`` -> kvsim's weight format. Methods that are missing here are refused.
QUANT_METHODS = {"awq": "awq", "fbgemm_fp8": "fp8", "fp8": "fp8", "gptq": "gptq", "mxfp4": "mxfp4"}

#: ModelOpt's ``quant_algo`` -> kvsim's weight format.
MODELOPT = {"FP8": "fp8", "FP8_PB_WO": "fp8-block", "NVFP4": "nvfp4", "MXFP4": "mxfp4"}

#: Names of a part's linear layers within one layer.
MODULES = {
    "experts": ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "mixer.experts.0.up"),
    "shared_experts": ("mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj"),
    "mlp": ("mlp.up_proj", "mlp.gate_up_proj"),
    "attention": ("self_attn.q_proj", "self_attn.q_b_proj", "self_attn.qkv_proj"),
    "output": ("self_attn.o_proj",),
    "state": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz", "mixer.in_proj"),
    "state_output": ("linear_attn.out_proj", "mixer.out_proj"),
}
#: Module names of families that differ from ``MODULES``.
OTHER_NAMES = {
    ("gemma4_text", "experts"): ("experts.0.up_proj", "moe.experts.0.up_proj"),
    ("gemma4_text", "shared_experts"): ("mlp.up_proj",),
    ("kimi_linear", "state"): MODULES["attention"],
    ("kimi_linear", "state_output"): MODULES["output"],
}
#: A part counts as quantised if at most one layer in FEW excludes it.
FEW = 8
PREFIXES = ("model.layers", "language_model.model.layers", "model.language_model.layers")


def quantization_of(config: Config) -> Fields:
    """Return ``quantization``, the quantised parts if not all are, and the KV dtype if given."""
    settings = config.get("quantization_config")
    if not settings or (isinstance(settings, dict) and "quant_method" not in settings):
        settings = _beside(config) or settings
    if not settings:
        return {"quantization": None}
    if not isinstance(settings, dict):
        raise config.error(f"quantization_config must be an object, not {settings!r}")
    stored = _format(config, settings)
    left_out = [
        *(settings.get("ignore") or ()),
        *(settings.get("exclude_modules") or ()),
        *(settings.get("modules_to_not_convert") or ()),
    ]
    found: Fields = {"quantization": stored}
    if left_out:
        found["quantized_parts"] = _parts(config, stored, [str(name) for name in left_out])
    if _wants_fp8_kv(settings):
        found["kv_cache_dtype"] = "fp8"
    return found


def _beside(config: Config) -> dict[str, Any] | None:
    """Return the settings in ModelOpt's file next to ``config.json``, if any (old checkpoints)."""
    file = config.path.with_name("hf_quant_config.json")
    if config.path.name != "config.json" or not file.is_file():
        return None
    try:
        values = json.loads(file.read_text("utf-8"))
        settings = dict(values["quantization"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{file}: not a readable ModelOpt file") from None
    return {"quant_method": "modelopt", **settings}


def _format(config: Config, settings: Mapping[str, Any]) -> str:
    method = str(settings.get("quant_method", "missing"))
    if method == "compressed-tensors":
        return _compressed_tensors(config, settings)
    if method.startswith("modelopt") and settings.get("quant_algo") in MODELOPT:
        return MODELOPT[settings["quant_algo"]]
    if method in ("awq", "gptq") and settings.get("bits") == 8:
        return "int8"
    if method.startswith("modelopt"):
        known = ", ".join(MODELOPT)
        raise config.error(
            f"quantization_config: quant_algo {settings.get('quant_algo')!r} of modelopt is not "
            f"supported (one of: {known})"
        )
    if method not in QUANT_METHODS:
        known = ", ".join(sorted([*QUANT_METHODS, "compressed-tensors", "modelopt FP8 and NVFP4"]))
        raise config.error(
            f"quantization_config: quant_method {method!r} is not supported (one of: {known})"
        )
    if method == "fp8" and settings.get("weight_block_size"):
        return "fp8-mxfp4" if config.get("expert_dtype") == "fp4" else "fp8-block"
    return QUANT_METHODS[method]


def _compressed_tensors(config: Config, settings: Mapping[str, Any]) -> str:
    """Read llm-compressor's format; 4-bit integers in groups of 128 count as GPTQ."""
    groups: dict[str, Any] = settings.get("config_groups") or {}
    first: dict[str, Any] = next(iter(groups.values()), {})
    weights: dict[str, Any] = first.get("weights") or {}
    stored = (weights.get("type"), weights.get("num_bits"))
    group = weights.get("group_size")
    kinds = {
        ("float", 8): "fp8-block" if weights.get("strategy") == "block" else "fp8",
        ("float", 4): "mxfp4" if group == 32 else "nvfp4",
        ("int", 8): "int8",
        ("int", 4): "int4" if group == 32 else "gptq",
    }
    if stored not in kinds:
        raise config.error(
            f"quantization_config: compressed-tensors weights of type {stored[0]!r} with "
            f"{stored[1]!r} bits are not supported"
        )
    return kinds[stored]


def _wants_fp8_kv(settings: Mapping[str, Any]) -> bool:
    """Return True if, by ModelOpt's settings, vLLM's default KV dtype is FP8."""
    scheme = settings.get("kv_cache_quant_algo") or settings.get("kv_cache_scheme")
    if not str(settings.get("quant_method", "")).startswith("modelopt") or not scheme:
        return False
    return scheme == "FP8" or (isinstance(scheme, dict) and scheme.get("num_bits") == 8)


def _parts(config: Config, stored: str, left_out: Sequence[str]) -> tuple[str, ...]:
    """Return ``FORMAT:PART`` of each quantised part; an empty tuple if all parts are quantised."""
    num_layers = config.integer("num_hidden_layers", default=1)
    parts = []
    for part, usual in MODULES.items():
        modules = OTHER_NAMES.get((config.get("model_type"), part), usual)
        skipped = sum(_ignored_modules(layer, modules, left_out) for layer in range(num_layers))
        if skipped <= num_layers // FEW:
            parts.append(f"{stored}:{part}")
    return tuple(parts) if len(parts) < len(MODULES) else ()


def _ignored_modules(layer: int, modules: Sequence[str], patterns: Sequence[str]) -> bool:
    names = [f"{prefix}.{layer}.{module}" for prefix in PREFIXES for module in modules]
    return any(_matches(pattern, name) for pattern in patterns for name in names)


def _matches(pattern: str, name: str) -> bool:
    """Return True if a pattern excludes a module: a regular expression, a glob, or name parts."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    if "*" in pattern:
        return fnmatchcase(name, pattern)
    return f".{pattern}." in f".{name}."
