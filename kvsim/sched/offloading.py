"""Native CPU offloading as vLLM configures it, and the memory that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.kv.eviction import init_contents
from kvsim.records.eviction import Ranked
from kvsim.records.host_cache import HOST_ARC, WRITING, Chunk, HostCache, HostPolicy
from kvsim.records.memory import assign, head
from kvsim.records.offloading import (
    Job,
    JobBlock,
    JobChunk,
    Offer,
    OffloadGroup,
    Offloading,
    OffloadState,
)
from kvsim.records.paged import FULL
from kvsim.records.queue import Queue
from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.memory import Memory

#: Largest number of chunks with counted offers, vLLM's max_tracker_size.
MOST_OFFERS = 64_000


def make_offloading(options: Any, num_chunks: int, token_bytes: int, **settings: Any) -> Offloading:
    """Return the settings of native offloading from vLLM's connector options.

    Parameters
    ----------
    options : fields of :class:`kvsim.kv_transfer.OffloadingOptions`
    num_chunks : chunks that fit in host memory
    token_bytes : bytes of KV per token, over all GPUs
    """
    host = HostCache(
        policy=HostPolicy[options.eviction_policy.upper()],
        capacity=num_chunks,
        threshold=options.store_threshold,
    )
    return Offloading(
        host=host,
        blocks_per_chunk=options.blocks_per_chunk,
        prompt_only=options.offload_prompt_only,
        sync_load_budget=options.sync_load_budget_bytes // token_bytes,
        **settings,
    )


def init_host_cache(host: HostCache, memory: Memory, settings: HostCache, orders: int = 1) -> None:
    """Lay out an empty host cache; a chunk's rank within its request is below ``orders``."""
    assign(host, settings)
    capacity, arc, host.orders = settings.capacity, settings.policy == HOST_ARC, orders
    most = 4 * capacity if arc else capacity  # ghost lists shrink after an eviction
    num_buckets = 1 << max(2 * most - 1, 1).bit_length()
    host.chunks = memory.room(Chunk, most + 2)
    host.buckets, host.bucket_mask = memory.ints(num_buckets), num_buckets - 1
    host.free_slots = memory.ints(capacity + 1)
    host.ranking.entries = memory.room(Ranked, 1 if arc else capacity + 1)
    host.lists = memory.records(Queue, 4)
    host.most_offers = MOST_OFFERS
    if settings.threshold >= 2:
        init_contents(memory, host.offers, MOST_OFFERS)


def init_offloading(
    offloading: Offloading, memory: Memory, settings: Offloading, kv: KV, num_rows: int
) -> None:
    """Lay out offloading for a KV cache, and for ``num_rows`` requests of a trace."""
    assign(offloading, settings)
    size, num_blocks = settings.blocks_per_chunk, kv.pool.num_usable + 1
    offloading.keeps_boundaries = kv.keeps_boundaries
    num_chunks = _init_groups(offloading, memory, kv)
    orders = (kv.max_model_len + size * kv.alignment + 1) * (kv.num_groups + 1)
    init_host_cache(offloading.host, memory, settings.host, orders)
    offloading.offers = memory.room(Offer, num_chunks + 1)
    most = settings.host.capacity + num_blocks
    offloading.jobs = memory.room(Job, most)
    offloading.chunks = memory.room(JobChunk, most)
    offloading.blocks = memory.room(JobBlock, settings.host.capacity * size + num_blocks)
    offloading.watchers, offloading.got = memory.ints(num_blocks), memory.ints(num_blocks)
    offloading.reported = memory.ints(most)
    offloading.state_of = memory.ints(num_rows)
    offloading.next_bookkeeping_at = memory.ints(
        2 * num_rows + 64
    )  # records of requests double from 64 on


def _init_groups(offloading: Offloading, memory: Memory, kv: KV) -> int:
    """Lay out the groups; return the number of chunks of the longest request in all groups."""
    size = offloading.blocks_per_chunk
    groups = [kv.groups[g] for g in range(kv.num_groups)]
    full = {group.block_size * size for group in groups if group.kind == FULL}
    offloading.segment = max(full or {group.block_size * size for group in groups})
    offloading.num_groups = kv.num_groups
    offloading.groups = memory.records(OffloadGroup, kv.num_groups)
    num_chunks = num_blocks = 0
    for g, group in enumerate(groups):
        found, chunk = offloading.groups[g], group.block_size * size
        found.chunk_tokens, found.keys_per_chunk = chunk, group.keys_per_block * size
        found.first_chunk, found.first_block = num_chunks, num_blocks
        num_chunks += kv.max_model_len // chunk + 1
        num_blocks += cdiv(kv.max_model_len, group.block_size) + 2
        found.keeps_all = group.window == 0 or offloading.segment % group.block_size != 0
        if group.caches_states:
            found.is_state, found.window, found.run = True, 1, 1
        if group.window > 0:
            found.window = group.window
            found.num_needed = cdiv(group.window - 1, group.block_size)
            # Additionally retained tokens lengthen group.window; the true window is shorter.
            window = group.window - group.extra_retained
            found.run = max(cdiv(window, chunk), cdiv(group.window - 1, chunk))
            segment = kv.segment if kv.keeps_boundaries else offloading.segment
            found.blocks_per_segment = segment // group.block_size
    offloading.num_full = sum(group.kind == FULL for group in groups)
    by_need = sorted(range(kv.num_groups), key=lambda g: -_run(offloading, g))
    offloading.by_need = memory.list_of(by_need)
    return num_chunks


