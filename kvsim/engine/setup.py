"""From a configuration to the parts of a replica: names resolved, defaults filled in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kvsim.cost.model import COST_MODELS, CostConfig, CostModel
from kvsim.engine.router import ROUTERS
from kvsim.kv.allocator_spec import AllocatorSpec, parse_allocator
from kvsim.kv.manager import ALLOCATORS, KVCacheConfig, KVCacheManager
from kvsim.memory.budget import GIB
from kvsim.memory.capacity import Memory, resolve_memory
from kvsim.memory.layout import KVLayout, kv_dtype, kv_layout
from kvsim.registry import parse_spec
from kvsim.sched.scheduler import SCHEDULERS, Scheduler, SchedulerConfig

if TYPE_CHECKING:
    from kvsim.config import Config

#: Allocators of servers without paging, by the beginning of their names.
RESERVING = ("contiguous", "dynamic")

#: Allocators whose attention kernel needs no block table.
CONTIGUOUS = (*RESERVING, "virtual")


@dataclass(frozen=True)
class Setup:
    """Everything a replica is made of; the same for all replicas of a run."""

    config: Config
    memory: Memory
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

    def for_samples(self) -> Setup:
        """Return the same for requests of several sequences.

        Raises
        ------
        ValueError
            If the scheduler or the KV-cache manager cannot serve them.
        """
        if not _trait(self.scheduler, "takes_samples") or (
            _trait(self.scheduler, "reserves_output") and not self.allocator.base.startswith("cont")
        ):
            raise ValueError(
                f"num_samples: {self.config.allocator} under scheduler {self.scheduler!r} serves "
                "one sequence per request; paged under vllm-v0 and contiguous-* serve more"
            )
        if self.config.num_lookahead_tokens:
            raise ValueError("num_samples: num_lookahead_tokens must be 0 with several sequences")
        smallest = self.scheduler_config.max_num_seqs
        if self.config.num_samples and self.config.num_samples > smallest:
            raise ValueError(
                f"num_samples {self.config.num_samples}: more than max_num_seqs {smallest}"
            )
        setup = replace(self, kv_config=replace(self.kv_config, has_samples=True))
        setup.make_kv()
        return setup


def resolve(config: Config) -> Setup:
    """Resolve a configuration for simulation; every mistake shows here, before anything runs.

    Raises
    ------
    ValueError
        For unknown names, and for configurations that cannot run, with the reason.
    """
    allocator = parse_allocator(config.allocator)
    scheduler = config.scheduler or default_scheduler(allocator, config.num_samples)
    allocator = _with_offloading(config, allocator, scheduler)
    asynchronous = _async_scheduling(config, scheduler)
    memory = resolve_memory(config)
    num_steps_in_flight = config.pipeline_parallel_size + asynchronous
    setup = Setup(
        config=config,
        memory=memory,
        allocator=allocator,
        scheduler=scheduler,
        kv_config=_kv_config(config, memory, allocator, scheduler, num_steps_in_flight),
        scheduler_config=_scheduler_config(
            config,
            memory,
            scheduler,
            asynchronous=asynchronous,
            preemption_mode="swap" if allocator.swap else config.preemption_mode,
        ),
        cost_config=_cost_config(
            config,
            memory,
            allocator,
            host_waits=_trait(scheduler, "supports_async") and num_steps_in_flight == 1,
        ),
        num_steps_in_flight=num_steps_in_flight,
    )
    kv = setup.make_scheduler().kv
    setup = replace(setup, cost_config=replace(setup.cost_config, piece_bytes=kv.piece_bytes))
    if allocator.swap and type(kv).swap_out is KVCacheManager.swap_out:
        raise ValueError(f"allocator {config.allocator!r}: {allocator.base} cannot be swapped")
    if kv.foresees and config.data_parallel_size > 1:
        raise ValueError(
            f"allocator {config.allocator}: belady knows the future of one replica; "
            "data_parallel_size must be 1"
        )
    setup.make_cost_model()
    ROUTERS.get(config.router)
    return setup


def _with_offloading(config: Config, allocator: AllocatorSpec, scheduler: str) -> AllocatorSpec:
    """Put host memory behind a paged pool where vLLM's flag asks for it."""
    if config.kv_offloading_size is None:
        return allocator
    if allocator.base != "paged":
        raise ValueError(
            f"kv_offloading_size: allocator {config.allocator!r} has no blocks to offload; "
            "paged has, and tiered+host-gib=GIB says it by itself"
        )
    if not _prefix_caching(config, scheduler):
        raise ValueError(
            "kv_offloading_size keeps prefix blocks, and enable_prefix_caching is off"
            f"{'' if config.enable_prefix_caching is False else f' under {scheduler!r}'}"
        )
    host_gib = config.kv_offloading_size / config.tensor_parallel_size
    return allocator._replace(base="tiered", params={**allocator.params, "host_gib": host_gib})


def default_scheduler(allocator: AllocatorSpec, num_samples: int | None) -> str:
    """Return what an allocator is scheduled by unless told otherwise."""
    if allocator.swap:
        return "vllm-v0"
    if allocator.base.startswith(RESERVING):
        return "orca"
    return "vllm-v0" if num_samples not in (None, 1) else "vllm"


