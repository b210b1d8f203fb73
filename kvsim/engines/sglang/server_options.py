"""SGLang's own flags, as fields of a configuration.

A flag that vLLM has, too, has vLLM's name (``--context-length`` is ``max_model_len``). But
``page_size`` and ``max_running_requests`` are separate from ``block_size`` and ``max_num_seqs``,
because their defaults differ.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator

from kvsim.json_object import parsed

Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Drafts = Annotated[int, Field(ge=1, le=64)]

#: Parameters of eviction policies that have another name in kvsim.
EVICTION_NUMBERS = {"threshold": "tail_threshold"}

#: Order of admission.
SchedulePolicy = Literal[
    "fcfs", "lpm", "dfs-weight", "hrrn", "lof", "shortest-prefill-first", "random"
]
#: Order in which leaves of the radix tree are evicted.
RadixEviction = Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority", "tlru", "hpt"]


class SglangOptions(BaseModel, defer_build=True):
    """Options of SGLang's scheduler and memory; None means the choice of SGLang 0.5.23."""

    page_size: Count | None = Field(
        None, description="sglang: tokens per page [block-size if set, else 1]"
    )
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="sglang: fraction of GPU memory for weights and KV pool [SGLang's for the GPU]",
    )
    max_total_tokens: Count | None = Field(
        None, description="sglang: maximum number of tokens in the KV pool"
    )
    swa_full_tokens_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8, description="sglang: sliding-window tokens in memory per full-attention token"
    )
    mamba_full_memory_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        0.9, description="sglang: bytes of Mamba and linear-attention states per byte of KV"
    )
    max_mamba_cache_size: Count | None = Field(
        None, description="sglang: states in GPU memory [by mamba-full-memory-ratio]"
    )
    mamba_radix_cache_strategy: Literal[
        "auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"
    ] = Field("auto", description="sglang: states of a prompt that the radix tree caches")
    mamba_track_interval: Count = Field(
        256, description="sglang: tokens between the cached states of a decode"
    )
    mamba_max_states_per_path: Annotated[int, Field(ge=-1)] = Field(
        -1, description="sglang: maximum number of states on a path of the radix tree; -1: no limit"
    )
    enable_hierarchical_cache: bool = Field(
        False, description="sglang: cache evicted prefixes in host memory (HiCache)"
    )
    hicache_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        2.0, description="sglang: tokens in host memory per token of the KV pool"
    )
    hicache_size: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="sglang: GB of host memory per GPU; 0: by hicache-ratio"
    )
    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"] = Field(
        "write_through", description="sglang: when to copy prefixes to host memory"
    )
    hicache_storage_prefetch_policy: Literal["best_effort", "wait_complete", "timeout"] = Field(
        "best_effort", description="sglang: how long a request waits for its prefix from --kv-store"
    )
    speculative_algorithm: Literal["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"] | None = (
        Field(None, description="sglang: speculative decoding, by a drafter or by n-grams")
    )
    speculative_draft_model_path: str | None = Field(
        None,
        description="sglang: model that drafts under STANDALONE; other drafters have one layer of "
        "the model's shape",
    )
    speculative_num_steps: Drafts | None = Field(
        None, description="sglang: consecutive drafts per step [5 for Llama and Grok, else 3]"
    )
    speculative_eagle_topk: Count | None = Field(
        None, description="sglang: alternatives of a draft [4 for Llama and Grok, else 1]"
    )
    speculative_num_draft_tokens: Drafts | None = Field(
        None, description="sglang: tokens that a step verifies [8 for Llama and Grok, else steps+1]"
    )
    max_loras_per_batch: Count = Field(
        8, description="sglang: maximum number of adapters in a batch, the base model included"
    )
    lora_eviction_policy: Literal["lru", "fifo"] = Field(
        "lru", description="sglang: order in which adapters leave GPU memory"
    )
    enable_lora_overlap_loading: bool = Field(
        False, description="sglang: load adapters while other requests are served"
    )
    lora_drain_wait_threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0,
        description="sglang: seconds that an adapter waits before a running adapter admits no more "
        "long requests; 0: never",
    )
    max_running_requests: Count | None = Field(
        None,
        description="sglang: maximum number of running requests [max-num-seqs if set, else "
        "SGLang's]",
    )
    chunked_prefill_size: Annotated[int, Field(ge=-1)] | None = Field(
        None,
        description="sglang: maximum prompt tokens per step [SGLang's for the GPU]; -1: no limit",
    )
    max_prefill_tokens: Count = Field(
        16384, description="sglang: maximum prompt tokens per step, checked between prompts"
    )
    prefill_max_requests: Count | None = Field(
        None, description="sglang: maximum number of prompts per step [no limit]"
    )
    max_queued_requests: Count | None = Field(
        None, description="sglang: maximum number of waiting requests [no limit]"
    )
    prefill_decode_interval: Whole = Field(
        0, description="sglang: passes without a prefill after each prefill"
    )
    prefill_decode_interval_min_bs: Whole = Field(
        0, description="sglang: running requests below which prefill-decode-interval is ignored"
    )
    min_free_slots_delay: Whole = Field(
        0, description="sglang: requests that the running batch must have room for before a prefill"
    )
    enable_prefill_delayer: bool = Field(
        False, description="sglang: delay prefills until many requests can be admitted at once"
    )
    prefill_delayer_token_usage_low_watermark: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="sglang: share of the KV pool below which no prefill is delayed"
    )
    prefill_delayer_queue_min_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = (
        Field(
            None,
            description="sglang: delay a prefill until this many requests wait per running one "
            "[delay only for places in the batch]",
        )
    )
    prefill_delayer_max_delay_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        5000.0, description="sglang: maximum delay for prefill-delayer-queue-min-ratio, ms"
    )
    scheduler_recv_interval: Count = Field(
        1, description="sglang: decode passes before new requests are received"
    )
    schedule_policy: SchedulePolicy = Field(
        "fcfs", description="sglang: order in which waiting requests are admitted"
    )
    schedule_conservativeness: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="sglang: factor on the output tokens that admission reserves"
    )
    radix_eviction_policy: RadixEviction = Field(
        "lru", description="sglang: order in which leaves of the radix tree are evicted"
    )
    radix_eviction_policy_config: str | None = Field(
        None, description="sglang: JSON object with the eviction policy's parameters"
    )

    @field_validator("radix_eviction_policy_config")
    @classmethod
    def _numbers(cls, value: str | None) -> str | None:
        return value and json.dumps(parsed(value, '{"protected_threshold": 3}'), sort_keys=True)

    enable_paged_experts: bool = Field(
        False,
        description="sglang: keep only the last used routed experts of each layer on the GPU, and "
        "copy others from host memory when tokens choose them",
    )
    paged_experts_num_resident: Count | None = Field(
        None, description="sglang: routed experts of a layer that enable-paged-experts keeps"
    )
    dwdp_size: Count = Field(
        1,
        description="sglang: data-parallel ranks with enable-dp-attention that each keep a part of "
        "the routed experts and copy the rest of a layer before it runs",
    )
    enable_dp_attention: bool = Field(
        False,
        description="sglang: data-parallel ranks share the experts; tensor-parallel-size is then "
        "the number of GPUs of one rank's attention",
    )
    enable_mixed_chunk: bool = Field(
        False, description="sglang: mix decodes into the steps of chunked prompts"
    )
    disable_overlap_schedule: bool = Field(
        False, description="sglang: schedule a step after the previous step has ended"
    )
    disable_radix_cache: bool = Field(False, description="sglang: do not reuse prefixes")
    enable_priority_scheduling: bool = Field(
        False, description="sglang: admit larger priority values first, with preemption"
    )
    schedule_low_priority_values_first: bool = Field(
        False, description="sglang: admit smaller priority values first"
    )
    priority_scheduling_preemption_threshold: Whole = Field(
        10, description="sglang: largest priority difference that does not preempt"
    )
    disable_priority_preemption: bool = Field(
        False, description="sglang: do not preempt because of priorities"
    )
    retraction_policy: Literal["length", "priority"] = Field(
        "length",
        description="sglang: order in which requests are retracted when decodes do not fit",
    )
    max_new_tokens: Count | None = Field(
        None, description="sglang: max_new_tokens of every request [its output length]"
    )
    ignore_eos: bool = Field(
        False,
        description="sglang: every request sets ignore_eos: admission reserves all its tokens",
    )
