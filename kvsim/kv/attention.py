"""Kinds of attention, as a KV-cache group has them; their rules are in :mod:`kvsim.rules`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from kvsim.budget.planner import KVGroup, KVPlan
from kvsim.records.paged import CHUNKED, FULL, SLIDING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class FullAttention:
    """Every token sees all before it: nothing is dropped while the request lives."""

    block_size: int
    kind: ClassVar[int] = FULL
    window: ClassVar[int] = 0


@dataclass(frozen=True)
class SlidingWindow:
    """A token sees itself and the ``window - 1`` tokens before it."""

    block_size: int
    window: int
    kind: ClassVar[int] = SLIDING


@dataclass(frozen=True)
class ChunkedLocal:
    """A token sees only its own chunk of ``chunk`` tokens (Llama 4's local layers)."""

    block_size: int
    chunk: int
    kind: ClassVar[int] = CHUNKED

    @property
    def window(self) -> int:
        """Tokens of a chunk."""
        return self.chunk


AttentionSpec: TypeAlias = FullAttention | SlidingWindow | ChunkedLocal


def attention_spec(group: KVGroup) -> AttentionSpec:
    """Return the rules for a group of the planner."""
    if group.window is None:
        return FullAttention(group.block_size)
    if group.kind == "sliding":
        return SlidingWindow(group.block_size, group.window)
    return ChunkedLocal(group.block_size, group.window)


def group_of(spec: AttentionSpec, slot_bytes: int = 1) -> KVGroup:
    """Return a planner's group that has these rules."""
    if isinstance(spec, SlidingWindow):
        return KVGroup("sliding", spec.window, spec.block_size, 1, slot_bytes)
    if isinstance(spec, ChunkedLocal):
        return KVGroup("chunked", spec.chunk, spec.block_size, 1, slot_bytes)
    return KVGroup("full", None, spec.block_size, 1, slot_bytes)


def plan_of(specs: Sequence[AttentionSpec]) -> KVPlan:
    """Return the plan of given groups, a byte per slot; the largest block sets the block's size."""
    return KVPlan(tuple(map(group_of, specs)), max(spec.block_size for spec in specs))
