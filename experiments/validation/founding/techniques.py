"""Every technique the founding documents name: what shows it in kvsim, and one measured figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import kvsim
import workloads
from experiments.offload import oversubscribed, tier
from experiments.validation.founding.claims import (
    GB,
    caching_allocator_fragmentation,
    compared,
    kv,
    states,
    train,
    waste,
)
from kvsim.budget.weights import weight_bytes
from kvsim.catalog import get_gpu, get_model
from kvsim.cli.main import cli
from kvsim.cli.pasted import own_flags
from kvsim.cost.hierarchy import PCIE_EFFICIENCY
from kvsim.cost.host_link import FAULT_SECONDS
from kvsim.intensity.roofline import roofline
from kvsim.kv.manager import ALLOCATORS
from kvsim.kv.unified import PAGE_BYTES
from kvsim.sched.scheduler import SCHEDULERS

if TYPE_CHECKING:
    from collections.abc import Callable


class Technique(NamedTuple):
    """A technique, the claim, where kvsim has it, and a measurement.

    ``needs`` is a word that some command, allocator or scheduler must have in its name (or among
    its parameters); the row says "not there" without. ``measure`` returns a line.
    """

    name: str
    claim: str
    where: str
    needs: str
    measure: Callable[[], str]


def vocabulary() -> set[str]:
    """Names of commands with their options, and of allocators and schedulers with parameters."""
    words = set()
    for name in cli.commands:
        words |= {name, *own_flags(cli, name)}
    for registry in (ALLOCATORS, SCHEDULERS):
        for name in registry.names():
            words |= {name, *registry.parameters(name)}
    return words


def is_there(word: str) -> bool:
    """Return True if any name contains the word."""
    return any(word in name for name in vocabulary())


def _fits(allocator: str) -> int:
    found = kvsim.capacity(model="llama-3.1-8b", gpu="a100-80gb", allocator=allocator)
    return found.max_concurrency["32768"]


def _heads() -> str:
    seven = kv("llama-2-7b")
    ratios = [seven / kv("llama-2-7b", num_kv_heads=n) for n in (8, 1)]
    return (
        f"GQA-8 {ratios[0]:.0f}x, MQA {ratios[1]:.0f}x; DeepSeek-V3 {kv('deepseek-v3'):,} B/token"
    )


def _prefixes() -> str:
    trace = workloads.generate("shared-prefix", num_requests=200, request_rate=2.0, seed=0)
    summary = kvsim.simulate(trace, model="llama-3-8b", gpu="a100-80gb").summary
    return f"{100 * summary['prefix_cache_hit_rate']:.0f} % of prompt tokens hit"


def _dtypes() -> str:
    full = kv("llama-2-7b")
    less = {d: 100 * (1 - kv("llama-2-7b", d) / full) for d in ("int8", "fp8", "int4")}
    return ", ".join(f"{dtype} {percent:.1f} % less" for dtype, percent in less.items())


def _weights() -> str:
    model = get_model("llama-2-7b")
    sizes = {d: weight_bytes(model, quantization=d) / GB for d in (None, "int8", "awq")}
    options = {"model": "llama-2-7b", "gpu": "rtx-4090", "max_model_len": 4096}
    blocks = [kvsim.capacity(**options, quantization=d).num_gpu_blocks for d in sizes]
    shown = " / ".join(f"{size:.1f}" for size in sizes.values())
    return f"{shown} GB; KV blocks on a 4090 " + " / ".join(f"{count:,}" for count in blocks)


def _batching(num_requests: int) -> str:
    trace = workloads.sharegpt(num_requests=num_requests, request_rate=2.0, seed=0)
    static = kvsim.simulate(
        trace, model="opt-13b", gpu="a100-40gb", allocator="contiguous-max", scheduler="static"
    )
    rate = compared(num_requests)["contiguous-max"]["output_throughput"]
    ratio = rate / static.summary["output_throughput"]
    return f"{ratio:.1f}x the tokens per second of static batches, both contiguous-max"


def _parallel() -> str:
    found = [
        kvsim.capacity(model="llama-2-70b", gpu="a100-80gb", tensor_parallel_size=4),
        kvsim.capacity(
            model="llama-2-70b",
            gpu="a100-80gb",
            tensor_parallel_size=2,
            pipeline_parallel_size=2,
        ),
    ]
    sizes = [
        f"{c.budget_bytes['weights'] / GB:.0f} GB, {c.bytes_per_token:,} B/token" for c in found
    ]
    return f"70B per GPU: TP 4 {sizes[0]}; TP 2 x PP 2 {sizes[1]}"


def _optimizer_step() -> str:
    """Compare the rates that Adam's states pass at: it reads and writes each once, wherever."""
    ratios = []
    for name in ("a100-40gb", "a100-80gb", "h100-sxm"):
        gpu = get_gpu(name)
        pcie = gpu.pcie_bytes_per_s * PCIE_EFFICIENCY
        ratios.append(f"{name} {gpu.memory_bandwidth_bytes_per_s / pcie:.0f}x")
    return "states over PCIe: " + ", ".join(ratios)


