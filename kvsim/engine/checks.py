"""Combinations of options that are refused, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.dispatch import FEATURES
from kvsim.engine.settings import by_name
from kvsim.engines.policies import VLLM
from kvsim.kv.manager import ALLOCATORS
from kvsim.results.kv_events import check_path
from kvsim.sched.fairness import fairness_of
from kvsim.sched.scheduler import own_order_scheduler
from kvsim.speculation import DraftSlots

if TYPE_CHECKING:
    from kvsim.budget.capacity import Memory
    from kvsim.config import Config
    from kvsim.kv.allocator_spec import AllocatorSpec
    from kvsim.kv.manager import KVCacheManager
    from kvsim.sched.scheduler import Scheduler

#: Most blocks of a memory map: each of up to 4,096 samples reads all of them.
MOST_DRAWN = 2**24
#: Limits on the requests in flight, beyond which vLLM's front end rejects new requests.
OF_THE_FRONT_END = ("max_num_queued_reqs", "max_num_queued_tokens")


def is_tiered(config: Config) -> bool:
    """Return True if a size of host memory turns the allocator into a tiered one."""
    return config.kv_offloading_size is not None and config.kv_offloading_backend is None


def called(config: Config) -> str:
    """Return the allocator's name for errors, with the option that adds host memory to it."""
    return f"{config.allocator!r}{' with kv_offloading_size' if is_tiered(config) else ''}"


def tells_events(config: Config) -> bool:
    """Return True if events of cached content are written."""
    return config.kv_events_config is not None and config.kv_events_config.writes


def check_allocator(config: Config, allocator: AllocatorSpec, kv: KVCacheManager) -> None:
    """Refuse options that a KV-cache manager lacks, and a memory map of too many blocks."""
    if allocator.swap and not kv.can_swap:
        raise ValueError(f"allocator {config.allocator!r}: {allocator.base} cannot be swapped")
    if kv.foresees and config.data_parallel_size > 1:
        raise ValueError(
            f"allocator {config.allocator}: belady knows the future of one replica; "
            "data_parallel_size must be 1"
        )
    if config.record_memory_map and kv.num_gpu_blocks > MOST_DRAWN:
        raise ValueError(
            f"record_memory_map: {kv.num_gpu_blocks:,} blocks are too many to draw at every sample "
            f"({MOST_DRAWN:,} at most)"
        )


def check_events(config: Config, kv: KVCacheManager) -> None:
    """Refuse events without a prefix cache, and a file that cannot be written."""
    if not tells_events(config):
        return
    if not kv.tells_events:
        raise ValueError(
            f"kv_events_config: allocator {called(config)} emits no KV cache events; paged does"
        )
    assert config.kv_events_config is not None
    check_path(str(config.kv_events_config.path))


def check_states(config: Config, memory: Memory, allocator: AllocatorSpec) -> None:
    """Refuse KV-cache managers without rules for states."""
    if not memory.model.num_state_layers:
        return
    kind = ALLOCATORS.get(allocator.base)
    keeps = allocator.base == "paged" or getattr(kind, "keeps_states", False)
    if not keeps or is_tiered(config) or allocator.swap:
        raise ValueError(
            f"allocator {called(config)}: {memory.model.name} has Mamba or linear-attention "
            "states; only paged and radix without host memory keep them, and paged with "
            "kv_offloading_backend native"
        )
    schedulers = ("vllm", getattr(kind, "needs_scheduler", None))
    if config.scheduler not in (None, *schedulers):
        raise ValueError(
            f"scheduler {config.scheduler!r}: {memory.model.name} has Mamba or "
            f"linear-attention states; only {' or '.join(filter(None, schedulers))} computes "
            "prompts so that they can be cached"
        )


def check_speculation(
    config: Config, memory: Memory, kind: type[Scheduler], scheduler: str
) -> None:
    """Refuse speculative decoding that the scheduler, or the limits of its steps, exclude."""
    if config.speculative_config is None:
        return
    if kind.speculates:
        return
    if kind.rules_of != VLLM:
        raise ValueError(
            f"speculative_config: scheduler {scheduler!r} has no speculative decoding; vllm has"
        )
    spec, tokens = config.speculative_config, step_tokens(memory, kind)
    limits = (config.max_num_scheduled_tokens, config.long_prefill_token_threshold, tokens)
    needed = max(spec.num_prefill_lookahead_tokens, spec.num_draft_slots) + 1
    if min(limit for limit in limits if limit) < needed:
        raise ValueError(
            f"speculative_config: a step must have room for {needed} tokens of a request; "
            "max_num_batched_tokens, max_num_scheduled_tokens and long_prefill_token_threshold "
            "must not be smaller"
        )
    for name, value in by_name(DraftSlots, config).items():
        if value:
            raise ValueError(f"{name}: follows from speculative_config; give one of the two")


def check_front_end(config: Config) -> None:
    """Refuse limits of the front end with several data-parallel ranks."""
    for field in OF_THE_FRONT_END:
        if getattr(config, field) and config.data_parallel_size > 1:
            raise ValueError(
                f"{field}: limits all data-parallel ranks together, which is not modelled; leave "
                "it out, or give flow_control in a fleet"
            )


def check_scheduler(
    config: Config, memory: Memory, kind: type[Scheduler], scheduler: str, *, swaps: bool
) -> None:
    """Refuse limits and switches that a scheduler lacks."""
    if swaps and not kind.can_swap:
        raise ValueError(f"preemption_mode: scheduler {scheduler!r} cannot swap; vllm-v0 can")
    if kind.can_swap and config.pipeline_parallel_size > 1:
        raise ValueError(
            f"pipeline_parallel_size {config.pipeline_parallel_size}: scheduler "
            f"{scheduler!r} runs one step at a time"
        )
    if kind is own_order_scheduler() and config.scheduling_policy != "fcfs":
        raise ValueError(
            f"scheduling_policy: {config.scheduling_policy} conflicts with scheduler "
            f"{scheduler!r}, which has an order of its own"
        )
    given = config.max_num_batched_tokens
    if given is not None and given < step_tokens(memory, kind):
        raise ValueError(
            f"max_num_batched_tokens ({given}) must be at least max_model_len "
            f"({memory.limits.max_model_len}) under scheduler {scheduler!r}"
        )
    check_front_end(config)
    if kind.rules_of == VLLM:
        return
    if fairness_of(config.scheduling_policy):
        raise ValueError(
            f"scheduling_policy: scheduler {scheduler!r} does not support "
            f"{config.scheduling_policy}; vllm does"
        )
    limits = ["max_num_scheduled_tokens", *OF_THE_FRONT_END]
    limits += [name for kind in FEATURES.all() for name in kind.options]
    for field in limits if kind.serves_adapters else [*limits, "enable_lora"]:
        if getattr(config, field):
            raise ValueError(f"{field}: scheduler {scheduler!r} has no such limit; vllm has")


def step_tokens(memory: Memory, kind: type[Scheduler]) -> int:
    """Return the most tokens of a step: at least max_model_len if prompts are not chunked."""
    longest = memory.limits.max_model_len if kind.whole_prompts else 0
    return max(memory.limits.max_num_batched_tokens, longest)
