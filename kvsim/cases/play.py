"""Play a case: drive its scheduler step by step, as vLLM's engine loop does without a model."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.cases.log import StepLog
from kvsim.kv.allocator_spec import parse_allocator
from kvsim.kv.manager import ALLOCATORS
from kvsim.records.request import Request
from kvsim.sched.scheduler import SCHEDULERS, scheduler_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.cases.case import CaseConfig, CaseRequest, Workload
    from kvsim.cases.log import Entry
    from kvsim.kv.manager import KVCacheManager
    from kvsim.sched.scheduler import Scheduler, StepPlan

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
    limits, kv_config = config.scheduler_config, config.kv_config
    allocator = parse_allocator(config.allocator)
    params: dict[str, object] = {**allocator.params}
    if config.layers is None:
        params["eviction"] = config.eviction

    def make_kv(**changes: Any) -> KVCacheManager:
        return ALLOCATORS.create(allocator.base, replace(kv_config, **changes), **params)

    kind = scheduler_type(config.scheduler, make_kv, limits)
    kv = make_kv(reserve_output=kind.reserves_output)
    return SCHEDULERS.create(config.scheduler, kv, limits)


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
        if len(queue) >= config.num_steps_in_flight or not any_scheduled:
            output = scheduler.complete(queue.popleft(), float(step))
        log.processed(entry, output)
        if check:
            scheduler.kv.check_integrity()
        yield entry
        step += 1
