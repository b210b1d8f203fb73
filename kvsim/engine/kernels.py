"""The compiled engine: one replica's whole life in a few kernels over plain arrays.

This module imports nothing from kvsim: its compiled code is cached under a hash of this file alone.
Every rule and every order of floating-point operations is that of the plain-Python modules, which
are the specification; names are theirs.

All state lives in four flat arrays, because every array that a kernel gets costs time at each call:
``m`` (int64), ``f`` (float64), ``u`` (uint64, keys of content) and ``maps`` (uint8, memory maps).
Names in capitals are places in them. ``m[NUM_RUNNING]`` is a scalar; ``m[m[RUN] + k]`` is an entry
of an array that begins at ``m[RUN]``; requests, slots and blocks are named by the place of their
record, so that ``m[COMPUTED + r]`` is a field of one.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

#: Scalars of ``m`` that change.
COUNTS = (
    NUM_RUNNING, NUM_WAITING, NUM_ARRIVALS, NEXT_ARRIVAL, NUM_BATCHES, FIRST_BATCH, MUST_COMPLETE,
    OUTSTANDING, EMPTY_STEPS, REFUSED, NUM_STEPS, STRIDE, NUM_SAMPLES, NUM_PREEMPTIONS,
    NUM_RECOMPUTED, NUM_FAILURES, PEAK_RUNNING, NUM_UNHASHED, NUM_CACHED_FREE, NUM_USED,
    NUM_FREE_SLOTS, SUM_FILLED, NUM_TABLE_BLOCKS, SUM_INTERNAL, QUEUE_HEAD, QUEUE_TAIL, LRU_HEAD,
    LRU_TAIL, SUM_SIZE, SUM_ASKED, SUM_LAST, NUM_PREEMPTED, OUTCOME, TRIED, STEADY,
) = tuple(range(35))  # fmt: skip
#: Scalars of ``m`` that do not change: the configuration, and widths of rows. Sizes are in tokens;
#: ``NUM_USABLE`` counts blocks, or slots of a contiguous memory, and ``UNIT_BYTES`` is one's size.
SETTINGS = (
    PLACEMENT, RESERVE, ORCA, BLOCK_SIZE, NUM_USABLE, UNIT_BYTES, SLOT_BYTES, MAX_MODEL_LEN,
    MAX_ACTIVE, BUDGET, THRESHOLD, ADAPTIVE, CHUNKED, BY_PRIORITY, ASYNCHRONOUS, CACHING,
    WATERMARK_BLOCKS, RESERVE_FULL, LOOKAHEAD, WINDOW, DEPTH, BINS, KV_BYTES, MAX_HOLES,
    NUM_ORDERS, NUM_BLOCKS, BUCKET_MASK, MAX_BATCHES, LAST_WEIGHT,
) = tuple(range(35, 64))  # fmt: skip
#: Offsets of arrays in ``m``: by request, of queues, of blocks, of holes in a contiguous memory, of
#: steps in flight, of records.
INT_ARRAYS = (
    SEGMENT_OFFSET, SEGMENT_ID, SEGMENT_START, SEGMENT_LENGTH, OUTPUT_ID, SALT,
    RUN, HEAP, ASIDE, ARRIVAL_ID, FREE_SLOTS,
    BLOCKS, UNHASHED, BUCKET, MAP_UNUSED,
    HOLES, NUM_HOLES, PHASE_FIRST, PHASE_LAST, PHASE_NEXT, PHASE_COUNT,
    BATCH_REQUEST, BATCH_TOKENS, BATCH_UNFINISHED, BATCH_SIZE,
    SAMPLE_INTS, GAPS,
) = tuple(range(64, 91))  # fmt: skip
#: Offsets, held in ``m``, of arrays in ``f``.
FLOAT_ARRAYS = (
    ARRIVAL_TIME, BATCH_END, SAMPLE_FLOATS, WEIGHT_BYTES, MAP_FILLED, MAP_LAST,
) = tuple(range(91, 97))  # fmt: skip
#: Where the records of requests begin, in ``m`` and in ``f``, and the length of a record. A request
#: is named by the place of its record: ``m[COMPUTED + r]``, ``f[FINISH + r]``.
REQUESTS, RECORD = 112, 16
INT_FIELDS = (
    PROMPT, MAX_TOKENS, PRIORITY, NUM_TOKENS, COMPUTED, IN_FLIGHT, STALE, PLACEHOLDERS, MAX_COMPUTED,
    PREEMPTIONS, CACHED, STATUS, SLOT, QUEUE_NEXT, QUEUE_PREVIOUS,
) = tuple(range(15))  # fmt: skip
FLOAT_FIELDS = ARRIVAL, FIRST_SCHEDULED, FIRST_TOKEN, LAST_TOKEN, FINISH = tuple(range(5))
#: A running request has a slot, named by the place of its record in ``m``: its block table and keys
#: start at ``m[ROW + slot]`` in ``m`` and ``m[KEY_ROW + slot]`` in ``u``; or it has a piece.
SLOT_FIELDS = (
    ROW, KEY_ROW, LENGTH, CACHED_TOKENS, FILLED, KEY_OWNER, NUM_KEYS, KEY_SEGMENT, KEY_OFFSET,
    START, SIZE, ASKED, LAST,
) = tuple(range(13))  # fmt: skip
#: A block is named by the place of its record, one cache line of ``m``. The key is kept as int64.
BLOCK_RECORD = 8
BLOCK_FIELDS = (
    REF_CNT, LRU_PREVIOUS, LRU_NEXT, HASHED, CHAIN, COPY, BLOCK_KEY,
) = tuple(range(7))  # fmt: skip
#: Scalars of ``f``: what changes (times in seconds, integrals over time), and the settings.
SUMS = (
    CLOCK, STAGE_FREE, LAST_TOKEN_TIME, TOKEN_STATES_S, RESERVATION_S, INTERNAL_S, EXTERNAL_S,
    UNALLOCATED_S, CACHED_S, USAGE_S, RUNNING_S, WAITING_S, REFUSED_S, RUNNING_REFUSED_S,
    PEAK_USAGE, BITS,
) = tuple(range(16))  # fmt: skip
RATES = (
    NUM_STAGES, END_TIME, CONSTANT_TIME, STEP_TIME, REQUEST_TIME, STREAM_RATE, GEMM_RATE,
    BODY_FLOPS, HEAD_FLOPS, HEAD_BYTES, PAIR_FLOPS, KV_RATE, PREFILL_RATE, REDUCE_TIME,
    REDUCE_TIME_PER_TOKEN,
) = tuple(range(16, 31))  # fmt: skip

# Status of a request; as kvsim.request.Status, and -1 before it is seen
UNSEEN, WAITS, RUNS, IS_PREEMPTED, FINISHED = -1, 0, 1, 2, 4
# Causes of the memory map; as kvsim.kv.manager.Cause
C_FREE, C_TOKEN_STATES, C_RESERVATION, C_INTERNAL, C_EXTERNAL, C_CACHED = 0, 1, 2, 3, 4, 5
# Kinds of placement
PAGED, BUDDY, FIRST_FIT, BEST_FIT = 0, 1, 2, 3
# Reservations of contiguous pieces
RESERVE_MAX, RESERVE_POW2, RESERVE_ORACLE = 0, 1, 2
# m[OUTCOME] of a call
DONE, PAUSED, STUCK = 0, 1, 2

MAX_SAMPLES = 4096
GAP_BINS = 1 << 21
MAX_EMPTY = 3

_A = np.uint64(0x2545F4914F6CDD1D)
_B = np.uint64(0xBF58476D1CE4E5B9)
_C = np.uint64(0x94D049BB133111EB)
_NONE = np.uint64(0x9E3779B97F4A7C15)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


# -- the waiting queue ----------------------------------------------------------------------------


@njit
def _before(m, f, u, maps, a, b):
    if m[PRIORITY + a] != m[PRIORITY + b]:
        return m[PRIORITY + a] < m[PRIORITY + b]
    if f[ARRIVAL + a] != f[ARRIVAL + b]:
        return f[ARRIVAL + a] < f[ARRIVAL + b]
    return a < b


@njit
def _sift_up(m, f, u, maps, at):
    while at > 0:
        parent = (at - 1) // 2
        if not _before(m, f, u, maps, m[m[HEAP] + at], m[m[HEAP] + parent]):
            return
        m[m[HEAP] + at], m[m[HEAP] + parent] = m[m[HEAP] + parent], m[m[HEAP] + at]
        at = parent


@njit
def _sift_down(m, f, u, maps, at, n):
    while True:
        least = at
        for child in range(2 * at + 1, min(2 * at + 3, n)):
            if _before(m, f, u, maps, m[m[HEAP] + child], m[m[HEAP] + least]):
                least = child
        if least == at:
            return
        m[m[HEAP] + at], m[m[HEAP] + least] = m[m[HEAP] + least], m[m[HEAP] + at]
        at = least


@njit
def _queue_append(m, f, u, maps, r):
    n = m[NUM_WAITING]
    m[NUM_WAITING] = n + 1
    if m[BY_PRIORITY]:
        m[m[HEAP] + n] = r
        _sift_up(m, f, u, maps, n)
        return
    tail = m[QUEUE_TAIL]
    m[QUEUE_PREVIOUS + r] = tail
    m[QUEUE_NEXT + r] = -1
    if tail < 0:
        m[QUEUE_HEAD] = r
    else:
        m[QUEUE_NEXT + tail] = r
    m[QUEUE_TAIL] = r


@njit
def _queue_push_front(m, f, u, maps, r):
    if m[BY_PRIORITY]:
        _queue_append(m, f, u, maps, r)
        return
    head = m[QUEUE_HEAD]
    m[QUEUE_NEXT + r] = head
    m[QUEUE_PREVIOUS + r] = -1
    if head < 0:
        m[QUEUE_TAIL] = r
    else:
        m[QUEUE_PREVIOUS + head] = r
    m[QUEUE_HEAD] = r
    m[NUM_WAITING] += 1


@njit
def _queue_head(m, f, u, maps):
    return m[m[HEAP] + 0] if m[BY_PRIORITY] else m[QUEUE_HEAD]


@njit
def _queue_remove(m, f, u, maps, r):
    n = m[NUM_WAITING] - 1
    m[NUM_WAITING] = n
    if m[BY_PRIORITY]:
        at = 0
        while m[m[HEAP] + at] != r:
            at += 1
        m[m[HEAP] + at] = m[m[HEAP] + n]
        if at < n:
            _sift_up(m, f, u, maps, at)
            _sift_down(m, f, u, maps, at, n)
        return
    previous, following = m[QUEUE_PREVIOUS + r], m[QUEUE_NEXT + r]
    if previous < 0:
        m[QUEUE_HEAD] = following
    else:
        m[QUEUE_NEXT + previous] = following
    if following < 0:
        m[QUEUE_TAIL] = previous
    else:
        m[QUEUE_PREVIOUS + following] = previous


# -- keys and the block pool ----------------------------------------------------------------------


@njit(inline="always")
def _mix(key, value):
    z = key * _A + value + _NONE
    z = (z ^ (z >> _S30)) * _B
    z = (z ^ (z >> _S27)) * _C
    return z ^ (z >> _S31)


@njit
def _extend_keys(m, f, u, maps, slot, r, num_blocks):
    """Compute the keys of a request's first ``num_blocks`` full blocks into its slot's row."""
    if m[KEY_OWNER + slot] != r:
        m[KEY_OWNER + slot] = r
        m[NUM_KEYS + slot] = 0
        m[KEY_SEGMENT + slot] = 0
        m[KEY_OFFSET + slot] = 0
    i = (r - REQUESTS) // RECORD
    first = m[m[SEGMENT_OFFSET] + i]
    count = m[m[SEGMENT_OFFSET] + i + 1] - first
    num_segments = count if count > 0 else 1
    index, offset = m[KEY_SEGMENT + slot], m[KEY_OFFSET + slot]
    for b in range(m[NUM_KEYS + slot], num_blocks):
        key = u[m[KEY_ROW + slot] + b - 1] if b else _mix(_NONE, np.uint64(m[m[SALT] + i]))
        missing = m[BLOCK_SIZE]
        piece_id, piece_start, piece_length = -1, -1, 0
        while missing > 0:
            if index >= num_segments:
                content, start, length = m[m[OUTPUT_ID] + i], 0, np.int64(1) << 62
            elif count > 0:
                content = m[m[SEGMENT_ID] + first + index]
                start = m[m[SEGMENT_START] + first + index]
                length = m[m[SEGMENT_LENGTH] + first + index]
            else:
                content, start, length = -2 * i - 1, 0, m[PROMPT + r]
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
        u[m[KEY_ROW + slot] + b] = _mix(key, np.uint64(piece_length))
    if num_blocks > m[NUM_KEYS + slot]:
        m[NUM_KEYS + slot] = num_blocks
        m[KEY_SEGMENT + slot] = index
        m[KEY_OFFSET + slot] = offset


@njit(inline="always")
def _find(m, f, u, maps, key):
    """Return the block that has held a content longest, or -1."""
    block = m[m[BUCKET] + np.int64(key & np.uint64(m[BUCKET_MASK]))]
    while block >= 0 and np.uint64(m[BLOCK_KEY + block]) != key:
        block = m[CHAIN + block]
    return block


@njit(inline="always")
def _cache_block(m, f, u, maps, block, key):
    m[HASHED + block] = 1
    m[BLOCK_KEY + block] = np.int64(key)
    m[COPY + block] = -1
    first = _find(m, f, u, maps, key)
    if first >= 0:
        while m[COPY + first] >= 0:
            first = m[COPY + first]
        m[COPY + first] = block
        return
    at = np.int64(key & np.uint64(m[BUCKET_MASK]))
    m[CHAIN + block] = m[m[BUCKET] + at]
    m[m[BUCKET] + at] = block


@njit(inline="always")
def _forget(m, f, u, maps, block):
    m[HASHED + block] = 0
    key = np.uint64(m[BLOCK_KEY + block])
    at = np.int64(key & np.uint64(m[BUCKET_MASK]))
    first, previous = m[m[BUCKET] + at], -1
    while np.uint64(m[BLOCK_KEY + first]) != key:
        previous, first = first, m[CHAIN + first]
    if first != block:
        while m[COPY + first] != block:
            first = m[COPY + first]
        m[COPY + first] = m[COPY + block]
        return
    heir = m[COPY + block]
    if heir >= 0:
        m[CHAIN + heir] = m[CHAIN + block]
    else:
        heir = m[CHAIN + block]
    if previous < 0:
        m[m[BUCKET] + at] = heir
    else:
        m[CHAIN + previous] = heir


@njit(inline="always")
def _lru_remove(m, f, u, maps, block):
    previous, following = m[LRU_PREVIOUS + block], m[LRU_NEXT + block]
    if previous < 0:
        m[LRU_HEAD] = following
    else:
        m[LRU_NEXT + previous] = following
    if following < 0:
        m[LRU_TAIL] = previous
    else:
        m[LRU_PREVIOUS + following] = previous
    m[NUM_CACHED_FREE] -= 1


@njit(inline="always")
def _lru_append(m, f, u, maps, block):
    tail = m[LRU_TAIL]
    m[LRU_PREVIOUS + block] = tail
    m[LRU_NEXT + block] = -1
    if tail < 0:
        m[LRU_HEAD] = block
    else:
        m[LRU_NEXT + tail] = block
    m[LRU_TAIL] = block
    m[NUM_CACHED_FREE] += 1


@njit(inline="always")
def _append_blocks(m, f, u, maps, slot, num_blocks):
    """Hand out free blocks, those without content first, to the end of a table."""
    length = m[LENGTH + slot]
    for k in range(num_blocks):
        if m[NUM_UNHASHED] > 0:
            m[NUM_UNHASHED] -= 1
            block = m[m[UNHASHED] + m[NUM_UNHASHED]]
        else:
            block = m[LRU_HEAD]
            _lru_remove(m, f, u, maps, block)
            _forget(m, f, u, maps, block)
        m[REF_CNT + block] = 1
        m[m[ROW + slot] + length + k] = block
    m[LENGTH + slot] = length + num_blocks
    m[NUM_USED] += num_blocks
    m[NUM_TABLE_BLOCKS] += num_blocks


@njit
def _free_blocks(m, f, u, maps, slot):
    """Free a table last to first: hashed blocks to the back, the others to the front."""
    for k in range(m[LENGTH + slot] - 1, -1, -1):
        block = m[m[ROW + slot] + k]
        m[REF_CNT + block] -= 1
        if m[REF_CNT + block] == 0:
            m[NUM_USED] -= 1
            if m[HASHED + block]:
                _lru_append(m, f, u, maps, block)
    for k in range(m[LENGTH + slot]):
        block = m[m[ROW + slot] + k]
        if m[REF_CNT + block] == 0 and not m[HASHED + block]:
            m[m[UNHASHED] + m[NUM_UNHASHED]] = block
            m[NUM_UNHASHED] += 1
    m[NUM_TABLE_BLOCKS] -= m[LENGTH + slot]
    m[LENGTH + slot] = 0


@njit(inline="always")
def _num_free(m, f, u, maps):
    return m[NUM_UNHASHED] + m[NUM_CACHED_FREE]


@njit(inline="always")
def _past_the_end(m, f, u, maps, r, slot):
    return max(m[LENGTH + slot] * m[BLOCK_SIZE] - (m[PROMPT + r] + m[MAX_TOKENS + r] - 1), 0)


@njit(inline="always")
def _cache_blocks(m, f, u, maps, r, slot, num_tokens):
    if num_tokens < m[CACHED_TOKENS + slot] + m[BLOCK_SIZE]:
        return
    last = num_tokens // m[BLOCK_SIZE]
    _extend_keys(m, f, u, maps, slot, r, last)
    for k in range(m[CACHED_TOKENS + slot] // m[BLOCK_SIZE], last):
        _cache_block(m, f, u, maps, m[m[ROW + slot] + k], u[m[KEY_ROW + slot] + k])
    m[CACHED_TOKENS + slot] = last * m[BLOCK_SIZE]


@njit(inline="always")
def _cdiv(a, b):
    return -(-a // b)


@njit
def _lookup(m, f, u, maps, r, slot):
    """Return the number of cached blocks a waiting request could reuse."""
    limit = (m[NUM_TOKENS + r] - 1) // m[BLOCK_SIZE]
    if limit < 1:
        return 0
    _extend_keys(m, f, u, maps, slot, r, limit)
    hit = 0
    while hit < limit:
        block = _find(m, f, u, maps, u[m[KEY_ROW + slot] + hit])
        if block < 0:
            break
        m[m[ROW + slot] + hit] = block
        hit += 1
    return hit


@njit
def _paged_admit(m, f, u, maps, r, slot, hit, num_new):
    """Admit with ``hit`` blocks that stand in the slot's table already."""
    free = _num_free(m, f, u, maps)
    if m[NUM_RUNNING] > 0:
        free -= m[WATERMARK_BLOCKS]
    taken = 0
    for k in range(hit):
        taken += m[REF_CNT + m[m[ROW + slot] + k]] == 0
    if m[RESERVE_FULL]:
        length = min(m[NUM_TOKENS + r], m[MAX_MODEL_LEN])
        if max(_cdiv(length, m[BLOCK_SIZE]) - hit, 0) + taken > free:
            return False
    end = hit * m[BLOCK_SIZE] + num_new
    needed = max(_cdiv(min(end + m[LOOKAHEAD], m[MAX_MODEL_LEN]), m[BLOCK_SIZE]) - hit, 0)
    if needed + taken > free:
        return False
    for k in range(hit):
        block = m[m[ROW + slot] + k]
        if m[REF_CNT + block] == 0:
            _lru_remove(m, f, u, maps, block)
            m[NUM_USED] += 1
        m[REF_CNT + block] += 1
    m[LENGTH + slot] = hit
    m[NUM_TABLE_BLOCKS] += hit
    _append_blocks(m, f, u, maps, slot, needed)
    m[FILLED + slot] = end
    m[CACHED_TOKENS + slot] = hit * m[BLOCK_SIZE]
    m[SUM_FILLED] += end
    m[SUM_INTERNAL] += _past_the_end(m, f, u, maps, r, slot)
    if m[CACHING]:
        _cache_blocks(m, f, u, maps, r, slot, min(end, m[NUM_TOKENS + r]))
    return True


