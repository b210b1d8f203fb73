"""The parts of a replica from a configuration: names resolved, defaults filled in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from kvsim.budget.budget import GIB
from kvsim.budget.capacity import Memory, resolve_memory
from kvsim.budget.drafter import with_drafter
from kvsim.budget.settings import keeps_groups, layout_of
from kvsim.engine.checks import (
    called,
    check_allocator,
    check_events,
    check_scheduler,
    check_speculation,
    check_states,
    step_tokens,
    tells_events,
)
from kvsim.engine.connector import connector_settings, has_offloading
from kvsim.engine.pricing import cost_config_of, make_cost_model
from kvsim.engine.settings import by_name
from kvsim.engines.policies import SCHEDULED_IN_PYTHON, VLLM
from kvsim.engines.registry import all_engines, engine_by_policy, get_engine
from kvsim.features.feature import chosen_features
from kvsim.kv.allocator_rules import AllocatorRules, OwnManager
from kvsim.kv.allocator_spec import AllocatorSpec, parse_allocator
from kvsim.kv.manager import ALLOCATORS, KVCacheConfig, KVCacheManager
from kvsim.records.kv import PAGED
from kvsim.sched.encoder import EncoderConfig
from kvsim.sched.scheduler import (
    Scheduler,
    SchedulerConfig,
    make_scheduler,
    order_of,
    scheduler_factory,
    scheduler_type,
)
from kvsim.speculation import SPECULATION_FLAGS, DraftSlots

if TYPE_CHECKING:
    from kvsim.budget.layout import KVLayout
    from kvsim.config import Config
    from kvsim.cost.model import CostConfig, CostModel
    from kvsim.engines.engine import Engine
    from kvsim.records.connector import Connector


@dataclass(frozen=True)
class Parts:
    """The parts of a replica; the same for all replicas of a run.

    ``kv`` is an empty manager for checks; it serves no requests. ``cost`` prices the steps
    of all replicas. ``scheduler_type`` is the class of the schedulers.
    """

    allocator: AllocatorSpec
    scheduler: str
    scheduler_type: type[Scheduler]
    kv_config: KVCacheConfig
    scheduler_config: SchedulerConfig
    num_steps_in_flight: int
    kv: KVCacheManager
    cost: CostModel
    cost_model: str = field(default="", kw_only=True)
    num_stages: int = field(default=1, kw_only=True)
    record_steps: bool = field(default=False, kw_only=True)
    record_memory_map: bool = field(default=False, kw_only=True)
    front_end_latency_per_token: float = field(default=0.0, kw_only=True)

    def make_kv(self) -> KVCacheManager:
        return make_kv(self.allocator, self.kv_config)

    def make_scheduler(self) -> Scheduler:
        """Make an empty scheduler over its own KV-cache manager."""
        return make_scheduler(self.scheduler, self.make_kv(), self.scheduler_config)


@dataclass(frozen=True)
class Setup(Parts):
    """The parts of a replica, and the configuration they follow from."""

    config: Config
    memory: Memory
    cost_config: CostConfig

    def for_samples(self, max_num_samples: int) -> Setup:
        """Return the same setup for requests of several sequences.

        Raises
        ------
        ValueError
            If the scheduler or the KV-cache manager cannot serve them.
        """
        kv_config = replace(self.kv_config, max_num_samples=max_num_samples)
        kv = make_kv(self.allocator, kv_config)
        if not (self.scheduler_type.takes_samples and kv.serves_samples):
            raise ValueError(
                f"num_samples: {called(self.config)} under scheduler {self.scheduler!r} "
                "serves one sequence per request; vllm serves each sequence as a "
                "request, and paged under vllm-v0 and contiguous-* serve several"
            )
        if self.kv_config.num_slots_ahead:
            excluded = " and ".join(SPECULATION_FLAGS)
            raise ValueError(f"num_samples: several sequences exclude {excluded}")
        smallest = self.scheduler_config.max_num_seqs
        if self.config.num_samples and self.config.num_samples > smallest:
            raise ValueError(
                f"num_samples {self.config.num_samples}: must be at most max_num_seqs, {smallest}"
            )
        return replace(self, kv_config=kv_config, kv=kv)

    def for_items(self, longest: int) -> Setup:
        """Return the same setup for prompts with encoder items of at most ``longest`` tokens.

        As in vLLM, a step may encode max_num_batched_tokens. The encoder cache holds the same
        number, or encoder_cache_size if that is set; the longest item always fits.

        Raises
        ------
        ValueError
            If the scheduler supports no encoder, or could never compute the longest item.
        """
        given, config = self.scheduler_config, self.config
        if self.scheduler_type.rules_of != VLLM or getattr(self.kv, "rules_of", None) != PAGED:
            raise ValueError(
                f"trace: requests have encoder items, which {called(config)} under "
                f"scheduler {self.scheduler!r} does not support; paged under vllm does"
            )
        most = given.max_num_batched_tokens
        chunk = min(
            most, given.long_prefill_token_threshold or most, given.max_num_scheduled_tokens or most
        )
        if config.disable_chunked_mm_input and longest > chunk:
            raise ValueError(
                f"disable_chunked_mm_input: the trace has an item of {longest} tokens, "
                f"but chunks have at most {chunk} tokens, so that it could never be "
                "computed"
            )
        encoder = EncoderConfig(
            budget=max(most, longest),
            cache_size=max(config.encoder_cache_size or most, longest),
            disable_chunked_mm_input=config.disable_chunked_mm_input,
            names_blocks=False,
        )
        return replace(self, scheduler_config=replace(given, encoder_inputs=encoder))


def with_events(setup: Setup) -> Setup:
    """Return the same setup with replicas that publish KV cache events."""
    if setup.kv_config.events:
        return setup
    kv_config = replace(setup.kv_config, events=True)
    return replace(setup, kv_config=kv_config, kv=make_kv(setup.allocator, kv_config))


def with_connector(setup: Setup, connector: Connector) -> Setup:
    """Return the setup beside a KV connector, with which no key covers tokens after its block."""
    spec, kv_config = setup.scheduler_config.speculation, setup.kv_config
    given = replace(setup.scheduler_config, kv_transfer=connector)
    if spec is None or spec.num_hash_lookahead_tokens == 0:
        return replace(setup, scheduler_config=given)
    spec = spec.with_connector
    kv_config = replace(kv_config, **by_name(DraftSlots, spec))
    kv = make_kv(setup.allocator, kv_config)
    scheduler_config = replace(given, speculation=spec)
    return replace(setup, scheduler_config=scheduler_config, kv_config=kv_config, kv=kv)


def make_kv(allocator: AllocatorSpec, kv_config: KVCacheConfig) -> KVCacheManager:
    made = ALLOCATORS.create(allocator.base, kv_config, **allocator.params)
    return OwnManager(kv_config, made) if isinstance(made, AllocatorRules) else made


def resolve(config: Config) -> Setup:
    """Resolve a configuration for simulation, and refuse every mistake before anything runs.

    Raises
    ------
    ValueError
        For unknown names, and for configurations that cannot run, with the reason.
    """
    config = of_engine(config)
    allocator = parse_allocator(config.allocator)
    if config.scheduler is not None:
        return _resolve(config, allocator, config.scheduler)
    # An allocator class names its scheduler; with a factory function only the manager does.
    factory = ALLOCATORS.get(allocator.base)
    presumed = getattr(factory, "default_scheduler", KVCacheManager.default_scheduler)
    setup = _resolve(config, allocator, _scheduler_of(config, allocator, presumed))
    scheduler = _scheduler_of(config, allocator, setup.kv.default_scheduler)
    if scheduler == setup.scheduler:
        return setup
    return _resolve(config, allocator, scheduler)


def of_engine(config: Config) -> Config:
    """Fill in the choices of the configured engine: its scheduler, allocator and limits.

    A scheduler that needs one allocator selects it, unless the configuration names another.
    """
    update: dict[str, Any] = {}
    given = {name for name in config.model_fields_set if getattr(config, name) is not None}
    if config.engine is not None:
        chosen = get_engine(config.engine).choices(config)
        update = {name: value for name, value in chosen.items() if name not in given}
    scheduler = update.get("scheduler", config.scheduler)
    if scheduler is not None and "allocator" not in {*given, *update}:
        needed = getattr(scheduler_factory(scheduler), "needs_allocator", None)
        update |= {} if needed is None else {"allocator": needed}
    return config.model_copy(update=update) if update else config


def engine_of_scheduler(config: Config, kind: type[Scheduler]) -> Engine:
    """Return the engine of a scheduler's rules; the configured engine if it has no rules."""
    if kind.rules_of == SCHEDULED_IN_PYTHON:
        return get_engine(config.engine)
    return engine_by_policy(kind.rules_of)


