"""The configuration to simulate from a server's start-up log, and its unmodelled features."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.budget.budget import GIB
from kvsim.budget.capacity import blocks_of_tokens, resolve_memory
from kvsim.budget.versions import ASYNC, V1, precedes
from kvsim.catalog import get_gpu, get_model, gpu_names
from kvsim.config import LOGGED_PARTS, RunConfig
from kvsim.lora import LORA_FLAGS

if TYPE_CHECKING:
    from kvsim.calibration.startup import Startup

#: Options of a log that a run uses unchanged.
TAKEN = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len"),
    *("max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization"),
    *("enable_prefix_caching", "enable_chunked_prefill", "enforce_eager", "async_scheduling"),
    *("enable_expert_parallel", "kv_cache_memory_bytes", "num_gpu_blocks_override"),
    *("max_cudagraph_capture_size", "long_prefill_token_threshold", "scheduling_policy"),
    *LORA_FLAGS,
    *("disable_hybrid_kv_cache_manager", "decode_context_parallel_size"),
    *("cpu_offload_gb", "offload_group_size", "offload_num_in_group", "offload_prefetch_step"),
)
#: Quantization methods with a weight format that the model's name or its config.json determines.
OF_MODEL = frozenset(("compressed-tensors", "modelopt", "modelopt_fp4", "inc", "auto-round"))
#: Server features that a simulation lacks, by option.
NOT_MODELLED = {
    "num_scheduler_steps": "multi-step scheduling",
    "prefill_context_parallel_size": "context parallelism",
    "enable_dbo": "dual batch overlap",
    "max_num_partial_prefills": "several partial prefills at once",
    "kv_transfer_config": "a KV connector, whose time is not part of the steps",
    "speculative_config": "drafts: give the number of accepted ones with --speculative-config",
    "speculative_model": "drafts: give the number of accepted ones with --speculative-config",
    "limit_mm_per_prompt": "images and audio, if requests had any",
}
#: Values of these options when the feature is off.
_OFF: tuple[Any, ...] = (None, False, 0, 1, "", {}, "None")
#: Allowed relative difference of a card's memory from a logged one.
NEAR = 0.006


class Server(NamedTuple):
    """Server to simulate: options, logged GiB of the memory budget, unmodelled features, notes."""

    options: dict[str, Any]
    logged: dict[str, float]
    unmodelled: tuple[str, ...]
    notes: tuple[str, ...]


def server_of(startup: Startup | None, given: dict[str, Any]) -> Server:
    """Return the server of a log; options ``given`` by the user override logged ones.

    Raises
    ------
    ValueError
        If model or GPU are not given and cannot be determined, or the options are inconsistent.
    """
    if startup is None:
        return Server(dict(given), dict(given.get("logged") or {}), (), ())
    args = startup.args
    options: dict[str, Any] = {name: args[name] for name in TAKEN if name in args}
    notes = list(startup.notes)
    if startup.engine == "vllm":
        options |= _generation(startup)
        if not startup.version and "vllm_version" not in given:
            notes.append("the log does not name vLLM's version: give --vllm-version")
    options |= _formats(args)
    if "model" in args and "model" not in given:
        options["model"] = known_model(str(args["model"]), given)
    options |= given
    if "gpu" not in given:
        options["gpu"], note = _gpu(startup)
        notes += [note] if note else []
    if "model" not in options:
        raise ValueError("--model: the log does not name it")
    logged = {k: v for k, v in startup.memory.items() if k in LOGGED_PARTS}
    options |= _pinned(startup, options)
    unmodelled = tuple(
        f"{name.replace('_', '-')}: {what}"
        for name, what in NOT_MODELLED.items()
        if args.get(name) not in _OFF and name not in given
    )
    return Server(options, logged, unmodelled, tuple(notes))


def _generation(startup: Startup) -> dict[str, Any]:
    """Return the options that follow from vLLM's version."""
    if not startup.version:
        return {}
    options: dict[str, Any] = {"vllm_version": startup.version}
    if precedes(startup.version, V1) or startup.args.get("engine_v0"):
        return options | {"scheduler": "vllm-v0"}
    if precedes(startup.version, ASYNC):
        options["async_scheduling"] = bool(startup.args.get("async_scheduling", False))
    return options


def _formats(args: dict[str, Any]) -> dict[str, Any]:
    """Return kvsim's names of the formats of weights and KV."""
    options: dict[str, Any] = {}
    kv = str(args.get("kv_cache_dtype", "auto"))
    options["kv_cache_dtype"] = "fp8" if kv.startswith("fp8") else kv
    dtype = str(args.get("dtype", "auto")).removeprefix("torch.")
    options["dtype"] = {"half": "float16", "float": "float32"}.get(dtype, dtype)
    weights = args.get("quantization")
    if isinstance(weights, str) and weights not in OF_MODEL and weights != "None":
        options["quantization"] = weights.removesuffix("_marlin").replace("_", "-")
    return options


def known_model(name: str, given: dict[str, Any]) -> str:
    """Return kvsim's name of a model that the server calls ``name``, an id or a path."""
    if "hf_config_path" in given:
        return PurePath(name).name
    parts = [part for part in PurePath(name).parts if part not in ("/", "snapshots")]
    tries = [name, *("/".join(parts[-2 - i : len(parts) - i]) for i in range(len(parts)))]
    tries += [part.removeprefix("models--").replace("--", "/") for part in reversed(parts)]
    for one in tries:
        try:
            return name if one == name and get_model(one) else get_model(one).name
        except ValueError:
            continue
    raise ValueError(
        f"--model: {name} is not in the catalogue: give another, or --hf-config-path with its "
        "config.json"
    )


def _gpu(startup: Startup) -> tuple[str, str]:
    """Return the card by the driver's name, else by memory size if unique; and a note."""
    if startup.device:
        try:
            return get_gpu(startup.device).name, ""
        except ValueError:
            pass
    memory = startup.memory.get("memory")
    if memory is None:
        raise ValueError("--gpu is missing: the log does not name the GPU")
    near = [n for n in gpu_names() if abs(get_gpu(n).memory_bytes / GIB / memory - 1) <= NEAR]
    if len(near) == 1:
        return near[0], f"the GPU is {near[0]}, by its {memory:g} GiB"
    of = f"those of {', '.join(near)}" if near else "those of no known card"
    raise ValueError(f"--gpu: the log does not name the GPU, and its {memory:g} GiB are {of}")


def _pinned(startup: Startup, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that set the size of the KV cache to the logged one.

    Logged tokens convert to blocks only with one KV-cache group; with several groups vLLM's tokens
    have another meaning, and the logged bytes are used.
    """
    if any(name in options for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes")):
        return {}
    if startup.num_gpu_blocks is not None:
        return {"num_gpu_blocks_override": startup.num_gpu_blocks}
    told = startup.memory.get("kv_cache")
    kv = {} if told is None else {"logged": {"kv_cache": told}}
    if startup.num_tokens is None:
        return kv
    config = RunConfig.build(**{**options, "num_gpu_blocks_override": 1000})
    memory = resolve_memory(config)
    if len(memory.plan.groups) > 1:
        return kv
    return {"num_gpu_blocks_override": blocks_of_tokens(config, memory, startup.num_tokens)}
