"""KV-cache groups of a model's layers, which share one pool of equal blocks (vLLM 0.33).

Section 9 of docs/vllm-rules.md describes the rules.
"""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING, NamedTuple

from kvsim.attention.mamba import StateCache
from kvsim.attention.spec import kind_of_layer
from kvsim.budget.packed import pack
from kvsim.budget.pages import Page, aligned_block_size, pages_of, unified
from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.budget.layout import KVLayout


class KVGroup(NamedTuple):
    """Layers that share a block table.

    ``block_size`` is in tokens; ``slot_bytes`` is the KV of one token in all layers of the group.
    ``page_bytes`` is the size of one block in these layers, padding included, and ``used_bytes``
    excludes it; ``layers`` are indices in the model. ``state`` is set for layers that keep a state
    per request. Each of ``num_shares`` context-parallel ranks has ``block_size`` tokens of a block.
    """

    kind: str
    window: int | None
    block_size: int
    num_layers: int
    slot_bytes: int
    page_bytes: int = 0
    used_bytes: int = 0
    state: StateCache | None = None
    layers: tuple[int, ...] = ()
    num_shares: int = 1

    @property
    def block_tokens(self) -> int:
        """Tokens per block, on all ranks that share them."""
        return self.block_size * self.num_shares

    def blocks_for(self, num_tokens: int, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Largest number of blocks that a request of ``num_tokens`` tokens holds at once."""
        if kind_of_layer(self.kind).holds_one:
            return 1
        if self.state is not None:
            return self.state.num_blocks
        blocks = cdiv(num_tokens, self.block_tokens)
        cap = self._cap(max_in_flight_tokens, max_model_len)
        return min(blocks, cap) if cap > 0 else blocks

    def reserved_blocks(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Return the blocks that vLLM counts, when it starts, for a request of ``max_model_len``.

        A window may start inside a block, so vLLM counts one block more, even if ``max_model_len``
        is so small that no request can hold that block.
        """
        cap = 0 if self.state is not None else self._cap(max_in_flight_tokens, max_model_len)
        return cap or self.blocks_for(max_model_len, max_in_flight_tokens, max_model_len)

    def _cap(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        cap, window = kind_of_layer(self.kind).admission_cap, self.window or 0
        return cap(window, self.block_tokens, max_in_flight_tokens, max_model_len)


class KVPlan(NamedTuple):
    """Groups in vLLM's order, and the bytes of one block, the same for all of them."""

    groups: tuple[KVGroup, ...]
    bytes_per_block: int

    def blocks_for(self, num_tokens: int, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Largest number of blocks that a request of ``num_tokens`` holds at once in all groups."""
        return sum(
            group.blocks_for(num_tokens, max_in_flight_tokens, max_model_len)
            for group in self.groups
        )

    def reserved_blocks(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Blocks that vLLM counts at its start for a request of ``max_model_len`` tokens."""
        return sum(g.reserved_blocks(max_in_flight_tokens, max_model_len) for g in self.groups)

    @property
    def of_all_ranks(self) -> KVPlan:
        """The plan with blocks that count the tokens of all context-parallel ranks.

        A rank's bytes per token are those of a slot over the number of ranks, rounded down; the
        remaining bytes of a block count as waste.
        """
        groups = tuple(
            group._replace(
                block_size=group.block_tokens,
                slot_bytes=group.slot_bytes // group.num_shares,
                num_shares=1,
            )
            for group in self.groups
        )
        return self._replace(groups=groups)

    @property
    def scheduler_block_size(self) -> int:
        """Least common multiple of all groups' block sizes, in tokens."""
        return lcm(*(group.block_tokens for group in self.groups))

    @property
    def hash_block_size(self) -> int:
        """Number of tokens that a block hash covers."""
        if any(group.state is not None and group.state.mode == "none" for group in self.groups):
            return self.scheduler_block_size
        named = [g.block_tokens for g in self.groups if not kind_of_layer(g.kind).holds_one]
        return gcd(*named) if named else self.scheduler_block_size


def plan_groups(
    layout: KVLayout,
    block_size: int,
    *,
    hybrid: bool = True,
    packed: bool = False,
    state: StateCache | None = None,
    max_model_len: int = 0,
    num_shares: int = 1,
) -> KVPlan:
    """Group layers so that the blocks of all groups have the same size in bytes.

    A model with identical layers has one group. Otherwise layers with less KV per token get
    proportionally longer blocks, and each kind of layer is split over groups of one size; a
    group with fewer layers wastes the difference.

    Parameters
    ----------
    block_size : tokens per block of the layers with most KV per token; raised if there are
        states, so that a page of attention holds one
    hybrid : False treats every attention layer as full attention
        (``disable_hybrid_kv_cache_manager``), as vLLM does if a model has chunked and full layers
    packed : group layers of different pages by bytes instead, as vLLM does when the block is the
        outermost dimension of the KV tensor
    state : storage of states
    max_model_len : tokens; the block size of states that are not cached
    num_shares : ranks of decode context parallelism, which split the tokens of a block
    """
    layers = layout.layers
    kinds = {layer.kind for layer in layers}
    if not hybrid or ("chunked" in kinds and "full" in kinds):
        layers = tuple(
            layer if layer.is_state else layer._replace(kind="full", window=None)
            for layer in layers
        )
    block_size = aligned_block_size(layers, block_size)
    pages = pages_of(layers, block_size, state or StateCache(), max_model_len, num_shares)
    return plan_pages(pages, packed=packed or layout.compressed)


def plan_pages(pages: Sequence[Page], *, packed: bool = False) -> KVPlan:
    """Group layers with known pages.

    Raises
    ------
    ValueError
        For states next to pages of MLA that cannot be made equally large.
    """
    everything = range(len(pages))
    if len({page.sort for page in pages}) == 1:
        return _plan(pages, [everything])
    if packed and len({page.page_bytes for page in pages}) > 1:
        return _plan(pages, pack(pages))
    equal = unified(pages)
    if equal is None:
        if any(page.is_state for page in pages):
            raise ValueError(
                "MLA with larger Mamba states: a page of MLA must be as large as a state"
            )
        full = [page._replace(kind="full", window=None) for page in pages]
        return _plan(full, [everything])
    return _plan(equal, _deal(equal))


def _plan(pages: Sequence[Page], members: Iterable[Sequence[int]]) -> KVPlan:
    """Return the plan with these groups; a block has the bytes of the largest group."""
    groups = tuple(_group([pages[i] for i in layers], layers) for layers in members)
    return KVPlan(groups, max(group.page_bytes for group in groups))


def _group(pages: Sequence[Page], layers: Sequence[int]) -> KVGroup:
    first = pages[0]
    return KVGroup(
        kind=first.kind,
        window=first.window,
        block_size=first.block_size,
        num_layers=len(pages),
        slot_bytes=sum(page.bytes_per_token for page in pages),
        page_bytes=sum(page.page_bytes for page in pages),
        used_bytes=sum(page.used_bytes for page in pages),
        state=first.state,
        layers=tuple(layers),
        num_shares=first.num_shares,
    )


def _deal(pages: Sequence[Page]) -> list[list[int]]:
    """Divide each kind of layer into groups of one size."""
    buckets: dict[Page, list[int]] = {}
    for index, page in enumerate(pages):
        buckets.setdefault(page, []).append(index)
    size = _group_size([len(layers) for layers in buckets.values()])
    groups = []
    for layers in buckets.values():
        num_groups = cdiv(len(layers), size)
        groups += [layers[index::num_groups] for index in range(num_groups)]
    return groups


def _group_size(counts: Sequence[int]) -> int:
    """Return the layers per group: the smallest count, or the largest if less than 1.5 times it."""
    few, many = min(counts), max(counts)
    return many if many < 1.5 * few else few
