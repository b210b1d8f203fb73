"""A recorded schedule of SGLang: its file, and its requests as the rules read them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from kvsim.budget.layer import LayerKV
from kvsim.budget.layout import KVLayout, kv_dtype
from kvsim.cases.part import Count, Part, RecordedCase, Whole
from kvsim.cases.rows import contents_of_rows, num_tokens, numbers, offsets, output_segment, span
from kvsim.cost.constant import ConstantCost
from kvsim.engine.contents import text_ranks
from kvsim.engine.settings import by_name
from kvsim.engine.setup import Parts, make_kv
from kvsim.engines.sglang.budget import host_tokens
from kvsim.engines.sglang.cases.tokens import END_OF_SEQUENCE, pieces, prompt_pieces
from kvsim.engines.sglang.sched.adapters import AdapterSettings
from kvsim.engines.sglang.sched.scheduler import SglangScheduler
from kvsim.engines.sglang.sched.settings import SglangSettings, StateSettings
from kvsim.engines.sglang.sched.speculation import Algorithm, SpeculationSettings
from kvsim.engines.sglang.server_options import EVICTION_NUMBERS
from kvsim.engines.sglang.states import Strategy
from kvsim.kv.allocator_spec import AllocatorSpec
from kvsim.kv.manager import KVCacheConfig
from kvsim.sched.scheduler import SchedulerConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.cases.rows import Span
    from kvsim.engine.contents import Contents

#: Settings that None switches off; for others None means the default.
OFF = ("chunked_prefill_size", "prefill_max_requests")


class WindowPool(Part):
    """The pool of sliding-window layers: window and size in tokens."""

    window: Count
    size: Count


class HostTier(Part):
    """Host memory: its size in tokens or as a ratio to the pool's, and its write policy."""

    write_policy: Literal["write_through", "write_through_selective", "write_back"]
    ratio: float = 2.0
    size: Count | None = None

    def slots(self, pool: int, page_size: int) -> int:
        """Return the number of tokens that the host tier holds."""
        return self.size or host_tokens(int(pool * self.ratio), page_size)


class StatePart(Part):
    """The pool of Mamba or linear-attention states, and the strategy of caching them."""

    strategy: Strategy
    chunk: Count
    track_interval: Count
    slots: Count
    max_states_per_path: int = -1

    @property
    def settings(self) -> StateSettings:
        return StateSettings(**by_name(StateSettings, self))


class AdapterPart(Part):
    """Buffers for adapters. Loads that overlap with steps take ``load_passes`` passes."""

    max: Count
    policy: Literal["lru", "fifo"]
    pinned: list[str] = Field(default=[])
    load_passes: Count | None = None
    drain: Count | None = None

    @property
    def settings(self) -> AdapterSettings:
        return AdapterSettings(
            self.max,
            self.policy,
            enable_lora_overlap_loading=self.load_passes is not None,
            load_time=self.load_passes or 0,
            by_passes=True,
            pinned=tuple(adapter_number(one) for one in self.pinned),
            lora_drain_wait_threshold=self.drain or 0.0,
        )


class SpeculationPart(Part):
    """Speculative decoding: the shape of the drafts, and the tokens that a step verifies."""

    algorithm: Algorithm
    topk: Count
    steps: Count
    draft_tokens: Count

    @property
    def settings(self) -> SpeculationSettings:
        return SpeculationSettings(self.algorithm, self.steps, self.topk, self.draft_tokens)


def adapter_number(name: str | None) -> int:
    """Return the number of an adapter that is named by a letter; 0 is the base model."""
    return 0 if name is None else 1 + ord(name[0]) - ord("A")


def adapter_name(number: int) -> str | None:
    """Return the name of an adapter, None for the base model."""
    return chr(ord("A") + number - 1) if number else None


