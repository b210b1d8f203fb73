"""Kernel times as `kvsim.cost.roofline` sees them, and the measured ones split in two halves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from kvsim.catalog import get_gpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Names in the tables, and in the catalogue.
GPUS = {"h100_sxm": "h100-sxm", "a100_sxm": "a100-80gb"}
#: Below this the KV of a decode lies in the L2 cache.
L2_BYTES = 50e6


class Kind(NamedTuple):
    """A kind of kernel: its formula, the constants in it, and where the fit begins."""

    file: str
    constants: tuple[str, ...]
    start: tuple[float, ...]
    seconds: Callable[[Any, Any, Any], Any]


def gemm(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, then the slower of memory and arithmetic, which large GEMMs do less well."""
    launch, weights, share, falloff = p
    moved = 2 * (d.m * d.k + d.k * d.n + d.m * d.n)
    flops = 2.0 * d.m * d.n * d.k
    bandwidth, peak = gpu.memory_bandwidth_bytes_per_s, gpu.bf16_flops_per_s
    arithmetic = flops / (share * peak) * (1 + falloff * d.m / 8192)
    return launch + np.maximum(moved / (weights * bandwidth), arithmetic)


def decode_attention(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, work per request and head, and the bytes of keys and values."""
    launch, per_request, share = p
    moved = d.batch_size * d.kv_len * d.num_kv_heads * d.head_dim * 4.0
    requests = d.batch_size * d.num_heads / 32
    return launch + per_request * requests + moved / (share * gpu.memory_bandwidth_bytes_per_s)


def prefill_attention(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, arithmetic over all pairs, and reading and writing every token once."""
    launch, share, io = p
    tokens = d.batch_size * d.isl
    pairs = d.batch_size * d.isl * (d.isl + 1) / 2
    moved = 2.0 * d.head_dim * tokens * (2 * d.num_heads + 2 * d.num_kv_heads)
    flops = 4.0 * d.head_dim * d.num_heads * pairs
    time = launch + flops / (share * gpu.bf16_flops_per_s)
    return time + moved / (io * gpu.memory_bandwidth_bytes_per_s)


KINDS = {
    "GEMM": Kind(
        "gemm", ("gemm_launch", "weights", "gemm", "gemm_falloff"), (3e-6, 0.85, 0.8, 0.05), gemm
    ),
    "decode attention": Kind(
        "generation_attention",
        ("decode_launch", "decode_request", "decode_attention"),
        (1e-5, 5e-8, 0.9),
        decode_attention,
    ),
    "prefill attention": Kind(
        "context_attention",
        ("prefill_launch", "prefill_attention", "prefill_io"),
        (1e-5, 0.7, 0.5),
        prefill_attention,
    ),
}


def measured(data: Path, kind: str, gpu: str) -> Any:
    """Return a kind's bf16 kernels under vLLM on one card, with ``seconds`` and ``test``.

    Held out (``test``): every second shape of a GEMM's weights, and attention with 2 or 8 KV heads.
    """
    table = pd.read_csv(data / "kernels" / f"{KINDS[kind].file}.csv.gz")
    table = table[(table.gpu == gpu) & (table.backend == "vllm")]
    if kind == "GEMM":
        table = table[table.gemm_dtype == "bfloat16"]
        shapes = sorted(set(zip(table.n, table.k, strict=True)))
        odd = set(shapes[1::2])
        test = [shape in odd for shape in zip(table.n, table.k, strict=True)]
    else:
        table = table[(table.attn_dtype == "bfloat16") & (table.kv_cache_dtype == "bfloat16")]
        if kind == "decode attention":
            moved = table.batch_size * table.kv_len * table.num_kv_heads * table.head_dim * 4.0
            table = table[moved > L2_BYTES]
        else:
            table = table[table.batch_size * table.isl >= 128]
        test = table.num_kv_heads.isin([2, 8])
    return table.assign(seconds=table.latency_ms / 1e3, test=test)


def errors(kind: str, constants: Any, table: Any, gpu: str) -> Any:
    """Absolute relative errors of a formula, percent."""
    ours = KINDS[kind].seconds(constants, table, get_gpu(GPUS[gpu]))
    return 100 * np.abs(np.asarray(ours / table.seconds) - 1)
