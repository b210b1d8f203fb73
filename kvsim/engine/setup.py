"""From a configuration to the parts of a replica: names resolved, defaults filled in, all checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.catalog import get_gpu, get_model
from kvsim.cost.model import COST_MODELS, CostConfig, CostModel
from kvsim.kv.allocator_spec import AllocatorSpec, parse_allocator
from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.manager import ALLOCATORS, KVCacheConfig, KVCacheManager
from kvsim.memory.budget import GIB, Budget, engine_of, inference_budget
from kvsim.memory.layout import kv_dtype, kv_layout
from kvsim.memory.planner import plan_groups
from kvsim.memory.weights import check_quantization, weight_bytes, weight_dtype
from kvsim.registry import parse_spec
from kvsim.sched.scheduler import SCHEDULERS, Scheduler, SchedulerConfig

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.config import Config
    from kvsim.memory.layout import KVLayout

#: What an allocator is scheduled by unless told otherwise; any other, and ``paged``, by vllm.
RESERVING = ("contiguous", "dynamic")


@dataclass(frozen=True)
class Limits:
    """vLLM's limits for a model on a GPU, after filling in its defaults."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float


@dataclass(frozen=True)
class Setup:
    """Everything a replica is made of; the same for all replicas of a run."""

    config: Config
    model: ModelSpec
    gpu: GpuSpec
    limits: Limits
    layout: KVLayout
    budget: Budget
    num_gpu_blocks: int
    bytes_per_block: int
    allocator: AllocatorSpec
    scheduler: str
    kv_config: KVCacheConfig
    scheduler_config: SchedulerConfig
    cost_config: CostConfig
    num_steps_in_flight: int

    def make_kv(self) -> KVCacheManager:
        """Make a KV-cache manager with all memory free."""
        return ALLOCATORS.create(self.allocator.base, self.kv_config, **self.allocator.params)

    def make_scheduler(self) -> Scheduler:
        """Make an empty scheduler over its own KV-cache manager."""
        return SCHEDULERS.create(self.scheduler, self.make_kv(), self.scheduler_config)

    def make_cost_model(self) -> CostModel:
        """Make the cost model."""
        name, params = parse_spec(self.config.cost_model)
        return COST_MODELS.create(name, self.cost_config, **params)


def limits_of(config: Config, model: ModelSpec, gpu: GpuSpec) -> Limits:
    """Fill in vLLM 0.33's defaults (API server) for the GPU's memory class.

    Raises
    ------
    ValueError
        If the limits contradict each other.
    """
    memory = gpu.nominal_memory_bytes
    large = memory >= 70 * GIB and not gpu.name.startswith("a100")
    max_model_len = config.max_model_len or model.max_position_embeddings
    max_num_seqs = config.max_num_seqs or (1024 if large else 256)
    default_tokens = 16384 if memory >= 160 * GIB else 8192 if large else 2048
    tokens = config.max_num_batched_tokens
    if tokens is None:
        if not config.enable_chunked_prefill:  # as vLLM: a whole prompt must fit in a step
            default_tokens = max(default_tokens, max_model_len)
        tokens = min(max(default_tokens, max_num_seqs), max_num_seqs * max_model_len)
    elif tokens < max_num_seqs:
        if config.max_num_seqs is not None:
            raise ValueError(
                f"max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({max_num_seqs})"
            )
        max_num_seqs = tokens
    if not config.enable_chunked_prefill and tokens < max_model_len:
        raise ValueError(
            f"max_num_batched_tokens ({tokens}) must be at least max_model_len ({max_model_len}) "
            "without chunked prefill"
        )
    utilization = config.gpu_memory_utilization
    if utilization is None:
        utilization = engine_of(config.vllm_version).gpu_memory_utilization
    return Limits(max_model_len, max_num_seqs, tokens, utilization)


def resolve_memory(config: Config) -> tuple[ModelSpec, GpuSpec, Limits, KVLayout, Budget]:
    """Resolve what the memory budget needs; the KV budget may be pinned, or negative.

    Raises
    ------
    ValueError
        For unknown names and impossible shapes.
    """
    model, gpu = get_model(config.model), get_gpu(config.gpu)
    limits = limits_of(config, model, gpu)
    dtype = weight_dtype(config.dtype)
    quantization = config.quantization or model.quantization
    check_quantization(quantization)
    layout = kv_layout(
        model,
        kv_dtype(config.kv_cache_dtype, model_dtype=dtype),
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
    )
    weights = weight_bytes(
        model,
        dtype=dtype,
        quantization=quantization,
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
    )
    budget = inference_budget(
        model,
        gpu,
        weights=weights,
        gpu_memory_utilization=limits.gpu_memory_utilization,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        enforce_eager=config.enforce_eager,
        vllm_version=config.vllm_version,
    )
    if config.kv_cache_memory_bytes is not None:
        budget = budget._replace(kv_cache=config.kv_cache_memory_bytes)
    return model, gpu, limits, layout, budget