@njit(inline="always")
def _grow(m, f, u, maps, r, num_new):
    """Make room for a running request's next tokens."""
    slot = m[SLOT + r]
    end = m[COMPUTED + r] + num_new
    if m[PLACEMENT] == PAGED:
        slots = min(end + m[LOOKAHEAD], m[MAX_MODEL_LEN])
        if slots > m[LENGTH + slot] * m[BLOCK_SIZE]:
            needed = _cdiv(slots, m[BLOCK_SIZE]) - m[LENGTH + slot]
            if needed > _num_free(m, f, u, maps):
                return False
            m[SUM_INTERNAL] -= _past_the_end(m, f, u, maps, r, slot)
            _append_blocks(m, f, u, maps, slot, needed)
            m[SUM_INTERNAL] += _past_the_end(m, f, u, maps, r, slot)
        if m[CACHING]:
            _cache_blocks(m, f, u, maps, r, slot, min(end, m[NUM_TOKENS + r]))
    else:
        end = _rolled(m, end)
    m[SUM_FILLED] += end - m[FILLED + slot]
    m[FILLED + slot] = end
    return True


@njit
def _free(m, f, u, maps, r):
    slot = m[SLOT + r]
    m[SUM_FILLED] -= m[FILLED + slot]
    if m[PLACEMENT] == PAGED:
        m[SUM_INTERNAL] -= _past_the_end(m, f, u, maps, r, slot)
        _free_blocks(m, f, u, maps, slot)
    else:
        m[SUM_SIZE] -= m[SIZE + slot]
        m[SUM_ASKED] -= m[ASKED + slot]
        m[SUM_LAST] -= m[LAST + slot]
        if m[PLACEMENT] == BUDDY:
            _buddy_free(m, f, u, maps, m[START + slot], m[SIZE + slot])
        else:
            _fit_free(m, f, u, maps, m[START + slot], m[SIZE + slot])
    m[SLOT + r] = -1
    m[m[FREE_SLOTS] + m[NUM_FREE_SLOTS]] = slot
    m[NUM_FREE_SLOTS] += 1


