"""Belady's optimum: evicts the content with the furthest next use first (Belady 1966).

The policy knows the prompts of the whole trace, in order of arrival. If the same request is the
next to use several contents, the last one in its prompt is evicted first, as it cannot be hit
without the earlier ones. Contents without a next use, and second copies, are evicted before all
others: unforeseen ones first, then the last ones of a prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.blocks.find import find
from kvsim.rules.blocks.keys import extend_keys
from kvsim.rules.eviction.ranking import drop_first, is_cached, rise

if TYPE_CHECKING:
    from kvsim.records.eviction import Foresight, Ranking
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockPool, RequestBlocks
    from kvsim.records.request import Request

DEPTH_BITS = 22  # of a rank with a next use: low bits for the block's place in its prompt
UNFORESEEN = (1 << DEPTH_BITS) - 1  # the place of a content that no prompt contains
COUNT_BITS = 40  # of a rank without a next use: low bits that count rankings
LATEST = 1 << 31  # above every row of a trace


def admit_belady(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Remove a request from the next uses of its prompt's contents, at its first admission."""
    if kv.pool.foresight.admitted[request.request_id] == 0:
        num_keys = (request.num_prompt_tokens - 1) // kv.hash_block_size
        lookahead = kv.num_hash_lookahead_tokens
        extend_keys(own_blocks, request, num_keys, kv.hash_block_size, lookahead)
        end_use(kv.pool, request.request_id, own_blocks.keys, num_keys, kv.num_groups)


def end_use(pool: BlockPool, row: int, keys: list[int], num_keys: int, num_groups: int) -> None:
    """Rank the free blocks of a prompt again, as its request no longer comes."""
    pool.foresight.admitted[row] = 1
    for place in range(num_keys):
        for g in range(num_groups):
            k = find(pool, keys[place], g)
            if k != NONE and is_cached(pool, k):
                rank_belady(pool, k, True)


def insert_belady(pool: BlockPool, k: int) -> None:
    """Rank a block that has lost its last reference."""
    block = pool.blocks[k]
    rank_belady(pool, k, find(pool, block.key, block.group) == k)


def evict_belady(pool: BlockPool) -> int:
    """Remove and return the victim; the next copy of its content becomes the oldest."""
    k = pop_valid(pool, pool.rankings[0])
    block, heir = pool.blocks[k], pool.blocks[k].copy
    if heir != NONE and is_cached(pool, heir) and find(pool, block.key, block.group) == k:
        rank_belady(pool, heir, True)
    return k


def rank_belady(pool: BlockPool, k: int, is_oldest: bool) -> None:
    """Set a free block's rank and add an entry with it; earlier entries become invalid."""
    foresight, note, ranking = pool.foresight, pool.notes[k], pool.rankings[0]
    row, depth = LATEST, UNFORESEEN
    content = find_foreseen(foresight, pool.blocks[k].key)
    if content != NONE:
        row, depth = next_user(foresight, content), foresight.depths[content]
    if row < LATEST and is_oldest:
        note.rank = ((LATEST - row) << DEPTH_BITS) - depth
    else:
        pool.last_rank += 1
        note.rank = pool.last_rank - ((depth + 1) << COUNT_BITS)
    if ranking.length == 2 * (pool.num_usable + 1):
        drop_invalid(pool, ranking)
    note.has_entry = 1
    ranking.length += 1
    rise(ranking, ranking.length - 1, note.rank, k)


def find_foreseen(foresight: Foresight, key: int) -> int:
    """Return the index of a key among the contents of all prompts, or NONE."""
    first, stop = 0, foresight.num_keys
    while first < stop:
        middle = (first + stop) >> 1
        if foresight.keys[middle] < key:
            first = middle + 1
        else:
            stop = middle
    if first < foresight.num_keys and foresight.keys[first] == key:
        return first
    return NONE


def next_user(foresight: Foresight, content: int) -> int:
    """Return the row of the next request that uses a content, LATEST for none."""
    at, stop = foresight.next_uses[content], foresight.ends[content]
    while at < stop and foresight.admitted[foresight.users[at]] == 1:
        at += 1
    foresight.next_uses[content] = at
    return foresight.users[at] if at < stop else LATEST


def pop_valid(pool: BlockPool, ranking: Ranking) -> int:
    """Remove and return the free block with the smallest valid rank."""
    while True:
        k, rank = ranking.entries[0].block, ranking.entries[0].rank
        drop_first(ranking)
        if is_cached(pool, k) and pool.notes[k].rank == rank:
            pool.notes[k].rank = 0  # no block's rank, so that equal entries become invalid
            return k


def drop_invalid(pool: BlockPool, ranking: Ranking) -> None:
    """Keep one entry of each free block, the one with its current rank."""
    length = ranking.length
    ranking.length = 0
    for place in range(length):
        k, rank = ranking.entries[place].block, ranking.entries[place].rank
        note = pool.notes[k]
        if is_cached(pool, k) and note.rank == rank and note.has_entry == 1:
            note.has_entry = 0
            rise(ranking, ranking.length, rank, k)
            ranking.length += 1
    for place in range(ranking.length):
        pool.notes[ranking.entries[place].block].has_entry = 1
