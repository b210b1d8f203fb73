"""The compiled engine: one replica's whole life in a few kernels over plain arrays.

This module imports nothing from kvsim: its compiled code is cached under a hash of this file alone.
Every rule and every order of floating-point operations is that of the plain-Python modules, which
are the specification; names are theirs. State lives in arrays of one :class:`State`; scalars that
change are entries of ``s.i`` (integers) and ``s.f`` (floats).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

# Entries of s.i
(RUNNING, WAITING, NUM_ARRIVALS, NEXT_ARRIVAL, IN_FLIGHT, FIRST_BATCH, MUST_COMPLETE, OUTSTANDING,
 EMPTY_STEPS, REFUSED, NUM_STEPS, STRIDE, NUM_SAMPLES, PREEMPTIONS, RECOMPUTED, FAILURES,
 PEAK_RUNNING, UNHASHED, CACHED_FREE, USED, FREE_SLOTS, FILLED, TABLE_BLOCKS, INTERNAL, QUEUE_HEAD,
 QUEUE_TAIL, LRU_HEAD, LRU_TAIL, SIZE, ASKED, LAST, HOLES, PREEMPTED, STATUS) = range(34)  # fmt: skip
# Entries of s.f
(CLOCK, STAGE_FREE, LAST_TOKEN, TOKEN_STATES_S, RESERVATION_S, INTERNAL_S, EXTERNAL_S,
 UNALLOCATED_S, CACHED_S, USAGE_S, RUNNING_S, WAITING_S, REFUSED_S, RUNNING_REFUSED_S,
 PEAK_USAGE) = range(15)  # fmt: skip
# Status of a request; as kvsim.request.Status, and -1 before it is seen
UNSEEN, WAITS, RUNS, IS_PREEMPTED, FINISHED = -1, 0, 1, 2, 4
# Causes of the memory map; as kvsim.kv.manager.Cause
C_FREE, C_TOKEN_STATES, C_RESERVATION, C_INTERNAL, C_EXTERNAL, C_CACHED = 0, 1, 2, 3, 4, 5
# Kinds of placement
PAGED, BUDDY, FIRST_FIT, BEST_FIT = 0, 1, 2, 3
# Reservations of contiguous pieces
RESERVE_MAX, RESERVE_POW2, RESERVE_ORACLE = 0, 1, 2
# s.i[STATUS]
DONE, PAUSED, STUCK = 0, 1, 2

MAX_SAMPLES = 4096
GAP_BINS = 1 << 21
MAX_EMPTY = 3

_A = np.uint64(0x2545F4914F6CDD1D)
_B = np.uint64(0xBF58476D1CE4E5B9)
_C = np.uint64(0x94D049BB133111EB)
_NONE = np.uint64(0x9E3779B97F4A7C15)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


class Config(NamedTuple):
    """What does not change during a run. Counts are int64, times and rates float64."""

    placement: Any
    reserve: Any
    orca: Any
    block_size: Any
    num_usable: Any  # blocks, or slots of a contiguous memory
    unit_bytes: Any  # of a block, or of a slot
    slot_bytes: Any
    max_model_len: Any
    max_active: Any
    budget: Any
    threshold: Any
    adaptive: Any
    chunked: Any
    priority: Any
    asynchronous: Any
    caching: Any
    watermark_blocks: Any
    reserve_full: Any
    lookahead: Any
    window: Any  # of a rolling buffer, 0 for none
    depth: Any
    bins: Any
    num_stages: Any
    end_time: Any
    constant_time: Any  # of a step, negative for the roofline
    step_time: Any
    request_time: Any
    stream_rate: Any
    gemm_rate: Any
    body_flops: Any
    head_flops: Any
    head_bytes: Any
    kv_bytes: Any  # int64
    pair_flops: Any
    kv_rate: Any
    prefill_rate: Any
    reduce_time: Any
    reduce_time_per_token: Any


class State(NamedTuple):
    """Arrays by first axis: requests n, slots of running requests S, blocks N, steps in flight D."""

    i: Any
    f: Any
    # The trace, n
    prompt: Any
    max_tokens: Any
    priority: Any
    segment_offset: Any  # n + 1, all zeros without segments
    segment_id: Any
    segment_start: Any
    segment_length: Any
    output_id: Any
    salt: Any
    # Requests, n
    arrival: Any
    num_tokens: Any
    computed: Any
    in_flight: Any
    stale: Any
    placeholders: Any
    max_computed: Any
    preemptions: Any
    cached: Any
    status: Any
    slot: Any
    first_scheduled: Any
    first_token: Any
    last_token: Any
    finish: Any
    # Queues
    run: Any  # S + 1
    queue_next: Any  # n; first come first served
    queue_previous: Any
    heap: Any  # n; by priority
    aside: Any
    arrival_id: Any
    arrival_time: Any
    # Slots, S
    table: Any  # S x blocks of the longest request
    key: Any
    length: Any
    cached_tokens: Any
    filled: Any
    key_owner: Any
    num_keys: Any
    key_segment: Any
    key_offset: Any
    free_slots: Any
    start: Any  # contiguous pieces
    size: Any
    asked: Any
    last: Any
    # Blocks, N
    ref_cnt: Any
    unhashed: Any
    lru_previous: Any
    lru_next: Any
    hashed: Any
    block_key: Any
    bucket: Any
    chain: Any
    copy: Any
    # Contiguous memory
    holes: Any  # orders x pieces of starts; or 2 x pieces of starts and sizes
    num_holes: Any
    # Steps in flight, D x S
    batch_request: Any
    batch_tokens: Any
    batch_unfinished: Any
    batch_size: Any
    batch_end: Any
    # Records
    sample_ints: Any
    sample_floats: Any
    map: Any
    map_filled: Any
    map_last: Any
    map_unused: Any
    gaps: Any
    weight_bytes: Any
    float_bits: Any  # one float64, and the same memory as int64
    int_bits: Any


# -- the waiting queue ----------------------------------------------------------------------------


@njit(cache=True)
def _before(s, a, b):
    if s.priority[a] != s.priority[b]:
        return s.priority[a] < s.priority[b]
    if s.arrival[a] != s.arrival[b]:
        return s.arrival[a] < s.arrival[b]
    return a < b


@njit(cache=True)
def _sift_up(s, at):
    while at > 0:
        parent = (at - 1) // 2
        if not _before(s, s.heap[at], s.heap[parent]):
            return
        s.heap[at], s.heap[parent] = s.heap[parent], s.heap[at]
        at = parent


@njit(cache=True)
def _sift_down(s, at, n):
    while True:
        least = at
        for child in range(2 * at + 1, min(2 * at + 3, n)):
            if _before(s, s.heap[child], s.heap[least]):
                least = child
        if least == at:
            return
        s.heap[at], s.heap[least] = s.heap[least], s.heap[at]
        at = least


@njit(cache=True)
def _queue_append(c, s, r):
    n = s.i[WAITING]
    s.i[WAITING] = n + 1
    if c.priority:
        s.heap[n] = r
        _sift_up(s, n)
        return
    tail = s.i[QUEUE_TAIL]
    s.queue_previous[r] = tail
    s.queue_next[r] = -1
    if tail < 0:
        s.i[QUEUE_HEAD] = r
    else:
        s.queue_next[tail] = r
    s.i[QUEUE_TAIL] = r


@njit(cache=True)
def _queue_push_front(c, s, r):
    if c.priority:
        _queue_append(c, s, r)
        return
    head = s.i[QUEUE_HEAD]
    s.queue_next[r] = head
    s.queue_previous[r] = -1
    if head < 0:
        s.i[QUEUE_TAIL] = r
    else:
        s.queue_previous[head] = r
    s.i[QUEUE_HEAD] = r
    s.i[WAITING] += 1


@njit(cache=True)
def _queue_head(c, s):
    return s.heap[0] if c.priority else s.i[QUEUE_HEAD]


@njit(cache=True)
def _queue_remove(c, s, r):
    n = s.i[WAITING] - 1
    s.i[WAITING] = n
    if c.priority:
        at = 0
        while s.heap[at] != r:
            at += 1
        s.heap[at] = s.heap[n]
        if at < n:
            _sift_up(s, at)
            _sift_down(s, at, n)
        return
    previous, following = s.queue_previous[r], s.queue_next[r]
    if previous < 0:
        s.i[QUEUE_HEAD] = following
    else:
        s.queue_next[previous] = following
    if following < 0:
        s.i[QUEUE_TAIL] = previous
    else:
        s.queue_previous[following] = previous


# -- keys and the block pool ----------------------------------------------------------------------


@njit(cache=True)
def _mix(key, value):
    z = key * _A + value + _NONE
    z = (z ^ (z >> _S30)) * _B
    z = (z ^ (z >> _S27)) * _C
    return z ^ (z >> _S31)


@njit(cache=True)
def _extend_keys(c, s, slot, r, num_blocks):
    """Compute the keys of a request's first ``num_blocks`` full blocks into its slot's row."""
    if s.key_owner[slot] != r:
        s.key_owner[slot] = r
        s.num_keys[slot] = 0
        s.key_segment[slot] = 0
        s.key_offset[slot] = 0
    first = s.segment_offset[r]
    count = s.segment_offset[r + 1] - first
    num_segments = count if count > 0 else 1
    index, offset = s.key_segment[slot], s.key_offset[slot]
    for b in range(s.num_keys[slot], num_blocks):
        key = s.key[slot, b - 1] if b else _mix(_NONE, np.uint64(s.salt[r]))
        missing = c.block_size
        piece_id, piece_start, piece_length = -1, -1, 0
        while missing > 0:
            if index >= num_segments:
                content, start, length = s.output_id[r], 0, np.int64(1) << 62
            elif count > 0:
                content = s.segment_id[first + index]
                start = s.segment_start[first + index]
                length = s.segment_length[first + index]
            else:
                content, start, length = -2 * r - 1, 0, s.prompt[r]
            taken = min(length - offset, missing)
            begin = start + offset
            if piece_length and content == piece_id and begin == piece_start + piece_length:
                piece_length += taken
            else:
                if piece_length:
                    key = _mix(key, np.uint64(piece_id))
                    key = _mix(key, np.uint64(piece_start))
                    key = _mix(key, np.uint64(piece_length))
                piece_id, piece_start, piece_length = content, begin, taken
            missing -= taken
            offset += taken
            if offset == length:
                index += 1
                offset = 0
        key = _mix(key, np.uint64(piece_id))
        key = _mix(key, np.uint64(piece_start))
        s.key[slot, b] = _mix(key, np.uint64(piece_length))
    if num_blocks > s.num_keys[slot]:
        s.num_keys[slot] = num_blocks
        s.key_segment[slot] = index
        s.key_offset[slot] = offset


@njit(cache=True)
def _find(s, key):
    """Return the block that has held a content longest, or -1."""
    block = s.bucket[np.int64(key & np.uint64(len(s.bucket) - 1))]
    while block >= 0 and s.block_key[block] != key:
        block = s.chain[block]
    return block


@njit(cache=True)
def _cache_block(s, block, key):
    s.hashed[block] = 1
    s.block_key[block] = key
    s.copy[block] = -1
    first = _find(s, key)
    if first >= 0:
        while s.copy[first] >= 0:
            first = s.copy[first]
        s.copy[first] = block
        return
    at = np.int64(key & np.uint64(len(s.bucket) - 1))
    s.chain[block] = s.bucket[at]
    s.bucket[at] = block


@njit(cache=True)
def _forget(s, block):
    s.hashed[block] = 0
    key = s.block_key[block]
    at = np.int64(key & np.uint64(len(s.bucket) - 1))
    first, previous = s.bucket[at], -1
    while s.block_key[first] != key:
        previous, first = first, s.chain[first]
    if first != block:
        while s.copy[first] != block:
            first = s.copy[first]
        s.copy[first] = s.copy[block]
        return
    heir = s.copy[block]
    if heir >= 0:
        s.chain[heir] = s.chain[block]
    else:
        heir = s.chain[block]
    if previous < 0:
        s.bucket[at] = heir
    else:
        s.chain[previous] = heir


@njit(cache=True)
def _lru_remove(s, block):
    previous, following = s.lru_previous[block], s.lru_next[block]
    if previous < 0:
        s.i[LRU_HEAD] = following
    else:
        s.lru_next[previous] = following
    if following < 0:
        s.i[LRU_TAIL] = previous
    else:
        s.lru_previous[following] = previous
    s.i[CACHED_FREE] -= 1


@njit(cache=True)
def _lru_append(s, block):
    tail = s.i[LRU_TAIL]
    s.lru_previous[block] = tail
    s.lru_next[block] = -1
    if tail < 0:
        s.i[LRU_HEAD] = block
    else:
        s.lru_next[tail] = block
    s.i[LRU_TAIL] = block
    s.i[CACHED_FREE] += 1


@njit(cache=True)
def _append_blocks(s, slot, num_blocks):
    """Hand out free blocks, those without content first, to the end of a table."""
    length = s.length[slot]
    for k in range(num_blocks):
        if s.i[UNHASHED] > 0:
            s.i[UNHASHED] -= 1
            block = s.unhashed[s.i[UNHASHED]]
        else:
            block = s.i[LRU_HEAD]
            _lru_remove(s, block)
            _forget(s, block)
        s.ref_cnt[block] = 1
        s.table[slot, length + k] = block
    s.length[slot] = length + num_blocks
    s.i[USED] += num_blocks
    s.i[TABLE_BLOCKS] += num_blocks


@njit(cache=True)
def _free_blocks(s, slot):
    """Free a table last to first: hashed blocks to the back, the others to the front."""
    for k in range(s.length[slot] - 1, -1, -1):
        block = s.table[slot, k]
        s.ref_cnt[block] -= 1
        if s.ref_cnt[block] == 0:
            s.i[USED] -= 1
            if s.hashed[block]:
                _lru_append(s, block)
    for k in range(s.length[slot]):
        block = s.table[slot, k]
        if s.ref_cnt[block] == 0 and not s.hashed[block]:
            s.unhashed[s.i[UNHASHED]] = block
            s.i[UNHASHED] += 1
    s.i[TABLE_BLOCKS] -= s.length[slot]
    s.length[slot] = 0


@njit(cache=True)
def _num_free(s):
    return s.i[UNHASHED] + s.i[CACHED_FREE]


@njit(cache=True)
def _past_the_end(c, s, r, slot):
    return max(s.length[slot] * c.block_size - (s.prompt[r] + s.max_tokens[r] - 1), 0)


@njit(cache=True)
def _cache_blocks(c, s, r, slot, num_tokens):
    if num_tokens < s.cached_tokens[slot] + c.block_size:
        return
    last = num_tokens // c.block_size
    _extend_keys(c, s, slot, r, last)
    for k in range(s.cached_tokens[slot] // c.block_size, last):
        _cache_block(s, s.table[slot, k], s.key[slot, k])
    s.cached_tokens[slot] = last * c.block_size


@njit(cache=True)
def _cdiv(a, b):
    return -(-a // b)


@njit(cache=True)
def _lookup(c, s, r, slot):
    """Return the number of cached blocks a waiting request could reuse."""
    limit = (s.num_tokens[r] - 1) // c.block_size
    if limit < 1:
        return 0
    _extend_keys(c, s, slot, r, limit)
    hit = 0
    while hit < limit:
        block = _find(s, s.key[slot, hit])
        if block < 0:
            break
        s.table[slot, hit] = block
        hit += 1
    return hit


@njit(cache=True)
def _paged_admit(c, s, r, slot, hit, num_new):
    """Admit with ``hit`` blocks that stand in the slot's table already."""
    free = _num_free(s)
    if s.i[RUNNING] > 0:
        free -= c.watermark_blocks
    taken = 0
    for k in range(hit):
        taken += s.ref_cnt[s.table[slot, k]] == 0
    if c.reserve_full:
        length = min(s.num_tokens[r], c.max_model_len)
        if max(_cdiv(length, c.block_size) - hit, 0) + taken > free:
            return False
    end = hit * c.block_size + num_new
    needed = max(_cdiv(min(end + c.lookahead, c.max_model_len), c.block_size) - hit, 0)
    if needed + taken > free:
        return False
    for k in range(hit):
        block = s.table[slot, k]
        if s.ref_cnt[block] == 0:
            _lru_remove(s, block)
            s.i[USED] += 1
        s.ref_cnt[block] += 1
    s.length[slot] = hit
    s.i[TABLE_BLOCKS] += hit
    _append_blocks(s, slot, needed)
    s.filled[slot] = end
    s.cached_tokens[slot] = hit * c.block_size
    s.i[FILLED] += end
    s.i[INTERNAL] += _past_the_end(c, s, r, slot)
    if c.caching:
        _cache_blocks(c, s, r, slot, min(end, s.num_tokens[r]))
    return True