class SglangCaseConfig(Part):
    """Settings of a schedule; names are SGLang's. ``chunked_prefill_size`` None is off."""

    page_size: Count
    max_total_num_tokens: Count
    max_running_requests: Count
    chunked_prefill_size: Count | None
    max_prefill_tokens: Count
    schedule_policy: str
    schedule_conservativeness: float
    enable_mixed_chunk: bool
    overlap: bool
    radix_eviction_policy: str
    disable_radix_cache: bool
    enable_priority_scheduling: bool
    schedule_low_priority_values_first: bool
    priority_scheduling_preemption_threshold: int
    disable_priority_preemption: bool
    retraction_policy: Literal["length", "priority"]
    prefill_max_requests: Count | None = None
    max_queued_requests: Count | None = None
    prefill_decode_interval: Whole | None = None
    prefill_decode_interval_min_bs: Whole | None = None
    min_free_slots_delay: Whole | None = None
    scheduler_recv_interval: Count | None = None
    context_length: Count
    swa: WindowPool | None = None
    hicache: HostTier | None = None
    mamba: StatePart | None = None
    lora: AdapterPart | None = None
    spec: SpeculationPart | None = None
    eviction_config: dict[str, int] = Field(default={})

    @property
    def settings(self) -> SglangSettings:
        given = by_name(SglangSettings, self)
        given = {name: value for name, value in given.items() if value is not None or name in OFF}
        states = self.mamba.settings if self.mamba else None
        given["speculation"] = self.spec.settings if self.spec else None
        given |= {"states": states, "adapters": self.lora.settings if self.lora else None}
        return SglangSettings(**given, disable_overlap_schedule=not self.overlap)


class SglangCaseRequest(Part):
    """A request: output token j is token j of ``out_seg``; output token ``stop_at`` is EOS.

    It is aborted in pass ``abort_at``, after the arrivals of the pass.
    """

    id: str
    arrival: Whole
    segments: Annotated[list[list[int]], Field(min_length=1)]
    max_new: Whole
    stop_at: Count | None = None
    ignore_eos: bool = False
    priority: int = 0
    extra_key: str | None = None
    lora: str | None = None
    acc: list[Count] | None = None
    out_seg: int | None = None
    abort_at: Whole | None = None


class SglangWorkload(Part):
    """The requests; arrivals of the same pass keep the list's order."""

    requests: Annotated[list[SglangCaseRequest], Field(min_length=1)]


class SglangCase(RecordedCase):
    """A workload, its configuration and the log entry of every pass of the loop."""

    engine: ClassVar[str] = "sglang"
    sglang: str
    config: SglangCaseConfig
    workload: SglangWorkload
    steps: Annotated[list[dict[str, Any]], Field(min_length=1)]
    totals: dict[str, Any] = Field(default={})


class RadixCaseConfig(Part):
    """A pool, and its eviction order."""

    page_size: Count
    size: Count
    policy: str
    policy_config: dict[str, int] | None = None
    write_policy: Any = None
    host_size: int | None = None
    slots: Count | None = None
    chunk: Count = 64
    max_states_per_path: int = -1

    @property
    def tier(self) -> HostTier | None:
        """The memory of the host, None without a host tier."""
        if self.write_policy is None:
            return None
        return HostTier(write_policy=self.write_policy, size=self.host_size)

    @property
    def schedule(self) -> SglangCaseConfig:
        """The configuration of a schedule over the same tree."""
        return SglangCaseConfig(
            page_size=self.page_size,
            max_total_num_tokens=self.size,
            max_running_requests=1,
            chunked_prefill_size=None,
            max_prefill_tokens=16384,
            schedule_policy="fcfs",
            schedule_conservativeness=1.0,
            enable_mixed_chunk=False,
            overlap=False,
            radix_eviction_policy=self.policy,
            disable_radix_cache=False,
            enable_priority_scheduling=False,
            schedule_low_priority_values_first=False,
            priority_scheduling_preemption_threshold=10,
            disable_priority_preemption=False,
            retraction_policy="length",
            context_length=1 << 30,
            eviction_config=self.policy_config or {},
            hicache=self.tier,
            mamba=self._states,
        )

    @property
    def _states(self) -> StatePart | None:
        if self.slots is None:
            return None
        return StatePart(
            strategy="extra_buffer",
            chunk=self.chunk,
            track_interval=self.chunk,
            slots=self.slots,
            max_states_per_path=self.max_states_per_path,
        )


