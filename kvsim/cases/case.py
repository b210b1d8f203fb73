"""A case: a small workload, a configuration, and the log of every step of its schedule.

The form is that of the recorded schedules of the real vLLM 0.33, plain JSON; fields for
other allocators and schedulers are optional.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from kvsim.attention.full import FullAttention
from kvsim.budget.layer import LayerKV
from kvsim.budget.layout import KVLayout, kv_dtype
from kvsim.cases.group import Group, conflicts, over_shards
from kvsim.cases.part import Count, Part, RecordedCase, Whole
from kvsim.cases.transfer import ConnectorPart, Transfer, offloading_conflicts
from kvsim.engine.settings import by_name
from kvsim.features.feature import chosen_features
from kvsim.features.options import FeatureOptions
from kvsim.files import write_whole, writing
from kvsim.kv.allocator_spec import parse_allocator
from kvsim.kv.attention import plan_of
from kvsim.kv.manager import KVCacheConfig
from kvsim.lora import LoRAConfig
from kvsim.sched.encoder import EncoderConfig
from kvsim.sched.scheduler import SchedulerConfig
from kvsim.speculation import MAX_DRAFTS, Lookahead, Method, SpeculativeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.records.connector import Connector
    from kvsim.records.offloading import Offloading

Layer = tuple[str, Count | None, Count] | tuple[str, Count | None, Count, Count]


class Encoder(Part):
    """The encoder of a multimodal model: token limits of a step and of its cache."""

    budget: Whole
    cache_size: Whole
    disable_chunked_mm_input: bool = False


class Item(Part):
    """A part of a prompt that the encoder computes; equal hashes mean equal contents."""

    hash: str
    offset: Whole
    length: Count


class Spec(Part):
    """Speculative decoding, with the field names of the recorded cases."""

    method: Method
    k: Annotated[int, Field(ge=1, le=MAX_DRAFTS)]
    disable_lookahead_block_hashes: bool = False
    disable_eagle_block_drop: bool = False
    mtp_modules: Count = 1
    parallel_drafting: bool = False
    per_batch_size: list[tuple[Count, Count, Whole]] | None = None

    @property
    def config(self) -> SpeculativeConfig:
        """The settings as a :class:`SpeculativeConfig`."""
        return SpeculativeConfig(
            num_speculative_tokens=self.k,
            num_speculative_tokens_per_batch_size=tuple(self.per_batch_size or ()),
            **self.model_dump(exclude={"k", "per_batch_size"}),
        )


class CaseConfig(Part, Lookahead, FeatureOptions):
    """Settings that determine the schedule; names and defaults are vLLM's.

    ``num_gpu_blocks`` includes the null block; ``groups`` None is one full-attention group. With
    ``summary`` the log keeps counts and checksums instead of names. kvsim adds ``allocator`` and
    ``scheduler``, as on the command line; ``clock_ties``, False if ids break ties of equal arrival
    times; the ``eviction`` policy; and ``preemption_mode``, with ``num_cpu_blocks`` for swapping.
    Allocators other than ``paged`` need ``kv_cache_bytes`` and ``layers`` as (kind, window, bytes
    per token[, tensors: 1 for MLA's latent, else 2]); for swapping also ``swap_space_bytes``.
    ``num_cache_shards`` is read from vLLM's ``dcp``; a block then has the tokens of all ranks.
    """

    num_gpu_blocks: Whole
    max_num_seqs: Count
    max_num_batched_tokens: Count
    max_model_len: Count
    block_size: Count = 16
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: Whole = 0
    long_prefill_token_threshold_adaptive: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    max_num_active_seqs: Count | None = None
    groups: Annotated[list[Group], Field(min_length=1)] | None = None
    mamba_cache_mode: Literal["none", "align"] | None = None
    prefix_match_unit: Count | None = None
    mamba_shared_prefix_checkpoint: bool = False
    num_cache_shards: Count = 1
    retention_interval: Whole | None = 0
    summary: bool = False
    clock_ties: bool = True
    allocator: str = "paged"
    scheduler: str = "vllm"
    eviction: str = "lru"
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    num_cpu_blocks: Whole = 0
    pipeline_parallel_size: Count = 1
    max_num_scheduled_tokens: Count | None = None
    lora: LoRAConfig | None = None
    spec: Spec | None = None
    connector: ConnectorPart | None = None
    encoder: Encoder | None = None
    kv_events: bool = False
    resets: list[tuple[Whole, bool]] = Field(default=[])
    pauses: list[tuple[Whole, Annotated[int, Field(ge=0, le=2)]]] = Field(default=[])
    kv_cache_bytes: Whole | None = None
    layers: Annotated[list[Layer], Field(min_length=1)] | None = None
    swap_space_bytes: Whole = 0

    @model_validator(mode="before")
    @classmethod
    def _with_whole_blocks(cls, data: Any) -> Any:
        """Replace the per-rank blocks of context parallelism by blocks over all ranks."""
        shards = data.get("dcp", 1) if isinstance(data, dict) else 1
        if not isinstance(shards, int) or shards <= 1:
            return data
        data = {name: value for name, value in data.items() if name != "dcp"}
        if data.get("groups") is None:
            data["block_size"] = shards * data.get("block_size", 16)
        else:
            data["groups"] = [over_shards(group, shards) for group in data["groups"]]
        return {**data, "num_cache_shards": shards}

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        for conflict in chain(self._conflicts(), self._connector_conflicts(), conflicts(self)):
            raise ValueError(conflict)
        return self

    def _conflicts(self) -> Iterator[str]:
        is_paged = self.allocator == "paged"
        if not is_paged and (self.layers is None or self.kv_cache_bytes is None):
            yield f"allocator {self.allocator!r} needs layers and kv_cache_bytes"
        for name in ("spec", "lora", "encoder", "connector", "resets", "pauses"):
            if getattr(self, name) and self.scheduler != "vllm":
                yield f"{name}: scheduler {self.scheduler!r} knows none; vllm does"
        if self.spec is not None and not is_paged:
            yield f"spec: allocator {self.allocator!r} keeps no slots for drafts"
        if self.resets and not is_paged:
            yield f"resets: allocator {self.allocator!r} has no prefix cache; paged has"

    def _connector_conflicts(self) -> Iterator[str]:
        if self.connector is None:
            return
        needed = {"allocator": "paged", "scheduler": "vllm", "preemption_mode": "recompute"}
        for name, value in needed.items():
            if (given := getattr(self, name)) != value:
                yield f"connector: {name} {given!r} cannot transfer KV; {value} can"
        if self.connector.kind == "offloading":
            yield from offloading_conflicts(self)

    @property
    def num_steps_in_flight(self) -> int:
        """Largest number of steps in flight."""
        return self.pipeline_parallel_size + self.async_scheduling

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """Speculative decoding, or None. With a connector, block keys have no lookahead."""
        if self.spec is None:
            return None
        plain = {} if self.connector is None else {"disable_lookahead_block_hashes": True}
        return self.spec.model_copy(update=plain).config

    @property
    def kv_transfer(self) -> Connector | None:
        return None if self.connector is None else self.connector.settings

    @property
    def offloading(self) -> Offloading | None:
        """The host cache of a connector, or None."""
        if self.connector is None:
            return None
        return self.connector.offloading(len(self.groups or (None,)))

    @property
    def encoder_inputs(self) -> EncoderConfig | None:
        """Encoder limits of a step, None without an encoder."""
        return None if self.encoder is None else EncoderConfig(**vars(self.encoder))

    @property
    def scheduler_config(self) -> SchedulerConfig:
        """Settings of the scheduler, from the fields with equal names."""
        return SchedulerConfig(**by_name(SchedulerConfig, self), features=chosen_features(self))

    @property
    def kv_config(self) -> KVCacheConfig:
        if self.layers is None or self.kv_cache_bytes is None:  # sized in blocks, a byte per slot
            groups = [group.spec for group in self.groups or ()]
            specs = tuple(groups or [FullAttention(self.block_size)])
            plan = plan_of(specs)
            layout = KVLayout((LayerKV("full", None, 1),), kv_dtype("bf16"), 0)
            num_bytes = self.num_gpu_blocks * plan.bytes_per_block
            swap_space_bytes = self.num_cpu_blocks * plan.bytes_per_block
        else:
            plan, num_bytes, swap_space_bytes = None, self.kv_cache_bytes, self.swap_space_bytes
            specs = ()
            dtype = kv_dtype(parse_allocator(self.allocator).kv_cache_dtype or "bf16")
            layout = KVLayout(tuple(LayerKV(*layer) for layer in self.layers), dtype, 0)
        resolved: dict[str, Any] = {"swap_space_bytes": swap_space_bytes}
        if self.speculation is not None:
            flagged = tuple(g for g, group in enumerate(self.groups or ()) if group.eagle)
            resolved |= by_name(KVCacheConfig, self.speculation) | {"draft_groups": flagged}
        return KVCacheConfig(
            **by_name(KVCacheConfig, self) | resolved,
            layout=layout,
            num_bytes=num_bytes,
            max_in_flight_tokens=self.num_steps_in_flight * self.max_num_batched_tokens,
            reserve_full_isl=self.scheduler_reserve_full_isl,
            prefix_cache_retention_interval=self.retention_interval,
            events=self.kv_events,
            plan=plan,
            specs=specs,
        )


Pieces = list[tuple[int, Count] | tuple[int, Whole, Count]]
#: An update of a session: step, segments and max_tokens of an input; or the step of its end.
Update = tuple[Whole, Pieces, Count] | tuple[Whole]


class CaseRequest(Part):
    """One request. Token i of a segment is a function of (segment, i) alone.

    ``segments`` are [segment, num_tokens] or [segment, start, num_tokens]; output token j is token
    j of ``out_seg``. The request joins the queue at the start of step ``arrival_step``. ``lora``
    names its adapter; its grammar is compiled ``grammar_steps`` after ``arrival_step``. ``accept``
    is the number of accepted drafts per verification, ``drafts`` the number of proposed ones per
    step; both repeat. The request is aborted at the start of ``abort_step``, unless it has ended.
    ``kv`` is its transfer, ``mm`` the parts of its prompt that an encoder computes, by offset.
    Output token number ``stop_at`` is a stop token (0: none; with ``num_samples`` above 1, a list
    of numbers). With ``skip_read`` it uses no cached blocks. ``updates`` make it a session.
    """

    id: str | int
    arrival_step: Whole
    segments: Annotated[Pieces, Field(min_length=1)]
    max_tokens: Count
    priority: int = 0
    arrival_time: float | None = None
    cache_salt: str | int | None = None
    out_seg: int | None = None
    lora: str | int | None = None
    grammar_steps: Whole | None = None
    accept: list[Whole] | None = None
    drafts: list[Whole] | None = None
    abort_step: Whole | None = None
    kv: Transfer | None = None
    mm: list[Item] = Field(default=[])
    skip_read: bool = False
    updates: list[Update] = Field(default=[])
    num_samples: Count = 1
    stop_at: Whole | list[Whole] = 0

    def conflicts(self, max_model_len: int) -> Iterator[str]:
        length = sum(segment[-1] for segment in self.segments)
        if length >= max_model_len:
            yield "its prompt is not below max_model_len"
        ends = [0, *(item.offset + item.length for item in self.mm), length]
        starts = [0, *(item.offset for item in self.mm), length]
        if sorted(starts) != starts or max(ends) > length:
            yield "mm must lie in the prompt, by offset"
        if isinstance(self.stop_at, list) and len(self.stop_at) != self.num_samples:
            yield "stop_at must be one, or one per sample"


class Workload(Part):
    """The requests; arrivals of the same step keep the list's order."""

    requests: Annotated[list[CaseRequest], Field(min_length=1)]


class Case(RecordedCase):
    """A workload, its configuration and its steps; docs/reference/files.md lists the fields."""

    config: CaseConfig
    workload: Workload
    steps: Annotated[list[dict[str, Any]], Field(min_length=1)]
    totals: dict[str, Any] = Field(default={})

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        ids = [str(request.id) for request in self.workload.requests]
        if len(set(ids)) < len(ids):
            raise ValueError("two requests have the same id")
        for request in self.workload.requests:
            for conflict in request.conflicts(self.config.max_model_len):
                raise ValueError(f"request {request.id}: {conflict}")
        for number, step in enumerate(self.steps):
            if not isinstance(step.get("s"), int):
                raise ValueError(f"steps[{number}] has no step number s")
        return self


def write_case(case: Case, path: str | Path) -> None:
    """Write a case as JSON, whole or not at all."""
    content = case.model_dump()
    content["workload"] = case.workload.model_dump(exclude_defaults=True)
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    with writing(path):
        write_whole(Path(path), lambda file: file.write(text.encode()))
