"""Play a case: its requests through a replica, seen step by step, as vLLM's engine loop goes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.cases.connector import FakeWorker
from kvsim.cases.encoder import contents_of, items_of
from kvsim.cases.events import EventNames
from kvsim.cases.log import StepLog
from kvsim.cases.offloading import OffloadingLog
from kvsim.cases.samples import arrival_time, ends, output_segment, with_children
from kvsim.cases.sessions import Sessions, add_sessions, has_sessions, with_second_queue
from kvsim.cases.upkeep import Upkeep, drops_output, number_tokens
from kvsim.cost.constant import ConstantCost
from kvsim.engine.contents import Contents, segment_rows, text_ranks
from kvsim.engine.refusal import check_compiled, refusal
from kvsim.engine.replica import Replica
from kvsim.engine.setup import Parts, make_kv
from kvsim.kv.allocator_spec import parse_allocator
from kvsim.records.engine import COMPLETED, DONE, SCHEDULED
from kvsim.results.tables import REQUESTS
from kvsim.rules.connector import has_transfers
from kvsim.sched.scheduler import scheduler_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.cases.case import CaseConfig, CaseRequest, Workload
    from kvsim.cases.log import Entry

#: A case counts steps, not seconds: its clock stands after every arrival.
AFTER_ALL_ARRIVALS = 1e12


def parts_of(config: CaseConfig) -> Parts:
    """Return what the replica of a case is made of.

    Raises
    ------
    ValueError
        For unknown names of components.
    """
    limits, kv_config = config.scheduler_config, config.kv_config
    allocator = parse_allocator(config.allocator)
    if config.layers is None:
        allocator = allocator._replace(params={**allocator.params, "eviction": config.eviction})
    kind = scheduler_type(config.scheduler, lambda: make_kv(allocator, kv_config), limits)
    kv_config = replace(kv_config, reserve_output=kind.reserves_output)
    return Parts(
        allocator=allocator,
        scheduler=config.scheduler,
        scheduler_type=kind,
        kv_config=kv_config,
        scheduler_config=limits,
        num_steps_in_flight=config.num_steps_in_flight,
        kv=make_kv(allocator, kv_config),
        cost=ConstantCost(None, seconds=1.0),
        num_stages=config.pipeline_parallel_size,
    )


def compiled_refuses(config: CaseConfig) -> str:
    """Say why the compiled engine cannot play a case; empty if it can."""
    return refusal(parts_of(config)) or ""


def contents_of_case(workload: Workload) -> Contents:
    """Return the requests of a case by row."""
    given = workload.requests
    segments = [[_segment(*segment) for segment in request.segments] for request in given]
    salts: dict[tuple[object, object], int] = {}
    loras: dict[str | int, int] = {}
    outputs = [output_segment(request, index) for index, request in enumerate(given)]
    lists = {
        "num_prompt_tokens": [sum(length for _, _, length in one) for one in segments],
        **ends(given),
        "segment_offsets": np.cumsum([0, *map(len, segments)]),
        "output_content_id": outputs,
        "priority": [request.priority for request in given],
        "cache_salt": [_salt(request, salts) for request in given],
        "id_rank": text_ranks(str(request.id) for request in given),
        "lora": [_lora(request, loras) for request in given],
        "ready_time": [_ready_step(request) for request in given],
        **_counts("accept", [request.accept or [0] for request in given]),
        **_counts("draft", [request.drafts or [] for request in given]),
    }
    if any(request.skip_read for request in given):
        lists["skips_reading"] = [int(request.skip_read) for request in given]
    arrays = {name: np.array(rows) for name, rows in lists.items()}
    flat = [segment for one in segments for segment in one]
    if has_sessions(workload):
        add_sessions(given, arrays, flat)
    items, arrays["item_offsets"] = items_of(given)
    return Contents(arrays, segment_rows(*zip(*flat, strict=True)), items)


def _segment(content: int, *span: int) -> tuple[int, int, int]:
    start, num_tokens = span if len(span) > 1 else (0, *span)
    return content, start, num_tokens


def _salt(given: CaseRequest, salts: dict[tuple[object, object], int]) -> int:
    """Return a number for what keeps a request's blocks apart: salt and adapter."""
    if not given.cache_salt and given.lora is None:
        return 0
    return salts.setdefault((given.cache_salt or None, given.lora), len(salts) + 1)


def _lora(given: CaseRequest, loras: dict[str | int, int]) -> int:
    return 0 if given.lora is None else loras.setdefault(given.lora, len(loras) + 1)


