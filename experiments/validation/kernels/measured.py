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
#: Elements of an all-reduce: one token of a small model to 8,192 of a large one.
MESSAGE_SIZES = (2048, 2**26)


class Kind(NamedTuple):
    """A kind of kernel: its formula, the constants in it, and where the fit begins."""

    file: str
    constants: tuple[str, ...]
    start: tuple[float, ...]
    seconds: Callable[[Any, Any, Any], Any]


def gemm(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, then the slower of memory and arithmetic, and some of the faster near the ridge."""
    launch, weights, share, falloff, ridge = p
    moved = 2 * (d.m * d.k + d.k * d.n + d.m * d.n)
    flops = 2.0 * d.m * d.n * d.k
    bandwidth, peak = gpu.memory_bandwidth_bytes_per_s, gpu.bf16_flops_per_s
    arithmetic = flops / (share * peak) * (1 + falloff * d.m / 8192)
    memory = moved / (weights * bandwidth)
    slower, faster = np.maximum(memory, arithmetic), np.minimum(memory, arithmetic)
    return launch + slower + ridge * faster**2 / slower


def decode_attention(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, work per request and head, and the bytes of keys and values."""
    launch, per_request, share = p
    moved = d.batch_size * d.kv_len * d.num_kv_heads * d.head_dim * 2.0 * d.kv_element
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


def all_reduce(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, then all parts to all GPUs, or a second exchange and less to send."""
    launch, exchange, share, ring_share = p
    sent = 2.0 * d.message_size / (gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s)
    one_shot = (d.num_gpus - 1) * sent / share
    ring = 2 * (1 - 1 / d.num_gpus) * sent / ring_share
    return launch + np.minimum(one_shot, exchange + ring)


DECODE = Kind(
    "generation_attention",
    ("decode_launch", "decode_request", "decode_attention"),
    (1e-5, 5e-8, 0.9),
    decode_attention,
)
PREFILL = Kind(
    "context_attention",
    ("prefill_launch", "prefill_attention", "prefill_io"),
    (1e-5, 0.7, 0.5),
    prefill_attention,
)


def of_narrow_kv(kind: Kind) -> Kind:
    """Return the same kernels over KV of one byte: the same formula, constants of its own."""
    return kind._replace(constants=tuple(f"{name}_8bit" for name in kind.constants))


KINDS = {
    "GEMM": Kind(
        "gemm",
        ("gemm_launch", "weights", "gemm", "gemm_falloff", "gemm_ridge"),
        (3e-6, 0.85, 0.8, 0.05, 0.1),
        gemm,
    ),
    "decode attention": DECODE,
    "prefill attention": PREFILL,
    "decode attention, FP8 KV": of_narrow_kv(DECODE),
    "prefill attention, FP8 KV": of_narrow_kv(PREFILL),
    "all-reduce": Kind(
        "custom_allreduce",
        ("all_reduce", "all_reduce_exchange", "link", "link_ring"),
        (5e-6, 3e-6, 0.6, 0.8),
        all_reduce,
    ),
}


#: Files of all kinds.
FILES = tuple(dict.fromkeys(f"kernels/{kind.file}.csv.gz" for kind in KINDS.values()))


def measured(data: Path, kind: str, gpu: str) -> Any:
    """Return a kind's kernels under vLLM on one card, with ``seconds`` and ``test``; maybe none.

    GEMMs and attention are of bf16, with KV of bf16 or FP8 as the kind says.

    Held out (``test``): every second shape of a GEMM's weights, attention with 2 or 8 KV heads, and
    all-reduces among 4 GPUs.
    """
    table = pd.read_csv(data / "kernels" / f"{KINDS[kind].file}.csv.gz")
    table = table[table.gpu == gpu]
    if kind == "all-reduce":
        table = table[table.kernel_source == "vLLM_custom_graph"]
        table = table[table.message_size.between(*MESSAGE_SIZES)]
        return table.assign(seconds=table.latency_ms / 1e3, test=table.num_gpus == 4)
    table = table[table.backend == "vllm"]
    if kind == "GEMM":
        table = table[table.gemm_dtype == "bfloat16"]
        shapes = sorted(set(zip(table.n, table.k, strict=True)))
        odd = set(shapes[1::2])
        test = [shape in odd for shape in zip(table.n, table.k, strict=True)]
    else:
        dtype, element = ("fp8", 1) if kind.endswith("FP8 KV") else ("bfloat16", 2)
        table = table[(table.attn_dtype == "bfloat16") & (table.kv_cache_dtype == dtype)]
        table = table.assign(kv_element=element)
        if kind.startswith("decode"):
            moved = 2.0 * table.batch_size * table.kv_len * table.num_kv_heads * table.head_dim
            table = table[moved * element > L2_BYTES]
        else:
            table = table[table.batch_size * table.isl >= 128]
        test = table.num_kv_heads.isin([2, 8])
    return table.assign(seconds=table.latency_ms / 1e3, test=test)


def errors(kind: str, constants: Any, table: Any, gpu: str) -> Any:
    """Absolute relative errors of a formula, percent."""
    ours = KINDS[kind].seconds(constants, table, get_gpu(GPUS[gpu]))
    return 100 * np.abs(np.asarray(ours / table.seconds) - 1)
