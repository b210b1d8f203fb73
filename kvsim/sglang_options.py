"""SGLang's own flags, as fields of a configuration.

Where vLLM has a flag for the same thing, its name is kvsim's (``--context-length`` is
``max_model_len``); ``page_size`` and ``max_running_requests`` stand beside ``block_size`` and
``max_num_seqs`` because their defaults differ.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

#: Order of admission.
SchedulePolicy = Literal[
    "fcfs", "lpm", "dfs-weight", "hrrn", "lof", "shortest-prefill-first", "random"
]
#: Order in which leaves of the radix tree are evicted.
RadixEviction = Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority", "tlru"]


class SglangOptions(BaseModel):
    """Options of SGLang's scheduler and memory; None means the choice of SGLang 0.5.23."""

    engine: Literal["vllm", "sglang"] | None = Field(
        None, description="whose scheduler, KV cache and defaults to take together [vllm]"
    )
    page_size: Count | None = Field(
        None, description="sglang: tokens per page [block-size if given, else 1]"
    )
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="sglang: share of GPU memory for weights and KV [SGLang's for the GPU]"
    )
    max_total_tokens: Count | None = Field(None, description="sglang: most tokens of the KV pool")
    swa_full_tokens_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8, description="sglang: tokens in layers with a sliding window per token in the others"
    )
    enable_hierarchical_cache: bool = Field(
        False, description="sglang: keep evicted prefixes in host memory (HiCache)"
    )
    hicache_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        2.0, description="sglang: tokens in host memory per token of the KV pool"
    )
    hicache_size: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="sglang: GB of host memory per GPU [by hicache-ratio]"
    )
    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"] = Field(
        "write_through", description="sglang: when prefixes are copied to host memory"
    )
    hicache_storage_prefetch_policy: Literal["best_effort", "wait_complete", "timeout"] = Field(
        "best_effort",
        description="sglang: when a request goes on that reads from --kv-store into host memory",
    )
    max_running_requests: Count | None = Field(
        None, description="sglang: most requests at once [max-num-seqs if given, else SGLang's]"
    )
    chunked_prefill_size: Annotated[int, Field(ge=-1)] | None = Field(
        None, description="sglang: tokens of prompts in a step [SGLang's for the GPU]; -1: no limit"
    )
    max_prefill_tokens: Count = Field(
        16384, description="sglang: tokens of prompts in a step that chunks do not bound"
    )
    prefill_max_requests: Count | None = Field(
        None, description="sglang: most prompts in a step [no limit]"
    )
    schedule_policy: SchedulePolicy = Field("fcfs", description="sglang: who is admitted next")
    schedule_conservativeness: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="sglang: scales the share of outputs to come that admission counts on"
    )
    radix_eviction_policy: RadixEviction = Field(
        "lru", description="sglang: which leaf of the radix tree goes first"
    )
    enable_mixed_chunk: bool = Field(False, description="sglang: decode in steps with prompts, too")
    disable_overlap_schedule: bool = Field(
        False, description="sglang: schedule a step only when the last one has ended"
    )
    disable_radix_cache: bool = Field(False, description="sglang: reuse no prefixes")
    enable_priority_scheduling: bool = Field(
        False, description="sglang: larger priorities first, with preemption"
    )
    schedule_low_priority_values_first: bool = Field(
        False, description="sglang: smaller priorities first"
    )
    priority_scheduling_preemption_threshold: Whole = Field(
        10, description="sglang: difference of priorities above which a request is preempted"
    )
    disable_priority_preemption: bool = Field(
        False, description="sglang: priorities preempt nobody"
    )
    retraction_policy: Literal["length", "priority"] = Field(
        "length", description="sglang: who is retracted first when decodes do not fit"
    )
    max_new_tokens: Count | None = Field(
        None, description="sglang: tokens that requests may generate [those they do]"
    )
    ignore_eos: bool = Field(
        False, description="sglang: requests say that they generate all they may"
    )


#: Fields that only SGLang's scheduler reads.
SGLANG_FIELDS = tuple(name for name in SglangOptions.model_fields if name != "engine")
