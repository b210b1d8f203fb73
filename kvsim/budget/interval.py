"""Interval around the estimated KV memory at start-up, from spreads of the estimated parts.

Each spread is the largest deviation among public start-up logs of its kind, in GiB or as a share of
the part; the squares of a deployment's spreads are added. ``docs/validation/startup.csv`` lists the
logs; only the logs of its fitted half give spreads. A kind has few logs (one to thirteen), so a
spread is a record of observed deviations, not a statistical quantile.
"""

from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.budget import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.budget.capacity import Memory
    from kvsim.config import Config


class Spread(NamedTuple):
    """GiB by which logged KV memory was below and above the estimate because of one part."""

    below: float
    above: float
    part: str


#: Activations and memory outside PyTorch, on CUDA: 13 logs of 16-bit models, vLLM 0.6 to 0.21.
OVERHEADS = (0.8, 0.35)
#: The same on ROCm: one log.
OVERHEADS_ROCM = (2.35, 0.35)
#: CUDA graphs, as shares of the estimate: logs of the same GPU, model and flags differ by a third,
#: and graphs of Qwen3.8 on two RTX 5090 took 1.5 GiB less than the estimate of 2.2.
GRAPHS = (0.35, 0.7)
#: Image or audio encoders whose profile run is not estimated: it took 0.3 to 1.2 GiB in logs.
ENCODER = (1.2, 0.0)
#: Encoders whose profile run is estimated: the estimate is equal on one and two GPUs, whose peaks
#: differ.
ENCODER_KNOWN = (0.3, 0.3)
#: Workspaces for gathered tokens if data-parallel ranks share experts: one log, which the estimate
#: matches; kernels that do not sort tokens would have taken 3.3 GiB less.
EXCHANGE = (2.0, 3.3)
#: Weights by format, as shares of the estimate: checkpoints differ in the parts that they leave in
#: 16 bits.
WEIGHTS = {
    "nvfp4": (0.31, 0.01),
    "mxfp4": (0.01, 0.01),
    "int4": (0.07, 0.04),
    "awq": (0.07, 0.04),
    "gptq": (0.07, 0.04),
    "fp8": (0.02, 0.01),
    "fp8-block": (0.02, 0.01),
}
#: The same for models whose quantised parts the catalogue names; another build of such a
#: checkpoint was 11 % lighter (unsloth's Qwen3.8-27B-NVFP4).
NAMED = (0.02, 0.12)
#: Weights in 16 bits.
WHOLE = (0.005, 0.005)


def kv_cache_interval(config: Config, memory: Memory) -> tuple[int, int] | None:
    """Return the bounds of the expected KV memory of one GPU, bytes.

    Returns
    -------
    Lower and upper bound; None if the KV memory is not estimated but pinned or taken from a log.
    """
    logged, budget = config.logged or {}, memory.budget
    if config.num_gpu_blocks_override or config.kv_cache_memory_bytes or "kv_cache" in logged:
        return None
    spreads = [spread for spread in _spreads(config, memory) if spread.part not in logged]
    below = hypot(*(spread.below for spread in spreads))
    above = hypot(*(spread.above for spread in spreads))
    return max(0, int(budget.kv_cache - below * GIB)), int(budget.kv_cache + above * GIB)


def _spreads(config: Config, memory: Memory) -> Iterator[Spread]:
    """Yield the spread of each memory part of a deployment."""
    budget, model = memory.budget, memory.model
    rocm = memory.gpu.name.startswith("mi")
    yield Spread(*(OVERHEADS_ROCM if rocm else OVERHEADS), "activations")
    graphs = budget.cuda_graphs / GIB
    yield Spread(GRAPHS[0] * graphs, GRAPHS[1] * graphs, "cuda_graphs")
    weights = (budget.weights + budget.drafter) / GIB
    less, more = WEIGHTS.get(memory.quantization or "", WHOLE)
    if any(part.startswith(f"{memory.quantization}:") for part in model.quantized_parts):
        less, more = min(less, NAMED[0]), max(more, NAMED[1])
    yield Spread(less * weights, more * weights, "weights")
    if model.num_tower_params and not (config.language_model_only or budget.encoder_cache):
        yield Spread(*(ENCODER_KNOWN if model.tower_hidden_size else ENCODER), "activations")
    if model.is_moe and config.data_parallel_size > 1 and config.enable_expert_parallel:
        yield Spread(*EXCHANGE, "activations")