# -- contiguous memory ----------------------------------------------------------------------------


@njit(inline="always")
def _rolled(m, num_tokens):
    return num_tokens if m[WINDOW] == 0 else min(num_tokens, m[WINDOW])


@njit
def _place_in(m, row, count, start):
    """First index of a sorted row that is not below ``start``."""
    at = 0
    while at < count and m[row + at] < start:
        at += 1
    return at


@njit
def _insert(m, row, count, at, value):
    for k in range(count, at, -1):
        m[row + k] = m[row + k - 1]
    m[row + at] = value


@njit
def _delete(m, row, count, at):
    for k in range(at, count - 1):
        m[row + k] = m[row + k + 1]


@njit
def _buddy_allocate(m, f, u, maps, wanted_order):
    order = wanted_order
    while order < m[NUM_ORDERS] and m[m[NUM_HOLES] + order] == 0:
        order += 1
    if order == m[NUM_ORDERS]:
        return -1
    start = m[m[HOLES] + order * m[MAX_HOLES] + 0]
    _delete(m, m[HOLES] + order * m[MAX_HOLES], m[m[NUM_HOLES] + order], 0)
    m[m[NUM_HOLES] + order] -= 1
    while order > wanted_order:
        order -= 1
        half = start + (np.int64(1) << order)
        row, count = m[HOLES] + order * m[MAX_HOLES], m[m[NUM_HOLES] + order]
        _insert(m, row, count, _place_in(m, row, count, half), half)
        m[m[NUM_HOLES] + order] = count + 1
    return start


