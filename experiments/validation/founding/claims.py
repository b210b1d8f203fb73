"""Claims of the documents that kvsim was started from, and how kvsim computes each figure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import kvsim
import workloads
from experiments.validation.founding.verdict import (
    Claim,
    between,
    one_truth,
    part_of,
    reported,
)
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.catalog import get_gpu, get_model
from kvsim.kv.manager import ALLOCATORS

if TYPE_CHECKING:
    from kvsim.training.memory import TrainingMemory

GB = 1e9
CONTIGUOUS = ("contiguous-max", "contiguous-pow2", "contiguous-oracle")


def kv(model: str, dtype: str = "bf16", **options: int) -> int:
    """KV bytes per token."""
    return kv_layout(get_model(model), kv_dtype(dtype), **options).bytes_per_token


def train(params: float = 7e9, **options: Any) -> TrainingMemory:
    """Train a GPT-like model of 7, 13 or 70 billion parameters on four sequences of 2,048."""
    layers, hidden, heads = {7e9: (32, 4096, 32), 13e9: (40, 5120, 40), 70e9: (80, 8192, 64)}[
        params
    ]
    shape = {"num_layers": layers, "hidden_size": hidden, "num_heads": heads}
    return kvsim.train_memory(
        params=params, **{"batch_size": 4, "seq_len": 2048, **shape, **options}
    )


@cache
def compared(num_requests: int) -> dict[str, Any]:
    """Summaries of the default comparison: OPT-13B on an A100-40GB, ShareGPT-like lengths."""
    trace = workloads.sharegpt(num_requests=num_requests, request_rate=2.0, seed=0)
    found = kvsim.compare(trace, [*CONTIGUOUS, "paged"], model="opt-13b", gpu="a100-40gb")
    return {name: result.summary for name, result in found.results.items()}


def waste(num_requests: int, name: str) -> float:
    """Percent of the KV memory held that is no live token's."""
    return 100 * (1 - compared(num_requests)[name]["kv_cache"]["token_states"])


def saved(num_requests: int) -> list[float]:
    """Percent of memory that paging needs less for the same live tokens, by what is reserved."""
    live = {name: 100 - waste(num_requests, name) for name in (*CONTIGUOUS, "paged")}
    found = [100 * (1 - live[name] / live["paged"]) for name in CONTIGUOUS]
    return [*found, 100 * (1 - short_answers_live() / live["paged"] * 100)]


@cache
def short_answers_live() -> float:
    """Live share under Oracle when prompts of 1,024 tokens get answers of 256: little to reserve.

    Blocks of the sizes asked for (first fit), and no more requests than fit.
    """
    trace = workloads.fixed(prompt=1024, output=256, num_requests=40, request_rate=1.0, seed=0)
    result = kvsim.simulate(
        trace, model="opt-13b", gpu="a100-40gb", allocator="contiguous-oracle+fit=first"
    )
    live: float = result.summary["kv_cache"]["token_states"]
    return live


def reserved_8192_used_512() -> list[float]:
    """Percent wasted when 8,192 slots are reserved for 512 tokens."""
    result = kvsim.simulate(
        workloads.fixed(prompt=512, output=1, num_requests=1),
        model="llama-3-8b",
        gpu="a100-80gb",
        allocator="contiguous-max",
        max_model_len=8192,
    )
    return [100 * (1 - result.summary["kv_cache"]["token_states"])]


def paged_capacity() -> list[float]:
    """Bytes of a page, pages, tokens, and requests of 256 to 4,096 tokens."""
    c = kvsim.capacity(model="llama-3-8b", gpu="a100-80gb", kv_cache_memory_bytes=60 * 10**9)
    lengths = ("256", "512", "1024", "2048", "4096")
    fits = [c.max_concurrency[length] for length in lengths]
    return [c.bytes_per_block, c.num_gpu_blocks, c.num_tokens, *fits]


def hidden_states_of_13b() -> list[float]:
    """One hidden state of one sequence of 4,096 tokens, in one layer and in all 40."""
    found = train(13e9, batch_size=1, seq_len=4096, activation_checkpointing="full")
    return [found.activations["stored"] / 40 / GB, found.activations["stored"] / GB]


def checkpointed(layer_gb: float) -> list[float]:
    """Whole and recomputed part, in layers of their size: four checkpoints, and 32."""
    ours: list[float] = []
    for segment in (8, 1):
        stored = train(activation_checkpointing=f"every-{segment}").activations["stored"] / GB
        recomputed = segment * layer_gb
        ours += [stored + recomputed, recomputed]
    return ours


