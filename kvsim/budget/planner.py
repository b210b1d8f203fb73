"""From a model's layers to KV-cache groups that share one pool of equal blocks (vLLM 0.33).

docs/vllm-rules.md tells the rules in words, section 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.records.paged import Attention
from kvsim.rules.attention import admission_cap, cdiv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.budget.layout import KVLayout, LayerKV
    from kvsim.catalog.spec import AttentionKind


class KVGroup(NamedTuple):
    """Layers that share a block table.

    ``block_size`` tokens per block; ``slot_bytes`` is one token's KV in all its layers.
    """

    kind: AttentionKind
    window: int | None
    block_size: int
    num_layers: int
    slot_bytes: int


class KVPlan(NamedTuple):
    """Groups in vLLM's order, and the bytes of one block, the same for all of them."""

    groups: tuple[KVGroup, ...]
    bytes_per_block: int

    def blocks_for(self, num_tokens: int, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Blocks that a request of ``num_tokens`` tokens holds at most at once, all groups."""
        total = 0
        for group in self.groups:
            kind, window = Attention[group.kind.upper()], group.window or 0
            blocks = cdiv(num_tokens, group.block_size)
            cap = admission_cap(kind, window, group.block_size, max_in_flight_tokens, max_model_len)
            total += min(blocks, cap) if cap > 0 else blocks
        return total


class _Spec(NamedTuple):
    kind: AttentionKind
    window: int | None
    block_size: int
    bytes_per_token: int


def plan_groups(
    layout: KVLayout, block_size: int, *, hybrid: bool = True, packed: bool = False
) -> KVPlan:
    """Group layers so that all groups' blocks have one size.

    A model whose layers are all alike has one group. Otherwise layers with less KV per token get
    proportionally longer blocks, and each kind of layer is dealt out over groups of one size; a
    group short of layers wastes the difference.

    Parameters
    ----------
    block_size : tokens per block of the layers with most KV per token
    hybrid : False treats every layer as full attention (``disable_hybrid_kv_cache_manager``);
        so does vLLM for chunked-local layers next to full ones unless told otherwise
    packed : group layers of different pages by bytes instead, as vLLM does when the block is the
        outermost dimension of the KV tensor (inferred from one recorded plan)
    """
    layers = layout.layers
    kinds = {layer.kind for layer in layers}
    if not hybrid or ("chunked" in kinds and "full" in kinds):
        layers = tuple(layer._replace(kind="full", window=None) for layer in layers)
    if packed and len({layer.bytes_per_token for layer in layers}) > 1:
        return _pack(layers, block_size)
    specs = _unify_pages(layers, block_size)
    buckets: dict[_Spec, int] = {}
    for spec in specs:
        buckets[spec] = buckets.get(spec, 0) + 1
    size = _group_size(list(buckets.values()))
    page = max(spec.block_size * spec.bytes_per_token for spec in specs)
    groups = []
    for spec, count in buckets.items():
        num_groups = -(-count // size)
        for index in range(num_groups):
            num_layers = len(range(index, count, num_groups))
            slot_bytes = num_layers * spec.bytes_per_token
            groups.append(KVGroup(spec.kind, spec.window, spec.block_size, num_layers, slot_bytes))
    return KVPlan(tuple(groups), page * max(group.num_layers for group in groups))


def _pack(layers: Sequence[LayerKV], block_size: int) -> KVPlan:
    """Deal each kind of layer out over groups of at most the rarest kind's bytes."""
    buckets: dict[LayerKV, int] = {}
    for layer in layers:
        buckets[layer] = buckets.get(layer, 0) + 1
    target = min(layer.bytes_per_token * count for layer, count in buckets.items())
    groups = []
    for layer, count in buckets.items():
        num_groups = -(-count // max(target // layer.bytes_per_token, 1))
        for index in range(num_groups):
            num_layers = len(range(index, count, num_groups))
            slot_bytes = num_layers * layer.bytes_per_token
            groups.append(KVGroup(layer.kind, layer.window, block_size, num_layers, slot_bytes))
    return KVPlan(tuple(groups), block_size * max(group.slot_bytes for group in groups))


def _unify_pages(layers: Sequence[LayerKV], block_size: int) -> list[_Spec]:
    """Stretch the blocks of layers with less KV per token to the largest page, if it divides."""
    largest = max(layer.bytes_per_token for layer in layers)
    specs = []
    for layer in layers:
        slot = layer.bytes_per_token
        stretch = 1 if largest % slot else largest // slot
        specs.append(_Spec(layer.kind, layer.window, block_size * stretch, slot))
    return specs


def _group_size(counts: Sequence[int]) -> int:
    """Layers per group: the rarest kind's count, or the commonest's if they are close."""
    few, many = min(counts), max(counts)
    return many if many < 1.5 * few else few
