"""SGLang's settings from a configuration: pool, limits, and refused combinations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.budget import GIB, engine_of
from kvsim.budget.lora import lora_bytes
from kvsim.budget.settings import model_of
from kvsim.engine.settings import by_name
from kvsim.engines.policies import SGLANG
from kvsim.engines.sglang.budget import (
    default_chunk,
    host_tokens,
    mem_fraction_static,
    most_running,
    pool_bytes,
    split_pool,
)
from kvsim.engines.sglang.drafting import MIX_NOTHING, MOST_RUNNING, shape_of, speculation_settings
from kvsim.engines.sglang.kv.radix import pool_bytes_of
from kvsim.engines.sglang.pages import page_size_of, span_of
from kvsim.engines.sglang.rules.tree.slide import DECODE_GAP
from kvsim.engines.sglang.sched.adapters import AdapterSettings
from kvsim.engines.sglang.sched.settings import DelayerSettings, SglangSettings, StateSettings
from kvsim.engines.sglang.server_options import SglangOptions
from kvsim.engines.sglang.states import (
    StatePool,
    slots_per_request,
    state_bytes,
    state_pool,
    strategy_of,
)
from kvsim.errors import FieldError
from kvsim.kv.manager import ALLOCATORS
from kvsim.lora import LoRAConfig

if TYPE_CHECKING:
    from kvsim.budget.capacity import Memory
    from kvsim.budget.layout import KVLayout
    from kvsim.config import Config
    from kvsim.kv.allocator_spec import AllocatorSpec
    from kvsim.kv.manager import KVCacheConfig
    from kvsim.sched.scheduler import Scheduler, SchedulerConfig

#: Factor on schedule_conservativeness under data-parallel attention.
OF_RANKS = 0.3
#: SGLang's unit of host memory, bytes.
GB = 10**9


def check_pair(config: Config, allocator: AllocatorSpec, kind: type[Scheduler], name: str) -> None:
    """Refuse SGLang's parts with parts of other engines, and its settings without its scheduler."""
    needed = getattr(ALLOCATORS.get(allocator.base), "needs_scheduler", None)
    if needed not in (None, name):
        raise ValueError(
            f"allocator {config.allocator!r}: needs scheduler {needed!r}, not {name!r}"
        )
    if kind.rules_of == SGLANG and kind.needs_allocator != allocator.base:
        raise ValueError(
            f"scheduler {name!r}: needs allocator {kind.needs_allocator!r}, "
            f"not {config.allocator!r}"
        )
    if kind.rules_of != SGLANG:
        for field in SglangOptions.model_fields:
            if getattr(config, field) != type(config).model_fields[field].default:
                raise ValueError(f"{field}: needs scheduler 'sglang', not {name!r}")
    elif config.pipeline_parallel_size > 1:
        raise ValueError("pipeline_parallel_size: must be 1 under scheduler 'sglang'")


def check_layers(config: Config, memory: Memory, layout: KVLayout) -> None:
    """Refuse a model with layers that SGLang's two pools do not serve."""
    if config.disable_hybrid_kv_cache_manager:
        return
    kinds = {layer.kind for layer in layout.layers}
    windows = {layer.window or 0 for layer in layout.layers if layer.kind == "sliding"}
    others, remedy = kinds - {"full", "sliding", "mamba"}, "disable_hybrid_kv_cache_manager"
    reason = ""
    if others:
        reason = f"has {', '.join(sorted(others))} layers, whose pools are not modelled"
    elif len(windows) > 1:
        reason = (
            f"has windows of {sorted(windows)} tokens; SGLang's pools are modelled for one size"
        )
    elif kinds >= {"sliding", "mamba"}:
        reason = "has windows and states; SGLang's pools are modelled for either, not for both"
    elif kinds == {"sliding"}:
        reason = "has only sliding layers; SGLang's tree for them is not modelled"
    if reason:
        raise ValueError(
            f"scheduler 'sglang': {memory.model.name} {reason}; set {remedy}, so that all layers "
            "keep all tokens"
        )


def chunk_of(config: Config, memory: Memory) -> int | None:
    size, ranks = page_size_of(config), ranks_of(config)
    if config.chunked_prefill_size is None:
        return default_chunk(memory.gpu) // ranks // size * size or size
    if config.chunked_prefill_size <= 0:
        return None
    given = config.chunked_prefill_size // ranks
    return given if ranks == 1 else given // size * size or size


def ranks_of(config: Config) -> int:
    """Return the ranks of data-parallel attention, among which SGLang divides its limits."""
    return config.data_parallel_size if config.enable_dp_attention else 1


