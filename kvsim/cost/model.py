"""Interface of a cost model: the time of a step, and its FLOPs and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from kvsim.budget.host_weights import NO_HOST_WEIGHTS, HostWeights
from kvsim.records.cost import PRICED_IN_PYTHON
from kvsim.registry import Registry

if TYPE_CHECKING:
    from kvsim.budget.layout import KVLayout
    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.records.cost import Cost
    from kvsim.records.memory import Memory
    from kvsim.sched.scheduler import StepPlan
    from kvsim.speculation import SpeculativeConfig


class StepCost(NamedTuple):
    """Seconds of a step, and its floating-point operations and HBM bytes on one GPU."""

    time: float
    flops: float
    bytes: float


@runtime_checkable
class CostModel(Protocol):
    """Protocol of cost models, which return the time of a step."""

    def step(self, plan: StepPlan) -> StepCost:
        """Price a step; ``num_computed_tokens`` of its requests already includes its tokens.

        Does not mutate.
        """


class Adapter(NamedTuple):
    """A LoRA adapter on one GPU of one stage: its bytes, and FLOPs per token."""

    num_bytes: int
    token_flops: float


@dataclass(frozen=True)
class CostConfig:
    """Inputs of a cost model.

    Parameters
    ----------
    layout : KV on one GPU, with the KV dtype and any what-if heads or window
    dtype, quantization : data type of activations, and format of the weights
    max_num_batched_tokens : most tokens of a step, which sets the length of tables
    block_size : tokens per block of a paged KV cache, None for a contiguous one
    piece_bytes : bytes of all layers that one round of copies to the host moves, one copy per
        tensor; None if the fixed time of a copy does not matter
    expert_parallel_size : ranks that hold whole experts, 1 if every rank holds slices of all
    decode_context_parallel_size : ranks that split the tokens of the KV cache
    num_attention_ranks : replicas that compute attention separately and share the experts
    captured_tokens : most tokens of a step that a CUDA graph covers
    host_waits : the host schedules a step only when the previous one has ended (vLLM without
        asynchronous scheduling), so that the GPU waits for the host
    host_counts : the GPU waits for the host's work per request in any case (vLLM up to 0.12)
    encoder_params : parameters of the vision and audio encoders, 0 if they are not used
    adapter : a LoRA adapter on one GPU, None if requests have none
    host_weights : weights of layers in host memory
    speculation : settings of speculative decoding, None without it
    """

    model: ModelSpec
    gpu: GpuSpec
    layout: KVLayout
    dtype: str = "bf16"
    quantization: str | None = None
    tensor_parallel_size: int = 1
    max_num_batched_tokens: int = 2048
    block_size: int | None = None
    piece_bytes: int | None = None
    expert_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    num_attention_ranks: int = 1
    captured_tokens: int = 512
    host_waits: bool = False
    host_counts: bool = False
    encoder_params: int = 0
    adapter: Adapter | None = None
    host_weights: HostWeights = NO_HOST_WEIGHTS
    speculation: SpeculativeConfig | None = None


def init_cost(model: CostModel, record: Cost, memory: Memory, *, has_samples: bool = False) -> None:
    """Fill an empty record with the constants of a cost model."""
    if getattr(model, "runs_by_rules", False):
        model.init_price(record, memory)  # type: ignore[attr-defined]
    else:
        record.price, record.python = PRICED_IN_PYTHON, model
    record.has_samples = has_samples


def check_times(record: Cost, name: str) -> None:
    """Check that a cost model has returned only valid times of steps.

    Raises
    ------
    ValueError
        Naming the model and the first invalid time.
    """
    if record.is_refused:
        raise ValueError(
            f"cost model {name} returned {record.refused_time:g} seconds for a step: must be "
            "above 0 and finite"
        )


#: Factories take a :class:`CostConfig` and keyword parameters.
COST_MODELS: Registry[CostModel] = Registry(
    "cost model", "kvsim.cost", CostModel, "kvsim.cost_models"
)
