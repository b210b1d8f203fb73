"""The compiled backend: the same replica as in plain Python, to the bit, on compiled kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.cost.constant import ConstantCost
from kvsim.cost.roofline import RooflineCost
from kvsim.engine.kernel_cache import load_kernels
from kvsim.kv.attention import FullAttention, cdiv
from kvsim.kv.contiguous import (
    ContiguousManager,
    reserve_max,
    reserve_oracle,
    reserve_pow2,
)
from kvsim.kv.eviction import LRU
from kvsim.kv.paged import PagedManager
from kvsim.results.tables import MEMORY, STEPS, FinishReason
from kvsim.results.totals import Totals
from kvsim.sched.orca import OrcaScheduler
from kvsim.sched.vllm import VllmScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvsim.engine.setup import Setup
    from kvsim.trace import Trace

MEMORY_MAP_BINS = 1024
#: Steps after which the kernel comes back, so that progress shows and Ctrl-C works.
STEPS_PER_CALL = 200_000
RESERVES = {reserve_max: 0, reserve_pow2: 1, reserve_oracle: 2}
PLACEMENTS = {"buddy": 1, "first": 2, "best": 3}


def refusal(setup: Setup) -> str | None:
    """Why the kernels cannot run a configuration; None if they can."""
    config = setup.config
    scheduler, cost = setup.make_scheduler(), setup.make_cost_model()
    kv = scheduler.kv
    if config.record_steps or config.check_invariants:
        return "record_steps and check_invariants need the Python backend"
    if type(cost) not in (RooflineCost, ConstantCost):
        return f"cost model {config.cost_model}"
    if isinstance(cost, RooflineCost) and not cost.one_full_class:
        return "layers with windows or of several kinds"
    pair = (type(kv), type(scheduler))
    if pair == (PagedManager, VllmScheduler):
        assert isinstance(kv, PagedManager)
        if len(kv.groups) != 1 or not isinstance(kv.groups[0], FullAttention):
            return "layers with windows or of several kinds"
        if type(kv.pool.eviction) is not LRU:
            return f"allocator {config.allocator}"
        return None
    if pair == (ContiguousManager, OrcaScheduler):
        return None
    return f"allocator {config.allocator} under scheduler {setup.scheduler}"


class CompiledReplica:
    """One replica's engine on kernels; see :class:`kvsim.engine.backend.Backend`.

    Takes the parameters of :class:`kvsim.engine.replica.Replica`; the configuration must be one
    that :func:`refusal` has nothing against.
    """

    def __init__(
        self,
        index: int,
        setup: Setup,
        trace: Trace,
        requests: NDArray[Any],
        *,
        start_time: float,
        end_time: float = math.inf,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._kernels = load_kernels()
        self._index = index
        self._requests = requests
        self._on_end = on_end
        self._config = _kernel_config(self._kernels, setup, end_time)
        self._state = _new_state(self._kernels, self._config, setup, trace)
        self._state.f[self._kernels.CLOCK] = start_time
        self._state.f[self._kernels.STAGE_FREE] = start_time
        self._state.f[self._kernels.LAST_TOKEN] = math.nan

    @property
    def clock(self) -> float:
        """Time of the last event processed."""
        return float(self._state.f[self._kernels.CLOCK])

    def submit(  # noqa: D102 - see Backend
        self, request_ids: NDArray[np.int64], arrival_times: NDArray[np.float64]
    ) -> None:
        s, k = self._state, self._kernels
        at = int(s.i[k.NUM_ARRIVALS])
        s.arrival_id[at : at + len(request_ids)] = request_ids
        s.arrival_time[at : at + len(request_ids)] = arrival_times
        s.i[k.NUM_ARRIVALS] += len(request_ids)
        s.i[k.OUTSTANDING] += len(request_ids)

    def num_outstanding(self) -> int:  # noqa: D102
        return int(self._state.i[self._kernels.OUTSTANDING])

    def next_event_time(self) -> float:  # noqa: D102
        s, k = self._state, self._kernels
        clock = self.clock
        if s.i[k.MUST_COMPLETE]:
            return float(s.batch_end[s.i[k.FIRST_BATCH]])
        has_work = s.i[k.RUNNING] > 0 or s.i[k.WAITING] > 0
        if s.i[k.IN_FLIGHT] or (has_work and clock < self._config.end_time):
            return clock
        if s.i[k.NEXT_ARRIVAL] == s.i[k.NUM_ARRIVALS] or clock >= self._config.end_time:
            return math.inf
        return max(float(s.arrival_time[s.i[k.NEXT_ARRIVAL]]), clock)

    def advance(self, horizon: float, *, until_finish: bool = False) -> int:  # noqa: D102
        s, k = self._state, self._kernels
        num_ended = 0
        with np.errstate(over="ignore"):  # 64-bit keys wrap around, also without compilation
            while True:
                ended = k.advance(self._config, s, horizon, until_finish, STEPS_PER_CALL)
                num_ended += ended
                if self._on_end is not None:
                    for _ in range(ended):
                        self._on_end()
                if s.i[k.STATUS] == k.STUCK:
                    raise RuntimeError(
                        f"invariant 7: {s.i[k.RUNNING]} running and {s.i[k.WAITING]} waiting "
                        f"requests at {self.clock} s but nothing can be scheduled"
                    )
                if s.i[k.STATUS] != k.PAUSED or (until_finish and num_ended):
                    return num_ended

    def settle(self, end_time: float) -> Totals:  # noqa: D102
        s, k = self._state, self._kernels
        k.pass_time(self._config, s, end_time)
        self._write_requests()
        f, i = s.f, s.i
        used = np.flatnonzero(s.gaps)
        return Totals(
            token_states_seconds=float(f[k.TOKEN_STATES_S]),
            reservation_seconds=float(f[k.RESERVATION_S]),
            internal_seconds=float(f[k.INTERNAL_S]),
            external_seconds=float(f[k.EXTERNAL_S]),
            unallocated_seconds=float(f[k.UNALLOCATED_S]),
            cached_seconds=float(f[k.CACHED_S]),
            usage_seconds=float(f[k.USAGE_S]),
            running_seconds=float(f[k.RUNNING_S]),
            waiting_seconds=float(f[k.WAITING_S]),
            refused_seconds=float(f[k.REFUSED_S]),
            running_while_refused_seconds=float(f[k.RUNNING_REFUSED_S]),
            peak_usage=float(f[k.PEAK_USAGE]),
            peak_running=int(i[k.PEAK_RUNNING]),
            num_steps=int(i[k.NUM_STEPS]),
            num_preemptions=int(i[k.PREEMPTIONS]),
            num_recomputed_tokens=int(i[k.RECOMPUTED]),
            num_allocation_failures=int(i[k.FAILURES]),
            token_gaps=dict(zip(used.tolist(), s.gaps[used].tolist(), strict=True)),
        )

    def _write_requests(self) -> None:
        s, k = self._state, self._kernels
        rows = np.flatnonzero(s.status != k.UNSEEN)
        table = self._requests
        table["replica"][rows] = self._index
        table["arrival_time"][rows] = s.arrival[rows]
        table["first_scheduled_time"][rows] = s.first_scheduled[rows]
        table["first_token_time"][rows] = s.first_token[rows]
        table["finish_time"][rows] = s.finish[rows]
        table["num_output_tokens"][rows] = s.num_tokens[rows] - s.prompt[rows]
        table["num_cached_tokens"][rows] = s.cached[rows]
        table["num_preemptions"][rows] = s.preemptions[rows]
        finished = s.status[rows] == k.FINISHED
        reasons = np.where(finished, FinishReason.FINISHED, FinishReason.IN_FLIGHT)
        table["finish_reason"][rows] = reasons

    @property
    def memory(self) -> NDArray[Any]:
        """The memory table of this replica."""
        s, k = self._state, self._kernels
        n = int(s.i[k.NUM_SAMPLES])
        table = np.zeros(n, dtype=MEMORY)
        table["time"], table["kv_usage"] = s.sample_floats[:n].T
        table["replica"] = self._index
        names = ("num_running", "num_waiting", "token_states", "reservation")
        for column, name in enumerate((*names, "internal", "external", "free", "cached")):
            table[name] = s.sample_ints[:n, column]
        return table

    @property
    def steps(self) -> NDArray[Any]:
        """Empty: rows per step need the Python backend."""
        return np.zeros(0, dtype=STEPS)

    @property
    def memory_map(self) -> NDArray[np.uint8]:
        """Cause per sample and address bin."""
        n = int(self._state.i[self._kernels.NUM_SAMPLES])
        bins = int(self._config.bins)
        return np.array(self._state.map[:n, :bins]).reshape(n, bins)


def _kernel_config(k: Any, setup: Setup, end_time: float) -> Any:
    scheduler, cost = setup.make_scheduler(), setup.make_cost_model()
    kv, limits, memory = scheduler.kv, setup.scheduler_config, setup.kv_config
    values: dict[str, Any] = dict.fromkeys(k.Config._fields, 0)
    floats = k.Config._fields[k.Config._fields.index("num_stages") :]
    values |= dict.fromkeys(floats, 0.0)
    values |= {
        "block_size": kv.block_size,
        "max_model_len": limits.max_model_len,
        "max_active": limits.max_num_active_seqs or limits.max_num_seqs,
        "budget": limits.max_num_batched_tokens,
        "threshold": limits.long_prefill_token_threshold,
        "adaptive": int(limits.long_prefill_token_threshold_adaptive),
        "chunked": int(limits.enable_chunked_prefill),
        "priority": int(limits.policy == "priority"),
        "asynchronous": int(limits.async_scheduling),
        "depth": setup.num_steps_in_flight,
        "bins": MEMORY_MAP_BINS * setup.config.record_memory_map,
        "num_stages": float(setup.config.pipeline_parallel_size),
        "end_time": end_time,
        "constant_time": -1.0,
    }
    if isinstance(kv, PagedManager):
        values |= {
            "num_usable": kv.pool.num_usable,
            "unit_bytes": kv.bytes_per_block,
            "slot_bytes": kv.slot_bytes[0],
            "caching": int(kv.enable_prefix_caching),
            "watermark_blocks": kv.watermark_blocks,
            "reserve_full": int(kv.reserve_full_isl),
            "lookahead": kv.num_lookahead_tokens,
        }
    elif isinstance(kv, ContiguousManager):
        values |= {
            "orca": 1,
            "placement": PLACEMENTS[kv.fit],
            "reserve": RESERVES[kv.reserve],
            "num_usable": kv.num_slots,
            "unit_bytes": memory.layout.bytes_per_token,
            "slot_bytes": memory.layout.bytes_per_token,
            "window": memory.layout.rolling_window or 0,
            "max_active": limits.max_num_seqs,
        }
    if isinstance(cost, ConstantCost):
        values["constant_time"] = cost.seconds
    elif isinstance(cost, RooflineCost):
        values |= cost.constants()
    for name, value in values.items():
        values[name] = float(value) if name in floats and name != "kv_bytes" else int(value)
    return k.Config(**values)


def _new_state(k: Any, c: Any, setup: Setup, trace: Trace) -> Any:
    n, cost = len(trace), setup.make_cost_model()
    slots = int(c.max_active)
    paged = c.placement == k.PAGED
    blocks = int(c.num_usable) + 1 if paged else 1
    width = min(cdiv(int(c.max_model_len), int(c.block_size)), blocks) + 1 if paged else 1
    orders = (int(c.num_usable).bit_length() if c.placement == k.BUDDY else 2) if not paged else 1
    depth = int(c.depth) + 1
    longest = int(c.max_model_len)
    ints, f8 = np.int64, np.float64
    empty = np.zeros(1, dtype=ints)

    def per_request(dtype: type = ints, fill: float = 0) -> NDArray[Any]:
        return np.full(n, fill, dtype=dtype)

    def nans() -> NDArray[Any]:
        return np.full(n, math.nan)

    i = np.zeros(34, dtype=ints)
    for name in ("QUEUE_HEAD", "QUEUE_TAIL", "LRU_HEAD", "LRU_TAIL"):
        i[getattr(k, name)] = -1
    i[k.STRIDE] = 1
    i[k.FREE_SLOTS] = slots
    i[k.UNHASHED] = blocks - 1
    bits = np.zeros(1, dtype=f8)
    holes, num_holes = _new_holes(k, c, orders, slots + 64)
    kept = k.MAX_SAMPLES if c.bins else 1
    table_bins = max(int(c.bins), 1)
    has_segments = trace.has_segments
    buckets = 1 << max(2 * blocks - 1, 1).bit_length() if c.caching else 1
    weights = getattr(cost, "weight_bytes_by_tokens", None)
    linked, heaped = (1, n) if c.priority else (n, 1)
    return k.State(
        i=i,
        f=np.zeros(15),
        prompt=np.ascontiguousarray(trace.num_prompt_tokens),
        max_tokens=np.minimum(trace.num_output_tokens, longest - trace.num_prompt_tokens),
        priority=np.ascontiguousarray(trace.priority),
        segment_offset=np.ascontiguousarray(trace.segment_offsets),
        segment_id=np.ascontiguousarray(trace.segment_content_id) if has_segments else empty,
        segment_start=np.ascontiguousarray(trace.segment_start) if has_segments else empty,
        segment_length=np.ascontiguousarray(trace.segment_num_tokens) if has_segments else empty,
        output_id=np.ascontiguousarray(trace.output_content_id),
        salt=np.ascontiguousarray(trace.cache_salt),
        arrival=per_request(f8),
        num_tokens=per_request(),
        computed=per_request(),
        in_flight=per_request(),
        stale=per_request(),
        placeholders=per_request(),
        max_computed=per_request(),
        preemptions=per_request(),
        cached=per_request(),
        status=per_request(np.int8, k.UNSEEN),
        slot=per_request(np.int32, -1),
        first_scheduled=nans(),
        first_token=nans(),
        last_token=nans(),
        finish=nans(),
        run=np.zeros(slots + 1, dtype=ints),
        queue_next=np.zeros(linked, dtype=ints),
        queue_previous=np.zeros(linked, dtype=ints),
        heap=np.zeros(heaped, dtype=ints),
        aside=np.zeros(slots + 1 if not c.asynchronous else n, dtype=ints),
        arrival_id=np.zeros(n, dtype=ints),
        arrival_time=np.zeros(n),
        table=np.empty((slots, width), dtype=np.int32),
        key=np.empty((slots, width) if c.caching else (1, 1), dtype=np.uint64),
        length=np.zeros(slots, dtype=ints),
        cached_tokens=np.zeros(slots, dtype=ints),
        filled=np.zeros(slots, dtype=ints),
        key_owner=np.full(slots, -1, dtype=ints),
        num_keys=np.zeros(slots, dtype=ints),
        key_segment=np.zeros(slots, dtype=ints),
        key_offset=np.zeros(slots, dtype=ints),
        free_slots=np.arange(slots)[::-1].astype(ints),
        start=np.zeros(slots, dtype=ints),
        size=np.zeros(slots, dtype=ints),
        asked=np.zeros(slots, dtype=ints),
        last=np.zeros(slots, dtype=ints),
        ref_cnt=np.zeros(blocks, dtype=np.int32),
        unhashed=np.arange(blocks, 0, -1).astype(np.int32) - (blocks > 0),
        lru_previous=np.zeros(blocks, dtype=np.int32),
        lru_next=np.zeros(blocks, dtype=np.int32),
        hashed=np.zeros(blocks, dtype=np.uint8),
        block_key=np.zeros(blocks, dtype=np.uint64),
        bucket=np.full(buckets, -1, dtype=np.int32),
        chain=np.full(blocks, -1, dtype=np.int32),
        copy=np.full(blocks, -1, dtype=np.int32),
        holes=holes,
        num_holes=num_holes,
        batch_request=np.empty((depth, slots), dtype=ints),
        batch_tokens=np.empty((depth, slots), dtype=ints),
        batch_unfinished=np.empty((depth, slots), dtype=np.bool_),
        batch_size=np.zeros(depth, dtype=ints),
        batch_end=np.zeros(depth),
        sample_ints=np.empty((k.MAX_SAMPLES, 8), dtype=ints),
        sample_floats=np.empty((k.MAX_SAMPLES, 2)),
        map=np.empty((kept, table_bins), dtype=np.uint8),
        map_filled=np.zeros(blocks),
        map_last=np.zeros(blocks),
        map_unused=np.zeros(blocks, dtype=np.uint8),
        gaps=np.zeros(k.GAP_BINS, dtype=ints),
        weight_bytes=np.array(weights if weights is not None else [0.0]),
        float_bits=bits,
        int_bits=bits.view(ints),
    )


def _new_holes(k: Any, c: Any, orders: int, capacity: int) -> tuple[Any, Any]:
    """Lay out an empty contiguous memory as kvsim.kv.address_space does."""
    holes = np.zeros((max(orders, 1), capacity), dtype=np.int64)
    num_holes = np.zeros(max(orders, 1), dtype=np.int64)
    total = int(c.num_usable)
    if c.placement == k.BUDDY:
        start = 0
        for order in range(orders - 1, -1, -1):
            if total - start >= 1 << order:
                holes[order, 0] = start
                num_holes[order] = 1
                start += 1 << order
    elif c.placement != k.PAGED and total:
        holes[1, 0] = total
        num_holes[0] = 1
    return holes, num_holes