def _counts(name: str, given: list[list[int]]) -> dict[str, Any]:
    """Return counts of each request, time by time, one list behind the other."""
    return {
        f"{name}s": [count for counts in given for count in counts] or [0],
        f"{name}_offsets": np.cumsum([0, *map(len, given)]),
    }


def _ready_step(given: CaseRequest) -> int:
    """Return the step at which a request's grammar is compiled, -1 without one."""
    return -1 if given.grammar_steps is None else given.arrival_step + given.grammar_steps


def _arrivals(workload: Workload) -> list[tuple[int, int, float]]:
    """Return step, row and arrival time of every request, in the order they join the queue."""
    arrivals = []
    for index, given in enumerate(workload.requests):
        arrivals.append((given.arrival_step, index, arrival_time(given, index)))
    return sorted(arrivals, key=lambda arrival: arrival[0])


def play(
    config: CaseConfig, workload: Workload, *, check: bool = False, compiled: bool = False
) -> Iterator[Entry]:
    """Yield what every step of a case leaves in the log.

    A batch is processed when as many are queued as may be, or when nothing could be scheduled.
    Steps with nothing unfinished and nothing queued pass without an entry.

    Parameters
    ----------
    check : recount all memory after every step
    compiled : run the compiled engine

    Raises
    ------
    ValueError
        If the compiled engine is asked for and cannot run the case.
    RuntimeError
        If ``check`` finds an invariant broken.
    """
    workload = with_children(workload)
    parts, contents = parts_of(config), contents_of_case(workload)
    streams = has_sessions(workload)
    if streams:
        parts = replace(parts, scheduler_config=with_second_queue(parts.scheduler_config))
    if drops_output(config) or streams:
        number_tokens(contents)
    if compiled:
        check_compiled(parts)
    table = np.zeros(len(contents), dtype=REQUESTS)
    replica = Replica(
        0, parts, contents, table, start_time=AFTER_ALL_ARRIVALS, watched=True, compiled=compiled
    )
    state = replica.state
    state.patient, state.limits.clock_ties = True, config.clock_ties
    state.limits.has_grammars = any(r.grammar_steps is not None for r in workload.requests)
    names = {index: request.id for index, request in enumerate(workload.requests)}
    hashes = list(contents_of(workload.requests))
    events = EventNames(config, workload.requests) if config.kv_events else None
    log = StepLog(replica, names, summary=config.summary, hashes=hashes, events=events)
    arrivals, stops, step = _arrivals(workload), iter(replica.stops()), 0
    worker = None
    if config.connector is not None:
        kind = FakeWorker if config.connector.kind == "fake" else OffloadingLog
        worker = kind(replica, workload, names)
    upkeep = Upkeep(replica, config)
    sessions = Sessions(replica, workload.requests) if streams else None
    aborts = [(r.abort_step, row) for row, r in enumerate(workload.requests)]
    while arrivals or state.num_outstanding or state.num_batches or has_transfers(state):
        aborted = [names[row] for at, row in aborts if at == step and replica.abort(row)]
        aborted += [] if sessions is None else sessions.due(step)
        due = [arrival for arrival in arrivals if arrival[0] <= step]
        arrivals = arrivals[len(due) :]
        replica.submit(np.array([row for _, row, _ in due], np.int64), _times(due))
        upkeep.due(step)
        if not (state.num_outstanding or state.num_batches or has_transfers(state)):
            if not arrivals:
                return
            step = upkeep.next_step(step, arrivals[0][0])
            continue
        if upkeep.rests() or (sessions is not None and sessions.rests()):
            step += 1
            continue
        entry: Entry = {"s": step}
        if aborted:
            entry["abt"] = aborted
        upkeep.tell(entry)
        state.ready_clock = step
        finished: list[str | int] = []
        log.before()
        if worker is not None and worker.will_complete():
            worker.report()
        stop = _next(stops)
        while stop == DONE:
            stops = iter(replica.stops())
            stop = _next(stops)
        if stop == SCHEDULED:
            log.scheduled(entry)
            if worker is not None:
                worker.scheduled(step, entry)
            if state.must_complete and worker is not None:
                worker.report()
            if state.must_complete:
                _next(stops)
                finished = log.finished()
                log.accepted(entry)
        else:
            finished = log.finished()
            log.accepted(entry)
        log.processed(entry, finished)
        if worker is not None:
            worker.processed(entry)
        if sessions is not None:
            sessions.processed(entry)
        if check:
            replica.check_integrity()
        yield entry
        step += 1


def _times(due: list[tuple[int, int, float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([time for _, _, time in due], np.float64)


def _next(stops: Iterator[int]) -> int:
    """Return the next stop at a step."""
    return next(stop for stop in stops if stop in (DONE, SCHEDULED, COMPLETED))
