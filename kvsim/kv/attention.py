"""Kinds of attention as groups of the memory plan, and the plan of given kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.attention.spec import kind_of_layer
from kvsim.budget.planner import KVGroup, KVPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.attention.spec import AttentionSpec


def attention_spec(group: KVGroup) -> AttentionSpec:
    """Return the attention spec of a planner's group."""
    return kind_of_layer(group.kind).of_layer(group.block_size, group.window, group.state)


def group_of(spec: AttentionSpec, slot_bytes: int = 1) -> KVGroup:
    """Return the planner's group of one layer for a spec; states become full attention."""
    layer = "full" if spec.is_state else spec.layer
    window = spec.window if layer != "full" else None
    return KVGroup(layer, window, spec.block_size, 1, slot_bytes)


def plan_of(specs: Sequence[AttentionSpec]) -> KVPlan:
    """Return a plan with one group for each spec, one byte per slot, and the largest block size."""
    return KVPlan(tuple(map(group_of, specs)), max(spec.block_size for spec in specs))