@njit(cache=True)
def _grow(c, s, r, num_new):
    """Make room for a running request's next tokens."""
    slot = s.slot[r]
    end = s.computed[r] + num_new
    if c.placement == PAGED:
        needed = _cdiv(min(end + c.lookahead, c.max_model_len), c.block_size) - s.length[slot]
        if needed > 0:
            if needed > _num_free(s):
                return False
            s.i[INTERNAL] -= _past_the_end(c, s, r, slot)
            _append_blocks(s, slot, needed)
            s.i[INTERNAL] += _past_the_end(c, s, r, slot)
        if c.caching:
            _cache_blocks(c, s, r, slot, min(end, s.num_tokens[r]))
    else:
        end = _rolled(c, end)
    s.i[FILLED] += end - s.filled[slot]
    s.filled[slot] = end
    return True


@njit(cache=True)
def _free(c, s, r):
    slot = s.slot[r]
    s.i[FILLED] -= s.filled[slot]
    if c.placement == PAGED:
        s.i[INTERNAL] -= _past_the_end(c, s, r, slot)
        _free_blocks(s, slot)
    else:
        s.i[SIZE] -= s.size[slot]
        s.i[ASKED] -= s.asked[slot]
        s.i[LAST] -= s.last[slot]
        if c.placement == BUDDY:
            _buddy_free(s, s.start[slot], s.size[slot])
        else:
            _fit_free(s, s.start[slot], s.size[slot])
    s.slot[r] = -1
    s.free_slots[s.i[FREE_SLOTS]] = slot
    s.i[FREE_SLOTS] += 1