def resolve(config: Config) -> Setup:
    """Resolve a configuration for simulation.

    Raises
    ------
    ValueError
        For unknown names, and for configurations that cannot run, with the reason.
    """
    model, gpu, limits, layout, budget = resolve_memory(config)
    allocator = parse_allocator(config.allocator)
    plan = plan_groups(
        layout, config.block_size, hybrid=not config.disable_hybrid_kv_cache_manager
    )
    num_gpu_blocks = config.num_gpu_blocks_override or budget.kv_cache // plan.bytes_per_block
    if num_gpu_blocks < 1:
        raise ValueError(_no_room(model, gpu, budget))
    scheduler = config.scheduler or _default_scheduler(allocator.base)
    asynchronous = _async_scheduling(config, scheduler)
    steps_in_flight = config.pipeline_parallel_size + asynchronous
    modified = kv_layout(
        model,
        kv_dtype(
            allocator.kv_cache_dtype or config.kv_cache_dtype,
            model_dtype=weight_dtype(config.dtype),
        ),
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        num_kv_heads=allocator.num_kv_heads,
        window=allocator.window,
    )
    kv_config = KVCacheConfig(
        layout=modified,
        num_gpu_blocks=num_gpu_blocks,
        block_size=config.block_size,
        num_bytes=num_gpu_blocks * plan.bytes_per_block,
        max_model_len=limits.max_model_len,
        max_in_flight_tokens=steps_in_flight * limits.max_num_batched_tokens,
        enable_prefix_caching=_prefix_caching(config, allocator.base, scheduler),
        watermark=config.watermark,
        reserve_full_isl=config.scheduler_reserve_full_isl,
        reserve_output=_trait(scheduler, "reserves_output"),
        num_lookahead_tokens=config.num_lookahead_tokens,
        prefix_cache_retention_interval=config.prefix_cache_retention_interval,
        hybrid=not config.disable_hybrid_kv_cache_manager,
    )
    EVICTION_POLICIES.get(str(allocator.params.get("eviction", "lru")))
    scheduler_config = SchedulerConfig(
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_active_seqs=config.max_num_active_seqs,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        policy=config.scheduling_policy,
        async_scheduling=asynchronous,
    )
    cost_config = CostConfig(
        model=model,
        gpu=gpu,
        layout=modified,
        dtype=weight_dtype(config.dtype),
        quantization=config.quantization or model.quantization,
        tensor_parallel_size=config.tensor_parallel_size,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
    )
    return Setup(
        config,
        model,
        gpu,
        limits,
        layout,
        budget,
        num_gpu_blocks,
        plan.bytes_per_block,
        allocator,
        scheduler,
        kv_config,
        scheduler_config,
        cost_config,
        steps_in_flight,
    )


def _default_scheduler(allocator: str) -> str:
    return "orca" if allocator.startswith(RESERVING) else "vllm"


def _trait(scheduler: str, name: str) -> bool:
    return bool(getattr(SCHEDULERS.get(scheduler), name, False))


def _async_scheduling(config: Config, scheduler: str) -> bool:
    supported = _trait(scheduler, "supports_async")
    if config.async_scheduling and not supported:
        raise ValueError(f"async_scheduling: scheduler {scheduler!r} schedules one step at a time")
    return supported if config.async_scheduling is None else config.async_scheduling


def _prefix_caching(config: Config, allocator: str, scheduler: str) -> bool:
    pages = not allocator.startswith("contiguous")
    looks_up = _trait(scheduler, "looks_up_prefix")
    if config.enable_prefix_caching and not looks_up:
        raise ValueError(f"enable_prefix_caching: scheduler {scheduler!r} reuses no prefixes")
    wanted = config.enable_prefix_caching
    return looks_up and pages if wanted is None else wanted


def _no_room(model: ModelSpec, gpu: GpuSpec, budget: Budget) -> str:
    overhead = budget.activations + budget.non_torch + budget.cuda_graphs
    return (
        f"{model.name} does not fit: weights {budget.weights / GIB:.1f} GiB and overheads "
        f"{overhead / GIB:.1f} GiB leave no KV block in the {budget.total / GIB:.1f} GiB of each "
        f"{gpu.name}; use more tensor_parallel_size, quantization, or a larger GPU"
    )