def _run(offloading: Offloading, g: int) -> float:
    """Return the number of chunks that a hit needs in a group; infinity for full attention."""
    return offloading.groups[g].run if offloading.groups[g].window else float("inf")


def add_states(offloading: Offloading, memory: Memory, kv: KV, count: int) -> None:
    """Make room for ``count`` more requests with offloading state."""
    n = offloading.num_states
    states: Any = memory.records(OffloadState, n + count if memory.compiled else count)
    if not memory.compiled:
        states = [*offloading.states, *states]
    elif n:
        states.array[:n] = offloading.states[:n].array  # type: ignore[attr-defined]
    last, block = offloading.groups[kv.num_groups - 1], kv.groups[kv.num_groups - 1].block_size
    num_chunks = last.first_chunk + kv.max_model_len // last.chunk_tokens + 1
    num_blocks = last.first_block + cdiv(kv.max_model_len, block) + 2
    sizes = {"keys": num_chunks, "marks": num_chunks, "blocks": num_blocks, "since": num_blocks}
    for name in ("num_keys", "cursors", "num_known"):
        sizes[name] = kv.num_groups
    for name, size in sizes.items():
        memory.share_out(states[n : n + count], name, int, size)
    free = [*head(offloading.free_states, offloading.num_free_states), *range(n, n + count)]
    ended = head(offloading.finished, offloading.num_finished)
    memory.replace(
        offloading,
        states=states,
        free_states=memory.list_of([*free, *[0] * (n + count - len(free))]),
        finished=memory.list_of([*ended, *[0] * (n + count - len(ended))]),
    )
    offloading.num_free_states += count
    offloading.num_states = n + count


def check_offloading(offloading: Offloading) -> None:
    """Recount the host cache.

    Raises
    ------
    RuntimeError
        If a counter differs from a recount; the message has both numbers.
    """
    host = offloading.host
    made = [host.chunks[k] for k in range(1, host.num_made + 1)]
    held = [chunk for chunk in made if chunk.slot != NONE]
    slots = {chunk.slot for chunk in held} | set(head(host.free_slots, host.num_free_slots))
    if len(held) != host.num_chunks or len(slots) != host.num_slots_used:
        raise RuntimeError(
            f"{host.num_chunks} chunks in {host.num_slots_used} slots counted, {len(held)} in "
            f"{len(slots)} found"
        )
    ready = sum(chunk.pins == 0 for chunk in held)
    writing = sum(chunk.pins == WRITING for chunk in held)
    if (ready, writing) != (host.num_ready, host.num_writing):
        raise RuntimeError(
            f"{host.num_ready} chunks ready and {host.num_writing} being written counted, {ready} "
            f"and {writing} found"
        )
    loads = sum(len(_chunks_of(offloading, j)) for j in _under_way(offloading, offloading.loads))
    stores = sum(len(_chunks_of(offloading, j)) for j in _under_way(offloading, offloading.stores))
    pins = sum(chunk.pins for chunk in held if chunk.pins > 0)
    if (loads, stores) != (pins, writing):
        raise RuntimeError(
            f"jobs read {loads} chunks and write {stores}, {pins} are read and {writing} written"
        )


def _under_way(offloading: Offloading, queue: Queue) -> list[int]:
    jobs, j = [], queue.head
    while j != NONE:
        jobs.append(j)
        j = offloading.jobs[j].next
    return jobs


def _chunks_of(offloading: Offloading, j: int) -> list[int]:
    chunks, c = [], offloading.jobs[j].first_chunk
    while c != NONE:
        chunks.append(offloading.chunks[c].chunk)
        c = offloading.chunks[c].next
    return chunks


def init_copies(state: Replica) -> None:
    """Set the times of copies over the host's link, per block and per token of a radix tree."""
    rate, tree, offloading = state.cost.link_bytes_per_s, state.kv.radix, state.offloading
    tree.copy_time, tree.token_time = state.cost.copy_round, tree.token_bytes / rate
    if offloading.timed:
        offloading.copy_time = state.cost.copy_round
        offloading.block_time = state.kv.bytes_per_block / rate
