"""KV memory of a GPU: utilisation times memory, minus weights and all overheads.

The overheads are estimates, fitted on the start-up logs of 24 real vLLM runs (KV blocks within 0.65
% at the median and 3.3 % at the 90th percentile of those same runs). If you have a log, pin the
result with ``kv_cache_memory_bytes`` or ``num_gpu_blocks_override``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.versions import version_of

if TYPE_CHECKING:
    from kvsim.budget.encoder import EncoderProfile
    from kvsim.budget.limits import Limits
    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.config import Config

GIB = 2**30


class Engine(NamedTuple):
    """Memory use of a vLLM generation. ``since`` is its first version."""

    since: tuple[int, int]
    base_gib: float  # CUDA context, workspaces: not seen by PyTorch
    nccl_gib: float  # communicators, with more than one GPU
    counts_graphs: bool  # whether the start-up budget counts CUDA graphs
    sampler_copies: float  # copies of the (max_num_seqs, vocab_size) FP32 logits
    gpu_memory_utilization: float


#: Fitted constants, see the module docstring; :data:`kvsim.budget.versions.CHANGES` names them.
ENGINES = (
    Engine((0, 0), 0.20, 0.36, False, 9.9, 0.90),
    Engine((0, 8), 0.32, 0.36, False, 5.9, 0.90),
    Engine((0, 21), 0.32, 0.36, True, 5.9, 0.92),
)

#: MLP intermediates alive at once in the profile run, in tensors of (tokens, ffn / tp + hidden).
MLP_COPIES = 3.21

LATEST_VLLM = "0.33"

#: Parts that vLLM's log counts among the weights, and among the activations.
WEIGHTS, WORK = ("adapters", "drafter"), ("encoder_cache",)


def engine_of(vllm_version: str) -> Engine:
    """Return the memory use of a vLLM version, e.g. ``"0.19.1"``."""
    version = version_of(vllm_version)
    return [engine for engine in ENGINES if engine.since <= version][-1]


class Budget(NamedTuple):
    """GPU memory at start-up, bytes on one GPU. ``total`` is utilisation times memory.

    ``adapters`` are LoRA's, ``drafter`` the weights of speculative decoding; logged weights
    include both. ``encoder_cache`` holds the outputs of an image or audio encoder.
    """

    total: int
    weights: int
    activations: int
    non_torch: int
    cuda_graphs: int
    kv_cache: int
    adapters: int = 0
    drafter: int = 0
    encoder_cache: int = 0

    @property
    def excess(self) -> int:
        """Bytes by which the parts exceed the total, which is possible for logged parts."""
        return sum(self[1:]) - self.total

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part, ``total`` first; optional parts only if present."""
        order = ("total", "weights", *WEIGHTS, "activations", *WORK, "non_torch", "cuda_graphs")
        sizes = {name: getattr(self, name) for name in (*order, "kv_cache")}
        return {n: size for n, size in sizes.items() if size or n not in (*WEIGHTS, *WORK)}


def activation_bytes(config: Config, model: ModelSpec, engine: Engine, limits: Limits) -> int:
    """Peak activations of the profile run with dummy tokens, bytes on one GPU.

    They are the larger of the widest MLP's intermediates and the sampler's logits.
    """
    num_tokens, width = limits.max_num_batched_tokens, model.intermediate_size
    if model.is_moe:
        width = model.moe_intermediate_size * model.num_experts_per_token
    mlp = MLP_COPIES * num_tokens * (width / config.tensor_parallel_size + model.hidden_size) * 2
    sampler = engine.sampler_copies * min(limits.max_num_seqs, num_tokens) * model.vocab_size * 4
    return int(max(mlp, sampler))


def inference_budget(
    config: Config,
    model: ModelSpec,
    gpu: GpuSpec,
    limits: Limits,
    *,
    weights: int,
    cuda_graphs: int,
    encoder: EncoderProfile,
    exchange: int,
    adapters: int = 0,
    drafter: int = 0,
    encoder_cache: int = 0,
) -> Budget:
    """Split one GPU's memory; ``kv_cache`` is what remains and may be negative.

    Figures of a start-up log replace the estimates; logged ``weights`` include adapters and
    drafter, logged ``activations`` the encoder cache. Keyword parameters are in bytes.
    """
    known = {part: int(gib * GIB) for part, gib in (config.logged or {}).items()}
    engine = engine_of(config.vllm_version)
    total = int(known.get("memory", gpu.memory_bytes) * limits.gpu_memory_utilization)
    if "weights" in known:
        weights, adapters, drafter = known["weights"], 0, 0
    if "activations" in known:
        encoder_cache = 0
    activations = max(activation_bytes(config, model, engine, limits), exchange)
    activations = max(encoder.peak, activations + encoder.outputs)
    several = config.tensor_parallel_size * config.pipeline_parallel_size > 1 or exchange > 0
    non_torch = int((engine.base_gib + engine.nccl_gib * several) * GIB)
    graphs = cuda_graphs if engine.counts_graphs else 0
    reserved = int(config.mm_ipc_gpu_memory_gb * GIB)
    activations = known.get("activations", activations)
    non_torch = known.get("non_torch", non_torch) + reserved
    graphs = known.get("cuda_graphs", graphs)
    rest = total - weights - adapters - drafter - activations - encoder_cache - non_torch - graphs
    rest = known.get("kv_cache", rest)
    if config.kv_cache_memory_bytes is not None:
        rest = config.kv_cache_memory_bytes - reserved
    beside = (adapters, drafter, encoder_cache)
    return Budget(total, weights, activations, non_torch, graphs, rest, *beside)
