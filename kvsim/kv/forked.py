"""Paged memory for requests with several sequences; rules: ``rules/managers/forked.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.paged import PagedManager
from kvsim.records.kv import FORKED
from kvsim.records.memory import head
from kvsim.records.paged import FULL
from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.managers.forked import fits_forked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.kv.manager import KVCacheConfig
    from kvsim.records.kv import KV
    from kvsim.records.memory import Memory
    from kvsim.records.request import Request


class ForkedManager(PagedManager):
    """The paged manager for requests with several sequences, without prefix caching.

    Parallel samples and beams share blocks until one of them writes (PagedAttention paper,
    section 4.4). All layers must have full attention.
    """

    rules_of = FORKED
    speculates = False

    def __init__(self, config: KVCacheConfig, *, block_size: int | None = None) -> None:
        super().__init__(config, block_size=block_size)
        self.serves_samples = not config.reserve_output
        if len(self.groups) != 1 or self.groups[0].kind != FULL:
            raise ValueError("num_samples: sequences that share blocks need full attention")

    def init_state(self, kv: KV, memory: Memory, num_request_blocks: int) -> None:
        super().init_state(kv, memory, num_request_blocks)
        kv.enable_prefix_caching = False
        kv.beam_switch = self.config.beam_switch if self.config.use_beam_search else 0.0
        most = self.config.max_num_samples
        kv.parents, kv.column = memory.ints(most), memory.ints(most)
        blocks = self.num_usable + 1
        kv.places, kv.moved_to = memory.ints(blocks), memory.ints(blocks)

    def num_tables(self) -> int:
        return self.config.max_num_samples

    def hit_blocks(self, num_tokens: int) -> list[list[int]]:
        return []

    def fits(self, request: Request) -> bool:
        return fits_forked(self.sizes, request)

    def block_ids(self, request: Request) -> list[list[int]]:
        """Return the block table of each sequence, read-only."""
        tables = self.kv.request_blocks[request.own_blocks].tables
        return [head(tables[s].blocks, tables[s].length) for s in range(request.num_samples)]

    @property
    def num_copied_blocks(self) -> int:
        """Shared blocks that were copied before a sequence wrote into them."""
        return self.kv.num_copied_blocks

    @property
    def num_logical_blocks(self) -> int:
        """Entries of all block tables: the blocks that would be needed without sharing."""
        return sum(len(t) for r, _ in self.held_requests() for t in self.block_ids(r))

    def check_integrity(self) -> None:
        held = self.held_requests()
        tables = [(0, table) for r, _ in held for table in self.block_ids(r)]
        self.pool.check_integrity(tables, forked=True)
        self._check_forks([r for r, _ in held])
        if self.kv.num_entries != self.num_logical_blocks:
            raise RuntimeError(
                f"{self.kv.num_entries} entries of tables counted, {self.num_logical_blocks} found"
            )
        self.usage.check(self.total_bytes)

    def _check_forks(self, requests: Sequence[Request]) -> None:
        for request in requests:
            tables = self.block_ids(request)
            lengths = {len(table) for table in tables}
            if lengths != {cdiv(request.num_filled, self.block_size)}:
                raise RuntimeError(f"tables of {lengths} blocks for {request.num_filled} tokens")
            shared = len(tables) - len({table[-1] for table in tables})
            written = request.num_filled > request.num_prompt_tokens
            if written and request.num_filled % self.block_size and shared:
                raise RuntimeError("invariant 4: a block was written while shared")
