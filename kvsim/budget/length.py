"""The longest request that fits into the KV memory: vLLM's ``--max-model-len auto``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.registry import engine_for
from kvsim.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.budget.limits import Limits
    from kvsim.budget.planner import KVPlan
    from kvsim.config import Config


def longest_that_fits(
    config: Config, limits: Limits, kv_bytes: int, plan_for: Callable[..., KVPlan]
) -> int:
    """Return the longest request that fits into the KV memory, at most the model's length.

    As in vLLM 0.33's source, bisection finds the longest request that fits into the pool without
    the null block; its blocks are counted as vLLM does at start-up. The KV memory is the memory
    left after a profile run at the model's own length.

    Parameters
    ----------
    limits : limits with the model's own length
    kv_bytes : KV memory of one GPU
    plan_for : makes the plan for a ``max_model_len``

    Raises
    ------
    ValueError
        If not even one token fits, or under another engine.
    """
    if not engine_for(config).has_auto_length:
        raise FieldError("max_model_len", "is auto: only engine vllm supports auto; give a length")
    in_flight = steps_in_flight(config) * limits.max_num_batched_tokens

    def fits(length: int) -> bool:
        plan: KVPlan = plan_for(max_model_len=length)
        usable = num_blocks_of(config, plan, kv_bytes) - 1
        return plan.reserved_blocks(in_flight, length) <= usable

    if fits(limits.max_model_len):
        return limits.max_model_len
    low, high = 0, limits.max_model_len  # lengths that fit, and do not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low == 0:
        raise FieldError(
            "max_model_len",
            "is auto: not one token fits into the available KV blocks: "
            f"{num_blocks_of(config, plan_for(max_model_len=1), kv_bytes):,}; give more "
            "KV memory",
        )
    return low


def num_blocks_of(config: Config, plan: KVPlan, kv_bytes: int) -> int:
    """Return the blocks of one GPU, null block included."""
    return config.num_gpu_blocks_override or kv_bytes // plan.bytes_per_block


def steps_in_flight(config: Config) -> int:
    """Return vLLM's number of steps in flight."""
    # Asynchronous scheduling, vLLM's default, has one more step in flight.
    overlap = config.async_scheduling is not False and config.pipeline_parallel_size == 1
    return config.pipeline_parallel_size + overlap
