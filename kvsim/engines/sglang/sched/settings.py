"""Settings of SGLang's scheduler, and the layout of its state."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from random import Random
from typing import TYPE_CHECKING, Literal

from kvsim.engines.engine import EngineSettings
from kvsim.engines.sglang.records.scheduler import Order
from kvsim.engines.sglang.records.storage import Storage  # noqa: TC001 - a field of a dataclass
from kvsim.engines.sglang.rules.pacing import count_pass
from kvsim.engines.sglang.sched.adapters import AdapterSettings  # noqa: TC001 - likewise
from kvsim.engines.sglang.sched.speculation import SpeculationSettings  # noqa: TC001 - likewise
from kvsim.engines.sglang.server_options import SchedulePolicy  # noqa: TC001 - likewise
from kvsim.engines.sglang.states import Strategy  # noqa: TC001 - likewise
from kvsim.records.memory import assign
from kvsim.records.queue import Neighbours

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.engines.sglang.records.scheduler import Delayer
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory

#: Policies that match every waiting request with the tree.
CACHE_AWARE = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")

#: SGLang's environment constants: initial ratio, factor for its minimum, steps between the two.
INIT_RATIO, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600


@dataclass(frozen=True)
class DelayerSettings:
    """Limits of the delay of prefills; names are SGLang's, less the prefix ``prefill_delayer_``.

    With ``queue_min_ratio`` None, prefills are delayed only for places in the running batch.
    """

    token_usage_low_watermark: float | None = None
    queue_min_ratio: float | None = None
    max_delay_ms: float = 5000.0

    def init_state(self, delayer: Delayer) -> None:
        """Write the limits into a free record."""
        delayer.is_on = True
        delayer.low_usage = self.token_usage_low_watermark or 0.0
        delayer.queue_ratio = self.queue_min_ratio or 0.0
        delayer.most_waited = self.max_delay_ms / 1000


@dataclass(frozen=True)
class StateSettings:
    """Slots for states, and the strategy that caches them in the tree (mamba_radix_cache_strategy).

    ``chunk`` is the kernels' mamba_chunk_size, ``track_interval`` the tokens between two states of
    a decode; ``max_states_per_path`` -1 is no limit.
    """

    slots: int
    strategy: Strategy
    chunk: int = 64
    track_interval: int = 256
    max_states_per_path: int = -1

    def init_state(self, tree: Radix, memory: Memory, *, overlap: bool) -> None:
        """Add a free pool of states to a tree that is laid out."""
        tree.has_states, states, size = True, tree.states, tree.pages.page_size
        tree.recent_places = memory.room(Neighbours, tree.pages.num_pages + 2)
        states.num_slots = states.num_left = self.slots
        states.free = memory.list_of(range(1, self.slots + 1))
        states.group = memory.ints(self.slots)
        states.most_per_path = self.max_states_per_path
        states.chunk, states.step = self.chunk, max(self.chunk, size)
        states.interval = lcm(states.step, self.track_interval)
        states.is_lazy = self.strategy == "extra_buffer_lazy"
        if tree.enabled and self.strategy != "no_buffer":
            states.num_places = 1 + (overlap or states.is_lazy)


@dataclass(frozen=True)
class SglangSettings(EngineSettings):
    """Settings of SGLang's scheduler; names and defaults are SGLang's, except for None.

    ``chunked_prefill_size`` None: no chunking; ``prefill_max_requests`` and
    ``max_queued_requests`` None: no limit.
    ``max_new_tokens`` is that of every request; None: the request's output length.
    """

    page_size: int
    max_total_num_tokens: int
    max_running_requests: int
    context_length: int
    chunked_prefill_size: int | None = 8192
    max_prefill_tokens: int = 16384
    prefill_max_requests: int | None = None
    max_queued_requests: int | None = None
    prefill_decode_interval: int = 0
    prefill_decode_interval_min_bs: int = 0
    min_free_slots_delay: int = 0
    scheduler_recv_interval: int = 1
    schedule_policy: SchedulePolicy = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    disable_overlap_schedule: bool = False
    disable_radix_cache: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    disable_priority_preemption: bool = False
    retraction_policy: Literal["length", "priority"] = "length"
    max_new_tokens: int | None = None
    ignore_eos: bool = False
    random_seed: int = 0
    storage: Storage | None = None
    states: StateSettings | None = None
    adapters: AdapterSettings | None = None
    delayer: DelayerSettings | None = None
    speculation: SpeculationSettings | None = None

    def __post_init__(self) -> None:
        chunk = self.chunked_prefill_size
        if chunk is not None and chunk % self.page_size:
            raise ValueError(
                f"chunked_prefill_size is {chunk}: must be a multiple of page_size {self.page_size}"
            )
        if self.disable_radix_cache and self.schedule_policy == "shortest-prefill-first":
            raise ValueError(
                "schedule_policy: shortest-prefill-first conflicts with disable_radix_cache"
            )

    @property
    def order(self) -> Order:
        """The effective policy: without a tree, policies do not use prefix matches."""
        policy = self.schedule_policy
        if self.disable_radix_cache and policy in CACHE_AWARE:
            policy = "fcfs"
        return Order[policy.upper().replace("-", "_")]

    def init_state(self, state: Replica, memory: Memory) -> None:
        scheduler = state.engines.sglang
        assign(scheduler, self)
        scheduler.pool_size = self.max_total_num_tokens
        scheduler.context_len = self.context_length
        scheduler.max_running = self.max_running_requests
        scheduler.chunk_size = self.chunked_prefill_size or 0
        scheduler.mixes = self.enable_mixed_chunk and self.chunked_prefill_size is not None
        by_priority = self.enable_priority_scheduling
        scheduler.by_priority = by_priority
        scheduler.sign = 1 if self.schedule_low_priority_values_first else -1
        scheduler.preempts = by_priority and not self.disable_priority_preemption
        scheduler.threshold = self.priority_scheduling_preemption_threshold
        scheduler.max_queued = self.max_queued_requests or 0
        scheduler.recv_interval = self.scheduler_recv_interval
        count_pass(scheduler)
        scheduler.decode_interval = self.prefill_decode_interval
        scheduler.decode_interval_min = self.prefill_decode_interval_min_bs
        slots = min(self.min_free_slots_delay, self.max_running_requests)
        scheduler.min_free_slots = slots if slots > 1 else 0
        scheduler.retracts_by_priority = self.retraction_policy == "priority"
        initial = min(INIT_RATIO * self.schedule_conservativeness, 1.0)
        scheduler.init_ratio, scheduler.min_ratio = initial, min(MIN_FACTOR * initial, 1.0)
        scheduler.decay = (initial - scheduler.min_ratio) / DECAY_STEPS
        scheduler.ratio = initial
        if scheduler.order == Order.RANDOM:
            *words, scheduler.num_drawn = Random(self.random_seed).getstate()[1]
            scheduler.words = memory.list_of(words)
        most = self.max_running_requests
        for name in ("running", "last", "admitted", "preempted", "states_held"):
            setattr(scheduler, name, memory.ints(2 * most + 2))
        scheduler.states_left = memory.floats(2 * most + 2)
        if self.states is not None:
            overlap = not self.disable_overlap_schedule
            self.states.init_state(state.kv.radix, memory, overlap=overlap)
        if self.adapters is not None:
            self.adapters.init_state(state, memory)
        if self.delayer is not None:
            self.delayer.init_state(scheduler.delayer)
        if self.speculation is not None:
            self.speculation.init_state(state, memory)
        scheduler.rows, scheduler.num_rows = memory.list_of(range(1, most + 1)), most

    def init_rows(self, state: Replica, memory: Memory, num_rows: int) -> None:
        if self.storage is None:
            return
        storage = state.storage
        assign(storage, self.storage)
        storage.offered, storage.held = memory.ints(num_rows), memory.ints(num_rows)
        storage.base, storage.token_time = memory.floats(num_rows), memory.floats(num_rows)

    def check_open_trace(self) -> None:
        if self.storage is not None:
            raise ValueError("hicache_storage_backend: needs a trace; use simulate")
