"""The compiled backend: the same replica as in plain Python, to the bit, on compiled kernels."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.cost.constant import ConstantCost
from kvsim.cost.roofline import RooflineCost
from kvsim.engine import kernel_places as k
from kvsim.engine.kernel_cache import load_kernels
from kvsim.kv.attention import ChunkedLocal, SlidingWindow, cdiv
from kvsim.kv.contiguous import (
    ContiguousManager,
    ContiguousMax,
    ContiguousOracle,
    ContiguousPow2,
)
from kvsim.kv.eviction import LRU
from kvsim.kv.paged import PagedManager
from kvsim.kv.usage import COLUMNS, HELD
from kvsim.results.tables import MEMORY, STEPS, FinishReason
from kvsim.results.totals import Totals
from kvsim.sched.orca import OrcaScheduler
from kvsim.sched.vllm import VllmScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.setup import Setup
    from kvsim.trace import Trace

MEMORY_MAP_BINS = 1024
#: Steps after which the kernel comes back, so that progress shows and Ctrl-C works.
STEPS_PER_CALL = 200_000
RESERVES: dict[type, int] = {ContiguousMax: 0, ContiguousPow2: 1, ContiguousOracle: 2}
PLACEMENTS = {"buddy": 1, "first": 2, "best": 3}

#: Fields of Totals, and columns of the requests table, by their places in the kernels' arrays.
INTEGRALS = {
    "unallocated_seconds": "UNALLOCATED_S",
    "cached_seconds": "CACHED_S",
    "usage_seconds": "USAGE_S",
    "running_seconds": "RUNNING_S",
    "waiting_seconds": "WAITING_S",
    "refused_seconds": "REFUSED_S",
    "running_while_refused_seconds": "RUNNING_REFUSED_S",
    "peak_usage": "PEAK_USAGE",
}
COUNTS = {
    "peak_running": "PEAK_RUNNING",
    "num_steps": "NUM_STEPS",
    "num_preemptions": "NUM_PREEMPTIONS",
    "num_recomputed_tokens": "NUM_RECOMPUTED",
    "num_allocation_failures": "NUM_FAILURES",
}
TIMES = {
    "arrival_time": "ARRIVAL",
    "first_scheduled_time": "FIRST_SCHEDULED",
    "first_token_time": "FIRST_TOKEN",
    "finish_time": "FINISH",
}
SAMPLED = ("num_running", "num_waiting", *(cause.column for cause in COLUMNS))
#: Settings that are floats; their places are in the array of floats.
FLOAT_SETTINGS = frozenset(
    {
        *("num_stages", "end_time", "constant_time", "step_time", "request_time", "stream_rate"),
        *("gemm_rate", "body_flops", "head_flops", "head_bytes", "pair_flops", "kv_rate"),
        *("prefill_rate", "gemm_ridge", "token_time", "decode_time", "decode_time_per_request"),
        *("mixed_decode", "mixed_tokens", "gemm_falloff", "prefill_time", "prefill_time_per_token"),
        *("one_shot", "one_shot_token", "two_shot", "two_shot_token", "token_bytes", "logit_bytes"),
        "prompt_pair_flops",
    }
)


def refusal(setup: Setup) -> str | None:
    """Why the kernels cannot run a configuration; None if they can."""
    config, kv, cost = setup.config, setup.kv, setup.cost
    if config.record_steps or config.check_invariants:
        return "record_steps and check_invariants need the Python backend"
    if type(cost) not in (RooflineCost, ConstantCost):
        return f"cost model {config.cost_model}"
    if isinstance(cost, RooflineCost) and not cost.work.one_class:
        return "chunked layers or layers of several kinds"
    if setup.kv_config.has_samples:
        return "requests of several sequences"
    if type(kv) is PagedManager and setup.scheduler_type is VllmScheduler:
        if len(kv.groups) != 1 or isinstance(kv.groups[0], ChunkedLocal):
            return "chunked layers or layers of several kinds"
        if isinstance(kv.groups[0], SlidingWindow) and config.record_memory_map:
            return "the memory map of a sliding window needs the Python backend"
        if type(kv.pool.eviction) is not LRU:
            return f"allocator {config.allocator}"
        return None
    if type(kv) in RESERVES and setup.scheduler_type is OrcaScheduler:
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
        self._index = index
        self._requests = requests
        self._on_end = on_end
        self._arrays = _new_arrays(setup, trace, start_time=start_time, end_time=end_time)
        self._m, self._f, _, self._maps = self._arrays

    def _ints(self, offset: int, count: int) -> NDArray[np.int64]:
        """View an array of integers by the place of its offset."""
        at = int(self._m[offset])
        return self._m[at : at + count]

    def _floats(self, offset: int, count: int) -> NDArray[np.float64]:
        at = int(self._m[offset])
        return self._f[at : at + count]

    @cached_property
    def _kernels(self) -> Any:
        return load_kernels()  # not before there is something to run

    @property
    def clock(self) -> float:
        """Time of the last event processed."""
        return float(self._f[k.CLOCK])

    def submit(  # noqa: D102 - see Backend
        self, request_ids: NDArray[np.int64], arrival_times: NDArray[np.float64]
    ) -> None:
        m, count = self._m, len(request_ids)
        at, n = int(m[k.NUM_ARRIVALS]), len(self._requests)
        self._ints(k.ARRIVAL_ID, n)[at : at + count] = request_ids
        self._floats(k.ARRIVAL_TIME, n)[at : at + count] = arrival_times
        m[k.NUM_ARRIVALS] += count
        m[k.OUTSTANDING] += count

    def num_outstanding(self) -> int:  # noqa: D102
        return int(self._m[k.OUTSTANDING])

    def num_cached_tokens(self, request: IncomingRequest) -> int:
        """Not there yet: routers that need it run on the Python backend.

        Raises
        ------
        NotImplementedError
            Always.
        """
        raise NotImplementedError("the compiled backend answers no prefix look-ups")

    def next_event_time(self) -> float:  # noqa: D102
        m, f = self._m, self._f
        clock, end_time = self.clock, float(f[k.END_TIME])
        if m[k.MUST_COMPLETE]:
            return float(f[m[k.BATCH_END] + m[k.FIRST_BATCH]])
        has_work = m[k.NUM_RUNNING] > 0 or m[k.NUM_WAITING] > 0
        if m[k.NUM_BATCHES] or (has_work and clock < end_time):
            return clock
        if m[k.NEXT_ARRIVAL] == m[k.NUM_ARRIVALS] or clock >= end_time:
            return math.inf
        return max(float(f[m[k.ARRIVAL_TIME] + m[k.NEXT_ARRIVAL]]), clock)

    def advance(self, horizon: float, *, until_finish: bool = False) -> int:  # noqa: D102
        m = self._m
        if not m[k.NUM_ARRIVALS]:
            return 0
        num_ended: int = 0
        with np.errstate(over="ignore"):  # 64-bit keys wrap around, also without compilation
            while True:
                ended = self._kernels.advance(*self._arrays, horizon, until_finish, STEPS_PER_CALL)
                num_ended += int(ended)
                if self._on_end is not None:
                    for _ in range(ended):
                        self._on_end()
                if m[k.OUTCOME] == k.STUCK:
                    raise RuntimeError(
                        f"invariant 7: {m[k.NUM_RUNNING]} running and {m[k.NUM_WAITING]} waiting "
                        f"requests at {self.clock} s but nothing can be scheduled"
                    )
                if m[k.OUTCOME] != k.PAUSED or (until_finish and num_ended):
                    return num_ended

    def settle(self, end_time: float) -> Totals:  # noqa: D102
        m, f = self._m, self._f
        if end_time > self.clock:
            self._kernels.pass_time(*self._arrays, end_time)
        self._write_requests()
        gaps = self._ints(k.GAPS, k.GAP_BINS)
        used = np.flatnonzero(gaps)
        integrals: dict[str, Any] = {
            name: float(f[getattr(k, place)]) for name, place in INTEGRALS.items()
        }
        counts: dict[str, Any] = {name: int(m[getattr(k, place)]) for name, place in COUNTS.items()}
        token_gaps = dict(zip(used.tolist(), gaps[used].tolist(), strict=True))
        held = {cause: float(f[getattr(k, f"{cause.name}_S")]) for cause in HELD}
        return Totals(held_seconds=held, token_gaps=token_gaps, **integrals, **counts)

    def _write_requests(self) -> None:
        table = self._requests
        n = len(table)
        ints = self._m[k.REQUESTS :][: n * k.RECORD].reshape(n, k.RECORD)
        floats = self._f[k.REQUESTS :][: n * k.RECORD].reshape(n, k.RECORD)
        rows = np.flatnonzero(ints[:, k.STATUS] != k.UNSEEN)
        table["replica"][rows] = self._index
        for name, place in TIMES.items():
            table[name][rows] = floats[rows, getattr(k, place)]
        output = ints[rows, k.NUM_TOKENS] - ints[rows, k.PROMPT]
        table["num_output_tokens"][rows] = output
        table["num_cached_tokens"][rows] = ints[rows, k.CACHED]
        table["num_preemptions"][rows] = ints[rows, k.PREEMPTIONS]
        finished = ints[rows, k.STATUS] == k.FINISHED
        reasons = np.where(finished, FinishReason.FINISHED, FinishReason.IN_FLIGHT)
        table["finish_reason"][rows] = reasons

    @property
    def memory(self) -> NDArray[Any]:
        """The memory table of this replica."""
        n = int(self._m[k.NUM_SAMPLES])
        table = np.zeros(n, dtype=MEMORY)
        table["time"], table["kv_usage"] = self._floats(k.SAMPLE_FLOATS, 2 * n).reshape(n, 2).T
        table["replica"] = self._index
        ints = self._ints(k.SAMPLE_INTS, 8 * n).reshape(n, 8)
        for column, name in enumerate(SAMPLED):
            table[name] = ints[:, column]
        return table

    @property
    def steps(self) -> NDArray[Any]:
        """Empty: rows per step need the Python backend."""
        return np.zeros(0, dtype=STEPS)

    @property
    def memory_map(self) -> NDArray[np.uint8]:
        """Cause per sample and address bin."""
        bins = int(self._m[k.BINS])
        n = int(self._m[k.NUM_SAMPLES]) if bins else 0
        return self._maps[: n * bins].reshape(n, bins).copy()


def _settings(setup: Setup, end_time: float) -> dict[str, float]:
    """Return the kernels' settings by name; those not named are 0."""
    kv, cost = setup.kv, setup.cost
    limits, memory = setup.scheduler_config, setup.kv_config
    values: dict[str, float] = {
        "block_size": kv.block_size,
        "max_model_len": limits.max_model_len,
        "max_active": limits.max_num_active_seqs or limits.max_num_seqs,
        "budget": limits.max_num_batched_tokens,
        "threshold": limits.long_prefill_token_threshold,
        "adaptive": limits.long_prefill_token_threshold_adaptive,
        "chunked": limits.enable_chunked_prefill,
        "by_priority": limits.policy == "priority",
        "asynchronous": limits.async_scheduling,
        "depth": setup.num_steps_in_flight,
        "bins": MEMORY_MAP_BINS * setup.config.record_memory_map,
        "num_stages": setup.config.pipeline_parallel_size,
        "end_time": end_time,
        "constant_time": -1.0,
    }
    if isinstance(kv, PagedManager):
        values |= {
            "placement": k.PAGED,
            "num_usable": kv.pool.num_usable,
            "unit_bytes": kv.bytes_per_block,
            "slot_bytes": kv.slot_bytes[0],
            "caching": kv.enable_prefix_caching,
            "watermark_blocks": kv.watermark_blocks,
            "reserve_full": kv.reserve_full_isl,
            "lookahead": kv.num_lookahead_tokens,
        }
        if isinstance(kv.groups[0], SlidingWindow):
            retention = kv.retention_interval
            values |= {
                "sliding": kv.groups[0].window,
                "admission_cap": kv.admission_caps[0] or 0,
                "segment": kv.block_size if retention is None else retention,
                "keeps_boundary": retention is not None,
            }
    elif isinstance(kv, ContiguousManager):
        values |= {
            "orca": True,
            "placement": PLACEMENTS[kv.fit],
            "reserve": RESERVES[type(kv)],
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
    return values


class _Layout:
    """Lays arrays out one after the other in a flat one, then fills them."""

    def __init__(self, num_scalars: int) -> None:
        self.size = num_scalars
        self._filled: list[tuple[int, int, Any]] = []

    def place(self, length: int, content: Any = 0) -> int:
        """Reserve room; content None is left as it is, for memory that is written before read."""
        at = self.size
        self.size += length
        if content is not None:
            self._filled.append((at, length, content))
        return at

    def align(self, unit: int) -> None:
        """Begin the next array at a multiple of ``unit``."""
        self.size += -self.size % unit

    def make(self, dtype: type) -> NDArray[Any]:
        """Make the flat array. Memory that is never touched is never really taken."""
        flat: NDArray[Any] = np.empty(self.size, dtype=dtype)
        for at, length, content in self._filled:
            flat[at : at + length] = content
        return flat


def _new_arrays(
    setup: Setup, trace: Trace, *, start_time: float, end_time: float
) -> tuple[NDArray[Any], ...]:
    """Make the kernels' arrays for a replica on which nothing has happened."""
    values = _settings(setup, end_time)
    n, slots = len(trace), int(values["max_active"])
    paged, usable = values["placement"] == k.PAGED, int(values["num_usable"])
    blocks = usable + 1 if paged else 1
    longest = cdiv(int(values["max_model_len"]), int(values["block_size"]))
    widest = longest if values.get("sliding") else min(longest, blocks)  # null blocks count
    width = widest + 1 if paged else 0
    orders = usable.bit_length() if values["placement"] == k.BUDDY else 2
    max_holes = 0 if paged else slots + 64
    depth = int(values["depth"]) + 1
    bins = int(values["bins"])
    by_priority, caching = values["by_priority"], values.get("caching", False)
    buckets = 1 << (2 * blocks - 1).bit_length() if caching else 1
    cost = setup.cost
    weights = cost.work.weight_bytes_by_tokens if isinstance(cost, RooflineCost) else [0.0]
    values |= {
        "max_holes": max_holes,
        "num_orders": orders,
        "num_blocks": blocks,
        "bucket_mask": buckets - 1,
        "max_batches": depth,
        "last_weight": len(weights) - 1,
    }
    ints, floats = _Layout(k.REQUESTS), _Layout(k.REQUESTS)
    ints.place(n * k.RECORD)
    floats.place(n * k.RECORD, math.nan)
    arrays: dict[str, int] = {}
    for name, content in {
        "OUTPUT_ID": trace.output_content_id,
        "SALT": trace.cache_salt,
        "SEGMENT_OFFSET": trace.segment_offsets,
        "SEGMENT_ID": trace.segment_content_id,
        "SEGMENT_START": trace.segment_start,
        "SEGMENT_LENGTH": trace.segment_num_tokens,
    }.items():
        arrays[name] = ints.place(len(content), content)
    first_slot = ints.place(slots * k.RECORD)
    handles = first_slot + k.RECORD * np.arange(slots)
    arrays["FREE_SLOTS"] = ints.place(slots, handles[::-1])
    arrays["RUN"] = ints.place(slots + 1)
    arrays["ARRIVAL_ID"] = ints.place(n, None)
    arrays["ASIDE"] = ints.place(n, None)
    arrays["HEAP"] = ints.place(n if by_priority else 0, None)
    tables = ints.place(slots * width, None)
    arrays["MAP_UNUSED"] = ints.place(blocks)
    ints.align(k.BLOCK_RECORD)
    arrays["BLOCKS"] = ints.place(blocks * k.BLOCK_RECORD)
    blocks_down = arrays["BLOCKS"] + k.BLOCK_RECORD * (np.arange(blocks, 0, -1) - 1)
    arrays["UNHASHED"] = ints.place(blocks, blocks_down)
    arrays["BUCKET"] = ints.place(buckets, -1)
    arrays["HOLES"] = ints.place(orders * max_holes)
    arrays["NUM_HOLES"] = ints.place(orders)
    for name in ("PHASE_FIRST", "PHASE_LAST", "PHASE_COUNT"):
        arrays[name] = ints.place(int(values["block_size"]))
    arrays["PHASE_NEXT"] = ints.place(2 * slots)
    for name in ["BATCH_REQUEST", "BATCH_TOKENS", "BATCH_UNFINISHED"]:
        arrays[name] = ints.place(depth * slots, None)
    arrays["BATCH_SIZE"] = ints.place(depth)
    arrays["SAMPLE_INTS"] = ints.place(k.MAX_SAMPLES * 8, None)
    arrays["GAPS"] = ints.place(k.GAP_BINS)
    arrays["ARRIVAL_TIME"] = floats.place(n, None)
    arrays["BATCH_END"] = floats.place(depth)
    arrays["SAMPLE_FLOATS"] = floats.place(k.MAX_SAMPLES * 2, None)
    arrays["WEIGHT_BYTES"] = floats.place(len(weights), np.array(weights))
    for name in ["MAP_FILLED", "MAP_LAST"]:
        arrays[name] = floats.place(blocks)
    m, f = ints.make(np.int64), floats.make(np.float64)
    u = np.empty(slots * width * bool(caching), dtype=np.uint64)
    maps = np.empty(k.MAX_SAMPLES * bins, dtype=np.uint8)
    m[: k.REQUESTS] = 0
    f[: k.REQUESTS] = 0.0
    requests = m[k.REQUESTS :][: n * k.RECORD].reshape(n, k.RECORD)
    requests[:, k.PROMPT] = trace.num_prompt_tokens
    longest_outputs = int(values["max_model_len"]) - trace.num_prompt_tokens
    requests[:, k.MAX_TOKENS] = np.minimum(trace.num_output_tokens, longest_outputs)
    requests[:, k.END] = requests[:, k.PROMPT] + requests[:, k.MAX_TOKENS]
    requests[:, k.PRIORITY] = trace.priority
    requests[:, k.STATUS] = k.UNSEEN
    block_records = m[arrays["BLOCKS"] :][: blocks * k.BLOCK_RECORD].reshape(blocks, -1)
    block_records[:, [k.CHAIN, k.COPY]] = -1
    records = m[first_slot:][: slots * k.RECORD].reshape(slots, k.RECORD)
    records[:, k.KEY_OWNER] = -1
    records[:, k.ROW] = tables + width * np.arange(slots)
    records[:, k.KEY_ROW] = width * np.arange(slots) * bool(caching)
    for name, place in arrays.items():
        m[getattr(k, name)] = place
    for name, value in values.items():
        place = getattr(k, name.upper())
        if name in FLOAT_SETTINGS:
            f[place] = value
        else:
            m[place] = value
    for name in ("QUEUE_HEAD", "QUEUE_TAIL", "LRU_HEAD", "LRU_TAIL"):
        m[getattr(k, name)] = -1
    m[k.STRIDE] = 1
    m[k.NUM_FREE_SLOTS] = slots
    m[k.NUM_UNHASHED] = blocks - 1
    f[k.CLOCK] = f[k.STAGE_FREE] = start_time
    f[k.LAST_TOKEN_TIME] = math.nan
    _lay_holes(m, int(values["placement"]), usable)
    return m, f, u, maps


def _lay_holes(m: NDArray[np.int64], placement: int, total: int) -> None:
    """Lay out an empty contiguous memory as kvsim.kv.address_space does."""
    holes, num_holes, row = int(m[k.HOLES]), int(m[k.NUM_HOLES]), int(m[k.MAX_HOLES])
    if placement == k.BUDDY:
        start = 0
        for order in range(int(m[k.NUM_ORDERS]) - 1, -1, -1):
            if total - start >= 1 << order:
                m[holes + order * row] = start
                m[num_holes + order] = 1
                start += 1 << order
    elif placement != k.PAGED and total:
        m[holes + row] = total
        m[num_holes] = 1