# -- contiguous memory ----------------------------------------------------------------------------


@njit(cache=True)
def _rolled(c, num_tokens):
    return num_tokens if c.window == 0 else min(num_tokens, c.window)


@njit(cache=True)
def _place_in(row, count, start):
    """First index of a sorted row that is not below ``start``."""
    at = 0
    while at < count and row[at] < start:
        at += 1
    return at


@njit(cache=True)
def _insert(row, count, at, value):
    for k in range(count, at, -1):
        row[k] = row[k - 1]
    row[at] = value


@njit(cache=True)
def _delete(row, count, at):
    for k in range(at, count - 1):
        row[k] = row[k + 1]


@njit(cache=True)
def _buddy_allocate(s, wanted_order):
    order = wanted_order
    while order < len(s.num_holes) and s.num_holes[order] == 0:
        order += 1
    if order == len(s.num_holes):
        return -1
    start = s.holes[order, 0]
    _delete(s.holes[order], s.num_holes[order], 0)
    s.num_holes[order] -= 1
    while order > wanted_order:
        order -= 1
        half = start + (np.int64(1) << order)
        row, count = s.holes[order], s.num_holes[order]
        _insert(row, count, _place_in(row, count, half), half)
        s.num_holes[order] = count + 1
    return start


@njit(cache=True)
def _order_of(size):
    order = 0
    while (np.int64(1) << order) < size:
        order += 1
    return order


