"""Groups of layers where the block is the outermost dimension of the KV tensors (vLLM 0.33).

A block then holds pages of several sizes side by side, so pages need not have one size. Layers with
the same ``Page.sort`` form a bucket. Each bucket is split over a number of groups that makes the
blocks of all buckets about equally large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.budget.pages import Page


class _Bucket:
    """Layers with one value of ``Page.sort``, by page size in bytes.

    A repeat of the bucket is one layer of each page size.
    """

    def __init__(self, first: Page) -> None:
        self.first = first
        self.members: dict[int, list[int]] = {}
        self.num_groups = 1

    def add(self, index: int, page: Page) -> None:
        self.members.setdefault(page.page_bytes, []).append(index)

    @property
    def num_layers(self) -> int:
        return sum(len(indices) for indices in self.members.values())

    @property
    def num_repeats(self) -> int:
        """Number of layers with the most common page size."""
        return max(len(indices) for indices in self.members.values())

    @property
    def balanced(self) -> bool:
        """Return True if every page size has the same number of layers."""
        return len({len(indices) for indices in self.members.values()}) == 1

    def bytes_per_block(self, num_groups: int) -> int:
        """Return the bytes of a block when its layers are split over ``num_groups`` groups."""
        return sum(cdiv(len(m), num_groups) * page for page, m in self.members.items())

    def deal(self) -> list[list[int]]:
        """Distribute the repeats over the groups; omit a group that would stay empty."""
        groups = []
        for index in range(self.num_groups):
            dealt = [layer for m in self.members.values() for layer in m[index :: self.num_groups]]
            groups.append(sorted(dealt))
        return [group for group in groups if group]


def pack(pages: Sequence[Page]) -> list[list[int]]:
    """Group layers by bytes; return the indices of each group's layers."""
    buckets: dict[object, _Bucket] = {}
    for index, page in enumerate(pages):
        buckets.setdefault(page.sort, _Bucket(page)).add(index, page)
    every = list(buckets.values())
    repeats = _repeats_per_group(every)
    for bucket in every:
        if repeats and bucket.balanced:
            bucket.num_groups = cdiv(bucket.num_repeats, repeats)
    states = [b for b in every if _is_state(b, repeats)]
    anchor = max(b.bytes_per_block(b.num_layers if b in states else b.num_groups) for b in every)
    for bucket in states:
        most = max(anchor // bucket.first.page_bytes, 1)
        bucket.num_groups = max(bucket.num_groups, cdiv(bucket.num_layers, most))
    return [group for bucket in every for group in bucket.deal()]


def _is_state(bucket: _Bucket, repeats: int) -> bool:
    """Return True for layers of which a request holds few blocks, so small groups cost little."""
    return bucket.first.is_state or (bucket.first.kind == "sliding" and not repeats)


def _repeats_per_group(buckets: Sequence[_Bucket]) -> int:
    """Return the number of repeats per group that leaves the fewest empty slots.

    It is 0 if no balanced bucket has pages of several sizes.
    """
    balanced = [bucket for bucket in buckets if bucket.balanced]
    fewest = max((b.num_repeats for b in balanced if len(b.members) > 1), default=0)
    if not fewest:
        return 0
    most = max(bucket.num_repeats for bucket in balanced)

    def empty(size: int) -> int:
        return sum(-bucket.num_repeats % size for bucket in balanced)

    return min(range(fewest, most + 1), key=lambda size: (empty(size), -size))
