"""Play a case: run its requests through a replica step by step, as vLLM's engine loop does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.cases.connector import FakeWorker
from kvsim.cases.contents import arrival_time, contents_of_case, with_children
from kvsim.cases.encoder import EncoderLog, hashes_of
from kvsim.cases.events import EventLog, EventNames
from kvsim.cases.log import StepLog
from kvsim.cases.offloading import OffloadingLog
from kvsim.cases.player import Player
from kvsim.cases.sessions import Sessions, has_sessions, with_second_queue
from kvsim.cases.upkeep import Upkeep, drops_output, number_tokens
from kvsim.cost.constant import ConstantCost
from kvsim.engine.setup import Parts, make_kv
from kvsim.kv.allocator_spec import parse_allocator
from kvsim.records.engine import DONE, SCHEDULED
from kvsim.rules.connector.scheduler import has_transfers
from kvsim.sched.scheduler import scheduler_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.cases.case import CaseConfig, Workload
    from kvsim.cases.player import Entry, Feature


def parts_of(config: CaseConfig) -> Parts:
    """Return the parts of the replica of a case."""
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


class VllmPlayer(Player):
    """Plays a case of vLLM.

    A batch is processed when the batch queue is full, or when no request could be scheduled.
    A step with neither unfinished requests nor queued batches has no log entry.
    """

    def __init__(self, config: CaseConfig, workload: Workload, *, compiled: bool) -> None:
        workload = with_children(workload)
        self._requests, is_streaming = workload.requests, has_sessions(workload)
        parts, contents = parts_of(config), contents_of_case(workload)
        if is_streaming:
            parts = replace(parts, scheduler_config=with_second_queue(parts.scheduler_config))
        if drops_output(config) or is_streaming:
            number_tokens(contents)
        super().__init__(parts, contents, compiled=compiled)
        state, requests = self.state, self._requests
        state.never_reject, state.limits.clock_ties = True, config.clock_ties
        state.limits.has_grammars = any(r.grammar_steps is not None for r in requests)
        self._names = {index: request.id for index, request in enumerate(requests)}
        self._log = StepLog(self.replica, self._names, summary=config.summary)
        aborts = [(request.abort_step, row) for row, request in enumerate(requests)]
        self._aborts = [(at, row) for at, row in aborts if at is not None]
        rows = sorted(range(len(requests)), key=lambda row: requests[row].arrival_step)
        self._arriving, self._is_idle = rows, False
        self._upkeep = Upkeep(self.replica, config)
        self._features = list(self._features_of(config, workload))

    def _features_of(self, config: CaseConfig, workload: Workload) -> Iterator[Feature]:
        replica, requests = self.replica, workload.requests
        if self.state.limits.has_encoder:
            yield EncoderLog(self.state, self._names, hashes_of(requests))
        if config.kv_events:
            yield EventLog(replica, EventNames(config, requests))
        if config.connector is not None:
            kind = FakeWorker if config.connector.kind == "fake" else OffloadingLog
            yield kind(replica, workload, self._names)
        yield self._upkeep
        if has_sessions(workload):
            yield Sessions(replica, requests)

    @property
    def _is_busy(self) -> bool:
        state = self.state
        return bool(state.num_outstanding or state.num_batches or has_transfers(state))

    def has_work(self, step: int) -> bool:
        return bool(self._arriving) or self._is_busy

    def begin(self, step: int) -> Entry | None:
        aborted = [row for at, row in self._aborts if at == step and self.replica.abort(row)]
        ended = [self._names[row] for row in aborted]
        ended += [name for feature in self._features for name in feature.arrive(step)]
        due = [row for row in self._arriving if self._requests[row].arrival_step <= step]
        self._arriving = self._arriving[len(due) :]
        self.submit(due, [arrival_time(self._requests[row], row) for row in due])
        for feature in self._features:
            feature.arrived(step)
        self._is_idle = not self._is_busy
        if self._is_idle or any(feature.rests() for feature in self._features):
            return None
        return {"s": step, "abt": ended} if ended else {"s": step}

    def next_step(self, step: int) -> int:
        if self._is_idle and self._arriving:
            return self._upkeep.next_step(step, self._requests[self._arriving[0]].arrival_step)
        return step + 1

    def advance(self, entry: Entry) -> bool:
        state, features = self.state, self._features
        state.ready_clock = entry["s"]
        self._log.before()
        for feature in features:
            feature.before(entry)
        while (stop := self.first_stop()) == DONE:
            pass
        is_scheduled = stop == SCHEDULED
        if is_scheduled:
            self._log.scheduled(entry)
            for feature in features:
                feature.scheduled(entry)
        if not is_scheduled or state.must_complete:
            if is_scheduled:
                for feature in features:
                    feature.report()
                self.next_stop()
            self._log.completed(entry)
        self._log.processed(entry)
        for feature in features:
            feature.processed(entry)
        return True


def play(
    config: CaseConfig, workload: Workload, *, check: bool = False, compiled: bool = False
) -> Iterator[Entry]:
    """Return the log entry of every step of a case.

    ``check`` recounts all memory after every step; ``compiled`` runs the compiled engine.
    """
    return VllmPlayer(config, workload, compiled=compiled).play(check=check)
