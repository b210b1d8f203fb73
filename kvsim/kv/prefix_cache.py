"""The longest prefix of a request whose KV is still in the pool, over all groups together."""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING

from kvsim.kv.attention import AttentionSpec, BlocksPerGroup, FullAttention, cdiv
from kvsim.kv.block_hash import extend_block_hashes
from kvsim.kv.manager import NO_HIT, Hit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.kv.block_pool import BlockPool
    from kvsim.request import Request


class PrefixCache:
    """Looks prompts up in a block pool that several KV-cache groups share.

    Groups with the same spec hit together or not at all. Different specs limit each other: the
    hit shrinks until every one of them can resume at its end (VLLM: hybrid coordinator).

    Parameters
    ----------
    pool : the block pool
    groups : spec of every group, in group order
    """

    def __init__(self, pool: BlockPool, groups: Sequence[AttentionSpec]) -> None:
        self.pool = pool
        sizes = [spec.block_size for spec in groups]
        self.alignment = lcm(*sizes)  # vLLM's scheduler_block_size
        self.hash_block_size = gcd(*sizes)
        self.num_groups = len(groups)
        members: dict[AttentionSpec, list[int]] = {}
        for group, spec in enumerate(groups):
            members.setdefault(spec, []).append(group)
        full_first = sorted(members.items(), key=lambda m: not isinstance(m[0], FullAttention))
        self._specs: list[tuple[AttentionSpec, list[int]]] = full_first

    def keys(self, request: Request, num_tokens: int, block_size: int) -> Sequence[int]:
        """Keys of a request's full blocks of one size, up to ``num_tokens`` tokens."""
        base = self.hash_block_size
        hashes = extend_block_hashes(request, num_tokens // base, base)
        if block_size == base:
            return hashes
        ratio = block_size // base
        return hashes[ratio - 1 :: ratio]

    def lookup(self, request: Request) -> Hit:
        """Find the longest reusable prefix.

        Does not mutate the cache (it may extend the request's keys). The last token is always
        left to compute, so that there is something to sample from; as hits are whole blocks, a
        block-aligned full hit computes its whole last block again.
        """
        limit = request.num_tokens - 1
        if limit < self.alignment:
            return NO_HIT
        if len(self._specs) == 1:
            spec, group_ids = self._specs[0]
            found = self._find(request, spec, group_ids, limit)
            return Hit(len(found[0]) * spec.block_size, found, 0)
        return self._lookup_hybrid(request, limit)

    def _find(
        self, request: Request, spec: AttentionSpec, group_ids: list[int], limit: int
    ) -> BlocksPerGroup:
        keys = self.keys(request, limit, spec.block_size)
        pool = self.pool

        def lookup(key: int) -> list[int] | None:
            blocks = []
            for group in group_ids:
                block = pool.lookup(key, group)
                if block is None:
                    return None
                blocks.append(block)
            return blocks

        return spec.find_hit(keys, limit, lookup, len(group_ids), self.alignment)

    def _lookup_hybrid(self, request: Request, limit: int) -> Hit:
        found: dict[AttentionSpec, BlocksPerGroup] = {}
        full_length = limit
        hit, longest = limit, 0
        one_pass = len(self._specs) == 2 and isinstance(self._specs[0][0], FullAttention)
        while True:
            length = hit
            for spec, group_ids in self._specs:
                if not isinstance(spec, FullAttention):
                    found[spec] = self._find(request, spec, group_ids, length)
                    length = len(found[spec][0]) * spec.block_size
                elif spec in found:
                    length = min(length, full_length)
                else:
                    found[spec] = self._find(request, spec, group_ids, length)
                    full_length = length = len(found[spec][0]) * spec.block_size
                longest = max(longest, length)
            shrunk, hit = length < hit, min(length, hit)
            if not shrunk or one_pass:
                break
        blocks: BlocksPerGroup = [[] for _ in range(self.num_groups)]
        for spec, group_ids in self._specs:
            for group, table in zip(group_ids, found[spec], strict=True):
                full = isinstance(spec, FullAttention)
                blocks[group] = table[: cdiv(hit, spec.block_size)] if full else table
        return Hit(hit, blocks, longest if longest > hit else 0)