class RadixCase(RecordedCase):
    """Operations on a tree, and the log entry of each."""

    engine: ClassVar[str] = "sglang"
    sglang: str
    config: RadixCaseConfig
    ops: Annotated[list[list[Any]], Field(min_length=1)]
    log: Annotated[list[dict[str, Any]], Field(min_length=1)]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The entries of the log, each with the number ``s`` of its operation."""
        return [{"s": k, **entry} for k, entry in enumerate(self.log)]


def tokens_layout(window: int | None = None) -> KVLayout:
    """Return a layout of one byte per token, and one more in a layer with a sliding window."""
    windowed = () if window is None else (LayerKV("sliding", window, 1),)
    return KVLayout((LayerKV("full", None, 1), *windowed), kv_dtype("bf16"), 0)


def parts_of(config: SglangCaseConfig) -> Parts:
    """Return the parts of the replica of a case.

    Raises
    ------
    ValueError
        For parts of SGLang that kvsim has no rules for.
    """
    settings, swa, tier = config.settings, config.swa, config.hicache
    if swa and tier:
        raise ValueError("config: the host tier is not modelled with sliding windows")
    kv_config = KVCacheConfig(
        layout=tokens_layout(swa.window if swa else None),
        num_bytes=config.max_total_num_tokens + (swa.size if swa else 0),
        window_slots=swa.size if swa else None,
        host_slots=tier.slots(config.max_total_num_tokens, config.page_size) if tier else 0,
        write_policy=tier.write_policy if tier else "write_through",
        block_size=config.page_size,
        max_model_len=config.context_length,
        enable_prefix_caching=not config.disable_radix_cache,
    )
    given = config.eviction_config
    numbers_of = {EVICTION_NUMBERS.get(name, name): value for name, value in given.items()}
    allocator = AllocatorSpec("radix", {"eviction": config.radix_eviction_policy, **numbers_of})
    limits = SchedulerConfig(
        max_model_len=config.context_length,
        max_num_seqs=config.max_running_requests,
        max_num_batched_tokens=config.max_prefill_tokens,
        async_scheduling=config.overlap,
        engine_settings=settings,
    )
    return Parts(
        allocator=allocator,
        scheduler="sglang",
        scheduler_type=SglangScheduler,
        kv_config=kv_config,
        scheduler_config=limits,
        num_steps_in_flight=1 + config.overlap,
        kv=make_kv(allocator, kv_config),
        cost=ConstantCost(None, seconds=1.0),
    )


def contents_of(requests: Sequence[SglangCaseRequest]) -> Contents:
    """Return the requests by row; their segments include the outputs, with EOS."""
    contents = [prompt_pieces(r.segments) + _output(row, r) for row, r in enumerate(requests)]
    lists: dict[str, Any] = {
        "num_prompt_tokens": [num_tokens(map(span, r.segments)) for r in requests],
        "max_tokens": [r.max_new for r in requests],
        "segment_offsets": offsets(contents),
        "output_content_id": [2 + row for row in range(len(requests))],
        "priority": [r.priority for r in requests],
        "cache_salt": numbers(
            (r.extra_key, r.lora) if r.extra_key or r.lora else None for r in requests
        ),
        "id_rank": text_ranks(r.id for r in requests),
        "stop_at": [r.stop_at or 0 for r in requests],
        "ignores_eos": [int(r.ignore_eos) for r in requests],
    }
    return contents_of_rows(lists | _seldom(requests), [*chain.from_iterable(contents)])


def _seldom(requests: Sequence[SglangCaseRequest]) -> dict[str, Any]:
    """Return the lists that few cases have."""
    lists: dict[str, Any] = {}
    if any(r.lora for r in requests):
        lists["lora"] = [adapter_number(r.lora) for r in requests]
    if any(r.acc for r in requests):
        accepted = [[a - 1 for a in r.acc or ()] for r in requests]
        lists["accepts"], lists["accept_offsets"] = [*chain(*accepted)], offsets(accepted)
    return lists


def _output(row: int, request: SglangCaseRequest) -> list[Span]:
    out, length = output_segment(request.out_seg, row), request.max_new + 2
    if request.stop_at is None:
        return pieces(out, 0, length)
    end = [(END_OF_SEQUENCE, 0, 1), *pieces(out, request.stop_at, length)]
    return pieces(out, 0, request.stop_at - 1) + end