@njit(cache=True)
def _buddy_free(s, start, size):
    order = _order_of(size)
    while True:
        row, count = s.holes[order], s.num_holes[order]
        buddy = start ^ (np.int64(1) << order)
        at = _place_in(row, count, buddy)
        if order + 1 >= len(s.num_holes) or at == count or row[at] != buddy:
            break
        _delete(row, count, at)
        s.num_holes[order] = count - 1
        start = min(start, buddy)
        order += 1
    row, count = s.holes[order], s.num_holes[order]
    _insert(row, count, _place_in(row, count, start), start)
    s.num_holes[order] = count + 1


@njit(cache=True)
def _fit_allocate(s, wanted, best):
    starts, sizes, count = s.holes[0], s.holes[1], s.num_holes[0]
    at = -1
    for k in range(count):
        if sizes[k] >= wanted and (at < 0 or (best and sizes[k] < sizes[at])):
            at = k
            if not best:
                break
    if at < 0:
        return -1
    start = starts[at]
    if sizes[at] > wanted:
        starts[at] += wanted
        sizes[at] -= wanted
    else:
        _delete(starts, count, at)
        _delete(sizes, count, at)
        s.num_holes[0] = count - 1
    return start


@njit(cache=True)
def _fit_free(s, start, size):
    starts, sizes, count = s.holes[0], s.holes[1], s.num_holes[0]
    at = _place_in(starts, count, start)
    after = at < count and starts[at] == start + size
    before = at > 0 and starts[at - 1] + sizes[at - 1] == start
    if before and after:
        sizes[at - 1] += size + sizes[at]
        _delete(starts, count, at)
        _delete(sizes, count, at)
        s.num_holes[0] = count - 1
    elif before:
        sizes[at - 1] += size
    elif after:
        starts[at] = start
        sizes[at] += size
    else:
        _insert(starts, count, at, start)
        _insert(sizes, count, at, size)
        s.num_holes[0] = count + 1