def check_engine(
    config: Config, allocator: AllocatorSpec, kind: type[Scheduler], scheduler: str
) -> None:
    """Refuse a scheduler of another engine than the configured one, and unsupported parts."""
    if config.engine is not None and not get_engine(config.engine).runs(scheduler, kind.rules_of):
        raise ValueError(f"engine {config.engine}: scheduler {scheduler!r} is another engine's")
    for engine in all_engines().values():
        engine.check(config, allocator, kind, scheduler)


def _scheduler_of(config: Config, allocator: AllocatorSpec, default: str) -> str:
    """Return vllm-v0 for swapping and for beams that the default cannot serve, else the default.

    Under vllm each sample is a request. Beams need vllm-v0: V1 has no beam search.
    """
    if allocator.swap:
        return "vllm-v0"
    if config.use_beam_search and not getattr(scheduler_factory(default), "takes_samples", True):
        return "vllm-v0"
    return default


def _resolve(config: Config, allocator: AllocatorSpec, scheduler: str) -> Setup:
    asked = config
    if allocator.speculation is not None:
        spec = None if allocator.speculation == "none" else allocator.speculation
        config = config.model_copy(update={"speculative_config": spec})
    if has_offloading(config) and config.speculative_config is not None:
        spec = config.speculative_config.with_connector
        config = config.model_copy(update={"speculative_config": spec})
    memory = resolve_memory(config)
    check_states(config, memory, allocator)
    limits, what_if = memory.limits, allocator.what_if
    layout = layout_of(config, memory.model, memory.dtype, allocator.kv_cache_dtype, **what_if)
    kv_config_for = partial(_kv_config, config, memory, layout, scheduler)
    # The configuration depends on attributes of the scheduler's class; only these are read here.
    kind = scheduler_type(
        scheduler,
        lambda: make_kv(allocator, kv_config_for(Scheduler, 1)),
        SchedulerConfig(**by_name(SchedulerConfig, limits)),
    )
    allocator = _with_offloading(config, allocator, kind, scheduler)
    check_engine(config, allocator, kind, scheduler)
    asynchronous = _async_scheduling(config, kind, scheduler)
    num_steps_in_flight = config.pipeline_parallel_size + asynchronous
    check_speculation(config, memory, kind, scheduler)
    kv_config = kv_config_for(kind, num_steps_in_flight)
    mode: Literal["recompute", "swap"] = "swap" if allocator.swap else config.preemption_mode
    check_scheduler(config, memory, kind, scheduler, swaps=mode == "swap")
    resolved = {
        "max_num_batched_tokens": step_tokens(memory, kind),
        "async_scheduling": asynchronous,
        "preemption_mode": mode,
    }
    scheduler_config = SchedulerConfig(
        **by_name(SchedulerConfig, config, limits) | resolved,
        policy=config.scheduling_policy,
        speculation=config.speculative_config,
        order=order_of(scheduler),
        features=chosen_features(config),
    )
    kv_config, scheduler_config = engine_of_scheduler(config, kind).resolve(
        config, memory, layout, allocator, kv_config, scheduler_config
    )
    kv = make_kv(allocator, kv_config)
    if not isinstance(scheduler_factory(scheduler), type):
        make_scheduler(scheduler, kv, scheduler_config)
    if config.speculative_config is not None and not kv.speculates:
        raise ValueError(
            f"speculative_config: allocator {called(config)} has no slots for draft "
            "tokens; paged has, also with kv_offloading_backend native"
        )
    check_events(config, kv)
    connector = connector_settings(config, kv, kind, scheduler)
    scheduler_config = replace(scheduler_config, **connector)
    check_allocator(config, allocator, kv)
    host_waits = kind.supports_async and num_steps_in_flight == 1
    cost_config = cost_config_of(config, memory, layout, kv, host_waits=host_waits)
    return Setup(
        config=asked,
        memory=memory,
        allocator=allocator,
        scheduler=scheduler,
        scheduler_type=kind,
        kv_config=kv_config,
        scheduler_config=scheduler_config,
        cost_config=cost_config,
        num_steps_in_flight=num_steps_in_flight,
        cost_model=config.cost_model,
        num_stages=config.pipeline_parallel_size,
        record_steps=config.record_steps,
        record_memory_map=config.record_memory_map,
        front_end_latency_per_token=config.front_end_latency_per_token,
        kv=kv,
        cost=make_cost_model(config, cost_config),
    )