def _offload() -> str:
    job = {"activation_checkpointing": "full", "attention": "flash"}
    cpu = train(**job, offload="cpu").transfer_seconds
    nvme = train(**job, offload="nvme", offload_space=200.0).transfer_seconds
    return f"7B on one H100: transfers {cpu:.1f} s per step with the CPU, {nvme:.0f} s with NVMe"


def _unified() -> str:
    rows = [oversubscribed(0.8, name) for name in ("paged", "unified+host-gib=32")]
    loss = rows[0]["output_throughput"] / rows[1]["output_throughput"]
    gpu = get_gpu("mi300x")
    faults = 1 / (1 / gpu.pcie_bytes_per_s + FAULT_SECONDS / PAGE_BYTES)
    return (
        f"MI300X: {gpu.memory_bandwidth_bytes_per_s / faults:.0f}x less bandwidth in page faults; "
        f"a quarter too much KV on an H100: {loss:.0f}x fewer tokens/s"
    )


def _host_tier() -> str:
    trace = workloads.multi_turn(num_requests=200, request_rate=3, seed=0, think_time=60, turns=6)
    hits = [100 * tier(gib, trace, kv_gib=1)["hit_rate"] for gib in (0, 16)]
    return f"{hits[0]:.0f} % of prompt tokens hit, with 16 GiB of host memory {hits[1]:.0f} %"


def _roofline() -> str:
    found = roofline(model="llama-2-7b", gpu="h100-sxm", batch_size=32, context_len=2048)
    parts = []
    for phase, part in (("decode", "attention"), ("decode", "GEMMs"), ("prefill", "GEMMs")):
        row = found.row(phase, part)
        parts.append(f"{phase} {part} {row.intensity:,.0f} FLOP/B, {row.bound}-bound")
    return f"{'; '.join(parts)}; ridge {found.ridge_point:.0f}"


def _training() -> str:
    low = train(master_weights=False).states_bytes / GB
    high = train(attention="flash").total_bytes / GB
    return (
        f"{low:.0f} GB of states at least, {high:.0f} GB with master weights and 4 x 2,048 tokens"
    )


def _zero() -> str:
    whole = states(1, 0)
    ratios = [f"{whole / states(64, stage):.1f}x" for stage in (1, 2, 3)]
    fp8 = train(precision="fp8").states_bytes / 7e9
    return f"on 64 GPUs {', '.join(ratios)}; FP8 {fp8:.0f} B/parameter"


def _checkpointing() -> str:
    whole = train(attention="flash").activations_bytes
    parts = []
    for rule in ("full", "sqrt", "every-4"):
        found = train(attention="flash", activation_checkpointing=rule)
        parts.append(f"{rule} {100 * (1 - found.activations_bytes / whole):.0f} % less")
    extra = train(activation_checkpointing="full").extra_compute
    return f"{', '.join(parts)}; {100 * extra:.0f} % more arithmetic"


def _small_states() -> str:
    moments = [train(optimizer=o, master_weights=False) for o in ("adamw", "adamw-8bit")]
    less = 1 - moments[1].optimizer_bytes / moments[0].optimizer_bytes
    lora = kvsim.train_memory(model="llama-2-7b", lora_rank=16)
    fewer = (lora.num_params - lora.num_trained_params) / lora.num_trained_params
    same = train(gradient_accumulation_steps=8).total_bytes == train().total_bytes
    memory = "the same" if same else "more"
    return f"{100 * less:.1f} % less; LoRA {fewer:.0f}x fewer trained; accumulation {memory} memory"


