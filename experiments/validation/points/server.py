"""The options of a measured point's server, and the requests of its client."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import workloads
from experiments.validation.points.flags import evaluated, flag, whole
from experiments.validation.points.rows import Rows
from experiments.validation.points.sglang import sglang_options
from kvsim.catalog import get_gpu, get_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.trace import Trace

#: Prefixes of the table's ``weights``: kvsim's quantization. The catalogue decides which parts of a
#: model a format leaves in 16 bits.
FORMATS = {
    "bf16": None,
    "fp8-static": "fp8",
    "fp8-block": "fp8-block",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int4": "int4",
    "fp8": "fp8",
}

#: vLLM's own defaults for a server on cards of 70 GB and more, versions 0.10 to 0.19
#: (vllm/engine/arg_utils.py, `get_batch_defaults`; `CacheConfig.gpu_memory_utilization`).
DEFAULTS = {"max_num_batched_tokens": 8192, "max_num_seqs": 1024, "block_size": 16}
GPU_MEMORY_UTILIZATION = 0.9
#: First version that schedules asynchronously without being told to.
ASYNCHRONOUS_SINCE = (0, 14)
#: Tokens of max_model_len beyond prompt and output, as most of the scripts leave.
SPARE = 200

#: Rows that were served otherwise than the table's flags say, and how. Llama-3.1-70B on H100s ran
#: before the script of the table's day: an older one passes no --kv-cache-dtype
#: (InferenceMAX, benchmarks/70b_fp8_h100_docker.sh at 4e3c32ef), and the three loops that filled
#: two GPUs waited as long as 220,000 to 234,000 tokens of KV make them: bf16's, half of FP8's.
CORRECTED = (
    (
        Rows("KV in bf16: an older script's flags", "Llama-3.1-70B", "h100", "0.10"),
        {"kv_cache_dtype": "auto"},
    ),
)

#: Prompts per client where a row names no number of them.
ROUNDS = 10
SEED = 0
#: Spread of both lengths by the engine of a row whose client is unknown, an assumption. Clients of
#: equal lengths move in step: SGLang's do. vLLM's do not, so they have InferenceX's spread.
SPREAD = {"vllm": 0.1, "sglang": 0.0}


def options_of(row: Mapping[str, str]) -> dict[str, Any]:
    """Return kvsim's options for a row's server and for the limit of its client.

    Raises
    ------
    ValueError
        For a model, a card, a format or an expression that is not known.
    """
    model = get_model(row["model"])
    spread = 1 if of_text(row) else 1 + SPREAD[row["engine"]]
    longest = math.ceil(spread * whole(row["isl"])) + math.ceil(spread * whole(row["osl"]))
    found = {
        "model": model.name,
        "gpu": gpu_of(row["gpu"]),
        "quantization": quantization_of(row["weights"], model.quantization),
        "kv_cache_dtype": kv_dtype_of(row, model.kv_cache_dtype),
        "tensor_parallel_size": whole(row["tp"], 1),
        "pipeline_parallel_size": whole(row["pp"], 1),
        "data_parallel_size": whole(row["dp_attention"], 1),
        "enable_expert_parallel": whole(row["ep"], 1) > 1,
        "max_model_len": longest + SPARE,
        "enable_prefix_caching": False,  # or without effect: prompts are random
        "max_concurrency": whole(row["concurrency"]),
    }
    return found | (sglang_options(row) if row["engine"] == "sglang" else vllm_options(row))


def vllm_options(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that vLLM's flags of a row are."""
    version = version_of(row["version"])
    found: dict[str, Any] = {
        "max_num_batched_tokens": setting(row, "max_num_batched_tokens"),
        "max_num_seqs": setting(row, "max_num_seqs"),
        "block_size": setting(row, "block_size"),
        "gpu_memory_utilization": float(row["gpu_memory_utilization"] or GPU_MEMORY_UTILIZATION),
        "async_scheduling": asynchronous(row["async_scheduling"], version),
    }
    if captured := captured_of(row):
        found["max_cudagraph_capture_size"] = captured
    if version:
        found["vllm_version"] = ".".join(map(str, version))
    for rows, others in CORRECTED:
        if rows.have(row):
            found |= others
    return found


def trace_of(row: Mapping[str, str]) -> Trace:
    """Return what the client sent: all at once, that is as soon as its limit allows.

    Lengths are uniform between a share of the columns' and those (``--random-range-ratio``), or on
    both sides of the columns' where the row names no share.
    """
    ratio = row["random_range_ratio"]
    return workloads.random(
        num_requests=whole(row["num_prompts"], ROUNDS * whole(row["concurrency"])),
        seed=SEED,
        input_len=whole(row["isl"]),
        output_len=whole(row["osl"]),
        range_ratio=float(ratio or SPREAD[row["engine"]]),
        symmetric=not ratio,
    )


def of_text(row: Mapping[str, str]) -> bool:
    """Return True if the client is InferenceX's, which sends random prompts as text."""
    return bool(row["random_range_ratio"])


def gpu_of(name: str) -> str:
    """Return the catalogue's name of a card; the table may add the form of its socket."""
    try:
        return get_gpu(name).name
    except ValueError:
        return get_gpu(name.removesuffix("_sxm")).name


def format_of(weights: str) -> str:
    """Return how the format of a row's weights begins.

    Raises
    ------
    ValueError
        If none of the known ones does.
    """
    found = [name for name in FORMATS if weights.startswith(name)]
    if not found:
        raise ValueError(f"weights {weights!r}: known are {', '.join(FORMATS)}")
    return max(found, key=len)


def quantization_of(weights: str, own: str | None) -> str | None:
    """Return kvsim's name of a format; None where the catalogue's model has it by itself.

    Raises
    ------
    ValueError
        For an unknown format, or 16 bits of a model that the catalogue has quantised.
    """
    name = FORMATS[format_of(weights)]
    if name is None and own is not None:
        raise ValueError(f"weights {weights!r}: the catalogue has this model in {own} alone")
    return None if name == own else name


def kv_dtype_of(row: Mapping[str, str], own: str | None) -> str:
    """Return the KV cache's dtype: the flag's, else the checkpoint's.

    NVIDIA's NVFP4 checkpoints ask for FP8 (``hf_quant_config.json``: ``kv_cache_quant_algo``).
    """
    told = row["kv_dtype"]
    if told not in ("", "auto"):
        return "fp8" if told.startswith("fp8") else told
    return "fp8" if own == "fp8" or row["weights"].startswith("nvfp4") else "auto"


def version_of(text: str) -> tuple[int, int] | None:
    """Return major and minor version; None for a nightly build or no version."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def captured_of(row: Mapping[str, str]) -> int:
    """Return the longest step in a CUDA graph, 0 if no flag says; an old flag's sizes end there."""
    told = flag(row["flags"], "max-cudagraph-capture-size") or flag(
        row["flags"], "cuda-graph-sizes"
    )
    return evaluated(told, row) if told else 0


def asynchronous(told: str, version: tuple[int, int] | None) -> bool:
    """Return True if the server scheduled asynchronously; a nightly build is a recent version."""
    if told in ("on", "off"):
        return told == "on"
    return version is None or version >= ASYNCHRONOUS_SINCE


def setting(row: Mapping[str, str], name: str) -> int:
    """Return a whole number that was set in a column or a flag, or the default."""
    told = row.get(name) or flag(row["flags"], name.replace("_", "-"))
    if told:
        return evaluated(told, row)
    return DEFAULTS[name]