@njit
def _order_of(size):
    order = 0
    while (np.int64(1) << order) < size:
        order += 1
    return order


@njit
def _buddy_free(m, f, u, maps, start, size):
    order = _order_of(size)
    while True:
        row, count = m[HOLES] + order * m[MAX_HOLES], m[m[NUM_HOLES] + order]
        buddy = start ^ (np.int64(1) << order)
        at = _place_in(m, row, count, buddy)
        if order + 1 >= m[NUM_ORDERS] or at == count or m[row + at] != buddy:
            break
        _delete(m, row, count, at)
        m[m[NUM_HOLES] + order] = count - 1
        start = min(start, buddy)
        order += 1
    row, count = m[HOLES] + order * m[MAX_HOLES], m[m[NUM_HOLES] + order]
    _insert(m, row, count, _place_in(m, row, count, start), start)
    m[m[NUM_HOLES] + order] = count + 1


@njit
def _fit_allocate(m, f, u, maps, wanted, best):
    starts, sizes, count = m[HOLES], m[HOLES] + m[MAX_HOLES], m[m[NUM_HOLES] + 0]
    at = -1
    for k in range(count):
        if m[sizes + k] >= wanted and (at < 0 or (best and m[sizes + k] < m[sizes + at])):
            at = k
            if not best:
                break
    if at < 0:
        return -1
    start = m[starts + at]
    if m[sizes + at] > wanted:
        m[starts + at] += wanted
        m[sizes + at] -= wanted
    else:
        _delete(m, starts, count, at)
        _delete(m, sizes, count, at)
        m[m[NUM_HOLES] + 0] = count - 1
    return start


@njit
def _fit_free(m, f, u, maps, start, size):
    starts, sizes, count = m[HOLES], m[HOLES] + m[MAX_HOLES], m[m[NUM_HOLES] + 0]
    at = _place_in(m, starts, count, start)
    after = at < count and m[starts + at] == start + size
    before = at > 0 and m[starts + at - 1] + m[sizes + at - 1] == start
    if before and after:
        m[sizes + at - 1] += size + m[sizes + at]
        _delete(m, starts, count, at)
        _delete(m, sizes, count, at)
        m[m[NUM_HOLES] + 0] = count - 1
    elif before:
        m[sizes + at - 1] += size
    elif after:
        m[starts + at] = start
        m[sizes + at] += size
    else:
        _insert(m, starts, count, at, start)
        _insert(m, sizes, count, at, size)
        m[m[NUM_HOLES] + 0] = count + 1


@njit
def _contiguous_admit(m, f, u, maps, r, slot):
    output = m[MAX_TOKENS + r]
    if m[RESERVE] == RESERVE_MAX:
        asked = m[MAX_MODEL_LEN]
    elif m[RESERVE] == RESERVE_POW2:
        asked = min(m[PROMPT + r] + (np.int64(1) << _order_of(output)), m[MAX_MODEL_LEN])
    else:
        asked = min(m[PROMPT + r] + output, m[MAX_MODEL_LEN])
    asked = _rolled(m, asked)
    size = asked
    if m[PLACEMENT] == BUDDY:
        order = _order_of(asked)
        size = np.int64(1) << order
        start = _buddy_allocate(m, f, u, maps, order)
    else:
        start = _fit_allocate(m, f, u, maps, asked, m[PLACEMENT] == BEST_FIT)
    if start < 0:
        return False
    m[START + slot] = start
    m[SIZE + slot] = size
    m[ASKED + slot] = asked
    m[LAST + slot] = min(_rolled(m, m[PROMPT + r] + output - 1), asked)
    m[SUM_SIZE] += size
    m[SUM_ASKED] += asked
    m[SUM_LAST] += m[LAST + slot]
    m[FILLED + slot] = _rolled(m, m[NUM_TOKENS + r])
    m[SUM_FILLED] += m[FILLED + slot]
    return True


# -- records --------------------------------------------------------------------------------------


@njit(inline="always")
def _usage(m, f, u, maps):
    """Bytes of token states, reservation, internal, external, unallocated and cached."""
    b = m[SLOT_BYTES]
    if m[PLACEMENT] == PAGED:
        unfilled = m[NUM_TABLE_BLOCKS] * m[BLOCK_SIZE] - m[SUM_FILLED]
        past = m[SUM_INTERNAL]
        used = m[NUM_USED]
        return (
            (used * m[BLOCK_SIZE] - unfilled) * b,
            (unfilled - past) * b,
            past * b,
            used * (m[UNIT_BYTES] - m[BLOCK_SIZE] * b),
            _num_free(m, f, u, maps) * m[UNIT_BYTES],
            m[NUM_CACHED_FREE] * m[UNIT_BYTES],
        )
    return (
        m[SUM_FILLED] * b,
        (m[SUM_LAST] - m[SUM_FILLED]) * b,
        (m[SUM_ASKED] - m[SUM_LAST]) * b,
        (m[SUM_SIZE] - m[SUM_ASKED]) * b,
        (m[NUM_USABLE] - m[SUM_SIZE]) * b,
        np.int64(0),
    )


@njit(inline="always")
def _kv_usage(m, f, u, maps):
    if m[NUM_USABLE] == 0:
        return 0.0
    if m[PLACEMENT] == PAGED:
        return (m[NUM_USABLE] - _num_free(m, f, u, maps)) / m[NUM_USABLE]
    return m[SUM_SIZE] / m[NUM_USABLE]


@njit(inline="always")
def _head_refused(m, f, u, maps):
    return m[REFUSED] == 1 and m[NUM_WAITING] > 0


@njit(cache=True)
def pass_time(m, f, u, maps, to):
    """Let time pass in which nothing changes. Mutates."""
    if not to > f[CLOCK]:
        return
    seconds = to - f[CLOCK]
    f[CLOCK] = to
    tokens, reserved, internal, external, unallocated, cached = _usage(m, f, u, maps)
    running = m[NUM_RUNNING]
    f[TOKEN_STATES_S] += tokens * seconds
    f[RESERVATION_S] += reserved * seconds
    f[INTERNAL_S] += internal * seconds
    f[UNALLOCATED_S] += unallocated * seconds
    f[CACHED_S] += cached * seconds
    f[RUNNING_S] += running * seconds
    f[WAITING_S] += m[NUM_WAITING] * seconds
    if _head_refused(m, f, u, maps):
        external += unallocated
        f[REFUSED_S] += seconds
        f[RUNNING_REFUSED_S] += running * seconds
    f[EXTERNAL_S] += external * seconds
    usage = _kv_usage(m, f, u, maps)
    f[USAGE_S] += usage * seconds
    f[PEAK_USAGE] = max(f[PEAK_USAGE], usage)
    m[PEAK_RUNNING] = max(m[PEAK_RUNNING], running)