def _layout(config: Config, memory: Memory, allocator: AllocatorSpec) -> KVLayout:
    """Lay out the KV with the allocator's what-if modifiers."""
    return kv_layout(
        memory.model,
        kv_dtype(allocator.kv_cache_dtype or config.kv_cache_dtype, model_dtype=memory.dtype),
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        num_kv_heads=allocator.num_kv_heads,
        window=allocator.window,
        kv_lora_rank=allocator.kv_lora_rank,
    )


def _kv_config(
    config: Config, memory: Memory, allocator: AllocatorSpec, scheduler: str, steps: int
) -> KVCacheConfig:
    return KVCacheConfig(
        layout=_layout(config, memory, allocator),
        block_size=config.block_size,
        num_bytes=memory.num_gpu_blocks * memory.plan.bytes_per_block,
        max_model_len=memory.limits.max_model_len,
        max_in_flight_tokens=steps * _step_tokens(memory, scheduler),
        enable_prefix_caching=_prefix_caching(config, scheduler),
        watermark=_watermark(config, scheduler),
        swap_space_bytes=int(config.swap_space * GIB),
        reserve_full_isl=config.scheduler_reserve_full_isl,
        reserve_output=_trait(scheduler, "reserves_output"),
        num_lookahead_tokens=config.num_lookahead_tokens,
        prefix_cache_retention_interval=config.prefix_cache_retention_interval,
        use_beam_search=config.use_beam_search,
        beam_switch=config.beam_switch,
        hybrid=not config.disable_hybrid_kv_cache_manager,
        packed=config.kv_cache_layout == "BLNHC",
    )


def _step_tokens(memory: Memory, scheduler: str) -> int:
    """Most tokens of a step; one that computes whole prompts has room for the longest."""
    longest = memory.limits.max_model_len if _trait(scheduler, "whole_prompts") else 0
    return max(memory.limits.max_num_batched_tokens, longest)


def _watermark(config: Config, scheduler: str) -> float:
    if config.watermark is None:
        return float(getattr(SCHEDULERS.get(scheduler), "watermark", 0.0))
    return config.watermark


def _scheduler_config(
    config: Config,
    memory: Memory,
    scheduler: str,
    *,
    asynchronous: bool,
    preemption_mode: Literal["recompute", "swap"],
) -> SchedulerConfig:
    if preemption_mode == "swap" and not _trait(scheduler, "can_swap"):
        raise ValueError(f"preemption_mode: scheduler {scheduler!r} cannot swap; vllm-v0 can")
    if _trait(scheduler, "can_swap") and config.pipeline_parallel_size > 1:
        raise ValueError(
            f"pipeline_parallel_size {config.pipeline_parallel_size}: scheduler {scheduler!r} has "
            "one step under way at a time"
        )
    given, tokens = config.max_num_batched_tokens, _step_tokens(memory, scheduler)
    if given is not None and given < tokens:
        raise ValueError(
            f"max_num_batched_tokens ({given}) must be at least max_model_len "
            f"({memory.limits.max_model_len}) under scheduler {scheduler!r}"
        )
    return SchedulerConfig(
        max_model_len=memory.limits.max_model_len,
        max_num_seqs=memory.limits.max_num_seqs,
        max_num_batched_tokens=tokens,
        max_num_active_seqs=config.max_num_active_seqs,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        policy=config.scheduling_policy,
        preemption_mode=preemption_mode,
        async_scheduling=asynchronous,
    )


def _cost_config(
    config: Config, memory: Memory, allocator: AllocatorSpec, *, host_waits: bool
) -> CostConfig:
    return CostConfig(
        model=memory.model,
        gpu=memory.gpu,
        layout=_layout(config, memory, allocator),
        dtype=memory.dtype,
        quantization=memory.quantization,
        tensor_parallel_size=config.tensor_parallel_size,
        max_num_batched_tokens=memory.limits.max_num_batched_tokens,
        host_waits=host_waits,
        block_size=(
            None if allocator.base.startswith(CONTIGUOUS) else _block_size(config, allocator)
        ),
    )


def _block_size(config: Config, allocator: AllocatorSpec) -> int:
    given = allocator.params.get("block_size")
    return config.block_size if given is None else int(str(given))


def _trait(scheduler: str, name: str) -> bool:
    return bool(getattr(SCHEDULERS.get(scheduler), name, False))


def _async_scheduling(config: Config, scheduler: str) -> bool:
    supported = _trait(scheduler, "supports_async")
    if config.async_scheduling and not supported:
        raise ValueError(f"async_scheduling: scheduler {scheduler!r} decides one step at a time")
    if config.async_scheduling and config.pipeline_parallel_size > 1:
        raise ValueError("async_scheduling with pipeline_parallel_size above 1 is not modelled")
    if config.async_scheduling is None:
        return supported and config.pipeline_parallel_size == 1
    return config.async_scheduling


def _prefix_caching(config: Config, scheduler: str) -> bool:
    looks_up = _trait(scheduler, "looks_up_prefix")
    if config.enable_prefix_caching and not looks_up:
        raise ValueError(f"enable_prefix_caching: scheduler {scheduler!r} reuses no prefixes")
    return looks_up if config.enable_prefix_caching is None else config.enable_prefix_caching