def _flash() -> str:
    growth = []
    for attention in ("flash", "standard"):
        scores = [
            train(attention=attention, seq_len=n).layer_activation_bytes["scores"]
            for n in (2048, 4096)
        ]
        growth.append(scores[1] / scores[0])
    return f"twice the tokens: {growth[0]:.0f}x the statistics, {growth[1]:.0f}x the scores"


def _fragmentation() -> str:
    found = caching_allocator_fragmentation()
    return f"{100 * found[0]:.1f} %" if found else "not reported"


def techniques(n: int) -> list[Technique]:
    """List the techniques; those that need a simulation use ``n`` requests."""
    return [
        Technique(
            "KV of MHA, GQA, MQA, MLA",
            "4x, 32x",
            "capacity --allocator paged+gqa=8",
            "capacity",
            _heads,
        ),
        Technique(
            "contiguous preallocation; paging",
            "60-80 % to under 4 %",
            "compare",
            "compare",
            lambda: f"{waste(n, 'contiguous-max'):.1f} to {waste(n, 'paged'):.1f} % wasted",
        ),
        Technique("shared prefixes", "", "run --workload shared-prefix", "run", _prefixes),
        Technique(
            "sliding window",
            "caps memory at W tokens",
            "capacity --allocator paged+window=4096",
            "capacity",
            lambda: (
                f"requests of 32,768 tokens: {_fits('paged'):,}, with a window of 4,096 "
                f"{_fits('paged+window=4096'):,}"
            ),
        ),
        Technique("KV in INT8, FP8", "50-75 % less", "--kv-cache-dtype", "kv-cache-dtype", _dtypes),
        Technique(
            "weights in INT8, INT4", "14 / 7 / 3.5 GB", "--quantization", "quantization", _weights
        ),
        Technique(
            "continuous batching",
            "higher utilisation",
            "--scheduler static",
            "static",
            lambda: _batching(n),
        ),
        Technique("CPU and NVMe offload", "", "train-memory --offload", "--offload", _offload),
        Technique(
            "optimizer states over PCIe",
            "50-100x slower step",
            "train-memory --offload paged",
            "--offload",
            _optimizer_step,
        ),
        Technique("unified memory", "300x less bandwidth", "unified", "unified", _unified),
        Technique("KV offloaded to the host", "", "tiered", "tiered", _host_tier),
        Technique(
            "roofline",
            "attention memory-bound, large GEMM compute-bound",
            "roofline",
            "roofline",
            _roofline,
        ),
        Technique("DP, TP, PP", "per GPU", "--tensor-parallel-size", "tensor-parallel", _parallel),
        Technique("training memory", "84-163 GB for 7B", "train-memory", "train-memory", _training),
        Technique(
            "ZeRO 1, 2, 3; FP8", "4x, 8x, Nx", "train-memory --zero-stage", "zero-stage", _zero
        ),
        Technique(
            "activation checkpointing",
            "80-90 % less, +25-33 %",
            "train-memory --activation-checkpointing",
            "checkpointing",
            _checkpointing,
        ),
        Technique(
            "8-bit Adam; LoRA; accumulation",
            "75 %; 100-1000x; same memory",
            "train-memory --optimizer --lora-rank",
            "lora-rank",
            _small_states,
        ),
        Technique(
            "flash attention", "O(n), not O(n^2)", "train-memory --attention", "--attention", _flash
        ),
        Technique("caching allocator", "active / reserved", "dynamic", "dynamic", _fragmentation),
        Technique(
            "virtual memory for KV",
            "",
            "virtual",
            "virtual",
            lambda: f"{_virtual_waste():.1f} % wasted",
        ),
    ]


def _virtual_waste() -> float:
    trace = workloads.sharegpt(num_requests=60, request_rate=2.0, seed=0)
    result = kvsim.simulate(trace, model="opt-13b", gpu="a100-40gb", allocator="virtual")
    live: float = result.summary["kv_cache"]["token_states"]
    return 100 * (1 - live)
