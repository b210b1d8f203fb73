"""Block tables that fork: parallel samples and beams share blocks until one of them writes.

The mechanisms of the PagedAttention paper (section 4.4): the sequences of a request share the
blocks of their prompt; a sequence about to write into a block that others hold gets a copy first; a
beam that loses its place drops its blocks and shares its successor's.

A request's sequences advance together and end together. Which beams change parents is not known
without a model, so it is drawn: at every step each beam continues another one, chosen at random,
with the probability ``beam_switch``. The draw depends on the request and its length only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import PositiveInt  # noqa: TC002 - the registry reads the annotation

from kvsim.rules.attention import cdiv
from kvsim.rules.keys import mix
from kvsim.kv.block_pool import BlockPool
from kvsim.kv.manager import NO_HIT, Hit, KVCacheManager
from kvsim.kv.usage import Cause, KVUsage, paint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.kv.manager import KVCacheConfig
    from kvsim.records.request import Request


class _Group:
    """The sequences of a request: their block tables, all of one length."""

    __slots__ = ("filled", "request", "tables")

    def __init__(self, request: Request, tables: list[list[int]], filled: int) -> None:
        self.request = request
        self.tables = tables
        self.filled = filled  # tokens of each sequence

    def blocks(self) -> set[int]:
        return {block for table in self.tables for block in table}


class ForkedManager(KVCacheManager):
    """A pool of blocks under requests of several sequences, without prefix caching.

    Parameters
    ----------
    config : with one group of full-attention layers
    block_size : tokens per block, instead of the configured

    Raises
    ------
    ValueError
        If some layer is not full attention.
    """

    can_swap = True

    def __init__(self, config: KVCacheConfig, *, block_size: PositiveInt | None = None) -> None:
        plan = config.grouping(block_size)
        if len(plan.groups) != 1 or plan.groups[0].window is not None:
            raise ValueError("num_samples: sequences that share blocks need full attention")
        bytes_per_block = plan.bytes_per_block
        num_gpu_blocks = config.num_bytes // bytes_per_block
        # Sequences take blocks as they grow, so no scheduler may count on their whole output.
        self.serves_samples = not config.reserve_output
        self.pool = BlockPool(num_gpu_blocks)
        self.block_size = plan.groups[0].block_size
        self.num_gpu_blocks = num_gpu_blocks
        self.bytes_per_block = self.piece_bytes = bytes_per_block
        self.total_bytes = self.pool.num_usable * bytes_per_block
        self.max_model_len = config.max_model_len
        self.watermark_blocks = int(config.watermark * num_gpu_blocks)
        self.beam_switch = config.beam_switch if config.use_beam_search else 0.0
        self.num_copied_blocks = 0
        self._num_cpu_free = config.swap_space_bytes // bytes_per_block
        self._groups: dict[int, _Group] = {}
        self._swapped: dict[int, _Group] = {}

    # -- the protocol ------------------------------------------------------------------------

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        """Append blocks to every sequence, copying those it may not write into."""
        del hit
        group = self._groups.get(request.request_id)
        if group is None:
            return self._admit(request, num_new_tokens)
        return self._grow(group, request.num_computed_tokens + num_new_tokens)

    def free(self, request: Request) -> None:  # noqa: D102 - see KVCacheManager
        for table in self._groups.pop(request.request_id).tables:
            self.pool.free(reversed(table))

    def fits(self, request: Request) -> bool:  # noqa: D102
        tokens = min(request.num_prompt_tokens + request.max_tokens, self.max_model_len)
        return self._num_blocks(request, tokens) <= self.pool.num_usable

    def swap_out(self, request: Request) -> int:  # noqa: D102
        num_blocks = len(self._groups[request.request_id].blocks())
        if num_blocks > self._num_cpu_free:
            return 0
        self._swapped[request.request_id] = self._groups[request.request_id]
        self.free(request)
        self._num_cpu_free -= num_blocks
        return num_blocks * self.bytes_per_block

    def swap_in(self, request: Request) -> int:  # noqa: D102
        group = self._swapped[request.request_id]
        blocks = sorted(group.blocks())
        needed = len(blocks)
        if self._groups:
            needed += request.num_samples + self.watermark_blocks
        if needed > self.pool.num_free:
            return 0
        del self._swapped[request.request_id]
        self._num_cpu_free += len(blocks)
        moved = dict(zip(blocks, self.pool.get(len(blocks)), strict=True))
        group.tables = [[moved[block] for block in table] for table in group.tables]
        self._share(group.tables)
        self._groups[request.request_id] = group
        return len(blocks) * self.bytes_per_block

    @property
    def num_free(self) -> int:  # noqa: D102
        return self.pool.num_free

    def block_ids(self, request: Request) -> list[list[int]]:
        """Return the block table of each sequence; not for changing."""
        return self._groups[request.request_id].tables

    # -- admission and growth ----------------------------------------------------------------

    def _num_blocks(self, request: Request, num_tokens: int) -> int:
        """Blocks of all sequences when they share what they must: full blocks of the prompt."""
        if num_tokens <= request.num_prompt_tokens:
            return cdiv(num_tokens, self.block_size)
        shared = request.num_prompt_tokens // self.block_size
        return shared + request.num_samples * (cdiv(num_tokens, self.block_size) - shared)

    def _admit(self, request: Request, num_tokens: int) -> bool:
        needed = self._num_blocks(request, num_tokens)
        if needed > self.pool.num_free - (self.watermark_blocks if self._groups else 0):
            return False
        blocks = self.pool.get(needed)
        shared = needed
        if num_tokens > request.num_prompt_tokens:  # computed again after a preemption
            shared = request.num_prompt_tokens // self.block_size
        n = request.num_samples
        tables = [blocks[:shared] + blocks[shared + i :: n] for i in range(n)]
        self._share(tables)
        self._groups[request.request_id] = _Group(request, tables, num_tokens)
        return True

    def _share(self, tables: Sequence[Sequence[int]]) -> None:
        """Count a reference for every table but the first that holds a new block."""
        seen: set[int] = set()
        for table in tables:
            self.pool.touch([block for block in table if block in seen])
            seen.update(table)

    def _grow(self, group: _Group, end: int) -> bool:
        request, size = group.request, self.block_size
        parents = self._parents(request, end)
        tables = [group.tables[parent] for parent in parents]
        held = len(group.blocks())
        length = len(tables[0])
        writers: dict[int, int] = {}  # sequences about to write into the last block
        if group.filled < length * size:
            for table in tables:
                writers[table[-1]] = writers.get(table[-1], 0) + 1
        num_copies = sum(writers.values()) - len(writers)
        num_new = len(tables) * (cdiv(end, size) - length)
        kept = len({block for table in tables for block in table})
        if kept + num_copies + num_new > held + self.pool.num_free:
            return False
        tables = [list(table) for table in tables]
        for table in tables:
            self.pool.touch(table)
        for table in group.tables:
            self.pool.free(reversed(table))
        for table in tables:
            if writers.get(table[-1], 0) > 1:  # all but the last sharer copy
                writers[table[-1]] -= 1
                copied = table.pop()
                table.extend(self.pool.get(1))
                self.pool.free([copied])
                self.num_copied_blocks += 1
            table.extend(self.pool.get(cdiv(end, size) - length))
        group.tables, group.filled = tables, end
        return True

    def _parents(self, request: Request, end: int) -> list[int]:
        """Which sequence each sequence continues."""
        n = request.num_samples
        parents = list(range(n))
        if not self.beam_switch or n == 1:
            return parents
        for beam in range(n):
            draw = mix(mix(mix(request.request_id, end), beam), 1)
            if draw < self.beam_switch * 2**64:
                other = mix(draw, 2) % (n - 1)
                parents[beam] = other + (other >= beam)
        return parents

    # -- accounting --------------------------------------------------------------------------

    @property
    def num_logical_blocks(self) -> int:
        """Entries of all block tables: the blocks there would be without sharing."""
        return sum(len(t) for group in self._groups.values() for t in group.tables)

    @property
    def kv_usage(self) -> float:  # noqa: D102
        usable = self.pool.num_usable
        return (usable - self.pool.num_free) / usable if usable else 0.0

    @property
    def usage(self) -> KVUsage:  # noqa: D102
        unfilled = past = 0
        for group in self._groups.values():
            last = len({table[-1] for table in group.tables})
            slots = len(group.tables[0]) * self.block_size
            unfilled += last * (slots - group.filled)
            past += last * max(slots - group.request.max_slots, 0)
        used = self.pool.num_used[0] * self.block_size
        slot = self.bytes_per_block // self.block_size
        return KVUsage(
            token_states=(used - unfilled) * slot,
            reservation=(unfilled - past) * slot,
            internal=past * slot,
            external=0,
            unallocated=self.pool.num_free * self.bytes_per_block,
            cached=0,
        )

    def memory_map(self, num_bins: int) -> NDArray[np.uint8]:  # noqa: D102
        ends = np.zeros((3, self.num_gpu_blocks))
        unused = np.full(self.num_gpu_blocks, Cause.FREE, dtype=np.uint8)
        for group in self._groups.values():
            for table in group.tables:
                starts = np.arange(len(table)) * self.block_size
                ends[1, table] = (group.filled - starts) / self.block_size
                ends[2, table] = (group.request.max_slots - starts) / self.block_size
                unused[table] = Cause.INTERNAL
        return paint(num_bins, ends[:, 1:], unused[1:])  # the null block has no address

    def check_integrity(self) -> None:  # noqa: D102
        tables = [(0, table) for group in self._groups.values() for table in group.tables]
        self.pool.check_integrity(tables, forked=True)
        for group in self._groups.values():
            lengths = {len(table) for table in group.tables}
            if lengths != {cdiv(group.filled, self.block_size)}:
                raise RuntimeError(f"tables of {lengths} blocks for {group.filled} tokens")
            shared = len(group.tables) - len({table[-1] for table in group.tables})
            written = group.filled > group.request.num_prompt_tokens
            if written and group.filled % self.block_size and shared:
                raise RuntimeError("invariant 4: a block was written while shared")
        self.usage.check(self.total_bytes)
