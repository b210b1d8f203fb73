"""Load of a step on routed experts: the experts that its tokens use per layer, and their GPUs."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.budget.weights import DTYPE_BYTES, QUANTIZED_BYTES, quantized_params
from kvsim.cost.arithmetic import arithmetic_of, peak_flops
from kvsim.cost.efficiency import ExpertShares, gemm_shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.cost.efficiency import Efficiency, GemmShares
    from kvsim.cost.model import CostConfig
    from kvsim.records.cost import Cost

#: A token chooses the expert of rank r with a probability proportional to r ** -ROUTING_SKEW. Real
#: prompts use fewer experts than uniform routing. If routing is drawn as in aiconfigurator-core
#: 0.12.0, 32 tokens use 57 of gpt-oss's 128 experts instead of 82, and 144 of Kimi-K2.5's 384
#: instead of 188 (with "power_law_1.01": its MoE tables then agree best with measured servers).
ROUTING_SKEW = 0.8

#: Up to this number experts are large: tokens spread evenly over them (Mixtral of Experts, arXiv
#: 2401.04088, section 5), and their GEMMs take as long as dense GEMMs of the same bytes and FLOPs
#: (Mixtral-8x7B on two H100s: latencies within 2.5 % at low load).
FEW_EXPERTS = 16
#: Exponent of the soft maximum of memory and arithmetic time of such GEMMs: nearly a maximum.
DENSE_POWER = 8.0

#: By weight format: the format with timed kernels that provides its constants.
KERNELS = {
    None: "16-bit",
    "fp8": "fp8-block",
    "fp8-block": "fp8-block",
    "int8": "fp8-block",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int4": "int4",
    "awq": "int4",
    "gptq": "int4",
    "bitsandbytes": "int4",
}


#: Format whose constants apply to 4-bit weights on cards that compute with them in 16 bits.
WEIGHTS_ALONE = "int4"


class Routing(NamedTuple):
    """Routing of tokens on the rank with the most work.

    ``touched`` is the mean number of experts that m tokens use per layer, by m; ``token_rows`` is
    the mean number of experts, and so of rows, per token.
    """

    touched: NDArray[Any]
    token_rows: float


def expert_format(config: CostConfig) -> str | None:
    """Return the weight format of the routed experts, None for 16 bits."""
    return config.quantization if quantized_params(config.model, config.quantization)[0] else None


def choice_probabilities(num_experts: int, num_chosen: int, skew: float) -> NDArray[Any]:
    """Return the probability that a token uses each expert: rank to the power of -skew.

    The probabilities sum to ``num_chosen``, the experts of a token, and none is above 1.

    Examples
    --------
    >>> choice_probabilities(4, 2, 0.0).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    shares = np.arange(1, num_experts + 1, dtype=float) ** -skew
    scale, sure = num_chosen / shares.sum(), 0
    while sure < num_chosen and scale * shares[sure] > 1.0:
        sure += 1
        scale = (num_chosen - sure) / shares[sure:].sum() if sure < num_experts else 0.0
    return np.concatenate([np.ones(sure), scale * shares[sure:]])


@lru_cache(maxsize=64)
def routing(
    num_experts: int, num_chosen: int, skew: float, num_ranks: int, num_tokens: int
) -> Routing:
    """Return the routing of 0 to ``num_tokens`` tokens; a fixed shuffle deals experts to ranks.

    If one token uses an expert with probability p, m tokens use it with probability 1 - (1 - p)^m.
    The table ends early if nearly all experts are used.
    """
    chances = choice_probabilities(num_experts, num_chosen, skew)
    dealt = np.random.default_rng(0).permutation(chances)
    ranks = [dealt[rank::num_ranks] for rank in range(num_ranks)]
    busiest = max(ranks, key=lambda rank: float(rank.sum()))
    missed, touched = np.ones_like(busiest), [0.0]
    while missed.sum() > 1e-3 * len(busiest) and len(touched) <= num_tokens:
        missed = missed * (1.0 - busiest)
        touched.append(float(len(busiest) - missed.sum()))
    return Routing(np.array(touched), float(busiest.sum()))


def routing_of(config: CostConfig) -> Routing:
    """Return the routing of a step's tokens over the experts of a model.

    It includes the tokens of all replicas that compute attention separately and share the experts.
    """
    model, replicas = config.model, config.num_attention_ranks
    skew = ROUTING_SKEW if model.num_experts > FEW_EXPERTS else 0.0
    return routing(
        *(model.num_experts, model.num_experts_per_token, skew),
        *(config.expert_parallel_size, config.max_num_batched_tokens * replicas),
    )


def touched_by_tokens(config: CostConfig) -> list[float]:
    """Return the experts of a layer that m tokens of each replica use, for m = 0, 1, ..."""
    if not config.model.num_moe_layers:
        return [0.0]
    touched = routing_of(config).touched
    found: list[float] = touched[:: config.num_attention_ranks].tolist()
    return found if found[-1] == touched[-1] else [*found, float(touched[-1])]


def expert_slices(config: CostConfig) -> int:
    """Return the number of GPUs over which each routed expert is sliced."""
    if config.expert_parallel_size > 1:
        return 1
    return config.tensor_parallel_size * config.num_attention_ranks


def count_experts(record: Cost, config: CostConfig) -> None:
    """Write the bytes and FLOPs of a model's routed experts on one GPU into a record.

    Under expert parallelism a GPU holds whole experts, else a slice of every expert.
    """
    model, experts = config.model, record.experts
    if not model.num_moe_layers:
        return
    slices = expert_slices(config)
    narrow = expert_format(config)
    element = QUANTIZED_BYTES[narrow] if narrow else float(DTYPE_BYTES[config.dtype])
    experts.num_layers = float(model.num_moe_layers)
    experts.expert_bytes = element * model.num_expert_params / slices
    experts.row_flops = 2.0 * model.num_expert_params / slices
    experts.token_rows = routing_of(config).token_rows * config.num_attention_ranks
    experts.last_touched = len(touched_by_tokens(config)) - 1


def routed_layers(config: CostConfig) -> int:
    """Return the number of layers with routing kernels: all MoE layers if experts are many."""
    return config.model.num_moe_layers if config.model.num_experts > FEW_EXPERTS else 0


def shares_of(config: CostConfig, rate: Efficiency) -> ExpertShares:
    """Return a card's constants for a model's routed experts."""
    narrow = expert_format(config)
    if config.model.num_experts > FEW_EXPERTS:
        return rate.experts.get(KERNELS[narrow]) or rate.experts[WEIGHTS_ALONE]
    dense: Efficiency | GemmShares = rate
    if arithmetic_of(config.gpu, narrow) != "16-bit":
        dense = gemm_shares(rate, narrow)
    return ExpertShares(0.0, dense.weights, dense.gemm, DENSE_POWER, 0.0, math.inf)


def rate_experts(record: Cost, config: CostConfig, rate: Efficiency) -> None:
    """Write a card's rates for routed experts into a record."""
    model, experts, narrow = config.model, record.experts, expert_format(config)
    shares = shares_of(config, rate)
    bandwidth = config.gpu.memory_bandwidth_bytes_per_s
    slices = expert_slices(config)
    width = model.moe_intermediate_size * (3 if model.gated_mlp else 2) / slices
    moved = DTYPE_BYTES[config.dtype] * (2.0 * (model.moe_latent_size or model.hidden_size) + width)
    experts.row_time = moved / (bandwidth * shares.activations)
    experts.block, experts.power = shares.block, shares.power
    experts.stream_rate = bandwidth * shares.weights
    experts.rate = peak_flops(config.gpu, narrow) * shares.gemm
