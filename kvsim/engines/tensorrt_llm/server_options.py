"""TensorRT-LLM's own flags, as fields of a configuration.

Other flags set fields with vLLM's names: ``--max_batch_size`` is ``max_num_seqs``,
``--max_num_tokens`` is ``max_num_batched_tokens``, ``enable_block_reuse`` is
``enable_prefix_caching``, and ``host_cache_size`` is ``kv_offloading_size``, in GiB.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator

#: Policies by which requests start, and may be paused.
CapacityPolicy = Literal["guaranteed_no_evict", "max_utilization", "static_batch"]


class TensorrtLlmOptions(BaseModel, defer_build=True):
    """Options of TensorRT-LLM's scheduler and memory."""

    capacity_scheduler_policy: CapacityPolicy = Field(
        "guaranteed_no_evict",
        description="tensorrt-llm: start requests if all can complete; if they fit in the next "
        "step, pausing some when blocks run out; or in batches that run to their end",
    )
    kv_cache_free_gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="tensorrt-llm: fraction of the memory left by weights and activations that "
        "the KV cache uses [0.9]",
    )

    @field_validator("capacity_scheduler_policy", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        """Read the upper case of TensorRT-LLM's own configuration."""
        return value.lower() if isinstance(value, str) else value
