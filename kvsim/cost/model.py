"""Interface of a cost model: GPU time of a step, and the bytes and FLOPs of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

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
    """One step on one GPU: seconds, floating-point operations, bytes through HBM."""

    time: float
    flops: float
    bytes: float


@runtime_checkable
class CostModel(Protocol):
    """Prices steps."""

    def step(self, plan: StepPlan) -> StepCost:
        """Price a step that ``num_computed_tokens`` of its requests already include.

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
    layout : KV on one GPU, the KV dtype and any what-if heads or window included
    dtype, quantization : data type and format of the weights
    max_num_batched_tokens : longest step, for tables
    block_size : tokens per block of a paged KV cache, None if it is contiguous
    piece_bytes : KV of all layers that one round of copies to the host takes, a copy per tensor;
        None if a copy's fixed time does not matter
    expert_parallel_size : ranks that whole experts are spread over, 1 if all hold slices of each
    num_attention_ranks : replicas that attend by themselves and share the experts
    captured_tokens : most tokens of a step that a CUDA graph covers
    host_waits : the host decides a step only when the one before has ended (vLLM without
        asynchronous scheduling), so that its work stands between them
    host_counts : the host's work for each request stands between steps in any case (vLLM to 0.12)
    encoder_params : parameters of the model's vision and audio towers, 0 if they are left out
    adapter : one LoRA adapter on one GPU, None if requests have none
    speculation : drafts of tokens, None without speculation
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
    num_attention_ranks: int = 1
    captured_tokens: int = 512
    host_waits: bool = False
    host_counts: bool = False
    encoder_params: int = 0
    adapter: Adapter | None = None
    speculation: SpeculativeConfig | None = None


def lay_out_cost(
    model: CostModel, record: Cost, memory: Memory, *, has_samples: bool = False
) -> None:
    """Fill an empty record with the constants that price the steps of a replica."""
    if getattr(model, "runs_by_rules", False):
        model.lay_out_price(record, memory)  # type: ignore[attr-defined]
    else:
        record.price, record.python = PRICED_IN_PYTHON, model
    record.has_samples = has_samples


def check_times(record: Cost, name: str) -> None:
    """Refuse a cost model that has returned an invalid time of a step.

    Raises
    ------
    ValueError
        Naming the model and what it returned first.
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
