"""One KV-cache group in a case, in the terms of the recorded schedules."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from kvsim.attention.mamba import Mamba
from kvsim.attention.spec import ATTENTION, AttentionSpec, all_specs
from kvsim.cases.part import Count, Part, Whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.cases.case import CaseConfig


def _checked(name: str) -> str:
    """Refuse a name that no kind of attention has."""
    ATTENTION.get(name)
    return name


#: The kind of attention of a group.
KindName = Annotated[str, AfterValidator(_checked)]


class Group(Part):
    """KV of a group of layers: its kind, window or chunk, and tokens per block."""

    type: KindName
    block_size: Count
    window: Count | None = None
    chunk: Count | None = None
    eagle: bool = False
    extra_retained: Whole = 0
    replay: bool = False
    mode: Literal["none", "align"] = "align"
    spec_blocks: Whole = 0
    checkpoint_blocks: Annotated[int, Field(ge=0, le=1)] = 0
    checkpoint_alignment: Count = 1

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = {field.name for field in fields(self._kind)} & {"window", "chunk"}
        if any(getattr(self, name) is None for name in names):
            raise ValueError(f"a {self.type} group needs its window or chunk")
        if (self.extra_retained or self.replay) and not self.type.startswith("sliding_window"):
            raise ValueError("extra_retained, replay: only groups with a sliding window have these")
        return self

    @classmethod
    def of(cls, spec: AttentionSpec) -> Group:
        names = {kind: name for name, kind in all_specs().items()}
        return cls(type=names[type(spec)], **vars(spec))

    @property
    def spec(self) -> AttentionSpec:
        kind = self._kind
        spec: AttentionSpec = kind(**{f.name: getattr(self, f.name) for f in fields(kind)})
        return spec

    @property
    def _kind(self) -> Any:
        return all_specs()[self.type]


def over_shards(group: Any, num_shards: int) -> Any:
    """Return a group with blocks counted over all ranks of context parallelism.

    Blocks of states, and of groups with ``dcp_sharded`` 0, stay unchanged: every rank holds all of
    them.
    """
    if not isinstance(group, dict) or group.get("type") == "mamba":
        return group
    sharded = group.get("dcp_sharded", 1)
    return {**group, "block_size": group["block_size"] * num_shards} if sharded else group


def conflicts(config: CaseConfig) -> Iterator[str]:
    """Return conflicts between groups of a case, or between groups and other settings."""
    specs = [group.spec for group in config.groups or ()]
    if len({spec.replay_window for spec in specs} - {0}) > 1:
        yield "groups: windows that are replayed have one length"
    unit = config.prefix_match_unit
    if unit is not None and any(spec.block_size % unit for spec in specs if spec.is_cached):
        yield f"prefix_match_unit: {unit} does not divide the block size of every group"
    is_plain = all(spec.is_cached and not spec.has_holes for spec in specs)
    if not is_plain and (config.scheduler != "vllm" or config.eviction != "lru"):
        yield "groups: rswa, ring, mamba and replay need scheduler vllm and eviction lru"
    states = [spec for spec in specs if isinstance(spec, Mamba)]
    if states:
        yield from _conflicts_of_states(config, states)


def _conflicts_of_states(config: CaseConfig, states: Sequence[Mamba]) -> Iterator[str]:
    mode = config.mamba_cache_mode or states[0].mode
    settings = {(one.mode, one.checkpoint_blocks, one.checkpoint_alignment) for one in states}
    if len(settings) > 1 or states[0].mode != mode:
        yield "mamba_cache_mode: all mamba groups have one mode, and the same checkpoints"
    if mode == "none" and config.enable_prefix_caching:
        yield "mamba_cache_mode: none keeps no states to hit; turn enable_prefix_caching off"
    if mode == "align" and not config.enable_chunked_prefill:
        yield "mamba_cache_mode: align cuts prompts into chunks; turn enable_chunked_prefill on"
