"""Types of a run's options for editors and checkers, made by ``docs/generate.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.kv_events import KVEventsConfig
    from kvsim.kv_transfer import KVTransferConfig
    from kvsim.pool_config import PoolConfig
    from kvsim.speculation import SpeculativeConfig


class Options(TypedDict, total=False):
    """The options of :func:`kvsim.simulate` and its like: fields of :class:`kvsim.Config`.

    ``def study(**options: Unpack[kvsim.Options])`` passes them on with their types. None is the
    choice of the engine for model and GPU. An option without a value is left out.
    """

    hf_overrides: str | Mapping[str, Any] | None
    """values of the model's config.json that are others, vLLM's JSON object."""

    compilation_config: str | Mapping[str, Any] | None
    """vLLM's JSON object: cudagraph_mode and cudagraph_capture_sizes take effect."""

    optimization_level: int | None
    """vLLM's -O0 to -O3: what CUDA graphs are captured [2]."""

    cudagraph_capture_sizes: tuple[int, ...] | Sequence[int] | str | None
    """tokens of the steps that are captured, e.g. 1,2,4 [vLLM's]."""

    decode_context_parallel_size: int
    """capacity: tensor-parallel ranks that share the tokens of each block."""

    engine: Literal["vllm", "sglang"] | None
    """whose scheduler, KV cache and defaults to take together [vllm]."""

    page_size: int | None
    """sglang: tokens per page [block-size if given, else 1]."""

    mem_fraction_static: float | None
    """sglang: share of GPU memory for weights and KV [SGLang's for the GPU]."""

    max_total_tokens: int | None
    """sglang: most tokens of the KV pool."""

    swa_full_tokens_ratio: float
    """sglang: tokens in layers with a sliding window per token in the others."""

    enable_hierarchical_cache: bool
    """sglang: keep evicted prefixes in host memory (HiCache)."""

    hicache_ratio: float
    """sglang: tokens in host memory per token of the KV pool."""

    hicache_size: float
    """sglang: GB of host memory per GPU [by hicache-ratio]."""

    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"]
    """sglang: when prefixes are copied to host memory."""

    hicache_storage_prefetch_policy: Literal["best_effort", "wait_complete", "timeout"]
    """sglang: when a request goes on that reads from --kv-store into host memory."""

    max_running_requests: int | None
    """sglang: most requests at once [max-num-seqs if given, else SGLang's]."""

    chunked_prefill_size: int | None
    """sglang: tokens of prompts in a step [SGLang's for the GPU]; -1: no limit."""

    max_prefill_tokens: int
    """sglang: tokens of prompts in a step that chunks do not bound."""

    prefill_max_requests: int | None
    """sglang: most prompts in a step [no limit]."""

    schedule_policy: Literal[
        "fcfs", "lpm", "dfs-weight", "hrrn", "lof", "shortest-prefill-first", "random"
    ]
    """sglang: who is admitted next."""

    schedule_conservativeness: float
    """sglang: scales the share of outputs to come that admission counts on."""

    radix_eviction_policy: Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority", "tlru"]
    """sglang: which leaf of the radix tree goes first."""

    enable_mixed_chunk: bool
    """sglang: decode in steps with prompts, too."""

    disable_overlap_schedule: bool
    """sglang: schedule a step only when the last one has ended."""

    disable_radix_cache: bool
    """sglang: reuse no prefixes."""

    enable_priority_scheduling: bool
    """sglang: larger priorities first, with preemption."""

    schedule_low_priority_values_first: bool
    """sglang: smaller priorities first."""

    priority_scheduling_preemption_threshold: int
    """sglang: difference of priorities above which a request is preempted."""

    disable_priority_preemption: bool
    """sglang: priorities preempt nobody."""

    retraction_policy: Literal["length", "priority"]
    """sglang: who is retracted first when decodes do not fit."""

    max_new_tokens: int | None
    """sglang: tokens that requests may generate [those they do]."""

    ignore_eos: bool
    """sglang: requests say that they generate all they may."""

    model: str | ModelSpec
    """catalogue name, Hugging Face id, or path to a config.json."""

    hf_config_path: str | None
    """path to the config.json of a model the catalogue does not have, or the name of its base."""

    gpu: str | GpuSpec
    """catalogue name of the GPU."""

    dtype: str
    """weights: auto, bfloat16, float16, float32."""

    quantization: str | None
    """weights: fp8, fp8-block, int8, int4, awq, gptq, bitsandbytes, mxfp4, nvfp4."""

    tensor_parallel_size: int
    """GPUs that share every layer."""

    pipeline_parallel_size: int
    """GPUs that split the layers in stages."""

    data_parallel_size: int
    """replicas behind the router."""

    enable_expert_parallel: bool
    """whole experts per GPU, over all tensor- and data-parallel ranks."""

    language_model_only: bool
    """leave vision and audio towers out."""

    gpu_memory_utilization: float | None
    """share of GPU memory to use [vLLM's default: 0.92]."""

    kv_cache_memory_bytes: int | str | None
    """pin the KV memory of one GPU, in bytes."""

    logged: Mapping[str, float] | None
    """GiB from a start-up log in place of estimates: memory (as CUDA shows it), weights,
    activations, non_torch, cuda_graphs or kv_cache.
    """

    num_gpu_blocks_override: int | None
    """pin the number of KV blocks, e.g. from a vLLM log."""

    block_size: int | None
    """tokens per KV block [vLLM's for model and card, mostly 16]."""

    max_model_len: int | str | None
    """longest sequence; auto or -1: the longest that fits [the model's]."""

    max_num_seqs: int | None
    """most requests running at once [vLLM's for the GPU]."""

    max_num_batched_tokens: int | str | None
    """token budget of a step [vLLM's for the GPU]."""

    kv_cache_dtype: str
    """auto, bf16, fp16, fp32, fp8, int8, int4."""

    enable_prefix_caching: bool | None
    """reuse KV blocks [on when paged]."""

    max_num_scheduled_tokens: int | None
    """tokens of a step that are scheduled [max-num-batched-tokens]."""

    prefill_schedule_interval: int
    """while requests decode, compute prompts in every N-th step; 0: in any."""

    speculative_config: SpeculativeConfig | Mapping[str, Any] | str | None
    """speculative decoding, vLLM's JSON object."""

    enable_lora: bool
    """serve LoRA adapters: the trace's lora_id."""

    max_loras: int
    """most adapters of one batch."""

    max_lora_rank: int
    """largest rank of an adapter."""

    enable_chunked_prefill: bool
    """split prompts over steps."""

    async_scheduling: bool | None
    """schedule a step while the last one runs [on under vllm]."""

    long_prefill_token_threshold: int
    """most tokens of one prompt per step; 0: no limit."""

    scheduling_policy: Literal["fcfs", "priority", "vtc", "dlpm"]
    """order of service; vtc, dlpm: fair to the trace's tenants."""

    dlpm_quantum: int
    """dlpm: tokens given at a time to a tenant that has none left."""

    tenant_weights: str | None
    """vtc: shares of service, NAME=WEIGHT,...; all others have 1."""

    watermark: float | None
    """share of blocks that admissions leave free [0; vllm-v0: 0.01]."""

    preemption_mode: Literal["recompute", "swap"]
    """what vllm-v0 does with a preempted request."""

    swap_space: float
    """GiB of host memory per GPU for swapping (vllm-v0; vllm never swaps)."""

    kv_offloading_size: float | None
    """GiB of host memory, all tensor-parallel ranks together, for evicted prefix blocks: makes
    paged tiered.
    """

    kv_offloading_backend: Literal["native"] | None
    """native: chunks of prompts are stored as they are computed, by vLLM's rules."""

    kv_transfer_config: KVTransferConfig | Mapping[str, Any] | str | None
    """KV connector, vLLM's JSON object."""

    num_samples: int | None
    """sequences of each request, instead of the trace's."""

    ends_by: Literal["length", "eos"] | None
    """how answers end, instead of as the trace says; eos is not foreseen."""

    use_beam_search: bool
    """the sequences of a request are beams."""

    beam_switch: float
    """share of beams that continue another one, per step."""

    max_num_active_seqs: int | None
    """most admitted requests [max-num-seqs]."""

    scheduler_reserve_full_isl: bool
    """admit only what fits with its full prompt."""

    prefix_cache_retention_interval: int | None
    """tokens between kept sliding-window checkpoints; 0: only the last; none: all."""

    num_lookahead_tokens: int
    """slots kept ahead for draft tokens."""

    disable_hybrid_kv_cache_manager: bool
    """treat sliding and chunked layers as full attention."""

    kv_cache_layout: Literal["LBNHC", "BLNHC"]
    """of mixed layers: layer or block outermost in the KV tensors."""

    mamba_cache_mode: Literal["none", "align"] | None
    """states kept for prefix caching [align with it, none without]."""

    mamba_ssm_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"]
    """states of Mamba and linear-attention layers [the weights' dtype]."""

    encoder_cache_size: int
    """tokens of image or audio encoder outputs kept on the GPU."""

    disable_chunked_mm_input: bool
    """no chunk ends inside an image."""

    enforce_eager: bool
    """no CUDA graphs: their memory is free."""

    max_cudagraph_capture_size: int | None
    """most tokens of a step in a CUDA graph; 2 x max_num_seqs, at most 512."""

    vllm_version: str
    """vLLM whose memory conventions to follow."""

    allocator: str
    """KV-cache manager: BASE[+KEY[=VALUE]]..."""

    scheduler: str | None
    """scheduler: NAME[+KEY=VALUE]... [orca for contiguous-*, dynamic; else vllm]."""

    router: str
    """how requests choose a replica: NAME[+KEY=VALUE]..."""

    flow_control: str | None
    """who waits before any replica is chosen: NAME[+KEY=VALUE]..."""

    num_prefill_workers: int | None
    """replicas that compute prompts only, apart from those that decode."""

    num_decode_workers: int | None
    """replicas that go on from prompts computed apart."""

    prefill_router: str | None
    """how prompts choose a prefill replica [router]."""

    disaggregation: str
    """which prompts are computed apart: NAME[+KEY=VALUE]..."""

    kv_transfer_protocol: Literal["pull", "push"]
    """who moves KV to decode replicas: they (vLLM), or prefill ones (SGLang)."""

    kv_transfer_fabric: str
    """what KV is moved over."""

    kv_store: str | None
    """where replicas find KV beyond their own: NAME[+KEY=VALUE]..."""

    kv_recompute_threshold: int
    """fewer missing tokens than that a replica computes itself, never fetches."""

    first_token_from: Literal["decode", "prefill"]
    """whose first token the client gets of a prompt computed apart."""

    proxy_latency: float
    """seconds of the proxy between a prompt's end and its decode replica."""

    session_think_time: float | None
    """seconds between an answer and the session's next turn, which also waits for its planned
    time [turns come as planned, answered or not].
    """

    autoscaler: str | None
    """who says how many replicas there shall be: NAME[+max=N][+KEY=VALUE]..."""

    cold_start: float | str
    """seconds from the decision for a replica until it takes requests, or parts[+KEY=VALUE]..."""

    migration: str | None
    """who moves running requests between replicas: NAME[+KEY=VALUE]..."""

    failures: str | None
    """when replicas fail: rate or at, NAME[+KEY=VALUE]..."""

    pool: tuple[PoolConfig, ...] | Sequence[Mapping[str, Any]] | None
    """replicas by role, with options of their own; only in a TOML file."""

    cost_model: str
    """step times: NAME[+KEY=VALUE]..."""

    backend: Literal["auto", "python", "compiled"]
    """which engine runs it."""

    max_concurrency: int | None
    """most requests in flight at the clients, as in vllm bench serve."""

    horizon: float
    """schedule no step from this many seconds on after the first arrival."""

    front_end_latency: float
    """seconds of client, HTTP and tokenisation in every TTFT and E2E of the summary."""

    front_end_latency_per_token: float
    """seconds of tokenisation per prompt token, one prompt after another, before the engine sees
    a request.
    """

    goodput: Mapping[str, float] | None
    """latency targets in ms, e.g. ttft:500 tpot:50."""

    kv_events_config: KVEventsConfig | Mapping[str, Any] | str | None
    """KV cache events, vLLM's JSON object with the path of a file that gets them."""

    seed: int
    """seed of generated workloads."""

    record_steps: bool
    """keep a row per step."""

    record_memory_map: bool
    """keep causes by address over time."""

    record_block_events: bool
    """keep what becomes of every KV block."""

    check_invariants: bool
    """recount all memory after every step."""


class RunOptions(Options, total=False):
    """The options of :func:`kvsim.sweep` and :func:`kvsim.search`: also those of the requests."""

    workload: str
    """generated requests: NAME[+KEY=VALUE]..."""

    trace: str | None
    """trace file to serve instead: FILE[+KEY=VALUE]..., keys of its format."""

    tokenizer: str | None
    """tokenizer.json that counts the texts of a trace."""

    request_rate: float | None
    """requests per second; rescales a trace; inf sends all at once."""

    num_requests: int | None
    """how many requests, or rows of the trace."""

    trace_digest: str | None
    """digest of the requests that a saved run served; no others are taken."""
