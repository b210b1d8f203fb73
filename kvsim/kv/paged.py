"""The paged KV-cache manager: block tables over a shared pool, with prefix caching.

The rules are vLLM 0.33's, in :mod:`kvsim.rules.blocks.paged`; the accounting by cause is the
PagedAttention paper's.
"""

from __future__ import annotations

from functools import cached_property
from math import gcd, lcm
from typing import TYPE_CHECKING

from pydantic import PositiveInt  # noqa: TC002 - the registry reads the annotation

from kvsim.attention.mamba import Mamba
from kvsim.kv.attention import attention_spec
from kvsim.kv.block_pool import BlockPool, init_pool
from kvsim.kv.events import init_events
from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.manager import ALLOCATORS, Hit, KVCacheConfig
from kvsim.kv.rule_manager import RuleManager
from kvsim.records.kv import KV, PAGED
from kvsim.records.memory import assign, head
from kvsim.records.paged import FULL, NULL_BLOCK, BlockTable, KVGroup, LookupSpec
from kvsim.records.record import NONE, Short
from kvsim.rules.blocks.attention import admission_cap, cdiv
from kvsim.rules.blocks.window import num_dead
from kvsim.rules.kv import next_own_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.attention.spec import AttentionSpec
    from kvsim.records.memory import Memory
    from kvsim.records.request import Request

#: Fields of a group that are equal to those of its attention spec.
OF_KIND = (
    *("kind", "sees_all", "has_holes", "is_state", "caches_states", "holds_one", "is_cached"),
    *("num_spec_blocks", "reference_window", "block_size"),
)


