"""SGLang's start-up log: its options by vLLM's names, and its KV cache."""

from __future__ import annotations

import re
from typing import Any

from kvsim.calibration.startup import Startup, device_of
from kvsim.calibration.text import numbers, pairs

#: Text that only SGLang's logs have.
MARK = r"server_args=ServerArgs\(|KV Cache is allocated\. #tokens|max_total_num_tokens=\d"
#: SGLang's options by vLLM's names.
RENAMED = {
    "model_path": "model",
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "context_length": "max_model_len",
    "context_len": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_num_batched_tokens",
    "page_size": "block_size",
    "cpu_offload_gb": "cpu_offload_gb",
}
#: SGLang's flags that disable a feature, and vLLM's options that enable it.
OFF = {
    "disable_radix_cache": "enable_prefix_caching",
    "disable_overlap_schedule": "async_scheduling",
}
_GB = r"([\d.]+) GB"


def startup_of(text: str) -> Startup:
    """Read a log that :func:`kvsim.calibration.text.plain` has cleaned.

    SGLang's GB are GiB. Only weights and KV are read: the memory that its pool leaves free for
    activations is not part of a vLLM budget.
    """
    memory = {}
    weights = numbers(rf"Load weight end\..*?mem usage={_GB}", text)
    if weights:
        memory["weights"] = max(weights)[0]
    cache = numbers(
        rf"KV Cache is allocated\. #tokens: ([\d,]+), K size: {_GB}, V size: {_GB}", text
    )
    if cache:
        memory["kv_cache"] = min(row[1] + row[2] for row in cache)
    tokens = numbers(r"max_total_num_tokens=(\d+),", text) or [row[:1] for row in cache]
    version = re.search(r"SGLang(?: version)?[ :=v]+(\d+\.\d+(?:\.\d+)?)", text, re.IGNORECASE)
    return Startup(
        "sglang",
        version[1] if version else "",
        _options(text),
        memory,
        None,
        int(min(tokens)[0]) if tokens else None,
        device_of(text),
        ("the calibration simulates vLLM's scheduler, not SGLang's",),
    )


def _options(text: str) -> dict[str, Any]:
    """Return the options of a log by vLLM's names."""
    given: dict[str, Any] = {}
    for found in re.finditer(r"server_args=ServerArgs(?=\()", text):
        given |= pairs(text[found.end() :])
    limits = re.search(r"max_total_num_tokens=\d+, .*(?=\s)", text)
    if limits:
        given |= pairs(limits[0] + ")")
    args = {
        RENAMED[name]: value
        for name, value in given.items()
        if name in RENAMED and value not in (None, "auto")
    }
    if "max_num_seqs" in args and "max_num_batched_tokens" in args:
        # vLLM's token budget includes running requests; SGLang's chunk bounds only prompts
        args["max_num_seqs"] = min(args["max_num_seqs"], args["max_num_batched_tokens"])
    args |= {about: not given[name] for name, about in OFF.items() if name in given}
    if given.get("disable_cuda_graph"):
        args["enforce_eager"] = True
    if given.get("speculative_algorithm"):
        args["speculative_config"] = {"method": str(given["speculative_algorithm"]).lower()}
    return args
