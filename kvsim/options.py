"""Types of a run's options for editors and checkers, made by ``docs/generate.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.kv_events import KVEventsConfig
    from kvsim.kv_transfer import KVTransferConfig
    from kvsim.parametric import PartLike
    from kvsim.pool_config import PoolConfig
    from kvsim.speculation import SpeculativeConfig


class Options(TypedDict, total=False):
    """The options of :func:`kvsim.simulate` and similar functions: fields of :class:`kvsim.Config`.

    ``def study(**options: Unpack[kvsim.Options])`` passes them on with their types. None lets
    the engine choose for the model and GPU. An option that is not given has its default.
    """

    eviction: PartLike
    """eviction policy of the prefix cache, a parameter of the allocator [lru]."""

    clients: Literal["agentx-v1", "aiperf-mvp"] | None
    """benchmark whose settings of lanes are taken where no others are given."""

    lanes: int | None
    """number of sessions at a time: a lane serves one, with its sub-agents, after the other
    [sessions begin as planned].
    """

    shuffle_sessions: bool
    """lanes take sessions in an order that the seed decides."""

    shared_prefix_tokens: int
    """first tokens of prompts that have the same content each time a session is played; with a
    horizon, lanes play all sessions again.
    """

    max_think_time: float | None
    """longest think_time of the trace, seconds; longer ones are cut [no limit]."""

    session_start: str | None
    """LO:HI, parts of its recorded time within which each lane begins its first session, drawn
    by the seed [at the session's first request].
    """

    primers: bool
    """before the run, each conversation that a lane begins in the middle sends its last earlier
    prompt, for one output token.
    """

    primer_requests: int
    """requests of each lane that follow its primers, also for one output token."""

    start_gap_cap: float | None
    """longest recorded time between starts of a session's requests, seconds; pauses shrink by
    what is cut [no limit].
    """

    tree_idle_cap: float | None
    """longest time without a request of a session in flight, seconds: then all its pauses shrink
    until one ends [no limit].
    """

    idle_cap: float | None
    """the same for the requests of all sessions together [no limit]."""

    hf_overrides: str | Mapping[str, Any] | None
    """values to replace in the model's config.json, as vLLM's JSON object."""

    compilation_config: str | Mapping[str, Any] | None
    """vLLM's JSON object; only cudagraph_mode and cudagraph_capture_sizes have an effect."""

    optimization_level: int | None
    """vLLM's -O0 to -O3, which selects the captured CUDA graphs [2]."""

    cudagraph_capture_sizes: tuple[int, ...] | Sequence[int] | str | None
    """tokens of the steps to capture as CUDA graphs, e.g. 1,2,4 [vLLM's]."""

    performance_mode: Literal["balanced", "interactivity", "throughput"]
    """vLLM's defaults: throughput doubles those of a step's tokens and requests, interactivity
    captures a CUDA graph for each of 1 to 32 tokens.
    """

    attention_backend: str | None
    """attention backend, which decides block or page size [server's choice]."""

    disable_sliding_window: bool
    """cap the context at the model's sliding window."""

    max_num_queued_reqs: int | None
    """maximum number of requests in flight; the front end rejects more."""

    max_num_queued_tokens: int | None
    """maximum prompt tokens of requests without a first token; the front end rejects more."""

    long_prefill_token_threshold_adaptive: bool
    """raise the threshold to max-num-batched-tokens over the unfinished requests."""

    prefix_match_unit: int | None
    """tokens per block key, if block sizes of KV-cache groups differ."""

    mamba_shared_prefix_checkpoint: bool
    """keep a Mamba state where a shared prefix ends."""

    mamba_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"]
    """data type of the states of convolutions; auto: as the weights."""

    mm_ipc_gpu_memory_gb: float
    """GiB of GPU memory for images on their way from the front end."""

    cpu_offload_gb: float
    """GiB of layers' weights per GPU that kernels read in host memory."""

    offload_group_size: int
    """layers of a group, of which the last have weights in host memory that are copied ahead; 0:
    none.
    """

    offload_num_in_group: int
    """layers of each group with weights in host memory."""

    offload_prefetch_step: int
    """copied layers ahead, each with a buffer on the GPU."""

    decode_context_parallel_size: int
    """tensor-parallel ranks over which the tokens of a KV block are split."""

    engine: str | None
    """engine whose scheduler, KV cache and defaults to simulate [vllm]."""

    page_size: int | None
    """sglang: tokens per page [block-size if set, else 1]."""

    mem_fraction_static: float | None
    """sglang: fraction of GPU memory for weights and KV pool [SGLang's for the GPU]."""

    max_total_tokens: int | None
    """sglang: maximum number of tokens in the KV pool."""

    swa_full_tokens_ratio: float
    """sglang: sliding-window tokens in memory per full-attention token."""

    mamba_full_memory_ratio: float
    """sglang: bytes of Mamba and linear-attention states per byte of KV."""

    max_mamba_cache_size: int | None
    """sglang: states in GPU memory [by mamba-full-memory-ratio]."""

    mamba_radix_cache_strategy: Literal["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"]
    """sglang: states of a prompt that the radix tree caches."""

    mamba_track_interval: int
    """sglang: tokens between the cached states of a decode."""

    mamba_max_states_per_path: int
    """sglang: maximum number of states on a path of the radix tree; -1: no limit."""

    enable_hierarchical_cache: bool
    """sglang: cache evicted prefixes in host memory (HiCache)."""

    hicache_ratio: float
    """sglang: tokens in host memory per token of the KV pool."""

    hicache_size: float
    """sglang: GB of host memory per GPU; 0: by hicache-ratio."""

    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"]
    """sglang: when to copy prefixes to host memory."""

    hicache_storage_prefetch_policy: Literal["best_effort", "wait_complete", "timeout"]
    """sglang: how long a request waits for its prefix from --kv-store."""

    speculative_algorithm: Literal["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"] | None
    """sglang: speculative decoding, by a drafter or by n-grams."""

    speculative_draft_model_path: str | None
    """sglang: model that drafts under STANDALONE; other drafters have one layer of the model's
    shape.
    """

    speculative_num_steps: int | None
    """sglang: consecutive drafts per step [5 for Llama and Grok, else 3]."""

    speculative_eagle_topk: int | None
    """sglang: alternatives of a draft [4 for Llama and Grok, else 1]."""

    speculative_num_draft_tokens: int | None
    """sglang: tokens that a step verifies [8 for Llama and Grok, else steps+1]."""

    max_loras_per_batch: int
    """sglang: maximum number of adapters in a batch, the base model included."""

    lora_eviction_policy: Literal["lru", "fifo"]
    """sglang: order in which adapters leave GPU memory."""

    enable_lora_overlap_loading: bool
    """sglang: load adapters while other requests are served."""

    lora_drain_wait_threshold: float
    """sglang: seconds that an adapter waits before a running adapter admits no more long
    requests; 0: never.
    """

    max_running_requests: int | None
    """sglang: maximum number of running requests [max-num-seqs if set, else SGLang's]."""

    chunked_prefill_size: int | None
    """sglang: maximum prompt tokens per step [SGLang's for the GPU]; -1: no limit."""

    max_prefill_tokens: int
    """sglang: maximum prompt tokens per step, checked between prompts."""

    prefill_max_requests: int | None
    """sglang: maximum number of prompts per step [no limit]."""

    max_queued_requests: int | None
    """sglang: maximum number of waiting requests [no limit]."""

    prefill_decode_interval: int
    """sglang: passes without a prefill after each prefill."""

    prefill_decode_interval_min_bs: int
    """sglang: running requests below which prefill-decode-interval is ignored."""

    min_free_slots_delay: int
    """sglang: requests that the running batch must have room for before a prefill."""

    enable_prefill_delayer: bool
    """sglang: delay prefills until many requests can be admitted at once."""

    prefill_delayer_token_usage_low_watermark: float | None
    """sglang: share of the KV pool below which no prefill is delayed."""

    prefill_delayer_queue_min_ratio: float | None
    """sglang: delay a prefill until this many requests wait per running one [delay only for
    places in the batch].
    """

    prefill_delayer_max_delay_ms: float
    """sglang: maximum delay for prefill-delayer-queue-min-ratio, ms."""

    scheduler_recv_interval: int
    """sglang: decode passes before new requests are received."""

    schedule_policy: Literal[
        "fcfs", "lpm", "dfs-weight", "hrrn", "lof", "shortest-prefill-first", "random"
    ]
    """sglang: order in which waiting requests are admitted."""

    schedule_conservativeness: float
    """sglang: factor on the output tokens that admission reserves."""

    radix_eviction_policy: Literal[
        "lru", "lfu", "fifo", "mru", "filo", "slru", "priority", "tlru", "hpt"
    ]
    """sglang: order in which leaves of the radix tree are evicted."""

    radix_eviction_policy_config: str | None
    """sglang: JSON object with the eviction policy's parameters."""

    enable_paged_experts: bool
    """sglang: keep only the last used routed experts of each layer on the GPU, and copy others
    from host memory when tokens choose them.
    """

    paged_experts_num_resident: int | None
    """sglang: routed experts of a layer that enable-paged-experts keeps."""

    dwdp_size: int
    """sglang: data-parallel ranks with enable-dp-attention that each keep a part of the routed
    experts and copy the rest of a layer before it runs.
    """

    enable_dp_attention: bool
    """sglang: data-parallel ranks share the experts; tensor-parallel-size is then the number of
    GPUs of one rank's attention.
    """

    enable_mixed_chunk: bool
    """sglang: mix decodes into the steps of chunked prompts."""

    disable_overlap_schedule: bool
    """sglang: schedule a step after the previous step has ended."""

    disable_radix_cache: bool
    """sglang: do not reuse prefixes."""

    enable_priority_scheduling: bool
    """sglang: admit larger priority values first, with preemption."""

    schedule_low_priority_values_first: bool
    """sglang: admit smaller priority values first."""

    priority_scheduling_preemption_threshold: int
    """sglang: largest priority difference that does not preempt."""

    disable_priority_preemption: bool
    """sglang: do not preempt because of priorities."""

    retraction_policy: Literal["length", "priority"]
    """sglang: order in which requests are retracted when decodes do not fit."""

    max_new_tokens: int | None
    """sglang: max_new_tokens of every request [its output length]."""

    ignore_eos: bool
    """sglang: every request sets ignore_eos: admission reserves all its tokens."""

    capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"]
    """tensorrt-llm: start requests if all can complete; if they fit in the next step, pausing
    some when blocks run out; or in batches that run to their end.
    """

    kv_cache_free_gpu_memory_fraction: float | None
    """tensorrt-llm: fraction of the memory left by weights and activations that the KV cache
    uses [0.9].
    """

    num_lookahead_tokens: int
    """slots to allocate for draft tokens."""

    enable_lora: bool
    """serve the LoRA adapters that the trace names in lora_id."""

    max_loras: int
    """maximum number of different adapters in a batch."""

    max_lora_rank: int
    """maximum rank of an adapter."""

    prefill_schedule_interval: int
    """while requests decode, prefill in every N-th step only; 0: in all steps."""

    model: str | ModelSpec
    """catalogue name, Hugging Face id, or path to a config.json."""

    hf_config_path: str | None
    """config.json of a model not in the catalogue, or the name of its base."""

    gpu: str | GpuSpec
    """catalogue name of the GPU."""

    dtype: str
    """data type of weights: auto, bfloat16, float16, float32."""

    quantization: str | None
    """weights: fp8, fp8-block, int8, int4, awq, gptq, bitsandbytes, mxfp4, nvfp4."""

    tensor_parallel_size: int
    """number of GPUs that split each layer."""

    pipeline_parallel_size: int
    """number of pipeline stages."""

    data_parallel_size: int
    """number of replicas behind the router."""

    enable_expert_parallel: bool
    """place whole experts on GPUs, over all tensor- and data-parallel ranks."""

    language_model_only: bool
    """do not load vision and audio encoders."""

    gpu_memory_utilization: float | None
    """fraction of GPU memory to use [vLLM's default: 0.92]."""

    kv_cache_memory_bytes: int | str | None
    """bytes of KV cache per GPU, instead of computing them."""

    logged: Mapping[str, float] | None
    """GiB that a start-up log reports, instead of estimates: memory (as CUDA shows it), weights,
    activations, non_torch, cuda_graphs or kv_cache.
    """

    num_gpu_blocks_override: int | None
    """number of KV blocks, instead of computing it; e.g. from a vLLM log."""

    block_size: int | None
    """tokens per KV block [vLLM's for the model and GPU, mostly 16]."""

    max_model_len: int | str | None
    """maximum tokens of prompt and output; -1, auto: all that fit [the model's]."""

    max_num_seqs: int | None
    """maximum number of running requests [vLLM's for the GPU]."""

    max_num_batched_tokens: int | str | None
    """maximum number of tokens per step [vLLM's for the GPU]."""

    kv_cache_dtype: str
    """data type of the KV cache: auto, bf16, fp16, fp32, fp8, int8, int4."""

    enable_prefix_caching: bool | None
    """reuse the KV blocks of common prefixes [on when paged]."""

    max_num_scheduled_tokens: int | None
    """maximum number of tokens to schedule per step [max-num-batched-tokens]."""

    speculative_config: SpeculativeConfig | Mapping[str, Any] | str | None
    """speculative decoding, as vLLM's JSON object."""

    enable_chunked_prefill: bool
    """split long prompts over several steps."""

    async_scheduling: bool | None
    """schedule a step while the previous step runs [on under vllm]."""

    long_prefill_token_threshold: int
    """maximum tokens of one prompt per step; 0: no limit."""

    scheduling_policy: Literal["fcfs", "priority", "vtc", "dlpm"]
    """order of the waiting queue; vtc, dlpm: fair between tenants."""

    dlpm_quantum: int
    """dlpm: tokens that refill the used-up credit of a tenant."""

    tenant_weights: str | None
    """vtc: weights of tenants, NAME=WEIGHT,...; all others have 1."""

    watermark: float | None
    """fraction of blocks that admission leaves free [0; vllm-v0: 0.01]."""

    preemption_mode: Literal["recompute", "swap"]
    """vllm-v0: recompute or swap the KV of a preempted request."""

    swap_space: float
    """GiB of host memory per GPU for swapping; only vllm-v0 swaps."""

    kv_offloading_size: float | None
    """GiB of host memory for evicted prefix blocks, all tensor-parallel ranks together; turns
    the allocator paged into tiered.
    """

    kv_offloading_backend: Literal["native"] | None
    """native: vLLM's connector, which stores chunks of prompts when computed."""

    kv_transfer_config: KVTransferConfig | Mapping[str, Any] | str | None
    """KV connector, as vLLM's JSON object."""

    num_samples: int | None
    """number of sequences per request, instead of the trace's."""

    ends_by: Literal["length", "eos"] | None
    """end of outputs: length, which the scheduler knows, or eos [the trace's]."""

    use_beam_search: bool
    """decode with beam search: the sequences of a request are beams."""

    beam_switch: float
    """fraction of beams that continue another beam, per step."""

    max_num_active_seqs: int | None
    """maximum number of admitted requests [max-num-seqs]."""

    scheduler_reserve_full_isl: bool
    """admit a request only if its full prompt fits."""

    prefix_cache_retention_interval: int | None
    """tokens between the windows that stay cached; 0: only the last; none: all."""

    disable_hybrid_kv_cache_manager: bool
    """treat sliding-window and chunked-attention layers as full attention."""

    kv_cache_layout: Literal["LBNHC", "BLNHC"]
    """KV tensors of hybrid models: layer (LBNHC) or block (BLNHC) outermost."""

    mamba_cache_mode: Literal["none", "align"] | None
    """Mamba states to cache [align with prefix caching, else none]."""

    mamba_ssm_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"]
    """data type of Mamba and linear-attention states; auto: as the weights."""

    encoder_cache_size: int
    """tokens of image or audio encoder outputs to cache on the GPU."""

    disable_chunked_mm_input: bool
    """do not split images over steps."""

    enforce_eager: bool
    """capture no CUDA graphs, and use their memory for the KV cache."""

    max_cudagraph_capture_size: int | None
    """maximum tokens of a step in a CUDA graph [2 x max_num_seqs, at most 512]."""

    vllm_version: str
    """vLLM version, for its memory accounting."""

    allocator: PartLike
    """KV-cache manager: BASE[+KEY[=VALUE]]..., see kvsim list allocators."""

    scheduler: PartLike | None
    """NAME[+KEY=VALUE]... [orca for contiguous-* and dynamic, else vllm]."""

    router: PartLike
    """routing policy: NAME[+KEY=VALUE]..."""

    flow_control: PartLike | None
    """policy of the queue before the router: NAME[+KEY=VALUE]..."""

    num_prefill_workers: int | None
    """number of prefill workers, for disaggregated prefill."""

    num_decode_workers: int | None
    """number of decode workers, for disaggregated prefill."""

    prefill_router: PartLike | None
    """routing policy of the prefill workers [that of --router]."""

    disaggregation: PartLike
    """which prompts prefill workers compute: NAME[+KEY=VALUE]..."""

    kv_transfer_protocol: Literal["pull", "push"]
    """pull: decode workers read KV (vLLM); push: prefill workers write KV."""

    kv_transfer_fabric: str
    """network of KV transfers."""

    kv_store: PartLike | None
    """store that replicas read missing prefixes from: NAME[+KEY=VALUE]..."""

    kv_recompute_threshold: int
    """recompute prefixes shorter than this many tokens instead of reading them."""

    first_token_from: Literal["decode", "prefill"]
    """worker that sends the first token of a disaggregated request."""

    proxy_latency: float
    """seconds that the proxy takes between the prefill and the decode worker."""

    session_policy: str
    """eviction by sessions: ttl=S, program=S, hints, pin[=SHARE] or none."""

    session_think_time: float | None
    """seconds between an answer and the next turn of its session, which never starts before its
    planned time [turns start as planned, answered or not].
    """

    autoscaler: PartLike | None
    """autoscaler: NAME[+max=N][+KEY=VALUE]..."""

    cold_start: float | str
    """seconds until a new replica takes requests, or parts[+KEY=VALUE]..."""

    migration: PartLike | None
    """policy that moves running requests: NAME[+KEY=VALUE]..."""

    failures: str | None
    """failures of replicas, rate or at: NAME[+KEY=VALUE]..."""

    pool: tuple[PoolConfig, ...] | Sequence[Mapping[str, Any]] | None
    """pools of replicas with options of their own; only in a TOML file."""

    cost_model: PartLike
    """model of the step time: NAME[+KEY=VALUE]..."""

    backend: Literal["auto", "python", "compiled"]
    """engine that runs the simulation; auto: compiled if possible."""

    max_concurrency: int | None
    """maximum number of requests in flight, as in vllm bench serve."""

    horizon: float
    """schedule no more steps this many seconds after the first arrival."""

    front_end_latency: float
    """seconds of client, HTTP and tokenizer, added to TTFT and E2E latency."""

    front_end_latency_per_token: float
    """seconds per prompt token of a serial tokenizer before the engine."""

    goodput: Mapping[str, float] | None
    """latency targets in ms, e.g. ttft:500 tpot:50."""

    kv_events_config: KVEventsConfig | Mapping[str, Any] | str | None
    """KV cache events, as vLLM's JSON object with the path of a file."""

    seed: int
    """seed of generated workloads."""

    record_steps: bool
    """record a row per step."""

    record_memory_map: bool
    """record the use of addresses over time."""

    record_block_events: bool
    """record every event of every KV block."""

    check_invariants: bool
    """recount all memory after every step."""


class RunOptions(Options, total=False):
    """The options of :func:`kvsim.sweep` and :func:`kvsim.search`: also those of their requests."""

    workload: str
    """workload to generate: NAME[+KEY=VALUE]..."""

    trace: str | None
    """trace file instead of a workload: FILE[+KEY=VALUE]..., by its format."""

    tokenizer: str | None
    """tokenizer.json to count the tokens of a trace's texts."""

    request_rate: float | None
    """requests per second; rescales a trace; inf: all arrive at once."""

    num_requests: int | None
    """number of requests, or of rows to read from the trace."""

    trace_digest: str | None
    """digest of the requests that a saved run served; others are refused."""
