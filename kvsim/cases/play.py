"""Play a case: drive its scheduler step by step, as vLLM's engine loop does without a model."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from kvsim.cases.log import StepLog
from kvsim.kv.allocator_spec import parse_allocator
from kvsim.kv.attention import FullAttention
from kvsim.kv.manager import ALLOCATORS, KVCacheConfig, KVCacheManager
from kvsim.kv.paged import PagedManager
from kvsim.memory.layout import KVLayout, LayerKV, kv_dtype
from kvsim.request import Request
from kvsim.sched.scheduler import SCHEDULERS, Scheduler, SchedulerConfig, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.cases.case import CaseConfig, CaseRequest, Workload
    from kvsim.cases.log import Entry

#: Output segments of requests that name none: this plus their index, as in the recorded cases.
FIRST_OUTPUT_SEGMENT = 16000
#: Seconds between requests of one step, which have no arrival time of their own.
BETWEEN_ARRIVALS = 1e-6


def make_scheduler(config: CaseConfig) -> Scheduler:
    """Make the scheduler of a case over an empty KV memory.

    Raises
    ------
    ValueError
        For unknown names of components.
    """
    factory = SCHEDULERS.get(config.scheduler)
    kv = _make_kv(config, reserve_output=bool(getattr(factory, "reserves_output", False)))
    limits = SchedulerConfig(
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_active_seqs=config.max_num_active_seqs,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=config.long_prefill_token_threshold_adaptive,
        policy=config.policy,
        async_scheduling=config.async_scheduling,
        preemption_mode=config.preemption_mode,
    )
    return factory(kv, limits)


def depth(config: CaseConfig) -> int:
    """Steps that may be under way at once."""
    return config.pipeline_parallel_size + config.async_scheduling


def _make_kv(config: CaseConfig, *, reserve_output: bool) -> KVCacheManager:
    shared: dict[str, Any] = {
        "max_model_len": config.max_model_len,
        "max_in_flight_tokens": depth(config) * config.max_num_batched_tokens,
        "enable_prefix_caching": config.enable_prefix_caching,
        "watermark": config.watermark,
        "reserve_full_isl": config.scheduler_reserve_full_isl,
        "reserve_output": reserve_output,
        "num_lookahead_tokens": config.num_lookahead_tokens,
    }
    if config.layers is None or config.kv_cache_bytes is None:
        groups = [group.spec for group in config.groups or ()]
        return PagedManager(
            config.num_gpu_blocks,
            groups or [FullAttention(config.block_size)],
            retention_interval=config.retention_interval,
            eviction=config.eviction,
            num_cpu_blocks=config.num_cpu_blocks,
            **shared,
        )
    allocator = parse_allocator(config.allocator)
    layers = tuple(LayerKV(*layer) for layer in config.layers)
    memory = KVCacheConfig(
        layout=KVLayout(layers, kv_dtype(allocator.kv_cache_dtype or "bf16"), 0),
        num_bytes=config.kv_cache_bytes,
        block_size=config.block_size,
        prefix_cache_retention_interval=config.retention_interval,
        swap_space_bytes=config.swap_space_bytes,
        **shared,
    )
    return ALLOCATORS.create(allocator.base, memory, **allocator.params)


def _make_requests(config: CaseConfig, workload: Workload) -> deque[tuple[int, Request]]:
    """Return requests with the steps they arrive at, in order of arrival."""
    salts: dict[str | int, int] = {}
    arrivals = []
    for index, given in enumerate(workload.requests):
        arrival_time = given.arrival_time
        if arrival_time is None:
            arrival_time = given.arrival_step + index * BETWEEN_ARRIVALS
        segments = [_segment(*segment) for segment in given.segments]
        length = sum(segment[2] for segment in segments)
        request = Request(
            index,
            arrival_time,
            length,
            min(given.max_tokens, config.max_model_len - length),
            segments,
            FIRST_OUTPUT_SEGMENT + index if given.out_seg is None else given.out_seg,
            given.priority,
            _salt(given, salts),
        )
        arrivals.append((given.arrival_step, request))
    return deque(sorted(arrivals, key=lambda arrival: arrival[0]))


def _segment(content: int, *span: int) -> tuple[int, int, int]:
    start, num_tokens = span if len(span) > 1 else (0, *span)
    return content, start, num_tokens


def _salt(given: CaseRequest, salts: dict[str | int, int]) -> int:
    if not given.cache_salt:
        return 0
    return salts.setdefault(given.cache_salt, len(salts) + 1)


def play(config: CaseConfig, workload: Workload, *, check: bool = False) -> Iterator[Entry]:
    """Yield what every step of a case leaves in the log.

    A batch is processed when as many are queued as may be, or when nothing could be scheduled.
    Steps with nothing unfinished and nothing queued pass without an entry.

    Parameters
    ----------
    check : recount all memory after every step

    Raises
    ------
    RuntimeError
        If ``check`` finds an invariant broken.
    """
    scheduler = make_scheduler(config)
    scheduler.kv.foresee(request for _, request in _make_requests(config, workload))
    arrivals = _make_requests(config, workload)
    names = {index: request.id for index, request in enumerate(workload.requests)}
    log = StepLog(scheduler, names, summary=config.summary)
    queue: deque[StepPlan] = deque()
    step = 0
    while arrivals or scheduler.has_work or queue:
        while arrivals and arrivals[0][0] <= step:
            scheduler.add(arrivals.popleft()[1])
        if not scheduler.has_work and not queue:
            step = arrivals[0][0]
            continue
        entry: Entry = {"s": step}
        any_scheduled = False
        if scheduler.has_work:
            log.before()
            plan = scheduler.schedule(float(step))
            log.scheduled(entry, plan)
            queue.append(plan)
            any_scheduled = bool(plan.requests)
        output = None
        if len(queue) >= depth(config) or not any_scheduled:
            output = scheduler.complete(queue.popleft(), float(step))
        log.processed(entry, output)
        if check:
            scheduler.kv.check_integrity()
        yield entry
        step += 1
