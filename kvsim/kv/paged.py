"""The paged KV-cache manager: block tables over a shared pool, with prefix caching.

The rules are those of vLLM 0.33's KVCacheManager and its single-type managers; the accounting by
cause is the PagedAttention paper's (section 4 of DESIGN).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import PositiveInt  # noqa: TC002 - the registry reads the annotation

from kvsim.kv.attention import FullAttention, attention_spec, cdiv
from kvsim.kv.block_pool import NULL_BLOCK, BlockPool
from kvsim.kv.eviction import eviction_policy
from kvsim.kv.forked import ForkedManager
from kvsim.kv.manager import (
    ALLOCATORS,
    NO_HIT,
    Hit,
    KVCacheConfig,
    KVCacheManager,
)
from kvsim.kv.prefix_cache import PrefixCache
from kvsim.kv.usage import Cause, KVUsage, paint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvsim.request import Request


class _Tables:
    """Block tables of one request, one per group, and what follows from them."""

    __slots__ = (
        "cached_tokens",
        "filled",
        "processed",
        "quiet_until",
        "request",
        "retired",
        "tables",
    )

    def __init__(self, request: Request, num_groups: int) -> None:
        self.request = request
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        self.cached_tokens = 0  # leading tokens whose blocks have been offered to the cache
        self.filled = 0  # tokens whose slots are written once the scheduled steps are done
        self.processed = 0  # tokens known to be computed when windows were last moved
        self.quiet_until = 0  # up to this many tokens nothing but `filled` changes
        self.retired = False


def _num_held(state: _Tables) -> int:
    return sum(len(table) - table.count(NULL_BLOCK) for table in state.tables)


class PagedManager(KVCacheManager):
    """Blocks of ``block_size`` slots, taken as a request grows.

    Parameters
    ----------
    config : its memory and its users
    block_size : tokens per block, instead of the configured
    eviction : the eviction policy, ``NAME[:KEY=VALUE]...``

    Attributes
    ----------
    num_gpu_blocks : blocks in the pool, the null block included
    groups : attention spec of each KV-cache group; all share the pool
    slot_bytes : per group, bytes of one token's KV in it
    bytes_per_block : bytes of one block, the same for all groups; what a group's layers leave
        unused of it is external waste
    """

    can_swap = True

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        block_size: PositiveInt | None = None,
        eviction: str = "lru",
    ) -> None:
        plan = config.grouping(block_size)
        num_gpu_blocks = config.num_bytes // plan.bytes_per_block
        self.groups = [attention_spec(group) for group in plan.groups]
        self.slot_bytes = [group.slot_bytes for group in plan.groups]
        self.pool = BlockPool(num_gpu_blocks, len(self.groups), eviction_policy(eviction))
        self.prefix_cache = PrefixCache(self.pool, self.groups)
        self.bytes_per_block = self.piece_bytes = plan.bytes_per_block
        self.num_gpu_blocks = num_gpu_blocks
        self.block_size = min(spec.block_size for spec in self.groups)
        self.total_bytes = self.pool.num_usable * self.bytes_per_block
        self.max_model_len = config.max_model_len
        self.enable_prefix_caching = config.enable_prefix_caching
        self.watermark_blocks = int(config.watermark * num_gpu_blocks)
        self.reserve_full_isl = config.reserve_full_isl
        self.reserve_output = config.reserve_output
        self.num_lookahead_tokens = config.num_lookahead_tokens
        self.retention_interval = config.prefix_cache_retention_interval
        self.admission_caps = [
            s.admission_cap(config.max_in_flight_tokens, config.max_model_len) for s in self.groups
        ]
        self._windowed = [g for g, s in enumerate(self.groups) if not isinstance(s, FullAttention)]
        self._one_full_group = len(self.groups) == 1 and not self._windowed
        self._tables: dict[int, _Tables] = {}
        self._swapped: dict[int, _Tables] = {}
        self._num_cpu_free = config.swap_space_bytes // plan.bytes_per_block
        self.foresees = self.pool.eviction.foresees
        # Sums over the tables of live requests; every report is made of them.
        self._num_filled = 0
        self._num_table_blocks = [0] * len(self.groups)
        self._num_internal = [0] * len(self.groups)  # slots past a request's last token
        self._num_retired = [0] * len(self.groups)  # slots of ended requests

    # -- the protocol ------------------------------------------------------------------------

    def lookup(self, request: Request) -> Hit:  # noqa: D102
        return self.prefix_cache.lookup(request) if self.enable_prefix_caching else NO_HIT

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        """Append blocks for the next tokens; see the base class.

        Out-of-window blocks are dropped even when the call is then refused, as in vLLM.
        """
        state = self._tables.get(request.request_id)
        if state is None:
            return self._admit(request, num_new_tokens, hit)
        end = request.num_computed_tokens + num_new_tokens
        if end > state.quiet_until and not self._grow(request, state, end):
            return False
        self._num_filled += end - state.filled
        state.filled = end
        return True

    def foresee(self, requests: Iterable[Request]) -> None:  # noqa: D102
        if self.foresees:
            self.pool.eviction.foresee([self._prompt_keys(request) for request in requests])

    def free(self, request: Request) -> None:  # noqa: D102
        state = self._tables.pop(request.request_id)
        self._count(state, -1)
        for table in state.tables:
            self.pool.free(reversed(table))

    def swap_out(self, request: Request) -> int:  # noqa: D102
        num_blocks = _num_held(self._tables[request.request_id])
        if num_blocks > self._num_cpu_free:
            return 0
        state = self._tables[request.request_id]
        tables = [list(table) for table in state.tables]
        self.free(request)
        state.tables = tables  # which entries were null still counts
        self._swapped[request.request_id] = state
        self._num_cpu_free -= num_blocks
        return num_blocks * self.bytes_per_block

    def swap_in(self, request: Request) -> int:  # noqa: D102
        state = self._swapped[request.request_id]
        num_blocks = _num_held(state)
        # One more for its next token, as in vLLM's V0; a lone request takes what there is.
        needed = num_blocks + (1 + self.watermark_blocks if self._tables else 0)
        if needed > self.pool.num_free:
            return 0
        del self._swapped[request.request_id]
        self._num_cpu_free += num_blocks
        for g, table in enumerate(state.tables):
            places = [i for i, block in enumerate(table) if block != NULL_BLOCK]
            for i, block in zip(places, self.pool.get(len(places), g), strict=True):
                table[i] = block
        state.cached_tokens = state.filled  # its keys were lost with its blocks
        self._tables[request.request_id] = state
        self._count(state, +1)
        self._set_quiet(state)
        return num_blocks * self.bytes_per_block

    def retire(self, request: Request) -> None:  # noqa: D102
        state = self._tables[request.request_id]
        self._count(state, -1)
        state.retired = True
        self._count(state, +1)

    def cache_computed(self, request: Request, num_tokens: int) -> None:  # noqa: D102
        if self.enable_prefix_caching:
            self._cache_blocks(request, self._tables[request.request_id], num_tokens)

    def fits(self, request: Request) -> bool:  # noqa: D102
        tokens = request.num_prompt_tokens + request.max_tokens + self.num_lookahead_tokens
        tokens = min(tokens, self.max_model_len)
        if self.reserve_output:
            return self._num_blocks_for(tokens, [None] * len(self.groups)) <= self.pool.num_usable
        # Beside its window and what is in flight, a request holds its lookahead slots.
        caps = [
            None if cap is None else cap + cdiv(self.num_lookahead_tokens, spec.block_size)
            for cap, spec in zip(self.admission_caps, self.groups, strict=True)
        ]
        return self._num_blocks_for(tokens, caps) <= self.pool.num_usable

    @property
    def num_free(self) -> int:  # noqa: D102
        return self.pool.num_free

    def block_ids(self, request: Request) -> list[list[int]]:  # noqa: D102
        return self._tables[request.request_id].tables

    # -- admission and growth ----------------------------------------------------------------

    def _num_blocks_for(self, num_tokens: int, caps: Sequence[int | None]) -> int:
        total = 0
        for spec, cap in zip(self.groups, caps, strict=True):
            blocks = cdiv(num_tokens, spec.block_size)
            total += blocks if cap is None else min(blocks, cap)
        return total

    def _need_to_admit(self, num_tokens: int, hit: Hit, caps: Sequence[int | None] | None) -> int:
        """Free blocks an admission takes: new ones, and hit ones that nobody holds now."""
        need = 0
        for g, spec in enumerate(self.groups):
            blocks = cdiv(num_tokens, spec.block_size)
            cap = caps[g] if caps else None
            if cap is not None:
                blocks = min(blocks, cap)
            skipped = spec.num_skipped(hit.num_tokens) // spec.block_size
            found = hit.blocks[g] if hit.blocks else ()
            need += max(blocks - max(skipped, len(found)), 0)
            for block in found[skipped:]:
                need += block != NULL_BLOCK and self.pool.ref_cnt[block] == 0
        return need

    def _admit(self, request: Request, num_new_tokens: int, hit: Hit) -> bool:
        free = self.pool.num_free - (self.watermark_blocks if self._tables else 0)
        if self.reserve_full_isl:
            length = min(request.num_tokens, self.max_model_len)
            if self._need_to_admit(length, hit, self.admission_caps) > free:
                return False
        end = hit.num_tokens + num_new_tokens
        slots = self._num_slots(request, end)
        if self._need_to_admit(slots, hit, None) > free:
            return False
        if self.foresees:
            self.pool.eviction.arrived(self._prompt_keys(request))
        state = _Tables(request, len(self.groups))
        if hit.num_tokens:
            for g, spec in enumerate(self.groups):
                skipped = spec.num_skipped(hit.num_tokens) // spec.block_size
                found = hit.blocks[g][skipped:]
                self.pool.touch(found)
                state.tables[g] = [NULL_BLOCK] * skipped + found
        state.processed = state.cached_tokens = hit.num_tokens
        for g, spec in enumerate(self.groups):
            table = state.tables[g]
            table += self.pool.get(max(cdiv(slots, spec.block_size) - len(table), 0), g)
        state.filled = end
        self._tables[request.request_id] = state
        self._count(state, +1)
        if self.enable_prefix_caching:
            self._cache_blocks(request, state, min(end, request.num_tokens))
        self._set_quiet(state)
        return True

    def _prompt_keys(self, request: Request) -> list[int]:
        """Keys of the blocks that a prompt may hit."""
        base = self.prefix_cache.hash_block_size
        num_tokens = request.num_prompt_tokens - 1
        return list(self.prefix_cache.keys(request, num_tokens, base)[: num_tokens // base])

    def _num_slots(self, request: Request, end: int) -> int:
        """Slots to own when the tokens up to ``end`` are scheduled."""
        if self.reserve_output:
            end = max(end, request.max_slots)
        return min(end + self.num_lookahead_tokens, self.max_model_len)

    def _grow(self, request: Request, state: _Tables, end: int) -> bool:
        if self._windowed:
            self._drop_out_of_window(request, state)
        slots = self._num_slots(request, end)
        new = [
            max(cdiv(slots, spec.block_size) - len(table), 0)
            for spec, table in zip(self.groups, state.tables, strict=True)
        ]
        if sum(new) > self.pool.num_free:
            return False
        for g, count in enumerate(new):
            if count:
                table = state.tables[g]
                self._num_internal[g] -= self._past_the_end(request, g, table)
                table += self.pool.get(count, g)
                self._num_internal[g] += self._past_the_end(request, g, table)
                self._num_table_blocks[g] += count
        if self.enable_prefix_caching:
            self._cache_blocks(request, state, min(end, request.num_tokens))
        self._set_quiet(state)
        return True

    def _set_quiet(self, state: _Tables) -> None:
        """Note until when growing means nothing but filling the last block."""
        if not self._one_full_group:
            return  # windows may move at every step
        # One token short: the token that fills the last block also names it.
        quiet = len(state.tables[0]) * self.block_size - 1 - self.num_lookahead_tokens
        if self.enable_prefix_caching:
            quiet = min(quiet, state.cached_tokens + self.block_size - 1)
        state.quiet_until = quiet

    def _drop_out_of_window(self, request: Request, state: _Tables) -> None:
        computed = min(request.num_computed_tokens, self.max_model_len)
        state.processed = max(0, computed - request.num_in_flight_tokens)
        for g in self._windowed:
            spec, table = self.groups[g], state.tables[g]
            dropped = []
            for i in range(spec.num_skipped(state.processed) // spec.block_size - 1, -1, -1):
                if table[i] == NULL_BLOCK:
                    break
                dropped.append(table[i])
                table[i] = NULL_BLOCK
            self.pool.free(dropped)

    def _cache_blocks(self, request: Request, state: _Tables, num_tokens: int) -> None:
        """Give keys to the blocks that are full once ``num_tokens`` tokens are computed."""
        alignment = self.prefix_cache.alignment
        if num_tokens < state.cached_tokens + alignment:
            return
        num_tokens -= num_tokens % alignment
        for g, spec in enumerate(self.groups):
            keys = self.prefix_cache.keys(request, num_tokens, spec.block_size)
            table = state.tables[g]
            for i in range(state.cached_tokens // spec.block_size, num_tokens // spec.block_size):
                if table[i] != NULL_BLOCK and spec.worth_caching(
                    request, i, alignment, self.retention_interval
                ):
                    self.pool.cache(table[i], keys[i])
        state.cached_tokens = num_tokens
        self._set_quiet(state)

    # -- accounting --------------------------------------------------------------------------

    def _past_the_end(self, request: Request, group: int, table: Sequence[int]) -> int:
        """Slots of a table that its request will never fill."""
        return max(len(table) * self.groups[group].block_size - request.max_slots, 0)

    def _count(self, state: _Tables, sign: int) -> None:
        """Add a request's tables to the sums, or take them out."""
        if state.retired:
            for g, table in enumerate(state.tables):
                held = len(table) - table.count(NULL_BLOCK)
                self._num_retired[g] += sign * held * self.groups[g].block_size
            return
        self._num_filled += sign * state.filled
        for g, table in enumerate(state.tables):
            self._num_table_blocks[g] += sign * len(table)
            self._num_internal[g] += sign * self._past_the_end(state.request, g, table)

    @property
    def kv_usage(self) -> float:  # noqa: D102
        usable = self.pool.num_usable
        return (usable - self.pool.num_free) / usable if usable else 0.0

    @property
    def usage(self) -> KVUsage:  # noqa: D102
        tokens = reserved = internal = external = 0
        for g, spec in enumerate(self.groups):
            size, slot = spec.block_size, self.slot_bytes[g]
            used = self.pool.num_used[g]
            unfilled = self._num_table_blocks[g] * size - self._num_filled
            past = self._num_internal[g]
            dead = self._num_retired[g] + (self._num_out_of_window(g) if self._windowed else 0)
            reserved += (unfilled - past) * slot
            internal += (past + dead) * slot
            tokens += (used * size - unfilled - dead) * slot
            external += used * (self.bytes_per_block - size * slot)
        free = self.pool.num_free * self.bytes_per_block
        cached = self.pool.num_cached_free * self.bytes_per_block
        return KVUsage(tokens, reserved, internal, external, free, cached)

    def _num_out_of_window(self, group: int) -> int:
        """Slots before the window in blocks that the window still touches.

        A block that several requests share is out of the window where it is so for all of them.
        """
        spec = self.groups[group]
        if group not in self._windowed:
            return 0
        dead: dict[int, list[int]] = {}
        for state in self._tables.values():
            if state.retired:
                continue  # all its slots are counted already
            skipped = spec.num_skipped(state.processed)
            index = skipped // spec.block_size
            table = state.tables[group]
            if skipped % spec.block_size and index < len(table) and table[index] != NULL_BLOCK:
                dead.setdefault(table[index], []).append(skipped % spec.block_size)
        ref_cnt = self.pool.ref_cnt
        return sum(min(slots) for block, slots in dead.items() if len(slots) == ref_cnt[block])

    def memory_map(self, num_bins: int) -> NDArray[np.uint8]:  # noqa: D102
        # Of each block: where its dead, live and reserved slots end, as a share of the block.
        ends = np.zeros((3, self.num_gpu_blocks))
        unused = np.full(self.num_gpu_blocks, Cause.FREE, dtype=np.uint8)
        unused[list(self.pool.hashed_blocks())] = Cause.CACHED
        for state in self._tables.values():
            live = (0, 0) if state.retired else (state.filled, state.request.max_slots)
            for spec, table in zip(self.groups, state.tables, strict=True):
                blocks = np.array(table)
                starts = np.arange(len(table)) * spec.block_size
                for row, end in enumerate((spec.num_skipped(state.processed), *live)):
                    ends[row, blocks] = (end - starts) / spec.block_size
                unused[blocks] = Cause.INTERNAL
        return paint(num_bins, ends[:, 1:], unused[1:])  # the null block has no address

    def check_integrity(self) -> None:  # noqa: D102
        self.pool.check_integrity(
            (g, table) for state in self._tables.values() for g, table in enumerate(state.tables)
        )
        live = [s for s in self._tables.values() if not s.retired]
        filled = sum(state.filled for state in live)
        if filled != self._num_filled:
            raise RuntimeError(f"{self._num_filled} filled slots counted, {filled} found")
        for g, spec in enumerate(self.groups):
            blocks = sum(len(state.tables[g]) for state in live)
            if blocks != self._num_table_blocks[g]:
                raise RuntimeError(f"{self._num_table_blocks[g]} table entries, {blocks} found")
            for state in live:
                if state.filled > len(state.tables[g]) * spec.block_size:
                    raise RuntimeError("a request has more tokens than slots")
        self.usage.check(self.total_bytes)


@ALLOCATORS.register("paged")
def paged(
    config: KVCacheConfig, *, block_size: PositiveInt | None = None, eviction: str = "lru"
) -> KVCacheManager:
    """Blocks over a shared pool, prefix caching: PagedAttention as in vLLM."""
    if config.has_samples:
        return ForkedManager(config, block_size=block_size)
    return PagedManager(config, block_size=block_size, eviction=eviction)