@njit(cache=True)
def _contiguous_admit(c, s, r, slot):
    output = s.max_tokens[r]
    if c.reserve == RESERVE_MAX:
        asked = c.max_model_len
    elif c.reserve == RESERVE_POW2:
        asked = min(s.prompt[r] + (np.int64(1) << _order_of(output)), c.max_model_len)
    else:
        asked = min(s.prompt[r] + output, c.max_model_len)
    asked = _rolled(c, asked)
    size = asked
    if c.placement == BUDDY:
        order = _order_of(asked)
        size = np.int64(1) << order
        start = _buddy_allocate(s, order)
    else:
        start = _fit_allocate(s, asked, c.placement == BEST_FIT)
    if start < 0:
        return False
    s.start[slot] = start
    s.size[slot] = size
    s.asked[slot] = asked
    s.last[slot] = min(_rolled(c, s.prompt[r] + output - 1), asked)
    s.i[SIZE] += size
    s.i[ASKED] += asked
    s.i[LAST] += s.last[slot]
    s.filled[slot] = _rolled(c, s.num_tokens[r])
    s.i[FILLED] += s.filled[slot]
    return True


# -- records --------------------------------------------------------------------------------------


@njit(cache=True)
def _usage(c, s):
    """Bytes of token states, reservation, internal, external, unallocated and cached."""
    b = c.slot_bytes
    if c.placement == PAGED:
        unfilled = s.i[TABLE_BLOCKS] * c.block_size - s.i[FILLED]
        past = s.i[INTERNAL]
        used = s.i[USED]
        return (
            (used * c.block_size - unfilled) * b,
            (unfilled - past) * b,
            past * b,
            used * (c.unit_bytes - c.block_size * b),
            _num_free(s) * c.unit_bytes,
            s.i[CACHED_FREE] * c.unit_bytes,
        )
    return (
        s.i[FILLED] * b,
        (s.i[LAST] - s.i[FILLED]) * b,
        (s.i[ASKED] - s.i[LAST]) * b,
        (s.i[SIZE] - s.i[ASKED]) * b,
        (c.num_usable - s.i[SIZE]) * b,
        np.int64(0),
    )


@njit(cache=True)
def _kv_usage(c, s):
    if c.num_usable == 0:
        return 0.0
    if c.placement == PAGED:
        return (c.num_usable - _num_free(s)) / c.num_usable
    return s.i[SIZE] / c.num_usable


@njit(cache=True)
def _head_refused(s):
    return s.i[REFUSED] == 1 and s.i[WAITING] > 0


@njit(cache=True)
def pass_time(c, s, to):
    """Let time pass in which nothing changes. Mutates."""
    if not to > s.f[CLOCK]:
        return
    seconds = to - s.f[CLOCK]
    s.f[CLOCK] = to
    tokens, reserved, internal, external, unallocated, cached = _usage(c, s)
    running = s.i[RUNNING]
    s.f[TOKEN_STATES_S] += tokens * seconds
    s.f[RESERVATION_S] += reserved * seconds
    s.f[INTERNAL_S] += internal * seconds
    s.f[UNALLOCATED_S] += unallocated * seconds
    s.f[CACHED_S] += cached * seconds
    s.f[RUNNING_S] += running * seconds
    s.f[WAITING_S] += s.i[WAITING] * seconds
    if _head_refused(s):
        external += unallocated
        s.f[REFUSED_S] += seconds
        s.f[RUNNING_REFUSED_S] += running * seconds
    s.f[EXTERNAL_S] += external * seconds
    usage = _kv_usage(c, s)
    s.f[USAGE_S] += usage * seconds
    s.f[PEAK_USAGE] = max(s.f[PEAK_USAGE], usage)
    s.i[PEAK_RUNNING] = max(s.i[PEAK_RUNNING], running)


@njit(cache=True)
def _halve_samples(c, s):
    half = MAX_SAMPLES // 2
    for k in range(half):
        s.sample_ints[k] = s.sample_ints[2 * k]
        s.sample_floats[k] = s.sample_floats[2 * k]
        if c.bins:
            s.map[k] = s.map[2 * k]
    s.i[NUM_SAMPLES] = half
    s.i[STRIDE] *= 2


@njit(cache=True)
def _sample(c, s):
    if s.i[NUM_SAMPLES] == MAX_SAMPLES:
        _halve_samples(c, s)
        if s.i[NUM_STEPS] % s.i[STRIDE]:
            return
    k = s.i[NUM_SAMPLES]
    s.i[NUM_SAMPLES] = k + 1
    tokens, reserved, internal, external, unallocated, cached = _usage(c, s)
    free = unallocated
    if _head_refused(s):
        external += unallocated
        free = 0
    s.sample_floats[k, 0] = s.f[CLOCK]
    s.sample_floats[k, 1] = _kv_usage(c, s)
    row = s.sample_ints[k]
    row[0], row[1] = s.i[RUNNING], s.i[WAITING]
    row[2], row[3], row[4], row[5], row[6] = tokens, reserved, internal, external, free
    row[7] = cached
    if c.bins:
        if c.placement == PAGED:
            _map_blocks(c, s, s.map[k])
        else:
            _map_pieces(c, s, s.map[k])
        if _head_refused(s):
            for at in range(c.bins):
                if s.map[k, at] == C_FREE:
                    s.map[k, at] = C_EXTERNAL