def _with_offloading(
    config: Config, allocator: AllocatorSpec, kind: type[Scheduler], scheduler: str
) -> AllocatorSpec:
    """Add host memory to a paged pool if vLLM's flag asks for it."""
    if config.kv_offloading_size is None or config.kv_offloading_backend is not None:
        return allocator
    if allocator.base != "paged":
        raise ValueError(
            f"kv_offloading_size: allocator {config.allocator!r} has no blocks to "
            "offload; give paged, or tiered+host-gib=GIB without kv_offloading_size"
        )
    if not _prefix_caching(config, kind, scheduler):
        raise ValueError(
            "kv_offloading_size needs enable_prefix_caching, which is "
            f"off{'' if config.enable_prefix_caching is False else f' under {scheduler!r}'}"
        )
    host_gib = config.kv_offloading_size / config.tensor_parallel_size
    return allocator._replace(base="tiered", params={**allocator.params, "host_gib": host_gib})


def _kv_config(
    config: Config,
    memory: Memory,
    layout: KVLayout,
    scheduler: str,
    kind: type[Scheduler],
    steps: int,
) -> KVCacheConfig:
    tp, spec = config.tensor_parallel_size, config.speculative_config
    resolved = {
        "layout": with_drafter(layout, memory.model, spec, tensor_parallel_size=tp),
        "block_size": memory.block_size,
        "enable_prefix_caching": _prefix_caching(config, kind, scheduler),
        "watermark": kind.watermark if config.watermark is None else config.watermark,
    }
    return KVCacheConfig(
        **by_name(KVCacheConfig, config, memory.limits, spec) | resolved,
        num_bytes=memory.num_gpu_blocks * memory.plan.bytes_per_block,
        max_in_flight_tokens=steps * step_tokens(memory, kind),
        swap_space_bytes=int(config.swap_space * GIB),
        reserve_full_isl=config.scheduler_reserve_full_isl,
        reserve_output=kind.reserves_output,
        events=tells_events(config),
        hybrid=keeps_groups(config),
        packed=config.kv_cache_layout == "BLNHC",
        num_cache_shards=config.decode_context_parallel_size,
    )


def _async_scheduling(config: Config, kind: type[Scheduler], scheduler: str) -> bool:
    given, spec = config.async_scheduling, config.speculative_config
    if given and not kind.supports_async:
        raise ValueError(f"async_scheduling: scheduler {scheduler!r} schedules one step at a time")
    by_engine = config.speculative_algorithm is not None  # the engine drafts outside its steps
    on_host = "" if spec is None or spec.has_drafter or by_engine else spec.method
    if given and on_host:
        raise ValueError(
            f"async_scheduling: {on_host} drafts on the host, which excludes "
            "asynchronous scheduling"
        )
    if given is not None:
        return given
    return engine_of_scheduler(config, kind).is_asynchronous(config, kind) and not on_host


def _prefix_caching(config: Config, kind: type[Scheduler], scheduler: str) -> bool:
    looks_up = kind.looks_up_prefix
    if config.enable_prefix_caching and not looks_up:
        raise ValueError(f"enable_prefix_caching: scheduler {scheduler!r} has no prefix caching")
    return looks_up if config.enable_prefix_caching is None else config.enable_prefix_caching
