"""An engine to step by hand; see :class:`Engine`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from kvsim.config import Config
from kvsim.engine.history.block_recorder import BlockRecorder
from kvsim.engine.observers import together
from kvsim.engine.own_parts import check_parts, errors_in_parts
from kvsim.engine.replica import Replica
from kvsim.engine.setup import of_engine, with_events
from kvsim.engines.registry import DEFAULT
from kvsim.fleet.checker import Checker
from kvsim.fleet.plan import make_plan
from kvsim.fleet.pool_setups import resolve_fleet
from kvsim.fleet.simulate import choose_backend
from kvsim.results.kv_events import batches
from kvsim.results.tables import FinishReason
from kvsim.rules.kv import num_free
from kvsim.rules.recorder import num_waiting
from kvsim.stepping.events import StepNames, has_events
from kvsim.stepping.growing import FIRST_ROOM, GrowingContents, GrowingTrace, list_names
from kvsim.stepping.looks import block_table, cached_blocks, free_queue, place_of, reset_cache
from kvsim.stepping.outcome import Run, result_of
from kvsim.stepping.ranks import MOST_RANKED, id_rank
from kvsim.stepping.refusal import check_options, check_setup
from kvsim.stepping.requests import Asked, RequestReader
from kvsim.stepping.steps import EngineStep, Stepper
from kvsim.stepping.tokens import names_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.engine.setup import Setup
    from kvsim.options import Options
    from kvsim.results.kv_events import KVEventBatch
    from kvsim.results.result import Result
    from kvsim.stepping.events import TokenIds
    from kvsim.trace import Trace


class Engine:
    """One replica that is stepped by hand, and takes requests while it runs.

    Its tables equal, to the bit, those of :func:`kvsim.simulate` on :attr:`trace`, the requests
    added so far. Aborted requests and resets of the cache are exceptions: ``simulate`` has neither.

    Parameters
    ----------
    **options : as for :func:`kvsim.simulate`, ``model`` and ``gpu`` among them; options of fleets
        and of closed-loop clients are refused. ``backend="python"`` runs the rules as plain Python,
        so that a debugger can step into them.

    Raises
    ------
    ValueError
        For unknown names, wrong values, and options that one replica does not have.

    Examples
    --------
    >>> import kvsim
    >>> engine = kvsim.Engine(model="llama-3-8b", gpu="a100-80gb", backend="python")
    >>> first = engine.add_request(prompt_token_ids=list(range(40)), max_tokens=3)
    >>> second = engine.add_request(prompt_token_ids=list(range(40)), max_tokens=3)
    >>> engine.step().num_scheduled_tokens
    {0: 40, 1: 8}
    >>> engine.block_table(first), engine.block_table(second)
    ([[1, 2, 3]], [[1, 2, 4]])
    """

    _room = FIRST_ROOM  # requests

    def __init__(self, **options: Unpack[Options]) -> None:
        config = of_engine(Config.build(**options))
        check_options(config)
        setup = self._resolve(config)
        if has_events(config):
            setup = with_events(setup)
        self._plan, self._setup = make_plan(config, setup), setup
        self._reason = choose_backend(setup)
        self._reader = RequestReader(setup)
        self._requests = GrowingTrace(self._reader.given)
        self._rows = GrowingContents(list_names(config), self._room)
        self._replica = Replica(
            *(0, setup, self._rows, self._rows.table),
            start_time=0.0,
            watched=True,
            compiled=not self._reason,
        )
        self._rows.grow_for(self._replica.state)
        self._recorder = BlockRecorder() if config.record_block_events else None
        checker = Checker() if config.check_invariants else None
        self._stepper = Stepper(self._replica, together(checker, self._recorder))
        self._ranks = "id_rank" in self._rows.lists
        self._first_row: list[int] = []  # of each request; the rows of its samples are adjacent
        self._request_of: list[int] = []  # request of each row
        self._open: dict[int, None] = {}  # rows that have not ended
        self._ended: dict[int, FinishReason] = {}  # requests that ended since the last step
        self._reached = 0.0
        self.start_time: float | None = None  #: Arrival of the first request, seconds.

    def _resolve(self, config: Config) -> Setup:
        setup = resolve_fleet(config)
        check_setup(setup)
        return setup

    # -- requests --------------------------------------------------------------------------------

    def add_request(
        self,
        prompt_token_ids: Sequence[int] | None = None,
        max_tokens: int = 16,
        *,
        num_prompt_tokens: int | None = None,
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: int | str | None = None,
        lora_id: int | str | None = None,
        session_id: int | None = None,
        num_samples: int = 1,
        stop_after: int | None = None,
    ) -> int:
        """Add a request, which the next step may schedule. Mutates.

        Parameters
        ----------
        prompt_token_ids : the prompt; prompts with equal prefixes share blocks by prefix caching
        max_tokens : largest number of output tokens, which the scheduler knows
        num_prompt_tokens : tokens of a prompt that shares no prefix, instead of its ids
        arrival_time : seconds, now by default; not before that of the last added request
        priority, cache_salt, lora_id, session_id, num_samples : as in a trace
        stop_after : output tokens after which the request ends by EOS; unknown to the scheduler

        Returns
        -------
        int
            The request's id: its index among all added requests, from 0.

        Raises
        ------
        ValueError
            The message names the wrong value and what is allowed. A request that can never fit
            raises no error: it is rejected at once.
        """
        asked = self._reader.read(
            Asked(
                prompt_token_ids,
                num_prompt_tokens,
                max_tokens,
                priority,
                cache_salt,
                lora_id,
                session_id,
                num_samples,
                stop_after,
            )
        )
        time = self._arrival(arrival_time)
        if self.start_time is None:
            self._start(time)
        request = len(self._requests)
        if self._ranks and request >= MOST_RANKED:
            raise ValueError(
                f"scheduling_policy: an engine ranks the ids of at most {MOST_RANKED:,} requests"
            )
        self._requests.append(time, asked.columns, asked.spans)
        self._first_row.append(len(self._rows))
        rows = []
        for number in range(num_samples):
            row = len(self._rows)
            self._request_of.append(request)
            rank = id_rank(request, None if num_samples == 1 else number) if self._ranks else 0
            self._rows.append(time, asked.row(number) | {"id_rank": rank}, asked.spans)
            rows.append(row)
        self._submit(rows, time)
        return request

    def _arrival(self, given: float | None) -> float:
        """Return the arrival time of the next request."""
        least = self.earliest_arrival
        if given is None:
            given = max(self.now, self._after_last_schedule)
        if not (isinstance(given, int | float) and math.isfinite(given) and given >= least):
            is_last = self._requests.last_arrival == least
            why = f"request {len(self._requests) - 1} has arrived then" if is_last else ""
            why = why or "a step is scheduled up to then"
            raise ValueError(f"arrival_time: is {given}, must be at least {least!r} s: {why}")
        return float(given)

    def _start(self, time: float) -> None:
        """Start the clock at the first arrival, as a run over a trace does. Mutates."""
        state = self._replica.state
        self.start_time = state.clock = state.stage_free_time = time
        state.end_time = time + self._plan.config.horizon

    @errors_in_parts()
    def _submit(self, rows: list[int], time: float) -> None:
        """Submit the samples of a request, or reject it if it can never fit. Mutates."""
        longest = self._setup.memory.limits.max_model_len
        lists, kv = self._rows.lists, self._setup.kv
        for row in rows:
            fits = lists["num_prompt_tokens"][row] < longest
            if not (fits and kv.fits(self._rows.request(row, 0.0, longest))):
                self._rows.table["finish_reason"][rows] = FinishReason.REJECTED
                self._record_end(self._request_of[row])
                return
        self._open |= dict.fromkeys(rows)
        self._replica.submit(np.array(rows), np.full(len(rows), time))

    def abort(self, request_id: int) -> bool:
        """Abort a request in any state, and free its blocks; False if it had ended. Mutates.

        Raises
        ------
        ValueError
            For an unknown request, or a scheduler that cannot end requests.
        """
        replica, table = self._replica, self._rows.table
        rows = [row for row in self._rows_of(request_id) if row in self._open]
        for row in rows:
            if not replica.abort(row) and replica.submissions.remove(row):
                replica.state.num_outstanding -= 1
                table["finish_reason"][row] = FinishReason.ABORTED
        self._take_ended(rows)
        return bool(rows)

    def _rows_of(self, request_id: int) -> range:
        """Return the rows of a request's samples."""
        is_whole = isinstance(request_id, int | np.integer) and not isinstance(request_id, bool)
        if not (is_whole and 0 <= request_id < len(self._requests)):
            raise ValueError(f"request {request_id!r}: no such request was added")
        first = self._first_row[request_id]
        return range(first, first + self._requests.value("num_samples", request_id))

    def output_token_ids(self, request_id: int) -> list[int]:
        """Return the ids of the output tokens that a request's first sample has so far.

        The ids are negative, unlike a model's. A prompt that continues the conversation consists
        of the earlier prompt's ids, these ids, and new ids.
        """
        row = self._rows_of(request_id)[0]
        place, content = place_of(self._replica.state, row), self._rows.lists["output_content_id"]
        count = int(self._rows.table["num_output_tokens"][row])
        if place is not None:
            one = self._replica.state.requests[place]
            count = one.num_tokens - one.num_prompt_tokens
        found: list[int] = names_of(int(content[row]), 0, count).tolist()
        return found

    def output_token_id(self, request_id: int, index: int) -> int:
        """Return the id of an output token of a request, even if it is not computed yet."""
        row = self._rows_of(request_id)[0]
        return int(names_of(int(self._rows.lists["output_content_id"][row]), index, 1)[0])

    def row(self, request_id: int) -> dict[str, Any]:
        """Return the row of a request's first sample in the requests table so far."""
        row = self._rows.table[self._rows_of(request_id)[0]]
        return {name: row[name].item() for name in row.dtype.names} | {"request_id": request_id}

    def trace_row(self, request_id: int) -> dict[str, Any]:
        """Return a request as a line of kvsim's own trace files."""
        self._rows_of(request_id)
        return self._requests.line(request_id)

    # -- time ------------------------------------------------------------------------------------

    def step(self) -> EngineStep:
        """Run one step: schedule it, and process its output. Mutates.

        Without work, nothing is scheduled and no time passes. Asynchronous scheduling also
        schedules the next step, before the output of this one is processed.

        Raises
        ------
        RuntimeError
            If a scheduler has work and schedules none of it.
        """
        step, _ = self._next(math.inf)
        return step

    def steps_until(self, time: float) -> Iterator[EngineStep]:
        """Run up to a time, seconds, and yield each step that has its output by then. Mutates.

        With ``math.inf`` it runs until all requests have ended.
        """
        while True:
            step, is_step = self._next(time)
            if is_step or step.finished:
                yield step
            if not is_step:
                break
        if time < math.inf:
            self._reached = max(self._reached, time)

    def run_until(self, time: float) -> None:
        """Run up to a time, seconds, and process the outputs of that instant, too. Mutates."""
        for _ in self.steps_until(time):
            pass

    @errors_in_parts()
    def _next(self, horizon: float) -> tuple[EngineStep, bool]:
        """Run the next step if it ends by ``horizon``; return it, and True if it ran. Mutates."""
        by_row, is_step = self._stepper.next(horizon)
        check_parts(self._replica.state, self._setup)
        self._take_ended()
        ended, self._ended = self._ended, {}
        lost = list(dict.fromkeys(self._request_of[row] for row in by_row.preempted))
        scheduled = self._by_request(by_row.num_scheduled_tokens)
        new = self._by_request(by_row.num_new_tokens)
        step = EngineStep(by_row.time, by_row.duration, scheduled, lost, ended, new)
        return step, is_step

    def _by_request(self, by_row: dict[int, int]) -> dict[int, int]:
        """Return for each request the sum of the numbers of its rows."""
        if len(self._requests) == len(self._rows):  # a sample each
            return by_row
        sums: dict[int, int] = {}
        for row, number in by_row.items():
            request = self._request_of[row]
            sums[request] = sums.get(request, 0) + number
        return sums

    def _take_ended(self, rows: Sequence[int] = ()) -> None:
        """Record the ends of requests, of the given rows or of all open ones. Mutates."""
        state = self._replica.state
        if state.num_ended:
            rows, state.num_ended = list(self._open), 0
        if not rows:
            return
        reasons = self._rows.table["finish_reason"][rows].tolist()
        for row, reason in zip(rows, reasons, strict=True):
            if reason != FinishReason.IN_FLIGHT:
                del self._open[row]
                self._record_end(self._request_of[row])

    def _record_end(self, request: int) -> None:
        """Record the end of a sample; a request ends with its last one. Mutates."""
        rows = self._rows_of(request)
        reasons = [FinishReason(code) for code in self._rows.table["finish_reason"][rows]]
        if FinishReason.IN_FLIGHT not in reasons:
            others = (one for one in reasons if one != FinishReason.FINISHED)
            self._ended[request] = next(others, FinishReason.FINISHED)

    # -- state -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the simulated engine."""
        return str(self._plan.config.engine or DEFAULT)

    @property
    def now(self) -> float:
        """The time up to which the run has advanced, seconds."""
        return max(self._replica.state.clock, self._reached)

    @property
    def earliest_arrival(self) -> float:
        """Earliest time at which the next request may arrive, seconds."""
        begun = self._after_last_schedule if self._open else self.now
        return max(self._requests.last_arrival, begun, 0.0)

    @property
    def _after_last_schedule(self) -> float:
        return math.nextafter(self._stepper.last_schedule, math.inf)

    @property
    def next_event_time(self) -> float:
        """Time of the next schedule or output, seconds; infinite without work."""
        return self._replica.next_event_time()

    @property
    def next_tokens(self) -> tuple[float, list[int]]:
        """End of the step in flight, seconds, and the requests that get one token then.

        Infinite, and no requests, without a step in flight after :meth:`run_until`, and where only
        the output tells the tokens (drafts, connectors, other loops, several samples).
        """
        if len(self._requests) != len(self._rows):
            return math.inf, []
        end, rows = self._stepper.next_tokens()
        return end, [row for row in rows if row in self._open]

    @property
    def num_steps(self) -> int:
        """Steps whose output was processed, empty ones included."""
        return self._stepper.num_steps

    @property
    def num_running(self) -> int:
        """Requests in the running batch, each sample counted."""
        return self._replica.state.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that have arrived and do not run, each sample counted."""
        return num_waiting(self._replica.state)

    @property
    def num_free_blocks(self) -> int:
        """Blocks (slots of contiguous memory) that no request holds, cached ones included."""
        return num_free(self._replica.state.kv)

    def block_table(self, request_id: int, sample: int = 0) -> list[list[int]]:
        """Return the blocks that a request holds, first to last, in one list per KV-cache group.

        The blocks of a radix tree are its pages; contiguous memory has none.

        Raises
        ------
        ValueError
            For an unknown request, or a sample that it does not have.
        """
        rows = self._rows_of(request_id)
        if not 0 <= sample < len(rows):
            raise ValueError(f"sample: is {sample}, must be 0 to {len(rows) - 1}")
        place = place_of(self._replica.state, rows[sample])
        return [] if place is None else block_table(self._replica, place)

    def free_queue(self) -> list[int]:
        """Return the free blocks in the order in which they will be allocated.

        Blocks without content come first, then cached ones in the order of their eviction.

        Raises
        ------
        ValueError
            For an allocator without a pool of blocks.
        """
        return free_queue(self._replica, self._setup.allocator.base)

    def take_kv_events(self, tokens: TokenIds) -> list[KVEventBatch]:
        """Return the KV cache events since the last call, grouped by update. Mutates.

        Events need ``kv_events_config={"enable_kv_cache_events": True}``.

        Parameters
        ----------
        tokens : function of a row and two positions, which returns the token ids between them
        """
        requests = self._requests, self._request_of
        names = StepNames(self._setup, self._rows, tokens, *requests)
        return list(batches(self._replica.take_events(), names))

    def cached_blocks(self) -> list[int]:
        """Return the blocks with content that a later prompt can hit, in use or free.

        Raises
        ------
        ValueError
            For an allocator without a pool of blocks.
        """
        return cached_blocks(self._replica, self._setup.allocator.base)

    def reset_prefix_cache(self) -> bool:
        """Clear the prefix cache, as vLLM does; False, without effect, while a block is in use.

        Mutates.
        """
        return reset_cache(self._replica, self._setup.allocator.base)

    def check_integrity(self) -> None:
        """Recount all memory, and compare it with the counters.

        Raises
        ------
        RuntimeError
            The message names the broken invariant and both sides of it.
        """
        self._replica.check_integrity()

    # -- the run so far --------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """The requests so far, as a trace for :func:`kvsim.simulate`.

        Raises
        ------
        ValueError
            Before the first request.
        """
        if not len(self._requests):
            raise ValueError("trace: no request was added yet; add_request adds one")
        return self._requests.trace()

    def result(self) -> Result:
        """Return the result of the run up to now; the engine can continue.

        Raises
        ------
        ValueError
            Before the first request.
        """
        trace = self.trace
        run = Run(self._plan, self._setup, self._replica, self._rows, self._reason)
        return result_of(run, trace, self._recorder)