@njit
def _halve_samples(m, f, u, maps):
    half = MAX_SAMPLES // 2
    for k in range(half):
        for column in range(8):
            m[m[SAMPLE_INTS] + k * 8 + column] = m[m[SAMPLE_INTS] + k * 16 + column]
        for column in range(2):
            f[m[SAMPLE_FLOATS] + k * 2 + column] = f[m[SAMPLE_FLOATS] + k * 4 + column]
        if m[BINS]:
            for at in range(m[BINS]):
                maps[k * m[BINS] + at] = maps[2 * k * m[BINS] + at]
    m[NUM_SAMPLES] = half
    m[STRIDE] *= 2


@njit
def _sample(m, f, u, maps):
    if m[NUM_SAMPLES] == MAX_SAMPLES:
        _halve_samples(m, f, u, maps)
        if m[NUM_STEPS] % m[STRIDE]:
            return
    k = m[NUM_SAMPLES]
    m[NUM_SAMPLES] = k + 1
    tokens, reserved, internal, external, unallocated, cached = _usage(m, f, u, maps)
    free = unallocated
    if _head_refused(m, f, u, maps):
        external += unallocated
        free = 0
    f[m[SAMPLE_FLOATS] + k * 2 + 0] = f[CLOCK]
    f[m[SAMPLE_FLOATS] + k * 2 + 1] = _kv_usage(m, f, u, maps)
    row = m[SAMPLE_INTS] + k * 8
    m[row], m[row + 1] = m[NUM_RUNNING], m[NUM_WAITING]
    m[row + 2], m[row + 3], m[row + 4] = tokens, reserved, internal
    m[row + 5], m[row + 6], m[row + 7] = external, free, cached
    if m[BINS]:
        if m[PLACEMENT] == PAGED:
            _map_blocks(m, f, u, maps, k * m[BINS])
        else:
            _map_pieces(m, f, u, maps, k * m[BINS])
        if _head_refused(m, f, u, maps):
            for at in range(m[BINS]):
                if maps[k * m[BINS] + at] == C_FREE:
                    maps[k * m[BINS] + at] = C_EXTERNAL


@njit
def _map_blocks(m, f, u, maps, row):
    for block in range(m[NUM_BLOCKS]):
        f[m[MAP_FILLED] + block] = 0.0
        f[m[MAP_LAST] + block] = 0.0
        m[m[MAP_UNUSED] + block] = C_CACHED if m[HASHED + m[BLOCKS] + BLOCK_RECORD * block] else C_FREE
    for at in range(m[NUM_RUNNING]):
        r = m[m[RUN] + at]
        slot = m[SLOT + r]
        last = m[PROMPT + r] + m[MAX_TOKENS + r] - 1
        for k in range(m[LENGTH + slot]):
            block = (m[m[ROW + slot] + k] - m[BLOCKS]) // BLOCK_RECORD
            first = k * m[BLOCK_SIZE]
            f[m[MAP_FILLED] + block] = (m[FILLED + slot] - first) / m[BLOCK_SIZE]
            f[m[MAP_LAST] + block] = (last - first) / m[BLOCK_SIZE]
            m[m[MAP_UNUSED] + block] = C_INTERNAL
    for at in range(m[BINS]):
        if m[NUM_USABLE] == 0:
            maps[row + at] = C_FREE
            continue
        middle = (at + 0.5) * (m[NUM_USABLE] / m[BINS])
        block = np.int64(middle) + 1
        place = middle % 1.0
        maps[row + at] = m[m[MAP_UNUSED] + block]
        if f[m[MAP_LAST] + block] > place:
            maps[row + at] = C_RESERVATION
        if f[m[MAP_FILLED] + block] > place:
            maps[row + at] = C_TOKEN_STATES