def attention_matrix() -> list[float]:
    """The softmax's output, two of the five bytes that ``scores`` counts, of 32 layers."""
    scores = train(batch_size=1, seq_len=4096).layer_activation_bytes["scores"]
    return [32 * scores * 2 / 5 / GB]


@cache
def caching_allocator_fragmentation() -> tuple[float, ...]:
    """1 - active / reserved of the caching allocator, on a few requests."""
    if "dynamic" not in ALLOCATORS.names():
        return ()
    trace = workloads.sharegpt(num_requests=60, request_rate=2.0, seed=0)
    result = kvsim.simulate(trace, model="opt-13b", gpu="a100-40gb", allocator="dynamic")
    cache_summary = result.summary["kv_cache"]
    return (cache_summary["fragmentation"],) if "fragmentation" in cache_summary else ()


def states(gpus: int, stage: int, **options: Any) -> float:
    """GB of states per GPU of 7 billion parameters."""
    return train(zero_stage=stage, num_gpus=gpus, **options).states_bytes / GB


def claims(num_requests: int) -> list[Claim]:
    """List the claims; those that need a simulation use ``num_requests`` requests."""
    seven, llama3 = "llama-2-7b", "llama-3-8b"
    twelve = train(master_weights=False)
    sixteen = train()
    bf16_moments = train(70e9, master_weights=False).optimizer_bytes
    mi300x = get_gpu("mi300x")
    mi300x_rate = mi300x.memory_bandwidth_bytes_per_s
    mi300x_tflops = mi300x.fp8_flops_per_s / 1e12
    lengths = (256, 512, 1024, 2048, 4096, 8192)
    a100, h100 = get_gpu("a100-40gb"), get_gpu("h100-sxm")
    layer_inputs = train(activation_checkpointing="full").activations["stored"]
    return [
        Claim(
            "Llama-2-7B, BF16, 4,096 tokens: KV of 1 request, of 8",
            ("2.15", "17.2"),
            lambda: [n * 4096 * kv(seven) / GB for n in (1, 8)],
        ),
        Claim(
            "the same with 8 KV heads, with 1",
            ("0.54", "0.07"),
            lambda: [4096 * kv(seven, num_kv_heads=n) / GB for n in (8, 1)],
        ),
        Claim(
            "INT8 KV is half, FP8 likewise",
            ("2.0", "2.0"),
            lambda: [kv(seven) / kv(seven, dtype) for dtype in ("int8", "fp8")],
            unit="x",
            tolerance=0.04,
            note="INT8 gives 3 % back in scales",
        ),
        Claim(
            "Llama-2-7B: KV bytes per token",
            ("524288",),
            lambda: [kv(seven)],
            unit="B",
            tolerance=0.0,
        ),
        Claim("4,096 tokens x 32 requests of it", ("68.7",), lambda: [32 * 4096 * kv(seven) / GB]),
        Claim(
            "Llama-3-8B, 32 requests of 256 to 8,192 tokens",
            ("1.07", "2.15", "4.29", "8.59", "17.18", "34.36"),
            lambda: [32 * length * kv(llama3) / GB for length in lengths],
            tolerance=0.0,
        ),
        Claim(
            "60 GB of KV, Llama-3-8B: bytes per page, pages, tokens; requests of 256 to 4,096",
            ("2097152", "28610", "457760", "1788", "894", "447", "223", "111"),
            paged_capacity,
            unit="",
            tolerance=0.0,
        ),
        Claim("reserve 8,192, use 512: wasted", ("94",), reserved_8192_used_512, unit="%"),
        Claim(
            "contiguous reservation wastes",
            ("60", "80"),
            lambda: [waste(num_requests, name) for name in CONTIGUOUS],
            between,
            unit="%",
            note="Oracle, Pow2 and Max",
        ),
        Claim(
            "paging wastes under 4 %",
            ("0", "4"),
            lambda: [waste(num_requests, "paged")],
            between,
            unit="%",
        ),
        Claim(
            "paging has 2 to 4 times the throughput",
            ("2", "4"),
            lambda: [
                compared(num_requests)["paged"]["output_throughput"]
                / compared(num_requests)["contiguous-max"]["output_throughput"]
            ],
            between,
            unit="x",
            note="over Max",
        ),
        Claim(
            "PagedAttention saves 10 to 30 %",
            ("10", "30"),
            lambda: saved(num_requests),
            between,
            unit="%",
            note="by what is reserved: least for known, short answers",
        ),
        Claim(
            "Llama-2-70B, 128 requests of 2,048 tokens",
            ("80",),
            lambda: [128 * 2048 * kv("llama-2-70b") / GB],
        ),
        Claim(
            "13B, 32 requests of 4,096 tokens",
            ("52",),
            lambda: [32 * 4096 * kv("llama-2-13b") / GB],
        ),
        Claim(
            "KV grows quadratically: with the length doubled, with the batch doubled",
            ("4", "4"),
            lambda: [
                8192 * kv(seven) / (4096 * kv(seven)),
                2 * 4096 * kv(seven) / (4096 * kv(seven)),
            ],
            unit="x",
            tolerance=0.0,
        ),
        Claim(
            "13B, 4,096 tokens: activations of a layer, x 40 layers",
            ("1.6", "64"),
            hidden_states_of_13b,
            note="their 4096 x 5120 x 40 x 2 B is all 40 layers' hidden state",
        ),
        Claim(
            "7B in BF16: weights, gradients, moments, sum",
            ("14", "14", "56", "84"),
            lambda: [
                size / GB
                for size in (
                    twelve.weights_bytes,
                    twelve.gradients_bytes,
                    twelve.optimizer_bytes,
                    twelve.states_bytes,
                )
            ],
            note="12 bytes per parameter: no master weights",
        ),
        Claim(
            "7B with master weights: bytes per parameter, GB",
            ("16", "112"),
            lambda: [sixteen.states_bytes / 7e9, sixteen.states_bytes / GB],
            unit="",
        ),
        Claim(
            "7B Adam state: master weights, moments",
            ("14", "28"),
            lambda: [
                (sixteen.optimizer_bytes - twelve.optimizer_bytes) / GB,
                twelve.optimizer_bytes / GB,
            ],
            note="FP32 has 4 bytes",
        ),
        Claim("70B: two FP32 moments", ("280",), lambda: [bf16_moments / GB]),
        Claim(
            "7B activations: 32 x 12 x 4 x 2048 x 4096 x 2 B",
            ("51",),
            lambda: [12 * layer_inputs / GB],
            note=f"the published formula gives {sixteen.activations_bytes / GB:.0f} GB",
        ),
        Claim("7B on 8 GPUs: ZeRO-1, ZeRO-3", ("38.5", "14"), lambda: [states(8, 1), states(8, 3)]),
        Claim(
            "ZeRO-2 is 4P + 14P/N: 7B on 8 GPUs",
            (f"{4 * 7 + 14 * 7 / 8:.2f}",),
            lambda: [states(8, 2)],
            note="2P + 14P/N: gradients are sharded, too",
        ),
        Claim(
            "ZeRO-3 of 84 GB on 8 GPUs",
            ("10.5",),
            lambda: [states(8, 3, master_weights=False)],
            note="12 bytes per parameter",
        ),
        Claim(
            "MI300X: FP8 TFLOP/s, FLOP per byte",
            ("360", "68"),
            lambda: [mi300x_tflops, mi300x_tflops * 1e12 / mi300x_rate],
            unit="",
        ),
        Claim(
            "RTX 4070 bandwidth",
            ("432",),
            lambda: [get_gpu("rtx-4070").memory_bandwidth_bytes_per_s / GB],
            unit="GB/s",
        ),
        Claim(
            "QLoRA r = 16 on q, k, v, o of a 7B: parameters",
            ("4",),
            lambda: [kvsim.train_memory(model=seven, lora_rank=16).num_trained_params / 1e6],
            unit="M",
        ),
        Claim(
            "PCIe gen 4, in one document and in the others",
            ("16", "32"),
            lambda: [a100.pcie_bytes_per_s / GB],
            one_truth,
            unit="GB/s",
            note=f"{mi300x_rate / a100.pcie_bytes_per_s:.0f}x under 5.3 TB/s",
        ),
        Claim(
            "checkpoints every 4 of 32 layers, at every layer",
            ("12.8", "1.6"),
            lambda: checkpointed(51.2 / 32),
            part_of,
            tolerance=0.03,
            note="segments of 8 layers and of 1, of their 1.6 GB, and their inputs",
        ),
        Claim(
            "standard attention's matrix, 4,096 tokens, 32 heads x 32 layers",
            ("32",),
            attention_matrix,
        ),
        Claim(
            "PyTorch's fragmentation is 1 - active / reserved",
            (),
            caching_allocator_fragmentation,
            reported,
            unit="",
            note="a definition: what `dynamic` reports",
        ),
        Claim(
            "A100: BF16 TFLOP/s, TB/s; H100: the same, and MB of L2",
            ("312", "1.6", "989", "3.35", "50"),
            lambda: [
                a100.bf16_flops_per_s / 1e12,
                a100.memory_bandwidth_bytes_per_s / 1e12,
                h100.bf16_flops_per_s / 1e12,
                h100.memory_bandwidth_bytes_per_s / 1e12,
                h100.l2_bytes / 2**20,
            ],
            unit="",
        ),
    ]