class PagedManager(RuleManager):
    """Blocks of ``block_size`` slots, which are allocated as a request grows.

    Parameters
    ----------
    config : the memory and the settings
    block_size : tokens per block; overrides the configured number
    eviction : the eviction policy, ``NAME[:KEY=VALUE]...``

    Attributes
    ----------
    num_gpu_blocks : blocks in the pool, the null block included
    groups : attention spec of each KV-cache group; all share the pool
    slot_bytes : per group, bytes of one token's KV
    state_bytes : per group, bytes of a block that its layers use
    bytes_per_block : bytes of one block, the same for all groups; bytes that a group's layers do
        not use are external fragmentation
    """

    rules_of = PAGED
    has_null_block = True
    evidence = "block ids are identical to those of recorded schedules of vLLM 0.33"
    can_swap = True
    speculates = True
    tells_events = True

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        block_size: PositiveInt | None = None,
        eviction: str = "lru",
    ) -> None:
        super().__init__(config)
        plan = config.grouping(block_size)
        self.groups = [*config.specs] or [attention_spec(group) for group in plan.groups]
        self.slot_bytes = [group.slot_bytes for group in plan.groups]
        self.state_bytes = [
            group.used_bytes or group.block_size * group.slot_bytes for group in plan.groups
        ]
        self.bytes_per_block = self.piece_bytes = plan.bytes_per_block
        self.num_gpu_blocks = config.num_bytes // plan.bytes_per_block
        self.num_usable = max(self.num_gpu_blocks - 1, 0)
        self.block_size = min(spec.block_size for spec in self.groups)
        self.total_bytes = self.num_usable * self.bytes_per_block
        self.eviction = EVICTION_POLICIES.make(eviction)
        self.foresees = self.eviction.foresees
        self.tracks_sessions = self.eviction.tracks_sessions
        if not self.runs_by_rules:  # its Python methods change content without events
            self.tells_events, self.keeps_unpublished = False, True
        if not self.eviction.runs_by_rules:
            self.python_parts = f"eviction policy {eviction}"
        self.admission_caps = [
            admission_cap(
                spec.kind,
                spec.num_kept_tokens,
                spec.block_size,
                config.max_in_flight_tokens,
                config.max_model_len,
            )
            for spec in self.groups
        ]

    # -- laying out ----------------------------------------------------------------------------

    def init_state(self, kv: KV, memory: Memory, num_request_blocks: int) -> None:
        config = self.config
        assign(kv, config)
        kv.manager = self.rules_of
        self._set_units(kv)
        kv.bytes_per_block = self.bytes_per_block
        kv.watermark_blocks = config.spared(self.num_gpu_blocks)
        retention = config.prefix_cache_retention_interval
        kv.segment = kv.alignment if retention is None else retention
        kv.keeps_boundaries = retention is not None
        kv.replay_window = max(spec.replay_window for spec in self.groups)
        kv.has_windows = any(spec.kind != FULL for spec in self.groups)
        kv.num_cpu_free = config.swap_space_bytes // self.bytes_per_block
        self._init_groups(kv, memory)
        if any(spec.caches_states for spec in self.groups):
            self._init_states(kv, memory)
        several = len(self.groups) > 1
        kv.names_by_group = kv.has_states or (
            several and (config.drops_last_block or self._tells_events or self._rounds_unevenly(kv))
        )
        init_pool(
            kv.pool,
            memory,
            self.num_gpu_blocks,
            len(self.groups),
            self.eviction,
            self._num_hash_aliases(kv),
        )
        if self._tells_events:
            init_events(kv, memory, config.max_in_flight_tokens)
        self.add_request_blocks(kv, memory, num_request_blocks)

    def _set_units(self, kv: KV) -> None:
        """Set the units, in tokens, of hits and of keys."""
        config, several = self.config, len(self.groups) > 1
        kv.alignment = lcm(*(spec.block_size for spec in self.groups))
        kv.scheduler_block_size = kv.alignment
        units = [spec.block_size for spec in self.groups if spec.is_cached]
        kv.hash_block_size = gcd(*units) or kv.alignment
        if config.prefix_match_unit and several:
            kv.hash_block_size = config.prefix_match_unit
        if several and not config.drops_last_block:
            kv.num_unnamed_tokens = 0

    def _rounds_unevenly(self, kv: KV) -> bool:
        """Return True if groups with small blocks set keys past the last multiple of alignment."""
        return kv.num_hash_lookahead_tokens > 0 and any(
            spec.block_size < kv.alignment for spec in self.groups
        )

    def _init_groups(self, kv: KV, memory: Memory) -> None:
        config = self.config
        kv.num_groups = len(self.groups)
        kv.groups = memory.records(KVGroup, kv.num_groups)
        members: dict[AttentionSpec, list[int]] = {}
        for g, spec in enumerate(self.groups):
            group = kv.groups[g]
            for name in OF_KIND:
                setattr(group, name, getattr(spec, name))
            group.index, group.slot_bytes = g, self.slot_bytes[g]
            group.window = spec.num_kept_tokens - spec.reference_window
            group.extra_retained = spec.num_kept_tokens - spec.window
            group.state_bytes = self.state_bytes[g] if spec.is_state else 0
            group.admission_cap = self.admission_caps[g]
            flagged = g in config.draft_groups or not config.draft_groups
            group.has_drafter = config.drops_last_block and flagged
            group.keys_per_block = max(spec.block_size // kv.hash_block_size, 1)
            if spec.is_cached:
                members.setdefault(spec, []).append(g)
        full_first = sorted(members.items(), key=lambda m: not m[0].sees_all)
        kv.num_specs = len(full_first)
        kv.specs = memory.records(LookupSpec, kv.num_specs)
        for place, (spec, groups) in enumerate(full_first):
            found = kv.specs[place]
            found.kind = FULL if spec.sees_all else spec.kind
            found.window, found.block_size = spec.num_kept_tokens, spec.block_size
            found.extra_retained = spec.num_kept_tokens - spec.window
            found.num_groups, found.groups = len(groups), memory.list_of(groups)
            drafted = any(kv.groups[g].has_drafter for g in groups)
            found.drops_last_block = drafted and not spec.is_state
            for g in groups:
                kv.groups[g].has_drafter = drafted
                kv.groups[g].drops_last_block = found.drops_last_block

    def _init_states(self, kv: KV, memory: Memory) -> None:
        config, unit = self.config, kv.hash_block_size
        first = next(spec for spec in self.groups if isinstance(spec, Mamba))
        kv.has_states, kv.matches_partially = True, self._matches_partially(unit)
        if kv.matches_partially:
            kv.alignment = unit
            if config.prefix_cache_retention_interval is None:
                kv.segment = unit
        kv.states.block_size = config.block_size
        if first.checkpoint_blocks:
            kv.states.checkpoint_alignment = first.checkpoint_alignment
        kv.states.keeps_shared = (
            config.mamba_shared_prefix_checkpoint
            and kv.matches_partially
            and bool(config.draft_groups)
            and config.num_prefill_lookahead_tokens <= 1
        )
        kv.states.named_in = memory.ints(self.num_usable + 1)
        kv.states.checkpoints = memory.ints(kv.num_groups, NONE)

    def _matches_partially(self, unit: int) -> bool:
        """Return True if a hit may end inside a block, at a multiple of ``unit`` tokens."""
        cached = [spec for spec in self.groups if spec.is_cached]
        largest = max(spec.block_size for spec in cached if spec.is_state)
        is_fine = unit < largest or (unit == largest and self.config.num_cache_shards > 1)
        return is_fine and all(
            spec.is_state or spec.sees_all or spec.block_size == unit for spec in cached
        )

    @property
    def _tells_events(self) -> bool:
        return self.config.events and self.config.enable_prefix_caching

    def _num_hash_aliases(self, kv: KV) -> int:
        """Return the number of records for further keys of blocks."""
        several = len(self.groups) > 1
        if not kv.matches_partially and not (self._tells_events and several):
            return 0
        pairs = zip(self.groups, kv.groups, strict=True)
        longest = max([group.keys_per_block for spec, group in pairs if spec.sees_all], default=1)
        return (self.num_usable + 1) * (longest - 1)

    def num_tables(self) -> int:
        """Return the number of block tables of a request."""
        return len(self.groups)

    def fill_request_blocks(self, kv: KV, memory: Memory, first: int, stop: int) -> None:
        smallest = min(kv.hash_block_size, *(spec.block_size for spec in self.groups))
        width = cdiv(self.config.max_model_len, smallest) + 2
        width += max((kv.groups[g].num_spec_blocks for g in range(kv.num_groups)), default=0)
        request_blocks = kv.request_blocks[first:stop]
        if kv.has_states:
            most = stop * kv.num_groups  # copies of one step
            old = [*kv.states.pending[: first * kv.num_groups]]
            kv.states.pending = memory.list_of([*old, *[NONE] * (most - len(old))])
            kv.states.copies.blocks = memory.shorts(2 * most)
            kv.states.copy_groups = memory.ints(most)
        memory.share_out(request_blocks, "keys", int, width)
        tables = memory.share_out(request_blocks, "tables", BlockTable, self.num_tables())
        memory.share_out(tables, "blocks", Short, width)

    def room_for_map(self, kv: KV, memory: Memory) -> None:
        blocks = self.num_usable + 1
        kv.dead_ends, kv.live_ends = memory.floats(blocks), memory.floats(blocks)
        kv.last_ends, kv.unused = memory.floats(blocks), memory.ints(blocks)

    # -- the protocol ----------------------------------------------------------------------------

    def hit_blocks(self, num_tokens: int) -> list[list[int]]:
        own_blocks = next_own_blocks(self.kv)
        return [
            [table.blocks[place] for place in range(cdiv(num_tokens, spec.block_size))]
            if spec.is_cached
            else []
            for spec, table in zip(self.groups, own_blocks.tables, strict=True)
        ]

    def take_hit(self, hit: Hit) -> None:
        own_blocks = next_own_blocks(self.kv)
        for table, blocks in zip(own_blocks.tables, hit.blocks, strict=False):
            for place, block in enumerate(blocks):
                table.blocks[place] = block

    @cached_property
    def sizes(self) -> KV:
        """Settings without the memory itself, to check what fits into an empty memory."""
        kv = KV(reserve_output=self.config.reserve_output, max_model_len=self.config.max_model_len)
        kv.pool.num_usable = self.num_usable
        kv.groups = [KVGroup(block_size=spec.block_size) for spec in self.groups]
        return kv

    def fits(self, request: Request) -> bool:
        lookahead = self.config.num_slots_ahead
        tokens = min(request.end + lookahead, self.config.max_model_len)
        total = 0
        for spec, cap in zip(self.groups, self.admission_caps, strict=True):
            blocks = spec.most_states(tokens) or cdiv(tokens, spec.block_size)
            if cap and not self.config.reserve_output:
                # In addition to its window and tokens in flight, a request holds lookahead slots.
                blocks = min(blocks, cap + cdiv(lookahead, spec.block_size))
            total += blocks
        return total <= self.num_usable

    def set_time(self, clock: Callable[[], float]) -> None:
        self.eviction.set_time(clock, self.state)

    def foresee(self, requests: Iterable[Request]) -> None:
        if self.foresees:
            from kvsim.kv.block_hash import prompt_keys

            coming = list(requests)
            paths: list[list[int]] = [[] for _ in range(coming[-1].request_id + 1 if coming else 0)]
            for request, keys in zip(coming, prompt_keys(self.kv, coming), strict=True):
                paths[request.request_id] = keys
            self.eviction.foresee(paths)

    @property
    def pool(self) -> BlockPool:
        """The block pool."""
        return BlockPool.over(self.kv)

    def block_ids(self, request: Request) -> list[list[int]]:
        own_blocks = self.kv.request_blocks[request.own_blocks]
        return [head(table.blocks, table.length) for table in own_blocks.tables]

    def check_integrity(self) -> None:
        held = self.held_requests()
        tables = [(g, table) for r, _ in held for g, table in enumerate(self.block_ids(r))]
        copies = self._fenced_copies()
        tables += self._fenced_tables() + copies
        self.pool.check_integrity(tables, copies=copies)
        live = self.check_filled()
        self._check_sums(live)
        self._check_pinned(tables, live)
        self.usage.check(self.total_bytes)

    def _fenced_tables(self) -> list[tuple[int, list[int]]]:
        """Return the tables of fenced requests, as (group, blocks)."""
        connector = self.state.connector
        fenced = [
            self.kv.request_blocks[h]
            for h in head(connector.fenced, connector.num_fenced)
            if h != NONE
        ]
        return [
            (g, head(table.blocks, table.length))
            for own_blocks in fenced
            for g, table in enumerate(own_blocks.tables)
        ]

    def _fenced_copies(self) -> list[tuple[int, list[int]]]:
        """Return the blocks of fenced copies, as (group, [block])."""
        connector = self.state.connector
        blocks = head(connector.copies.blocks, connector.copies.length)
        return [(connector.copy_groups[n // 2], [block]) for n, block in enumerate(blocks)]

    def _check_pinned(
        self, tables: Sequence[tuple[int, list[int]]], live: Sequence[tuple[Request, int]]
    ) -> None:
        """Recount the blocks held only by requests that do not run."""
        if not self.kv.pool.tracks_pins:
            return
        running = {block for r, _ in live for table in self.block_ids(r) for block in table}
        for g, group in enumerate(self.kv.groups):
            kept = {block for of, table in tables if of == g for block in table}
            found = len(kept - running - {NULL_BLOCK})
            if found != group.num_pinned:
                raise RuntimeError(f"{group.num_pinned} pinned blocks counted, {found} found")

    def _check_sums(self, live: Sequence[tuple[Request, int]]) -> None:
        dead = sum(
            num_dead(group, self.kv.request_blocks[h]) * group.slot_bytes
            for group in self.kv.groups
            if group.window > 0
            for _, h in live
        )
        if dead != self.kv.dead_bytes:
            raise RuntimeError(f"{self.kv.dead_bytes} bytes out of windows counted, {dead} found")
        for g, spec in enumerate(self.groups):
            lengths = [self.kv.request_blocks[h].tables[g].length for _, h in live]
            counted = self.kv.groups[g].num_table_blocks
            if sum(lengths) != counted:
                raise RuntimeError(f"{counted} table entries, {sum(lengths)} found")
            for (request, _), length in zip(live, lengths, strict=True):
                if not spec.is_state and request.num_filled > length * spec.block_size:
                    raise RuntimeError("a request has more tokens than slots")


@ALLOCATORS.register("paged")
def paged(
    config: KVCacheConfig, *, block_size: PositiveInt | None = None, eviction: str = "lru"
) -> PagedManager:
    """Blocks over a shared pool, prefix caching: PagedAttention as in vLLM."""
    if config.max_num_samples > 1:
        from kvsim.kv.forked import ForkedManager

        return ForkedManager(config, block_size=block_size)
    return PagedManager(config, block_size=block_size, eviction=eviction)