@njit
def _paint(m, maps, row, start, stop, cause):
    double = 2 * m[NUM_USABLE]
    first = -((m[NUM_USABLE] - 2 * start * m[BINS]) // double)
    last = -((m[NUM_USABLE] - 2 * stop * m[BINS]) // double)
    for at in range(first, last):
        maps[row + at] = cause


@njit
def _map_pieces(m, f, u, maps, row):
    for at in range(m[BINS]):
        maps[row + at] = C_FREE
    for at in range(m[NUM_RUNNING]):
        slot = m[SLOT + m[m[RUN] + at]]
        start = m[START + slot]
        filled, last = start + m[FILLED + slot], start + m[LAST + slot]
        _paint(m, maps, row, start, filled, C_TOKEN_STATES)
        _paint(m, maps, row, filled, last, C_RESERVATION)
        _paint(m, maps, row, last, start + m[ASKED + slot], C_INTERNAL)
        _paint(m, maps, row, start + m[ASKED + slot], start + m[SIZE + slot], C_EXTERNAL)


@njit
def _gap(m, f, u, maps, seconds, num_tokens):
    f[BITS] = seconds
    m[m[GAPS] + (f[BITS : BITS + 1].view(np.int64)[0] >> 42)] += num_tokens


# -- one step -------------------------------------------------------------------------------------


@njit
def _see_arrivals(m, f, u, maps):
    at, clock = m[NEXT_ARRIVAL], f[CLOCK]
    while at < m[NUM_ARRIVALS] and f[m[ARRIVAL_TIME] + at] <= clock:
        r = REQUESTS + RECORD * m[m[ARRIVAL_ID] + at]
        f[ARRIVAL + r] = f[m[ARRIVAL_TIME] + at]
        m[STATUS + r] = WAITS
        m[NUM_TOKENS + r] = m[PROMPT + r]
        _queue_append(m, f, u, maps, r)
        m[TRIED] = 0
        f[WAITING_S] += clock - f[m[ARRIVAL_TIME] + at]
        at += 1
    m[NEXT_ARRIVAL] = at


@njit(inline="always")
def _plan(m, f, u, maps, b, r, num_tokens):
    at = m[m[BATCH_SIZE] + b] + b * m[MAX_ACTIVE]
    m[m[BATCH_REQUEST] + at] = r
    m[m[BATCH_TOKENS] + at] = num_tokens
    m[m[BATCH_SIZE] + b] += 1


@njit
def _drop(m, f, u, maps, b, r):
    """Take a request out of the plan; returns the tokens it gives back."""
    n = m[m[BATCH_SIZE] + b]
    for k in range(n):
        if m[m[BATCH_REQUEST] + b * m[MAX_ACTIVE] + k] == r:
            tokens = m[m[BATCH_TOKENS] + b * m[MAX_ACTIVE] + k]
            for later in range(k, n - 1):
                m[m[BATCH_REQUEST] + b * m[MAX_ACTIVE] + later] = m[m[BATCH_REQUEST] + b * m[MAX_ACTIVE] + later + 1]
                m[m[BATCH_TOKENS] + b * m[MAX_ACTIVE] + later] = m[m[BATCH_TOKENS] + b * m[MAX_ACTIVE] + later + 1]
            m[m[BATCH_SIZE] + b] = n - 1
            return tokens
    return 0


@njit
def _victim(m, f, u, maps):
    at = m[NUM_RUNNING] - 1
    if m[BY_PRIORITY]:
        at = 0
        for k in range(1, m[NUM_RUNNING]):
            a, b = m[m[RUN] + at], m[m[RUN] + k]
            if m[PRIORITY + b] > m[PRIORITY + a] or (
                m[PRIORITY + b] == m[PRIORITY + a] and f[ARRIVAL + b] > f[ARRIVAL + a]
            ):
                at = k
    return at


@njit
def _preempt(m, f, u, maps, r):
    _free(m, f, u, maps, r)
    m[STATUS + r] = IS_PREEMPTED
    m[MAX_COMPUTED + r] = max(m[MAX_COMPUTED + r], m[COMPUTED + r])
    m[COMPUTED + r] = 0
    m[STALE + r] = m[IN_FLIGHT + r]
    m[PLACEHOLDERS + r] = 0
    m[PREEMPTIONS + r] += 1
    m[NUM_PREEMPTIONS] += 1
    m[NUM_PREEMPTED] += 1
    m[REFUSED] = 0
    _queue_push_front(m, f, u, maps, r)


@njit
def _schedule_running(m, f, u, maps, b, budget, threshold):
    index = 0
    longest = m[MAX_MODEL_LEN] - 1
    while index < m[NUM_RUNNING] and budget > 0:
        r = m[m[RUN] + index]
        computed, placeholders = m[COMPUTED + r], m[PLACEHOLDERS + r]
        end = m[PROMPT + r] + m[MAX_TOKENS + r]
        if placeholders and computed + 2 - placeholders >= end:
            index += 1
            continue
        n = m[NUM_TOKENS + r] + placeholders - computed
        if 0 < threshold < n:
            n = threshold
        n = min(n, budget, longest - computed)
        if n <= 0:
            index += 1
            continue
        while True:
            if _grow(m, f, u, maps, r, n):
                _plan(m, f, u, maps, b, r, n)
                budget -= n
                index += 1
                break
            m[NUM_FAILURES] += 1
            at = _victim(m, f, u, maps)
            victim = m[m[RUN] + at]
            for k in range(at, m[NUM_RUNNING] - 1):
                m[m[RUN] + k] = m[m[RUN] + k + 1]
            m[NUM_RUNNING] -= 1
            budget += _drop(m, f, u, maps, b, victim)
            _preempt(m, f, u, maps, victim)
            if at < index:
                index -= 1
            if victim == r:
                if not m[BY_PRIORITY]:
                    return budget
                break
    return budget


@njit
def _admit(m, f, u, maps, b, r, slot, hit_tokens, n):
    _queue_remove(m, f, u, maps, r)
    m[TRIED] = 0
    m[STEADY] = 0
    if np.isnan(f[FIRST_SCHEDULED + r]):
        f[FIRST_SCHEDULED + r] = f[CLOCK]
        m[CACHED + r] = hit_tokens
    m[NUM_FREE_SLOTS] -= 1
    m[SLOT + r] = slot
    m[STATUS + r] = RUNS
    m[COMPUTED + r] = hit_tokens
    m[m[RUN] + m[NUM_RUNNING]] = r
    m[NUM_RUNNING] += 1
    _plan(m, f, u, maps, b, r, n)


@njit
def _schedule_waiting(m, f, u, maps, b, budget, threshold):
    num_aside = 0
    while budget > 0 and m[NUM_WAITING] > 0 and m[NUM_RUNNING] < m[MAX_ACTIVE]:
        r = _queue_head(m, f, u, maps)
        if m[STALE + r]:
            _queue_remove(m, f, u, maps, r)
            m[m[ASIDE] + num_aside] = r
            num_aside += 1
            continue
        slot = m[m[FREE_SLOTS] + m[NUM_FREE_SLOTS] - 1]
        hit = 0
        if m[CACHING]:
            hit = _lookup(m, f, u, maps, r, slot)
        n = m[NUM_TOKENS + r] - hit * m[BLOCK_SIZE]
        if 0 < threshold < n:
            n = threshold
        if n > budget and not m[CHUNKED]:
            m[REFUSED] = 0
            break
        n = min(n, budget)
        if not _paged_admit(m, f, u, maps, r, slot, hit, n):
            m[REFUSED] = 1
            m[TRIED] = 1
            m[NUM_FAILURES] += 1
            break
        m[REFUSED] = 0
        _admit(m, f, u, maps, b, r, slot, hit * m[BLOCK_SIZE], n)
        budget -= n
    for k in range(num_aside - 1, -1, -1):
        _queue_push_front(m, f, u, maps, m[m[ASIDE] + k])


@njit
def _schedule_vllm(m, f, u, maps, b):
    unfinished = m[NUM_RUNNING] + m[NUM_WAITING]
    budget = m[BUDGET]
    threshold = m[THRESHOLD] if unfinished > 1 else 0
    if threshold and m[ADAPTIVE]:
        threshold = max(threshold, budget // unfinished)
    budget = _schedule_running(m, f, u, maps, b, budget, threshold)
    if m[NUM_PREEMPTED] == 0:
        _schedule_waiting(m, f, u, maps, b, budget, threshold)


@njit
def _schedule_orca(m, f, u, maps, b):
    for k in range(m[NUM_RUNNING]):
        r = m[m[RUN] + k]
        n = m[NUM_TOKENS + r] - m[COMPUTED + r]
        if n and _grow(m, f, u, maps, r, n):
            _plan(m, f, u, maps, b, r, n)
    while m[NUM_WAITING] > 0 and m[NUM_RUNNING] < m[MAX_ACTIVE]:
        r = _queue_head(m, f, u, maps)
        slot = m[m[FREE_SLOTS] + m[NUM_FREE_SLOTS] - 1]
        if not _contiguous_admit(m, f, u, maps, r, slot):
            m[REFUSED] = 1
            m[TRIED] = 1
            m[NUM_FAILURES] += 1
            break
        m[REFUSED] = 0
        _admit(m, f, u, maps, b, r, slot, 0, m[NUM_TOKENS + r])


@njit(inline="always")
def _batch_rows(m, b):
    row = b * m[MAX_ACTIVE]
    return m[BATCH_REQUEST] + row, m[BATCH_TOKENS] + row, m[BATCH_UNFINISHED] + row


@njit
def _commit(m, f, u, maps, b):
    """Advance the counts of all scheduled requests; returns the step's time."""
    num_tokens = num_sampled = decode_keys = prefill_keys = prefill_pairs = np.int64(0)
    requests, tokens, unfinished_row = _batch_rows(m, b)
    asynchronous = m[ASYNCHRONOUS]
    for k in range(m[m[BATCH_SIZE] + b]):
        r, n = m[requests + k], m[tokens + k]
        computed = m[COMPUTED + r]
        end = computed + n
        if computed < m[MAX_COMPUTED + r]:
            m[NUM_RECOMPUTED] += min(end, m[MAX_COMPUTED + r]) - computed
        m[COMPUTED + r] = end
        m[IN_FLIGHT + r] += n
        unfinished = end < m[NUM_TOKENS + r] + m[PLACEHOLDERS + r]
        m[unfinished_row + k] = unfinished
        if not unfinished:
            num_sampled += 1
            m[PLACEHOLDERS + r] += asynchronous
        num_tokens += n
        if n == 1:
            decode_keys += end
        else:
            prefill_keys += end
            prefill_pairs += n * (2 * end - n + 1) // 2
    if f[CONSTANT_TIME] >= 0:
        return f[CONSTANT_TIME]
    size = m[m[BATCH_SIZE] + b]
    keys, pairs = prefill_keys, prefill_pairs
    return _step_time(m, f, u, maps, size, num_tokens, num_sampled, decode_keys, keys, pairs)


@njit
def _step_time(m, f, u, maps, requests, tokens, sampled, decode_keys, prefill_keys, prefill_pairs):
    """The roofline of kvsim.cost.roofline."""
    gemm_flops = tokens * f[BODY_FLOPS] + sampled * f[HEAD_FLOPS]
    weights = f[m[WEIGHT_BYTES] + min(tokens, m[LAST_WEIGHT])]
    if sampled:
        weights += f[HEAD_BYTES]
    time = f[STEP_TIME] + requests * f[REQUEST_TIME]
    time += max(weights / f[STREAM_RATE], gemm_flops / f[GEMM_RATE])
    time += np.float64(decode_keys * m[KV_BYTES]) / f[KV_RATE]
    prefill_bytes = np.float64(prefill_keys * m[KV_BYTES])
    prefill_flops = prefill_pairs * f[PAIR_FLOPS]
    time += max(prefill_bytes / f[KV_RATE], prefill_flops / f[PREFILL_RATE])
    time += f[REDUCE_TIME] + tokens * f[REDUCE_TIME_PER_TOKEN]
    return time


@njit
def _record_step(m, f, u, maps):
    if m[NUM_STEPS] % m[STRIDE] == 0:
        _sample(m, f, u, maps)
    m[NUM_STEPS] += 1


@njit
def _schedule(m, f, u, maps):
    """Decide a step and start it; returns False if the scheduler is stuck."""
    now = f[CLOCK]
    b = (m[FIRST_BATCH] + m[NUM_BATCHES]) % m[MAX_BATCHES]
    m[m[BATCH_SIZE] + b] = 0
    m[NUM_PREEMPTED] = 0
    m[STEADY] = 1
    m[TRIED] = 0
    if m[ORCA]:
        _schedule_orca(m, f, u, maps, b)
    else:
        _schedule_vllm(m, f, u, maps, b)
    last = (m[FIRST_BATCH] + m[NUM_BATCHES] - 1) % m[MAX_BATCHES]
    if m[m[BATCH_SIZE] + b]:
        time = _commit(m, f, u, maps, b)
        start = max(now, f[STAGE_FREE])
        f[STAGE_FREE] = start + time / f[NUM_STAGES]
        last_end = f[m[BATCH_END] + last] if m[NUM_BATCHES] else now
        f[m[BATCH_END] + b] = max(start + time, last_end)
        _record_step(m, f, u, maps)
        m[EMPTY_STEPS] = 0
    else:
        _record_step(m, f, u, maps)
        any_real = False
        for k in range(m[NUM_BATCHES]):
            if m[m[BATCH_SIZE] + (m[FIRST_BATCH] + k) % m[MAX_BATCHES]]:
                any_real = True
        if not any_real:
            m[EMPTY_STEPS] += 1
            hopeless = m[NUM_PREEMPTED] == 0 and m[NUM_RUNNING] == 0
            return not hopeless and m[EMPTY_STEPS] < MAX_EMPTY
        f[m[BATCH_END] + b] = f[m[BATCH_END] + last]
    m[NUM_BATCHES] += 1
    m[MUST_COMPLETE] = m[NUM_BATCHES] >= m[DEPTH] or m[m[BATCH_SIZE] + b] == 0
    return True


@njit
def _complete(m, f, u, maps):
    """Take in the tokens of the oldest step; returns how many requests have ended."""
    b = m[FIRST_BATCH]
    end = f[m[BATCH_END] + b]
    pass_time(m, f, u, maps, end)
    m[MUST_COMPLETE] = 0
    m[FIRST_BATCH] = (b + 1) % m[MAX_BATCHES]
    m[NUM_BATCHES] -= 1
    before = f[LAST_TOKEN_TIME]
    num_regular = num_sampled = num_finished = 0
    requests, tokens, unfinished = _batch_rows(m, b)
    names_late = m[ASYNCHRONOUS] and m[CACHING]
    for k in range(m[m[BATCH_SIZE] + b]):
        r, n = m[requests + k], m[tokens + k]
        m[IN_FLIGHT + r] -= n
        stale = m[STALE + r] > 0
        if stale:
            m[STALE + r] -= n
        if m[STATUS + r] == FINISHED or m[unfinished + k]:
            continue
        m[NUM_TOKENS + r] += 1
        num_sampled += 1
        last = f[LAST_TOKEN + r]
        if last == before:
            num_regular += 1
        elif np.isnan(last):
            f[FIRST_TOKEN + r] = end
        else:
            _gap(m, f, u, maps, end - last, 1)
        f[LAST_TOKEN + r] = end
        if not stale and m[PLACEHOLDERS + r] > 0:
            m[PLACEHOLDERS + r] -= 1
            if names_late and m[STATUS + r] == RUNS:
                _cache_blocks(m, f, u, maps, r, m[SLOT + r], m[COMPUTED + r] - m[IN_FLIGHT + r])
        if m[NUM_TOKENS + r] >= m[PROMPT + r] + m[MAX_TOKENS + r]:
            if m[STATUS + r] == RUNS:
                _free(m, f, u, maps, r)
            else:
                _queue_remove(m, f, u, maps, r)
            m[STATUS + r] = FINISHED
            f[FINISH + r] = end
            num_finished += 1
    if num_finished:
        kept = 0
        for k in range(m[NUM_RUNNING]):
            r = m[m[RUN] + k]
            if m[STATUS + r] != FINISHED:
                m[m[RUN] + kept] = r
                kept += 1
        m[NUM_RUNNING] = kept
        m[TRIED] = 0
        m[STEADY] = 0
        m[OUTSTANDING] -= num_finished
    if num_regular:
        _gap(m, f, u, maps, end - before, num_regular)
    if num_sampled:
        f[LAST_TOKEN_TIME] = end
    return num_finished


# -- runs of steps --------------------------------------------------------------------------------


@njit
def _longest_run(m, f, u, maps):
    """Return for how many steps the batch changes only by arithmetic; 0 if it is not steady.

    Every running request decodes, nobody ends, nobody joins. With asynchronous scheduling the step
    under way holds just these requests, too.
    """
    running = m[NUM_RUNNING]
    if m[DEPTH] > 1 + m[ASYNCHRONOUS] or m[NUM_BATCHES] != m[ASYNCHRONOUS] or m[WINDOW]:
        return 0
    if running == 0 or (not m[ORCA] and running > m[BUDGET]):
        return 0
    tries = m[NUM_WAITING] > 0 and running < m[MAX_ACTIVE]
    tries = tries and (m[ORCA] == 1 or running < m[BUDGET])
    if tries and (m[CACHING] or not m[TRIED]):
        return 0
    b = m[FIRST_BATCH]
    if m[ASYNCHRONOUS] and m[m[BATCH_SIZE] + b] != running:
        return 0
    longest = np.int64(1) << 62
    for k in range(running):
        r = m[m[RUN] + k]
        tokens = m[NUM_TOKENS + r]
        steady = (
            tokens + m[PLACEHOLDERS + r] - m[COMPUTED + r] == 1
            and m[PLACEHOLDERS + r] == m[ASYNCHRONOUS]
            and m[IN_FLIGHT + r] == m[ASYNCHRONOUS]
            and m[COMPUTED + r] >= m[MAX_COMPUTED + r]
            and m[STALE + r] == 0
            and f[LAST_TOKEN + r] == f[LAST_TOKEN_TIME]
        )
        if m[ASYNCHRONOUS]:
            at = b * m[MAX_ACTIVE] + k
            steady = steady and m[m[BATCH_REQUEST] + at] == r and m[m[BATCH_TOKENS] + at] == 1
            steady = steady and m[m[BATCH_UNFINISHED] + at] == 0
        if not steady:
            return 0
        longest = min(longest, m[PROMPT + r] + m[MAX_TOKENS + r] - tokens - 1)
    return longest


@njit
def _join_phase(m, steps, k):
    """Note that the k-th running request needs attention at that step and each block after."""
    phase = steps % m[BLOCK_SIZE]
    m[m[PHASE_NEXT] + k] = -1
    if m[m[PHASE_FIRST] + phase] < 0:
        m[m[PHASE_FIRST] + phase] = k
    else:
        m[m[PHASE_NEXT] + m[m[PHASE_LAST] + phase]] = k
    m[m[PHASE_LAST] + phase] = k
    m[m[PHASE_COUNT] + phase] += 1


@njit
def _sort_by_phase(m, f, u, maps):
    """List, by step modulo block size and in running order, who takes or fills a block then.

    Entry 2k is the k-th request taking a block, 2k + 1 its filling one. Returns the sum of computed
    tokens.
    """
    for phase in range(m[BLOCK_SIZE]):
        m[m[PHASE_FIRST] + phase] = -1
        m[m[PHASE_COUNT] + phase] = 0
    sum_computed = np.int64(0)
    for k in range(m[NUM_RUNNING]):
        r = m[m[RUN] + k]
        computed = m[COMPUTED + r]
        sum_computed += computed
        if m[PLACEMENT] != PAGED:
            continue
        slot = m[SLOT + r]
        taking = m[LENGTH + slot] * m[BLOCK_SIZE] - computed - m[LOOKAHEAD]
        filling = m[CACHED_TOKENS + slot] - computed - 1 + m[ASYNCHRONOUS]
        _join_phase(m, taking, 2 * k)
        if m[CACHING] and (taking - filling) % m[BLOCK_SIZE]:
            _join_phase(m, filling, 2 * k + 1)
    return sum_computed


@njit
def _tend_blocks(m, f, u, maps, step):
    """Take and name the blocks of one step of a run; returns False, unchanged, if they run out."""
    phase = step % m[BLOCK_SIZE]
    k = m[m[PHASE_FIRST] + phase]
    if m[m[PHASE_COUNT] + phase] > _num_free(m, f, u, maps):
        return False
    while k >= 0:
        r = m[m[RUN] + k // 2]
        slot = m[SLOT + r]
        end = m[COMPUTED + r] + step + 1
        if min(end + m[LOOKAHEAD], m[MAX_MODEL_LEN]) > m[LENGTH + slot] * m[BLOCK_SIZE]:
            m[SUM_INTERNAL] -= _past_the_end(m, f, u, maps, r, slot)
            _append_blocks(m, f, u, maps, slot, 1)
            m[SUM_INTERNAL] += _past_the_end(m, f, u, maps, r, slot)
        if m[CACHING]:
            _cache_blocks(m, f, u, maps, r, slot, end - m[ASYNCHRONOUS])
        k = m[m[PHASE_NEXT] + k]
    return True


@njit
def _run_of_steps(m, f, u, maps, most_steps):
    """Advance a steady batch by whole steps; returns how many. Nothing is approximated.

    Times are the same sequence of additions, and blocks change hands in the same order, as step by
    step.
    """
    longest = min(_longest_run(m, f, u, maps), most_steps)
    if longest < 2:
        return 0
    running = m[NUM_RUNNING]
    tries = m[NUM_WAITING] > 0 and running < m[MAX_ACTIVE]
    tries = tries and (m[ORCA] == 1 or running < m[BUDGET])
    next_arrival = np.inf
    if m[NEXT_ARRIVAL] < m[NUM_ARRIVALS]:
        next_arrival = f[m[ARRIVAL_TIME] + m[NEXT_ARRIVAL]]
    keys = _sort_by_phase(m, f, u, maps)
    under_way = f[m[BATCH_END] + m[FIRST_BATCH]]  # end of the step in flight, if asynchronous
    step = flushed = 0
    while step < longest and f[CLOCK] < next_arrival and f[CLOCK] < f[END_TIME]:
        if m[PLACEMENT] == PAGED and not _tend_blocks(m, f, u, maps, step):
            break
        now = f[CLOCK]
        m[SUM_FILLED] += running
        m[NUM_FAILURES] += tries
        keys += running
        time = f[CONSTANT_TIME]
        if time < 0:
            time = _step_time(m, f, u, maps, running, running, running, keys, 0, 0)
        start = max(now, f[STAGE_FREE])
        f[STAGE_FREE] = start + time / f[NUM_STAGES]
        end = max(start + time, under_way if m[ASYNCHRONOUS] else now)
        step += 1
        if m[BINS] and m[NUM_STEPS] % m[STRIDE] == 0:
            for k in range(running):
                m[FILLED + m[SLOT + m[m[RUN] + k]]] += step - flushed
            flushed = step
        _record_step(m, f, u, maps)
        if m[ASYNCHRONOUS]:
            end, under_way = under_way, end
        pass_time(m, f, u, maps, end)
        _gap(m, f, u, maps, end - f[LAST_TOKEN_TIME], running)
        f[LAST_TOKEN_TIME] = end
    if step == 0:
        return 0
    m[EMPTY_STEPS] = 0
    for k in range(running):
        r = m[m[RUN] + k]
        m[COMPUTED + r] += step
        m[NUM_TOKENS + r] += step
        f[LAST_TOKEN + r] = f[LAST_TOKEN_TIME]
        m[FILLED + m[SLOT + r]] += step - flushed
    f[m[BATCH_END] + m[FIRST_BATCH]] = under_way
    return step


@njit
def _advance(m, f, u, maps, horizon, until_finish, max_steps):
    """Run until the outside may matter, or for ``max_steps`` steps; returns requests ended."""
    num_ended = 0
    steps = 0
    m[OUTCOME] = DONE
    while not (until_finish and num_ended):
        if m[MUST_COMPLETE]:
            if f[m[BATCH_END] + m[FIRST_BATCH]] > horizon:
                break
            num_ended += _complete(m, f, u, maps)
            continue
        _see_arrivals(m, f, u, maps)
        if m[NUM_RUNNING] == 0 and m[NUM_WAITING] == 0:
            if m[NUM_BATCHES]:
                m[MUST_COMPLETE] = 1
                continue
            if m[NEXT_ARRIVAL] == m[NUM_ARRIVALS]:
                break
            arrival = f[m[ARRIVAL_TIME] + m[NEXT_ARRIVAL]]
            if arrival > horizon:
                break
            pass_time(m, f, u, maps, min(arrival, f[END_TIME]))
            if f[CLOCK] >= f[END_TIME]:
                break
        elif f[CLOCK] >= horizon:
            break
        elif f[CLOCK] < f[END_TIME]:
            if steps >= max_steps:
                m[OUTCOME] = PAUSED
                break
            if m[STEADY] and horizon == np.inf:
                run = _run_of_steps(m, f, u, maps, max_steps - steps)
                steps += run
                if run:
                    continue
            steps += 1
            if not _schedule(m, f, u, maps):
                m[OUTCOME] = STUCK
                break
        elif m[NUM_BATCHES]:
            m[MUST_COMPLETE] = 1
        else:
            break
    return num_ended


def _itself(array):
    return array


@intrinsic
def _data(typing_context, array):
    def generate(context, builder, signature, arguments):
        return make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@njit
def _borrowed(array):
    return carray(_data(array), array.shape)


# Numba counts references to an array at every call, atomically: a third of a saturated run. What is
# borrowed is not counted; the caller keeps the arrays alive.
_borrow = _itself if numba.config.DISABLE_JIT else _borrowed


@njit(cache=True)
def advance(m, f, u, maps, horizon, until_finish, max_steps):
    """Run until the outside may matter, or for ``max_steps`` steps; returns requests ended."""
    return _advance(
        _borrow(m), _borrow(f), _borrow(u), _borrow(maps), horizon, until_finish, max_steps
    )
