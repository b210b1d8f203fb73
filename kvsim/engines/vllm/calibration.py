"""Reader of vLLM's start-up log, in the wordings of versions 0.4 to 0.33."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvsim.calibration.startup import Startup, device_of
from kvsim.calibration.text import numbers, pairs
from kvsim.server_options import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Text that only vLLM's logs have.
MARK = (
    r"LLM engine \(v|vLLM API server version|GPU KV cache size:|non-default args:"
    r"|# (?i:gpu|cuda) blocks:|Available KV cache memory:|Maximum concurrency for"
    r"|Desired GPU memory utilization|Memory profiling (?:takes|results)|model weights take"
)
_VERSIONS = (
    r"LLM engine \(v(\d+\.\d+[^)\s]*)\)",
    r"vLLM API server version v?(\d+\.\d+\S*)\s",
    r"[▀▄█] +version (\d+\.\d+\S*)\s",
)
#: Patterns of the GiB on one GPU by part, one per wording.
_PARTS = {
    "weights": (
        r"model weights take\s+([\d.]+) ?GiB",
        r"weights memory: ([\d.]+) ?GiB",
        r"Actual usage is ([\d.]+) GiB for weight",
        r"(?:Loading model weights|Model loading) took ([\d.]+) ?Gi?B",
    ),
    "activations": (
        r"PyTorch activation peak memory(?: takes)?\s+([\d.]+) ?GiB",
        r"([\d.]+) GiB for peak activation",
    ),
    "non_torch": (
        r"non_torch_memory(?: takes)?\s+([\d.]+) ?GiB",
        r"([\d.]+) GiB for non-torch memory",
    ),
    "kv_cache": (
        r"Available KV cache memory: (-?[\d.]+) GiB",
        r"reserved for KV Cache is ([\d.]+) ?GiB",
        r"available_kv_cache_memory\s+([\d.]+) ?GiB",
    ),
    "memory": (
        r"total_gpu_memory\s*\(?([\d.]+) ?GiB",
        r"Free memory on device \([\d.]+/([\d.]+) GiB\)",
    ),
}
_UTILIZATION = (
    r"gpu_memory_utilization\s*\(?([01]\.\d+)[)\s]",
    r"desired GPU memory utilization is \(([01]?\.\d+|1),",
    r"--gpu-memory-utilization=([01]\.\d+) is equivalent",
)
#: Older and internal names of options in the log, and the names of their flags.
RENAMED = {
    "max_seq_len": "max_model_len",
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "cache_dtype": "kv_cache_dtype",
}


def startup_of(text: str) -> Startup:
    """Read a log that :func:`kvsim.calibration.text.plain` has cleaned.

    Every process of a server logs its memory; the least KV memory counts, as in vLLM.
    """
    args = _args(text)
    memory = {}
    for part, patterns in _PARTS.items():
        found = _first(patterns, text)
        if found:
            memory[part] = min(found) if part == "kv_cache" else max(found)
    if "CUDA graph memory profiling is enabled" in text:
        graphs = numbers(r"Estimated CUDA graph memory: ([\d.]+) GiB", text)
        if graphs:
            memory["cuda_graphs"] = graphs[0][0]
    utilization = _first(_UTILIZATION, text)
    if utilization:
        args.setdefault("gpu_memory_utilization", utilization[0])
    blocks = _first((r"# (?:GPU|CUDA) blocks: (\d+)[,\s]", r"num_gpu_blocks is: (\d+)\s"), text)
    tokens = _first((r"GPU KV cache size: ([\d,]+) tokens",), text)
    version = _version(text)
    notes = []
    if re.search(r"Initializing a V0 LLM engine", text):
        args["engine_v0"] = True
    if not blocks and not tokens and "kv_cache" not in memory:
        notes.append("the log ends before the size of the KV cache, or lacks it")
    return Startup(
        "vllm",
        version,
        args,
        memory,
        int(min(blocks)) if blocks else None,
        int(min(tokens)) if tokens else None,
        device_of(text),
        tuple(notes),
    )


def _first(patterns: Iterable[str], text: str) -> list[float]:
    """Return all numbers that match the first pattern with a match."""
    for pattern in patterns:
        found = [row[0] for row in numbers(pattern, text)]
        if found:
            return found
    return []


def _version(text: str) -> str:
    for pattern in _VERSIONS:
        found = re.search(pattern, text)
        if found:
            number = re.match(r"\d+\.\d+(\.\d+)?", found[1])
            return number[0] if number else ""
    return ""


def _args(text: str) -> dict[str, Any]:
    """Return the options; requested values take precedence over those that the engine reports."""
    args: dict[str, Any] = {}
    sources = (r"LLM engine \(v[^)]*\) with config: ", r"args: (?=Namespace\()", r"-default args: ")
    for source in sources:
        for found in re.finditer(source, text):
            given = pairs(text[found.end() :].removeprefix("Namespace"))
            args |= {RENAMED.get(k, k): v for k, v in given.items() if v not in (None, "auto")}
    model = re.search(r"[▀▄█] +model +(\S+)\s|Starting to load model (\S+?)\.\.\.", text)
    if model:
        args.setdefault("model", model[1] or model[2])
    # With auto, the first of these has the length derived from memory.
    longest = r"Maximum concurrency for ([\d,]+) tokens", r"Using max model len (\d+)\s"
    length = _first(longest, text)
    if length and args.get("max_model_len", AUTO) == AUTO:
        args["max_model_len"] = int(length[-1])
    tokens = _first((r"enabled with max_num_batched_tokens=(\d+)\D",), text)
    if tokens:
        args.setdefault("max_num_batched_tokens", int(tokens[-1]))
        args.setdefault("enable_chunked_prefill", True)
    size = _first((r"Setting attention block size to (\d+) tokens",), text)
    if size:
        args["block_size"] = int(size[-1])
    if "Asynchronous scheduling is enabled" in text:
        args.setdefault("async_scheduling", True)
    return args