def overlaps(config: Config) -> bool:
    """Return True if steps overlap; with no_buffer (only the last state is kept) they do not."""
    if config.disable_overlap_schedule:
        return False
    model = model_of(config)
    if not model.num_state_layers or not _has_tree(config):
        return True
    return strategy_of(config, model, page_size=page_size_of(config)) != "no_buffer"


def _has_tree(config: Config) -> bool:
    return not config.disable_radix_cache and config.enable_prefix_caching is not False


class Pools(NamedTuple):
    """Tokens of the pool (max_total_num_tokens) and of the window pool, and their bytes.

    ``states`` is the pool of states, None for a model without them.
    """

    tokens: int
    windows: int
    num_bytes: int
    states: StatePool | None = None


def pools_of(config: Config, memory: Memory, layout: KVLayout) -> Pools:
    """Return the pools that fit into the memory.

    With ``engine`` sglang, or with ``mem_fraction_static``, SGLang's rule determines the memory;
    otherwise it is that of the other allocators.
    """
    pinned = config.kv_cache_memory_bytes or config.num_gpu_blocks_override
    by_rule = config.engine == "sglang" or config.mem_fraction_static is not None
    num_bytes = memory.num_gpu_blocks * memory.plan.bytes_per_block
    if by_rule and not pinned:
        num_bytes = _memory_for_kv(config, memory)
    states = _state_pool(config, memory, num_bytes)
    num_bytes -= states.num_bytes if states else 0
    shares = config.decode_context_parallel_size
    size = page_size_of(config)
    window, token_bytes, window_bytes = pool_bytes_of(
        layout, hybrid=not config.disable_hybrid_kv_cache_manager
    )
    ratio = config.swa_full_tokens_ratio if window else 0.0
    tokens, windows = split_pool(
        num_bytes,
        token_bytes=token_bytes,
        window_bytes=window_bytes,
        ratio=ratio,
        page_size=size,
        max_tokens=config.max_total_tokens,
    )
    if tokens < size:
        raise ValueError(
            f"{memory.model.name} does not fit on {memory.gpu.name} under SGLang's rules: its "
            "weights leave no page of KV; raise mem_fraction_static or tensor_parallel_size"
        )
    if window:
        check_window_pool(config, memory, window, windows)
    if shares > 1:
        check_shares(config, memory)
        return Pools(tokens * shares, 0, tokens * shares * (token_bytes // shares))
    return Pools(tokens, windows, tokens * token_bytes + windows * window_bytes, states)


def check_shares(config: Config, memory: Memory) -> None:
    """Refuse models and options that are not modelled if ranks split the tokens of the KV."""
    others = {
        f"{memory.model.name}, which has no latents": not memory.model.is_mla,
        f"{memory.model.name}, which has an indexer": memory.model.num_index_layers,
        f"{memory.model.name}, which has states": memory.model.num_state_layers,
        "speculative_algorithm": config.speculative_algorithm,
        "enable_hierarchical_cache": config.enable_hierarchical_cache,
        "enable_dp_attention": config.enable_dp_attention,
    }
    for what, has in others.items():
        if has:
            shares = config.decode_context_parallel_size
            wrong = f"is {shares}: is not modelled under engine sglang with {what}"
            raise FieldError("decode_context_parallel_size", wrong)


def _state_pool(config: Config, memory: Memory, num_bytes: int) -> StatePool | None:
    """Return the pool of states, which takes memory from the KV pool; None without states."""
    model, tp, slots = memory.model, config.tensor_parallel_size, config.max_mamba_cache_size
    if not model.num_state_layers:
        return None
    pool = state_pool(
        num_bytes,
        state_bytes(model, config.mamba_ssm_cache_dtype, tp),
        slots_per_request(
            strategy_of(config, model, page_size=page_size_of(config)),
            has_tree=_has_tree(config),
            overlap=not config.disable_overlap_schedule,
        ),
        ratio=config.mamba_full_memory_ratio,
        slots=slots and max(slots // ranks_of(config), 1),
        max_running=_asked_running(config),
        num_drafts=shape_of(config).num_draft_tokens if config.speculative_algorithm else 0,
    )
    if pool.slots < pool.per_request:
        raise ValueError(
            f"{model.name}: the pool has {pool.slots} state slots, and a request needs "
            f"{pool.per_request}: SGLang would not start; raise mamba_full_memory_ratio, "
            "mem_fraction_static or tensor_parallel_size"
        )
    return pool


def _asked_running(config: Config) -> int | None:
    most = MOST_RUNNING if config.speculative_algorithm is not None else None
    asked = config.max_running_requests or config.max_num_seqs or most
    return None if asked is None else max(asked // ranks_of(config), 1)


def host_slots_of(config: Config, pools: Pools, token_bytes: int) -> int:
    """Return the tokens of the host tier, 0 without one; a drafter has host memory of its own."""
    if not config.enable_hierarchical_cache:
        return 0
    flag = "enable_hierarchical_cache"
    if not _has_tree(config):
        raise ValueError(f"{flag}: needs the radix cache, which is disabled")
    kind = "sliding windows" if pools.windows else "states" if pools.states else ""
    if kind:
        raise ValueError(f"{flag}: the host tier is not modelled with pools of {kind}")
    num_tokens = int(pools.tokens * config.hicache_ratio)
    if config.hicache_size > 0:
        num_tokens = int(config.hicache_size * GB) // token_bytes
    return host_tokens(num_tokens, page_size_of(config))


def check_window_pool(config: Config, memory: Memory, window: int, slots: int) -> None:
    """Refuse a pool of windows that is too small for one long request alone.

    SGLang 0.5.23 cuts such prompts to the free slots, and later crashes or hangs. A request holds a
    chunk, the window before its last checkpoint, and its current window, which moves every 128
    tokens. Without a tree it also holds the previous chunk while that is in progress, with drafts
    the slots for two steps of them.
    """
    longest, size = memory.limits.max_model_len, page_size_of(config)
    chunk = min(chunk_of(config, memory) or longest, longest)
    held = (1 if _has_tree(config) else 2) * chunk + 2 * window + DECODE_GAP
    drafts = speculation_settings(config)
    needed = min(held, longest) + 2 * size + (drafts.reserve(size) if drafts else 0)
    if slots < needed:
        raise ValueError(
            f"swa_full_tokens_ratio {config.swa_full_tokens_ratio}: the pool of sliding windows "
            f"has {slots} tokens, and a long request needs {needed}: SGLang would crash or hang; "
            "raise the ratio or the memory, or lower chunked_prefill_size or max_model_len"
        )


def fraction_of(config: Config, memory: Memory) -> tuple[float, int]:
    """Return mem_fraction_static, and the bytes free before the weights are loaded."""
    tp = config.tensor_parallel_size * ranks_of(config)
    engine = engine_of(config.vllm_version)
    fraction = config.mem_fraction_static
    if fraction is None:
        fraction = mem_fraction_static(
            memory.gpu,
            chunk=chunk_of(config, memory) or config.max_prefill_tokens,
            tensor_parallel_size=tp,
            has_latent=memory.model.is_mla,
        )
    overhead = engine.base_gib + (engine.nccl_gib if tp > 1 else 0.0)
    return fraction, memory.gpu.memory_bytes - int(overhead * GIB)


def _memory_for_kv(config: Config, memory: Memory) -> int:
    fraction, free = fraction_of(config, memory)
    overhead = memory.gpu.memory_bytes - free
    loaded = memory.budget.weights + memory.budget.adapters + memory.budget.drafter
    return pool_bytes(memory.gpu, weights=loaded, overhead=overhead, fraction=fraction)


def settings_of(config: Config, memory: Memory, pools: Pools, *, overlap: bool) -> SglangSettings:
    """Return the settings of SGLang's scheduler over its pools."""
    longest, pool = memory.limits.max_model_len, pools.tokens
    rows = pool // config.decode_context_parallel_size
    running = most_running(rows, longest, _asked_running(config))
    if pools.states:
        running = min(running, pools.states.slots // pools.states.per_request)
    as_vllm = config.scheduling_policy == "priority"  # in vLLM, smaller values are served first
    resolved = {
        "page_size": span_of(config),
        "enable_mixed_chunk": config.enable_mixed_chunk
        and config.speculative_algorithm not in MIX_NOTHING,
        "schedule_conservativeness": config.schedule_conservativeness
        * (OF_RANKS if ranks_of(config) > 1 else 1.0),
        "max_running_requests": running,
        "chunked_prefill_size": chunk_of(config, memory),
        "disable_overlap_schedule": not overlap,
        "disable_radix_cache": not _has_tree(config),
        "enable_priority_scheduling": config.enable_priority_scheduling or as_vllm,
        "schedule_low_priority_values_first": (
            config.schedule_low_priority_values_first or as_vllm
        ),
        "states": _state_settings(config, memory, pools, overlap=overlap),
        "adapters": _adapter_settings(config, memory),
        "delayer": _delayer_settings(config, pools, overlap=overlap),
        "speculation": speculation_settings(config),
    }
    return SglangSettings(
        **by_name(SglangSettings, config) | resolved,
        max_total_num_tokens=pool,
        context_length=longest,
        random_seed=config.seed,
    )


def _state_settings(
    config: Config, memory: Memory, pools: Pools, *, overlap: bool
) -> StateSettings | None:
    if pools.states is None:
        return None
    size, chunk = page_size_of(config), memory.model.state_chunk
    strategy = strategy_of(config, memory.model, page_size=size)
    if config.speculative_algorithm is not None:
        check_states_with_drafts(config, memory, strategy)
    if strategy == "no_buffer" and overlap and _has_tree(config):
        raise ValueError(
            f"async_scheduling: conflicts with {memory.model.name}, which caches only the last "
            "state of a request"
        )
    if max(chunk, size) % min(chunk, size):
        raise ValueError(
            f"page_size {size}: must be a multiple or a divisor of {chunk}, the tokens between "
            f"two states of {memory.model.name}"
        )
    return StateSettings(
        slots=pools.states.slots,
        strategy=strategy,
        chunk=chunk,
        track_interval=config.mamba_track_interval,
        max_states_per_path=config.mamba_max_states_per_path,
    )


def check_states_with_drafts(config: Config, memory: Memory, strategy: str) -> None:
    """Refuse settings under which kvsim does not model drafts with states."""
    if strategy != "extra_buffer" and _has_tree(config):
        raise ValueError(
            f"speculative_algorithm: drafts are not modelled with {memory.model.name} and "
            f"mamba_radix_cache_strategy {strategy}, only with extra_buffer"
        )
    if config.enable_mixed_chunk:
        raise ValueError(
            "speculative_algorithm: drafts are not modelled with a pool of states and "
            "enable_mixed_chunk"
        )


def _delayer_settings(config: Config, pools: Pools, *, overlap: bool) -> DelayerSettings | None:
    """Return the limits of the prefill delayer, None if it is off."""
    flag, low = "enable_prefill_delayer", config.prefill_delayer_token_usage_low_watermark
    if not config.enable_prefill_delayer:
        return None
    if not overlap:
        raise ValueError(f"{flag}: needs steps that overlap; SGLang does not start without")
    if ranks_of(config) > 1:
        raise ValueError(
            f"{flag}: ranks would have to step together and compare their queues; it is modelled "
            "for one rank, without enable_dp_attention"
        )
    if low is not None and pools.states:
        raise ValueError(
            "prefill_delayer_token_usage_low_watermark: the use of a pool of states is not "
            "counted; leave it out"
        )
    return DelayerSettings(
        low, config.prefill_delayer_queue_min_ratio, config.prefill_delayer_max_delay_ms
    )


def _adapter_settings(config: Config, memory: Memory) -> AdapterSettings | None:
    """Return the settings of adapters' buffers; a load copies one adapter over PCIe."""
    if not config.enable_lora:
        return None
    tp, one = config.tensor_parallel_size, LoRAConfig(1, config.max_lora_rank)
    size = lora_bytes(memory.model, one, dtype=memory.dtype, tensor_parallel_size=tp)
    return AdapterSettings(
        **by_name(AdapterSettings, config), load_time=size / memory.gpu.pcie_bytes_per_s
    )


def check_drafts(config: Config) -> None:
    """Refuse drafts that are configured by vLLM's option."""
    if config.speculative_config is not None and config.speculative_algorithm is None:
        raise ValueError(
            "speculative_config: scheduler 'sglang' takes speculative_algorithm with engine sglang"
        )


def with_sglang(
    config: Config,
    memory: Memory,
    layout: KVLayout,
    kv_config: KVCacheConfig,
    scheduler_config: SchedulerConfig,
) -> tuple[KVCacheConfig, SchedulerConfig]:
    """Return settings with SGLang's pools and scheduler."""
    check_layers(config, memory, layout)
    of_model = pool_bytes_of(layout, hybrid=not config.disable_hybrid_kv_cache_manager)
    layout = kv_config.layout  # includes the drafter's layers
    pools = pools_of(config, memory, layout)
    check_drafts(config)
    overlap = scheduler_config.async_scheduling
    settings = settings_of(config, memory, pools, overlap=overlap)
    kv_config = replace(
        kv_config,
        block_size=settings.page_size,
        num_bytes=pools.num_bytes,
        window_slots=pools.windows or None,
        host_slots=host_slots_of(config, pools, of_model[1]),
        write_policy=config.hicache_write_policy,
        enable_prefix_caching=not settings.disable_radix_cache,
    )
    most = settings.max_running_requests
    scheduler_config = replace(scheduler_config, max_num_seqs=most, speculation=None)
    return kv_config, replace(scheduler_config, engine_settings=settings)
