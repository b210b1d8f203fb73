"""Search for the longest prefix of a request whose KV is in the pool, for all groups at once.

Groups with the same spec hit together or not at all. A hit is shortened until every spec can resume
at its end (vLLM's hybrid coordinator).

docs/vllm-rules.md, sections 7 and 8, describe the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import FULL, NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import cdiv, find_of_kind, num_skipped
from kvsim.rules.blocks.find import find
from kvsim.rules.blocks.keys import extend_keys
from kvsim.rules.blocks.partial_keys import owner_of
from kvsim.rules.fetching import prefetch_key, prefetch_keys

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import LookupSpec, RequestBlocks
    from kvsim.records.request import Request


def find_all(kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, place: int) -> bool:
    """Enter the blocks of one content in the tables of all groups; False if a group lacks it."""
    return find_part(
        kv, own_blocks, spec, place, (place + 1) * (spec.block_size // kv.hash_block_size)
    )


def find_part(kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, place: int, units: int) -> bool:
    """As :func:`find_all`, for the first ``units`` hash units, which may end inside a block."""
    key = own_blocks.keys[units - 1]
    prefetch_key(kv.pool, own_blocks.keys, units - 1, own_blocks.num_keys - 1, spec.groups[0])
    for k in range(spec.num_groups):
        block = find(kv.pool, key, spec.groups[k])
        if block == NONE:
            return False
        if kv.pool.num_hash_aliases > 0:
            block = owner_of(kv.pool, block)
        own_blocks.tables[spec.groups[k]].blocks[place] = block
    return True


def aligned(kv: KV, num_tokens: int) -> int:
    """Round a hit down to a multiple of the alignment."""
    return num_tokens // kv.alignment * kv.alignment


def find_prefix(
    kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, limit: int, drops: bool
) -> int:
    """Find the longest prefix of at most ``limit`` tokens that can be reused.

    Leading blocks that no later token sees count as hit. With ``drops``, the last block found is
    not reused. Returns the number of tokens of the prefix.
    """
    place = num_skipped(spec.kind, spec.window, limit) // spec.block_size
    for k in range(spec.num_groups):
        for unseen in range(place):
            own_blocks.tables[spec.groups[k]].blocks[unseen] = NULL_BLOCK
    prefetch_keys(kv.pool, own_blocks.keys, 0, own_blocks.num_keys, spec.groups[0])
    while place < limit // spec.block_size and find_all(kv, own_blocks, spec, place):
        place += 1
    found = place * spec.block_size
    if kv.matches_partially and spec.kind == FULL:
        found = find_inside(kv, own_blocks, spec, found, limit)
    if drops and found > 0:
        found -= min(kv.alignment, spec.block_size)
    return aligned(kv, found)


def find_inside(kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, found: int, limit: int) -> int:
    """Extend a hit of whole blocks into the next block, as far as a cached key covers it."""
    unit, place = kv.hash_block_size, found // spec.block_size
    for units in range(min(limit, found + spec.block_size - 1) // unit, found // unit, -1):
        if find_part(kv, own_blocks, spec, place, units):
            return units * unit
    return found


def find_state(kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, limit: int) -> int:
    """Return the token count of the last state that all groups of a spec have; 0 without one."""
    for found in range(aligned(kv, limit), 0, -kv.alignment):
        place = cdiv(found, spec.block_size) - 1
        if find_part(kv, own_blocks, spec, place, found // kv.hash_block_size):
            for k in range(spec.num_groups):
                for unseen in range(place):
                    own_blocks.tables[spec.groups[k]].blocks[unseen] = NULL_BLOCK
            return found
    return 0


def find_window(
    kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, limit: int, drops: bool
) -> int:
    """As :func:`find_prefix`, but find the last run of blocks that fills a sliding window."""
    size = spec.block_size
    run, needed = 0, cdiv(spec.window - spec.extra_retained - 1, size) + drops
    for place in range(limit // size - 1, -1, -1):
        if not find_all(kv, own_blocks, spec, place):
            run = 0
            continue
        if run == 0 and (place + 1 - drops) * size % kv.alignment != 0:
            continue  # a hit must end on an aligned boundary
        run += 1
        if run >= needed:
            if not drops and spec.extra_retained == 0:
                return (place + run) * size
            found = aligned(kv, (place + run - drops) * size)
            null_blocks(own_blocks, spec, found, place)
            return found
    found = aligned(kv, run * size)
    return aligned(kv, found - size) if drops and found > 0 else found


def null_blocks(own_blocks: RequestBlocks, spec: LookupSpec, found: int, first: int) -> None:
    """Set to null the table entries from the window's start to ``first``, the start of its run."""
    for place in range(num_skipped(spec.kind, spec.window, found) // spec.block_size, first):
        for k in range(spec.num_groups):
            own_blocks.tables[spec.groups[k]].blocks[place] = NULL_BLOCK


def find_spec(kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, limit: int, drops: bool) -> int:
    """Return the tokens that the groups of one spec can reuse."""
    return find_of_kind(spec.kind, kv, own_blocks, spec, limit, drops)


def find_hit(kv: KV, request: Request, own_blocks: RequestBlocks) -> int:
    """Return the longest reusable prefix in tokens, and enter its blocks in the request's tables.

    The last token is always computed, so that the step can sample from it. As hits are whole
    blocks, a fully cached prompt that ends at a block boundary computes its last block again.
    """
    request.shared_prefix_boundary = 0
    ahead, size = kv.num_hash_lookahead_tokens, kv.hash_block_size
    limit = request.num_tokens - max(ahead, 1)
    if not kv.enable_prefix_caching or limit < kv.alignment:
        return 0
    hashed = (request.num_tokens if kv.drops_last_block else limit) // size
    extend_keys(own_blocks, request, hashed, size, ahead)
    if kv.num_groups == 1:
        return find_spec(kv, own_blocks, kv.specs[0], limit, kv.drops_last_block)
    return find_together(kv, request, own_blocks, limit, hashed * size)


def find_by_attention(kv: KV, request: Request, own_blocks: RequestBlocks) -> int:
    """Return a hit of full attention to which states are to be loaded, or NONE.

    With a KV connector, vLLM keeps this hit although the states end before it. The entries of
    states are null, as no later token sees them.
    """
    limit, size = request.num_tokens - 1, kv.hash_block_size
    if kv.num_specs != 2 or kv.specs[0].kind != FULL or limit < kv.alignment:
        return NONE
    hashed = (request.num_tokens if kv.drops_last_block else limit) // size
    extend_keys(own_blocks, request, hashed, size, 0)
    hit = find_spec(kv, own_blocks, kv.specs[0], limit, kv.specs[0].drops_last_block)
    states = kv.specs[1]
    if find_spec(kv, own_blocks, states, limit, False) >= hit:
        return NONE
    for k in range(states.num_groups):
        for place in range(cdiv(hit, states.block_size)):
            own_blocks.tables[states.groups[k]].blocks[place] = NULL_BLOCK
    request.shared_prefix_boundary = 0
    return hit


def find_together(
    kv: KV, request: Request, own_blocks: RequestBlocks, limit: int, hashed: int
) -> int:
    """Shorten a hit until every spec can resume at its end; return its tokens.

    A spec that drops its last block searches one block further, once at each length.
    """
    hit, longest = limit, 0
    one_pass = kv.num_specs == 2 and kv.specs[0].kind == FULL
    for s in range(kv.num_specs):
        kv.specs[s].length = NONE
        kv.specs[s].has_dropped = False
    while True:
        length = hit
        for s in range(kv.num_specs):
            spec = kv.specs[s]
            if spec.kind != FULL or spec.length == NONE:
                length = shrink_to_spec(kv, own_blocks, spec, length, hashed)
            else:
                length = min(length, spec.length)
            longest = max(longest, length)
        shrunk = length < hit
        hit = min(length, hit)
        if one_pass or not shrunk:
            break
    if longest > hit:
        request.shared_prefix_boundary = longest
    return hit


def shrink_to_spec(
    kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, length: int, hashed: int
) -> int:
    """Return the longest hit of at most ``length`` tokens after which a spec can resume.

    A spec that drops its last block first searches one block further, within the ``hashed`` tokens.
    It does so once per length.
    """
    drops = spec.drops_last_block and not spec.has_dropped
    further = spec.block_size
    if kv.matches_partially and spec.kind == FULL:
        further = kv.hash_block_size
    most = min(length + further, hashed) if drops else length
    found = find_spec(kv, own_blocks, spec, most, drops)
    if drops:
        spec.has_dropped = True
    elif found < length:
        for other in range(kv.num_specs):
            kv.specs[other].has_dropped = False
    spec.length = found
    return found
