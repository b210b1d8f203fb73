"""One replica's engine: lays out its state, runs the rules over it, and reads the results.

The rules run as plain Python over objects, or compiled over flat memory; nothing else differs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kvsim.cost.model import init_cost
from kvsim.engine.event_log import ReplicaEventLog
from kvsim.engine.submissions import Submissions
from kvsim.engine.watchdog import Watchdog
from kvsim.engines.policies import BY_LOOP_OF_VLLM
from kvsim.engines.registry import engine_by_policy
from kvsim.kv.rule_manager import RuleManager
from kvsim.records import engine as records
from kvsim.records.connector import OFFLOADING
from kvsim.records.growth import more_requests
from kvsim.records.memory import Flat, Numbers, Objects, View, Views, head, reader_of, untouched
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED, RUNNING
from kvsim.results.tables import MAX_MEMORY_SAMPLES, MEMORY, STEPS
from kvsim.results.totals import Totals
from kvsim.rules import engine as rules
from kvsim.rules.gaps import gap_bin
from kvsim.sched.acceptance import conditional_rates
from kvsim.sched.connector import init_connector, num_transfers
from kvsim.sched.encoder import check_encoder, init_encoder
from kvsim.sched.fairness import init_shares
from kvsim.sched.offloading import add_states, check_offloading, init_copies
from kvsim.sched.scheduler import StepPlan, init_batch, init_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from kvsim.engine.contents import Contents
    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.observers import Observer
    from kvsim.engine.setup import Parts
    from kvsim.kv.events import EventRows
    from kvsim.kv.manager import KVCacheManager
    from kvsim.records.memory import Memory

#: Metrics that a replica publishes, in the order of :class:`.Scraped`.
LOADS = "published_waiting", "published_running", "published_usage"
TOKENS = "num_prompts_tokens", "num_generated_tokens"
#: Address ranges of a memory map.
MEMORY_MAP_BINS = 1024
#: Steps after which compiled code returns, so that progress is shown and Ctrl-C works.
STEPS_PER_CALL = 200_000
#: Initial number of request records; it doubles if more requests are alive.
FIRST_REQUESTS = 64
#: Rows of the steps table in the replica's memory; the host copies full ones.
STEP_ROWS = 4096
#: Bins of the gaps between tokens; see :func:`kvsim.results.totals.gap_bin`.
GAP_BINS = 1 << 21


class Replica:
    """One replica's engine; see :class:`kvsim.engine.backend.Backend`.

    Parameters
    ----------
    index : number of the replica
    setup : parts of the replica
    contents : the requests by row; only submitted ones are served
    requests : the run's requests table, shared by all replicas
    start_time : start of the run, seconds
    end_time : no step starts at or after this time, seconds
    on_end : called after each request's end
    observer : called after every step
    watched : stop after every step, for a caller of :meth:`stops`
    compiled : run compiled rules over flat memory
    """

    def __init__(
        self,
        index: int,
        setup: Parts,
        contents: Contents,
        requests: NDArray[Any],
        *,
        start_time: float,
        end_time: float = math.inf,
        on_end: Callable[[], object] | None = None,
        observer: Observer | None = None,
        watched: bool = False,
        compiled: bool = False,
    ) -> None:
        self._memory: Memory = Flat() if compiled else Objects()
        self._on_end, self._observer = on_end, observer
        self._contents, self._requests = contents, requests
        self.setup = setup
        self.compiled = compiled
        self.state = state = self._init_state()
        self._read_metrics = reader_of(state, *LOADS, *TOKENS)
        self.num_outstanding: Callable[[], int] = reader_of(state, "num_outstanding")
        state.index, state.end_time = index, end_time
        state.clock = state.stage_free_time = start_time
        state.watched = watched or observer is not None
        self._steps: list[NDArray[Any]] = []
        self._watchdog = Watchdog()
        self.passes: list[tuple[float, float]] = []  # start and seconds, of ranks in lockstep
        #: Log of KV cache events.
        self.event_log = ReplicaEventLog(state.kv.pool, self._memory)
        self._serve: Callable[[int, int], int] | None = None
        per_token = setup.front_end_latency_per_token
        self.submissions = Submissions(state.trace, self._memory, contents, per_token)
        if setup.kv.tracks_sessions and contents.turns is not None:
            state.kv.pool.tracks_sessions, kv = True, cast("Any", setup.kv)
            kept, hints = kv.eviction.kept(contents.turns), contents.turns.hint_priority
            state.kv.pool.sessions = self._memory.list_of(np.array(kept, np.float64))  # by row
            state.kv.pool.hints = self._memory.list_of(np.array(hints, np.float64))
        if setup.kv.foresees:
            self.kv.foresee(contents.shorter_than(setup.scheduler_config.max_model_len))

    # -- laying out ------------------------------------------------------------------------------

    def _init_state(self) -> records.Replica:
        """Make the initial state of a replica."""
        setup, memory, config = self.setup, self._memory, self.setup.scheduler_config
        if self.compiled:
            state: records.Replica = memory.one(records.Replica)
            kv: Any = setup.make_kv()
            kv.init_state(state.kv, memory, self._num_request_blocks(setup.kv))
            kv.state = state
            init_scheduler(state, memory, config, setup.scheduler_type.rules_of)
        else:
            scheduler = setup.make_scheduler()
            state, kv = scheduler.state, scheduler.kv
            missing = self._num_request_blocks(setup.kv) - state.kv.num_request_blocks
            if missing > 0 and isinstance(kv, RuleManager):
                kv.add_request_blocks(state.kv, memory, missing)
        #: The KV-cache manager over this replica's state; callers must not change it.
        self.kv: KVCacheManager = kv
        kv.set_time(lambda: float(state.clock))
        has_samples = setup.kv_config.max_num_samples > 1
        init_cost(setup.cost, state.cost, memory, has_samples=has_samples)
        state.plan_of = StepPlan
        state.limits.depth = depth = setup.num_steps_in_flight
        state.limits.num_stages = setup.num_stages
        state.stage_free = memory.floats(setup.num_stages)
        state.batches = memory.records(records.Batch, depth + 1)
        for place in range(depth + 1):
            init_batch(memory, state.batches[place], config)
        state.phases = memory.records(records.Phase, setup.kv.block_size)
        state.phase_next = memory.ints(2 * config.max_running + 2)
        state.due = memory.ints(config.max_running + 1)
        state.reached = memory.ints(config.max_running + 1)
        self._init_records(state)
        self._contents.init_state(state.trace, memory)
        state.limits.has_grammars = state.trace.has_grammar_times
        init_shares(state, memory, self._contents.num_tenants)
        self._init_rates(state)
        init_connector(state, memory, config, depth, self._contents.room)
        if config.engine_settings is not None:
            config.engine_settings.init_rows(state, memory, len(self._contents))
        init_copies(state)
        init_encoder(state, memory, config.encoder_inputs)
        more_requests(state, memory, FIRST_REQUESTS)
        return state

    def _init_rates(self, state: records.Replica) -> None:
        """Lay out the acceptance of each request's drafts, if the trace has it."""
        spec = self.setup.scheduler_config.speculation
        if state.trace.has_rates and spec is not None:
            rates = conditional_rates(
                self._contents.lists["accept_rate"], spec.num_speculative_tokens
            )
            state.trace.accept_rate = self._memory.list_of(rates)

    def _num_request_blocks(self, kv: KVCacheManager) -> int:
        """Return the largest number of requests that hold KV at once, running or not."""
        config = self.setup.scheduler_config
        if config.kv_transfer is None:
            return config.max_running + 1
        return config.max_running + 1 + num_transfers(kv, self._contents.room)

    def _init_records(self, state: records.Replica) -> None:
        memory, setup, flat = self._memory, self.setup, Flat()
        self._gaps = untouched(8 * GAP_BINS).view(np.int64)
        self._samples = np.zeros(MAX_MEMORY_SAMPLES, dtype=MEMORY)
        self._step_rows = np.zeros(STEP_ROWS * setup.record_steps, dtype=STEPS)
        rows: list[tuple[str, Any]] = [
            ("rows", Views(self._requests, records.RequestRow, flat)),
            ("samples", Views(self._samples, records.MemorySample, flat)),
            ("steps", Views(self._step_rows, records.StepRow, flat)),
            ("gaps", Numbers(self._gaps)),
        ]
        state.record_steps = setup.record_steps
        state.max_step_rows = len(self._step_rows)
        if setup.record_memory_map:
            self._maps = np.zeros(MAX_MEMORY_SAMPLES * MEMORY_MAP_BINS, dtype=np.int8)
            rows.append(("maps", Numbers(self._maps)))
            state.num_bins = MEMORY_MAP_BINS
            room_for_map = getattr(self.kv, "room_for_map", None)
            if room_for_map is not None:
                room_for_map(state.kv, memory)
        for name, value in rows:
            setattr(state, name, value)

    # -- the protocol ------------------------------------------------------------------------------

    @property
    def clock(self) -> float:
        return self.state.clock

    def submit(self, request_ids: NDArray[np.int64], arrival_times: NDArray[np.float64]) -> None:
        self.submissions.add(request_ids, arrival_times)
        self.state.num_outstanding += len(request_ids)

    @property
    def room(self) -> int:
        """Capacity of the list of submissions, for compiled callers; 0 if the host must submit."""
        return self.submissions.room

    def abort(self, request_id: int) -> bool:
        """Abort a request that has arrived; False if it is no longer here."""
        limits = self.state.limits
        can_abort = self.setup.scheduler_type.rules_of in BY_LOOP_OF_VLLM or limits.has_own_loop
        if not can_abort or limits.in_python:
            raise ValueError(f"abort: scheduler {self.setup.scheduler!r} cannot; vllm can")
        return bool(self._call(rules.ABORT, request_id))

    def reset_prefix_cache(self, *, with_running: bool) -> int:
        """Clear the prefix cache: 1 if done, 0 if refused, -1 if other readers still use blocks."""
        return self._call(rules.RESET, int(with_running))

    def withdraw(self, request_id: int, time: float) -> None:
        """Remove a request in any state, and free its blocks at once."""
        self._wake(time)
        if not self.abort(request_id) and self.submissions.remove(request_id):
            self.state.num_outstanding -= 1
        self.drop_pinned(request_id, time)

    def drop_pinned(self, request_id: int, time: float) -> None:
        """Free the blocks that an ended request holds for a transfer, if any."""
        self._wake(time)
        self._call(rules.DROP_PINNED, request_id)

    def _wake(self, time: float) -> None:
        """Advance the clock to a time if the replica waits for an outside event."""
        self.state.horizon = time
        self._call(rules.RESUME, 0)

    @property
    def holds_for_others(self) -> bool:
        """Return True if blocks of ended requests are pinned for a reader."""
        return self.state.connector.num_pinned > 0

    # -- a radix tree alone -----------------------------------------------------------------------

    def operate(self, operation: int, argument: int) -> int:
        """Execute an operation on the radix tree, :class:`kvsim.records.engine.Operation`."""
        return self._call(operation, argument)

    def log_frees(self, count: int) -> None:
        """Log the freed pages, at most ``count`` of them between two reads of the log."""
        pages = self.state.kv.radix.pages
        pages.logs, pages.log = True, self._memory.ints(2 * count)

    # -- KV transfers ----------------------------------------------------------------------------

    def offer(self, request_id: int, num_tokens: int) -> None:
        """Offer external KV of its first ``num_tokens`` tokens to a request that arrives later."""
        self.state.connector.offered[request_id] = num_tokens

    def carry(self, request_id: int, num_tokens: int) -> None:
        """Give a request that arrives later ``num_tokens`` output tokens, without their KV."""
        self.state.trace.carried[request_id] = num_tokens

    def limit(self, request_id: int, num_tokens: int, *, asked: int | None = None) -> None:
        """Set the output tokens, and max_tokens (``asked``), of a request that arrives later."""
        self.state.trace.max_tokens[request_id] = num_tokens
        self.state.trace.asked_tokens[request_id] = num_tokens if asked is None else asked

    def keep(self, request_id: int, *, keeps: bool) -> None:
        """Set whether a request yet to arrive pins its blocks from its end until they are read."""
        self.state.connector.keeps[request_id] = int(keeps)

    def pop_started_loads(self) -> list[tuple[int, int, float]]:
        """Return the loads started since the last call: request, missing tokens, time."""
        connector = self.state.connector
        if self.setup.scheduler_config.kv_transfer is None or connector.num_begun == 0:
            return []
        count, connector.num_begun = connector.num_begun, 0
        rows, tokens = head(connector.begun, count), head(connector.begun_tokens, count)
        return list(zip(rows, tokens, head(connector.begun_times, count), strict=True))

    def report(
        self,
        time: float,
        *,
        received: int | None = None,
        sent: int | None = None,
        failed: bool = False,
    ) -> None:
        """Report that the KV of a request has arrived, or was read from here.

        If ``failed``, none of the received KV can be used. The report takes effect at the end of
        the step in progress, or at once if there is none.
        """
        connector = self.state.connector
        if received is not None and failed:
            connector.bad_requests[connector.num_bad_requests] = received
            connector.num_bad_requests += 1
        if received is not None:
            connector.received[connector.num_received] = received
            connector.num_received += 1
        if sent is not None:
            connector.sent[connector.num_sent] = sent
            connector.num_sent += 1
        self._wake(time)

    # -- queries and advance ---------------------------------------------------------------------

    def next_event_time(self) -> float:
        self._call(rules.NEXT_EVENT, 0)
        return float(self.state.next_event_time)

    def num_cached_tokens(self, request: IncomingRequest) -> int:
        self._call(rules.LOOK_UP, request.request_id)
        return self.state.found_tokens

    @property
    def address(self) -> int:
        """Address of the replica's state; 0 if the state is made of Python objects."""
        return int(self.state.address) if isinstance(self.state, View) else 0

    @property
    def entry_address(self) -> int:
        """Address of the replica's compiled rules; 0 if the host must see every stop."""
        hidden = self._observer is not None or self.setup.scheduler_config.kv_transfer is not None
        if not self.compiled or hidden or self.state.watched:
            return 0
        from kvsim.compiled.entry import address_of

        return address_of(self.state)

    def report_ends(self, number: int) -> None:
        """Call ``on_end`` for each of ``number`` ended requests."""
        if self._on_end is not None:
            for _ in range(number):
                self._on_end()

    def advance(self, horizon: float, *, until_finish: bool = False) -> int:
        state = self.state
        state.horizon, state.until_finish, state.num_ended = horizon, until_finish, 0
        return self.go_on()

    def go_on(self) -> int:
        """Continue :meth:`advance` to its horizon; return the number of ended requests. Mutates."""
        state, num_told = self.state, 0
        for stop in self.stops():
            self.report_ends(state.num_ended - num_told)
            num_told = state.num_ended
            if self._observer is not None and stop == records.SCHEDULED:
                self._observer.scheduled(self)
            elif self._observer is not None and stop == records.COMPLETED:
                self._observer.completed(self)
        return state.num_ended

    def leave(self, observer: Observer) -> None:
        """Remove an observer that needs no more steps, so that one call can run many steps."""
        if self._observer is observer:
            self._observer = None
            self.state.watched = False

    def stops(self, num_steps: int = STEPS_PER_CALL) -> Iterator[int]:
        """Run up to the horizon, ``num_steps`` steps per call; yield the reason of each stop.

        Raises
        ------
        RuntimeError
            If the scheduler has work and schedules none of it (invariant 7), or makes no progress.
        """
        state = self.state
        while True:
            outcome = self._call(rules.ADVANCE, num_steps)
            self._watchdog.refuse(outcome, state, self.setup.scheduler)
            if outcome == records.NEEDS_REQUESTS:
                more_requests(state, self._memory, state.num_requests)
            elif outcome == records.NEEDS_STEPS:
                self._drain_steps()
            elif outcome == records.NEEDS_EVENTS:
                self.event_log.make_room()
            elif outcome == records.NEEDS_STATES:
                count = max(state.offloading.num_states, FIRST_REQUESTS)
                add_states(state.offloading, self._memory, state.kv, count)
            yield outcome
            if outcome == records.DONE:
                return

    def _call(self, command: int, max_steps: int) -> int:
        if not self.compiled:
            return rules.serve(self.state, command, max_steps)
        if self._serve is None:
            from kvsim.compiled.entry import serve

            self._serve = serve(self.state)
        return self._serve(command, max_steps)

    def held_requests(self) -> list[Any]:
        """Return the running requests, as the engine counts them."""
        state = self.state
        return [state.requests[k] for k in engine_by_policy(state.limits.scheduler).held(state)]

    def check_integrity(self) -> None:
        self.kv.check_integrity()
        if self.state.connector.kind == OFFLOADING:
            check_offloading(self.state.offloading)
        if self.state.limits.has_encoder:
            check_encoder(self.state)

    def settle(self, end_time: float) -> Totals:
        state = self.state
        state.horizon = end_time
        self._call(rules.CLOSE, 0)
        bins = slice(state.first_gap, gap_bin(state.totals.peak_token_gap) + 1)
        used = state.first_gap + np.flatnonzero(self._gaps[bins])  # other pages stay untouched
        gaps = dict(zip(used.tolist(), self._gaps[used].tolist(), strict=True))
        sums = {name: getattr(state.totals, name) for name in records.Totals.kinds()}
        return Totals(token_gaps=gaps, **sums)

    @property
    def memory(self) -> NDArray[Any]:
        return self._samples[: self.state.num_samples]

    @property
    def steps(self) -> NDArray[Any]:
        """The steps table of this replica, empty unless steps are recorded."""
        table = np.concatenate([*self._steps, self._step_rows[: self.state.num_step_rows]])
        if self.passes:
            real = np.flatnonzero(table["num_scheduled_tokens"])[: len(self.passes)]
            table["start_time"][real], table["duration"][real] = zip(*self.passes, strict=True)
        return table

    def _drain_steps(self) -> None:
        self._steps.append(self._step_rows[: self.state.num_step_rows].copy())
        self.state.num_step_rows = 0

    def take_events(self) -> list[EventRows]:
        """Return the KV cache events since the last call."""
        return self.event_log.take()

    def metrics(self) -> tuple[int, int, float, int, int]:
        """Return the metrics published after the last step, as in :class:`.Scraped`."""
        return cast("tuple[int, int, float, int, int]", self._read_metrics())

    def load(self) -> tuple[int, int, float]:
        """Return the numbers of waiting and running requests, and the share of blocks in use."""
        self._call(rules.LOAD_OF, 0)
        return self.state.scraped_waiting, self.state.num_running, self.state.scraped_usage

    def first_tokens(self) -> dict[int, float]:
        """Return the time of the first token of each request on this replica, if it has one."""
        return self._living("first_token_time")

    def last_tokens(self) -> dict[int, float]:
        """Return the time of the last token of each request on this replica, if it has one."""
        return self._living("last_token_time")

    def lengths(self) -> dict[int, float]:
        """Return the tokens of each request on this replica, prompt and output."""
        return self._living("num_tokens")

    def computed_tokens(self) -> dict[int, float]:
        """Return the tokens of each request on this replica that are computed or in flight."""
        return self._living("num_computed_tokens")

    def holders(self) -> list[int]:
        """Return the requests that hold blocks on this replica and do not run."""
        held, status = self._living("own_blocks"), self._living("status")
        return [row for row, at in held.items() if at != NONE and status[row] != RUNNING]

    def _living(self, name: str) -> dict[int, float]:
        requests = self.state.requests[: self.state.num_requests]
        if isinstance(requests, Views):
            rows = requests.array[requests.array["status"] != FINISHED]
            values = dict(zip(rows["request_id"].tolist(), rows[name].tolist(), strict=True))
        else:
            values = {r.request_id: getattr(r, name) for r in requests if r.status != FINISHED}
        return {row: value for row, value in values.items() if not math.isnan(value)}

    @property
    def memory_map(self) -> NDArray[np.uint8]:
        """Main cause per sample and address bin."""
        bins, n = self.state.num_bins, self.state.num_samples
        if not bins:
            return np.zeros((0, 0), dtype=np.uint8)
        return self._maps[: n * bins].view(np.uint8).reshape(n, bins)
