"""A configuration as a ``vllm serve`` command line, with notes on options that vLLM lacks."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.catalog import get_model
from kvsim.catalog.spec import ModelSpec
from kvsim.client_options import ClientOptions
from kvsim.lora import LORA_FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.config import Config

#: Fields that are flags of ``vllm serve`` 0.33, in the order of its help.
FLAGS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    *(
        "decode_context_parallel_size",
        "enable_expert_parallel",
        "dtype",
        "quantization",
        "hf_config_path",
        "hf_overrides",
    ),
    *(
        "language_model_only",
        "max_model_len",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "kv_cache_dtype",
    ),
    *("num_gpu_blocks_override", "block_size", "enable_prefix_caching", "mamba_cache_mode"),
    *("mamba_ssm_cache_dtype", "disable_hybrid_kv_cache_manager", "kv_offloading_size"),
    *("kv_offloading_backend", "kv_transfer_config", "speculative_config", *LORA_FLAGS),
    *("max_num_seqs", "max_num_batched_tokens"),
    *("enable_chunked_prefill", "long_prefill_token_threshold", "scheduling_policy"),
    *("async_scheduling", "enforce_eager", "max_cudagraph_capture_size"),
    *("cudagraph_capture_sizes", "compilation_config", "optimization_level"),
    *("performance_mode", "attention_backend", "prefix_match_unit", "mamba_cache_dtype"),
    *("long_prefill_token_threshold_adaptive", "disable_sliding_window", "mm_ipc_gpu_memory_gb"),
)
#: vLLM's values of options for which kvsim has further values; and vLLM's names of kvsim's values.
VALUES = {
    "kv_cache_dtype": ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
    "quantization": ("fp8", "awq", "gptq", "bitsandbytes", "mxfp4"),
    "scheduling_policy": ("fcfs", "priority"),
}
NAMES = {("kv_cache_dtype", "bf16"): "bfloat16"}
#: Options that are not server flags, such as GPU, requests, and recording of a run.
NOT_SERVING = frozenset(
    (
        *("model", "gpu", "workload", "trace", "tokenizer", "request_rate", "num_requests", "seed"),
        "goodput",
        *("trace_digest", "record_steps", "record_memory_map", "record_block_events"),
        *("check_invariants", "backend"),
        *("cost_model", "horizon", "logged", "vllm_version", "kv_events_config", "max_concurrency"),
        *("front_end_latency", "front_end_latency_per_token", "session_think_time"),
        *ClientOptions.model_fields,
    )
)


#: Note on the lines of several pools.
SERVERS = (
    "each prefill or decode replica is a separate server: start its pool's line once per replica, "
    "with a --kv-transfer-config for its role"
)


class Line(NamedTuple):
    """A command, and notes on the options that it cannot express."""

    command: str
    notes: tuple[str, ...]


def vllm_line(config: Config) -> Line:
    """Return a configuration as a ``vllm serve`` line.

    The line always has the tensor-parallel size. Of the other flags it has only those that were
    given, since kvsim's defaults are vLLM's.

    Examples
    --------
    >>> from kvsim.config import Config
    >>> vllm_line(Config.build(model="llama-3.1-8b", max_num_seqs=64)).command
    'vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 1 --max-num-seqs 64'
    """
    if config.pool is not None and len(config.pool) > 1:
        servers = [dict(pool.options) | {"pool": None} for pool in config.pool]
        lines = [vllm_line(config.model_copy(update=server)) for server in servers]
        told = dict.fromkeys(note for line in lines for note in line.notes)
        return Line("\n".join(line.command for line in lines), (*told, SERVERS))
    words, notes, left_out = ["vllm", "serve", model_name(config)], [], []
    for name, value in _flags_given(config):
        if name in VALUES and value not in VALUES[name]:
            left_out.append(f"{_flag(name)} {value}")
        else:
            words += _written(name, value)
    own = config.model_fields_set - set(FLAGS) - NOT_SERVING - {"pool"}
    left_out += [f"{_flag(n)} {getattr(config, n)}" for n in type(config).model_fields if n in own]
    if left_out:
        notes.append(
            f"not in the vllm serve line, as vLLM has no such option: {'; '.join(left_out)}"
        )
    if config.pool is not None or config.num_prefill_workers is not None:
        notes.append(SERVERS)
    return Line(shlex.join(words), tuple(notes))


def _flags_given(config: Config) -> Iterator[tuple[str, Any]]:
    for name in FLAGS:
        value = getattr(config, name)
        is_off = value is False and type(config).model_fields[name].default is False
        is_told = name == "tensor_parallel_size" or name in config.model_fields_set
        if is_told and not is_off and value is not None:
            yield name, NAMES.get((name, value), value) if isinstance(value, str) else value


def model_name(config: Config) -> str:
    """Return vLLM's name of the model: its Hugging Face id, or the folder of its config.json."""
    model = config.model
    if isinstance(model, ModelSpec):
        return model.hf_id or model.name
    path = Path(model)
    if path.name == "config.json":
        return str(path.parent)
    if "/" in model or config.hf_config_path is not None:  # an id, which may be a fine-tune's
        return model
    return get_model(model).hf_id or model


def _written(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [_flag(name) if value else f"--no-{_flag(name)[2:]}"]
    if is_dataclass(value):
        return [_flag(name), json.dumps(_given(value))]
    if isinstance(value, tuple):
        return [_flag(name), *map(str, value)]
    return [_flag(name), f"{value:g}" if isinstance(value, float) else str(value)]


def _given(value: Any) -> dict[str, Any]:
    """Return the fields of a JSON flag that differ from vLLM's defaults."""
    kept = {f.name: getattr(value, f.name) for f in fields(value)}
    kept = {f.name: kept[f.name] for f in fields(value) if kept[f.name] not in (f.default, None)}
    return {k: _given(v) if is_dataclass(v) else v for k, v in kept.items()}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