@njit(cache=True)
def _map_blocks(c, s, row):
    for block in range(len(s.ref_cnt)):
        s.map_filled[block] = 0.0
        s.map_last[block] = 0.0
        s.map_unused[block] = C_CACHED if s.hashed[block] else C_FREE
    for at in range(s.i[RUNNING]):
        r = s.run[at]
        slot = s.slot[r]
        last = s.prompt[r] + s.max_tokens[r] - 1
        for k in range(s.length[slot]):
            block = s.table[slot, k]
            first = k * c.block_size
            s.map_filled[block] = (s.filled[slot] - first) / c.block_size
            s.map_last[block] = (last - first) / c.block_size
            s.map_unused[block] = C_INTERNAL
    for at in range(c.bins):
        if c.num_usable == 0:
            row[at] = C_FREE
            continue
        middle = (at + 0.5) * (c.num_usable / c.bins)
        block = np.int64(middle) + 1
        place = middle % 1.0
        row[at] = s.map_unused[block]
        if s.map_last[block] > place:
            row[at] = C_RESERVATION
        if s.map_filled[block] > place:
            row[at] = C_TOKEN_STATES


@njit(cache=True)
def _paint(c, row, start, stop, cause):
    double = 2 * c.num_usable
    first = -((c.num_usable - 2 * start * c.bins) // double)
    last = -((c.num_usable - 2 * stop * c.bins) // double)
    for at in range(first, last):
        row[at] = cause


@njit(cache=True)
def _map_pieces(c, s, row):
    for at in range(c.bins):
        row[at] = C_FREE
    for at in range(s.i[RUNNING]):
        slot = s.slot[s.run[at]]
        start = s.start[slot]
        filled, last = start + s.filled[slot], start + s.last[slot]
        _paint(c, row, start, filled, C_TOKEN_STATES)
        _paint(c, row, filled, last, C_RESERVATION)
        _paint(c, row, last, start + s.asked[slot], C_INTERNAL)
        _paint(c, row, start + s.asked[slot], start + s.size[slot], C_EXTERNAL)


@njit(cache=True)
def _gap(s, seconds, num_tokens):
    s.float_bits[0] = seconds
    s.gaps[s.int_bits[0] >> 42] += num_tokens


# -- one step -------------------------------------------------------------------------------------


@njit(cache=True)
def _see_arrivals(c, s):
    at, clock = s.i[NEXT_ARRIVAL], s.f[CLOCK]
    while at < s.i[NUM_ARRIVALS] and s.arrival_time[at] <= clock:
        r = s.arrival_id[at]
        s.arrival[r] = s.arrival_time[at]
        s.status[r] = WAITS
        s.num_tokens[r] = s.prompt[r]
        _queue_append(c, s, r)
        s.f[WAITING_S] += clock - s.arrival_time[at]
        at += 1
    s.i[NEXT_ARRIVAL] = at


@njit(cache=True)
def _plan(s, b, r, num_tokens):
    k = s.batch_size[b]
    s.batch_request[b, k] = r
    s.batch_tokens[b, k] = num_tokens
    s.batch_size[b] = k + 1


@njit(cache=True)
def _drop(s, b, r):
    """Take a request out of the plan; returns the tokens it gives back."""
    n = s.batch_size[b]
    for k in range(n):
        if s.batch_request[b, k] == r:
            tokens = s.batch_tokens[b, k]
            for later in range(k, n - 1):
                s.batch_request[b, later] = s.batch_request[b, later + 1]
                s.batch_tokens[b, later] = s.batch_tokens[b, later + 1]
            s.batch_size[b] = n - 1
            return tokens
    return 0


@njit(cache=True)
def _victim(c, s):
    at = s.i[RUNNING] - 1
    if c.priority:
        at = 0
        for k in range(1, s.i[RUNNING]):
            a, b = s.run[at], s.run[k]
            if s.priority[b] > s.priority[a] or (
                s.priority[b] == s.priority[a] and s.arrival[b] > s.arrival[a]
            ):
                at = k
    return at


@njit(cache=True)
def _preempt(c, s, r):
    _free(c, s, r)
    s.status[r] = IS_PREEMPTED
    s.max_computed[r] = max(s.max_computed[r], s.computed[r])
    s.computed[r] = 0
    s.stale[r] = s.in_flight[r]
    s.placeholders[r] = 0
    s.preemptions[r] += 1
    s.i[PREEMPTIONS] += 1
    s.i[PREEMPTED] += 1
    s.i[REFUSED] = 0
    _queue_push_front(c, s, r)


@njit(cache=True)
def _schedule_running(c, s, b, budget, threshold):
    index = 0
    while index < s.i[RUNNING] and budget > 0:
        r = s.run[index]
        computed, placeholders = s.computed[r], s.placeholders[r]
        end = s.prompt[r] + s.max_tokens[r]
        if placeholders and computed + 2 - placeholders >= end:
            index += 1
            continue
        n = s.num_tokens[r] + placeholders - computed
        if 0 < threshold < n:
            n = threshold
        n = min(n, budget, c.max_model_len - 1 - computed)
        if n <= 0:
            index += 1
            continue
        while True:
            if _grow(c, s, r, n):
                _plan(s, b, r, n)
                budget -= n
                index += 1
                break
            s.i[FAILURES] += 1
            at = _victim(c, s)
            victim = s.run[at]
            for k in range(at, s.i[RUNNING] - 1):
                s.run[k] = s.run[k + 1]
            s.i[RUNNING] -= 1
            budget += _drop(s, b, victim)
            _preempt(c, s, victim)
            if at < index:
                index -= 1
            if victim == r:
                if not c.priority:
                    return budget
                break
    return budget


@njit(cache=True)
def _admit(c, s, b, r, slot, hit_tokens, n):
    _queue_remove(c, s, r)
    if np.isnan(s.first_scheduled[r]):
        s.first_scheduled[r] = s.f[CLOCK]
        s.cached[r] = hit_tokens
    s.i[FREE_SLOTS] -= 1
    s.slot[r] = slot
    s.status[r] = RUNS
    s.computed[r] = hit_tokens
    s.run[s.i[RUNNING]] = r
    s.i[RUNNING] += 1
    _plan(s, b, r, n)


@njit(cache=True)
def _schedule_waiting(c, s, b, budget, threshold):
    num_aside = 0
    while budget > 0 and s.i[WAITING] > 0 and s.i[RUNNING] < c.max_active:
        r = _queue_head(c, s)
        if s.stale[r]:
            _queue_remove(c, s, r)
            s.aside[num_aside] = r
            num_aside += 1
            continue
        slot = s.free_slots[s.i[FREE_SLOTS] - 1]
        hit = 0
        if c.caching:
            hit = _lookup(c, s, r, slot)
        n = s.num_tokens[r] - hit * c.block_size
        if 0 < threshold < n:
            n = threshold
        if n > budget and not c.chunked:
            s.i[REFUSED] = 0
            break
        n = min(n, budget)
        if not _paged_admit(c, s, r, slot, hit, n):
            s.i[REFUSED] = 1
            s.i[FAILURES] += 1
            break
        s.i[REFUSED] = 0
        _admit(c, s, b, r, slot, hit * c.block_size, n)
        budget -= n
    for k in range(num_aside - 1, -1, -1):
        _queue_push_front(c, s, s.aside[k])


@njit(cache=True)
def _schedule_vllm(c, s, b):
    unfinished = s.i[RUNNING] + s.i[WAITING]
    budget = c.budget
    threshold = c.threshold if unfinished > 1 else 0
    if threshold and c.adaptive:
        threshold = max(threshold, budget // unfinished)
    budget = _schedule_running(c, s, b, budget, threshold)
    if s.i[PREEMPTED] == 0:
        _schedule_waiting(c, s, b, budget, threshold)


@njit(cache=True)
def _schedule_orca(c, s, b):
    for k in range(s.i[RUNNING]):
        r = s.run[k]
        n = s.num_tokens[r] - s.computed[r]
        if n and _grow(c, s, r, n):
            _plan(s, b, r, n)
    while s.i[WAITING] > 0 and s.i[RUNNING] < c.max_active:
        r = _queue_head(c, s)
        slot = s.free_slots[s.i[FREE_SLOTS] - 1]
        if not _contiguous_admit(c, s, r, slot):
            s.i[REFUSED] = 1
            s.i[FAILURES] += 1
            break
        s.i[REFUSED] = 0
        _admit(c, s, b, r, slot, 0, s.num_tokens[r])


@njit(cache=True)
def _commit(c, s, b):
    """Advance the counts of all scheduled requests; returns the step's time."""
    num_tokens = num_sampled = decode_keys = prefill_keys = prefill_pairs = np.int64(0)
    for k in range(s.batch_size[b]):
        r, n = s.batch_request[b, k], s.batch_tokens[b, k]
        computed = s.computed[r]
        end = computed + n
        if computed < s.max_computed[r]:
            s.i[RECOMPUTED] += min(end, s.max_computed[r]) - computed
        s.computed[r] = end
        s.in_flight[r] += n
        unfinished = end < s.num_tokens[r] + s.placeholders[r]
        s.batch_unfinished[b, k] = unfinished
        if not unfinished:
            num_sampled += 1
            if c.asynchronous:
                s.placeholders[r] += 1
        num_tokens += n
        if n == 1:
            decode_keys += end
        else:
            prefill_keys += end
            prefill_pairs += n * (2 * end - n + 1) // 2
    if c.constant_time >= 0:
        return c.constant_time
    return _step_time(
        c, s, s.batch_size[b], num_tokens, num_sampled, decode_keys, prefill_keys, prefill_pairs
    )


@njit(cache=True)
def _step_time(c, s, requests, tokens, sampled, decode_keys, prefill_keys, prefill_pairs):
    """The roofline of kvsim.cost.roofline."""
    gemm_flops = tokens * c.body_flops + sampled * c.head_flops
    weights = s.weight_bytes[min(tokens, len(s.weight_bytes) - 1)]
    if sampled:
        weights += c.head_bytes
    time = c.step_time + requests * c.request_time
    time += max(weights / c.stream_rate, gemm_flops / c.gemm_rate)
    time += np.float64(decode_keys * c.kv_bytes) / c.kv_rate
    prefill_bytes = np.float64(prefill_keys * c.kv_bytes)
    prefill_flops = prefill_pairs * c.pair_flops
    time += max(prefill_bytes / c.kv_rate, prefill_flops / c.prefill_rate)
    time += c.reduce_time + tokens * c.reduce_time_per_token
    return time


@njit(cache=True)
def _record_step(c, s):
    if s.i[NUM_STEPS] % s.i[STRIDE] == 0:
        _sample(c, s)
    s.i[NUM_STEPS] += 1


@njit(cache=True)
def _schedule(c, s):
    """Decide a step and start it; returns False if the scheduler is stuck."""
    now = s.f[CLOCK]
    b = (s.i[FIRST_BATCH] + s.i[IN_FLIGHT]) % len(s.batch_size)
    s.batch_size[b] = 0
    s.i[PREEMPTED] = 0
    if c.orca:
        _schedule_orca(c, s, b)
    else:
        _schedule_vllm(c, s, b)
    last = (s.i[FIRST_BATCH] + s.i[IN_FLIGHT] - 1) % len(s.batch_size)
    if s.batch_size[b]:
        time = _commit(c, s, b)
        start = max(now, s.f[STAGE_FREE])
        s.f[STAGE_FREE] = start + time / c.num_stages
        last_end = s.batch_end[last] if s.i[IN_FLIGHT] else now
        s.batch_end[b] = max(start + time, last_end)
        _record_step(c, s)
        s.i[EMPTY_STEPS] = 0
    else:
        _record_step(c, s)
        any_real = False
        for k in range(s.i[IN_FLIGHT]):
            if s.batch_size[(s.i[FIRST_BATCH] + k) % len(s.batch_size)]:
                any_real = True
        if not any_real:
            s.i[EMPTY_STEPS] += 1
            hopeless = s.i[PREEMPTED] == 0 and s.i[RUNNING] == 0
            return not hopeless and s.i[EMPTY_STEPS] < MAX_EMPTY
        s.batch_end[b] = s.batch_end[last]
    s.i[IN_FLIGHT] += 1
    s.i[MUST_COMPLETE] = s.i[IN_FLIGHT] >= c.depth or s.batch_size[b] == 0
    return True


@njit(cache=True)
def _complete(c, s):
    """Take in the tokens of the oldest step; returns how many requests have ended."""
    b = s.i[FIRST_BATCH]
    end = s.batch_end[b]
    pass_time(c, s, end)
    s.i[MUST_COMPLETE] = 0
    s.i[FIRST_BATCH] = (b + 1) % len(s.batch_size)
    s.i[IN_FLIGHT] -= 1
    before = s.f[LAST_TOKEN]
    num_regular = num_sampled = num_finished = 0
    for k in range(s.batch_size[b]):
        r, n = s.batch_request[b, k], s.batch_tokens[b, k]
        s.in_flight[r] -= n
        stale = s.stale[r] > 0
        if stale:
            s.stale[r] -= n
        if s.status[r] == FINISHED or s.batch_unfinished[b, k]:
            continue
        s.num_tokens[r] += 1
        num_sampled += 1
        last = s.last_token[r]
        if last == before:
            num_regular += 1
        elif np.isnan(last):
            s.first_token[r] = end
        else:
            _gap(s, end - last, 1)
        s.last_token[r] = end
        if not stale and s.placeholders[r] > 0:
            s.placeholders[r] -= 1
            if c.asynchronous and c.caching and s.status[r] == RUNS:
                _cache_blocks(c, s, r, s.slot[r], s.computed[r] - s.in_flight[r])
        if s.num_tokens[r] >= s.prompt[r] + s.max_tokens[r]:
            if s.status[r] == RUNS:
                _free(c, s, r)
            else:
                _queue_remove(c, s, r)
            s.status[r] = FINISHED
            s.finish[r] = end
            num_finished += 1
    if num_finished:
        kept = 0
        for k in range(s.i[RUNNING]):
            r = s.run[k]
            if s.status[r] != FINISHED:
                s.run[kept] = r
                kept += 1
        s.i[RUNNING] = kept
        s.i[OUTSTANDING] -= num_finished
    if num_regular:
        _gap(s, end - before, num_regular)
    if num_sampled:
        s.f[LAST_TOKEN] = end
    return num_finished


@njit(cache=True)
def advance(c, s, horizon, until_finish, max_steps):
    """Run until the outside may matter, or for ``max_steps`` steps; returns requests ended."""
    num_ended = 0
    steps = 0
    s.i[STATUS] = DONE
    while not (until_finish and num_ended):
        if s.i[MUST_COMPLETE]:
            if s.batch_end[s.i[FIRST_BATCH]] > horizon:
                break
            num_ended += _complete(c, s)
            continue
        _see_arrivals(c, s)
        if s.i[RUNNING] == 0 and s.i[WAITING] == 0:
            if s.i[IN_FLIGHT]:
                s.i[MUST_COMPLETE] = 1
                continue
            if s.i[NEXT_ARRIVAL] == s.i[NUM_ARRIVALS]:
                break
            arrival = s.arrival_time[s.i[NEXT_ARRIVAL]]
            if arrival > horizon:
                break
            pass_time(c, s, min(arrival, c.end_time))
            if s.f[CLOCK] >= c.end_time:
                break
        elif s.f[CLOCK] >= horizon:
            break
        elif s.f[CLOCK] < c.end_time:
            if steps == max_steps:
                s.i[STATUS] = PAUSED
                break
            steps += 1
            if not _schedule(c, s):
                s.i[STATUS] = STUCK
                break
        elif s.i[IN_FLIGHT]:
            s.i[MUST_COMPLETE] = 1
        else:
            break
    return num_ended
