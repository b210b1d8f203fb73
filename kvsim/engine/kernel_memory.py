"""Kernels of KV memory: keys, the block pool, block tables, contiguous pieces.

The rules are those of kvsim.kv; see kvsim.engine.kernel_places for the arrays.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kvsim.engine.kernel_places import (
    ADMISSION_CAP,
    ASKED,
    BEST_FIT,
    BLOCK_KEY,
    BLOCK_SIZE,
    BLOCKS,
    BUCKET,
    BUCKET_MASK,
    BUDDY,
    CACHED_TOKENS,
    CACHING,
    CHAIN,
    COMPUTED,
    COPY,
    END,
    FILLED,
    FREE_SLOTS,
    HASHED,
    HOLES,
    IN_FLIGHT,
    KEEPS_BOUNDARY,
    KEY_OFFSET,
    KEY_OWNER,
    KEY_ROW,
    KEY_SEGMENT,
    LAST,
    LENGTH,
    LOOKAHEAD,
    LRU_HEAD,
    LRU_NEXT,
    LRU_PREVIOUS,
    LRU_TAIL,
    MAX_HOLES,
    MAX_MODEL_LEN,
    MAX_TOKENS,
    NUM_CACHED_FREE,
    NUM_FREE_SLOTS,
    NUM_HOLES,
    NUM_KEYS,
    NUM_NULL,
    NUM_ORDERS,
    NUM_RUNNING,
    NUM_TABLE_BLOCKS,
    NUM_TOKENS,
    NUM_UNHASHED,
    NUM_USED,
    OUTPUT_ID,
    PAGED,
    PLACEMENT,
    PROCESSED,
    PROMPT,
    RECORD,
    REF_CNT,
    REQUESTS,
    RESERVE,
    RESERVE_FULL,
    RESERVE_MAX,
    RESERVE_POW2,
    ROW,
    SALT,
    SEGMENT,
    SEGMENT_ID,
    SEGMENT_LENGTH,
    SEGMENT_OFFSET,
    SEGMENT_START,
    SIZE,
    SLIDING,
    SLOT,
    START,
    SUM_ASKED,
    SUM_FILLED,
    SUM_INTERNAL,
    SUM_LAST,
    SUM_SIZE,
    UNHASHED,
    WATERMARK_BLOCKS,
    WINDOW,
)

_A = np.uint64(0x2545F4914F6CDD1D)
_B = np.uint64(0xBF58476D1CE4E5B9)
_C = np.uint64(0x94D049BB133111EB)
_NONE = np.uint64(0x9E3779B97F4A7C15)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


# -- keys and the block pool ----------------------------------------------------------------------


@njit(inline="always")
def mix(key, value):
    z = key * _A + value + _NONE
    z = (z ^ (z >> _S30)) * _B
    z = (z ^ (z >> _S27)) * _C
    return z ^ (z >> _S31)


@njit
def extend_keys(m, f, u, maps, slot, r, num_blocks):
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
        key = u[m[KEY_ROW + slot] + b - 1] if b else mix(_NONE, np.uint64(m[m[SALT] + i]))
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
                    key = mix(key, np.uint64(piece_id))
                    key = mix(key, np.uint64(piece_start))
                    key = mix(key, np.uint64(piece_length))
                piece_id, piece_start, piece_length = content, begin, taken
            missing -= taken
            offset += taken
            if offset == length:
                index += 1
                offset = 0
        key = mix(key, np.uint64(piece_id))
        key = mix(key, np.uint64(piece_start))
        u[m[KEY_ROW + slot] + b] = mix(key, np.uint64(piece_length))
    if num_blocks > m[NUM_KEYS + slot]:
        m[NUM_KEYS + slot] = num_blocks
        m[KEY_SEGMENT + slot] = index
        m[KEY_OFFSET + slot] = offset


@njit(inline="always")
def find_block(m, f, u, maps, key):
    """Return the block that has held a content longest, or -1."""
    block = m[m[BUCKET] + np.int64(key & np.uint64(m[BUCKET_MASK]))]
    while block >= 0 and np.uint64(m[BLOCK_KEY + block]) != key:
        block = m[CHAIN + block]
    return block


@njit(inline="always")
def cache_block(m, f, u, maps, block, key):
    m[HASHED + block] = 1
    m[BLOCK_KEY + block] = np.int64(key)
    m[COPY + block] = -1
    first = find_block(m, f, u, maps, key)
    if first >= 0:
        while m[COPY + first] >= 0:
            first = m[COPY + first]
        m[COPY + first] = block
        return
    at = np.int64(key & np.uint64(m[BUCKET_MASK]))
    m[CHAIN + block] = m[m[BUCKET] + at]
    m[m[BUCKET] + at] = block


@njit(inline="always")
def forget(m, f, u, maps, block):
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
def lru_remove(m, f, u, maps, block):
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
def lru_append(m, f, u, maps, block):
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
def append_blocks(m, f, u, maps, slot, num_blocks):
    """Hand out free blocks, those without content first, to the end of a table."""
    length = m[LENGTH + slot]
    for k in range(num_blocks):
        if m[NUM_UNHASHED] > 0:
            m[NUM_UNHASHED] -= 1
            block = m[m[UNHASHED] + m[NUM_UNHASHED]]
        else:
            block = m[LRU_HEAD]
            lru_remove(m, f, u, maps, block)
            forget(m, f, u, maps, block)
        m[REF_CNT + block] = 1
        m[m[ROW + slot] + length + k] = block
    m[LENGTH + slot] = length + num_blocks
    m[NUM_USED] += num_blocks
    m[NUM_TABLE_BLOCKS] += num_blocks


@njit
def free_blocks(m, f, u, maps, slot, first, stop):
    """Free entries of a table last to first: hashed blocks to the back, the others to the front."""
    for k in range(stop - 1, first - 1, -1):
        block = m[m[ROW + slot] + k]
        m[REF_CNT + block] -= 1
        if m[REF_CNT + block] == 0:
            m[NUM_USED] -= 1
            if m[HASHED + block]:
                lru_append(m, f, u, maps, block)
    for k in range(first, stop):
        block = m[m[ROW + slot] + k]
        if m[REF_CNT + block] == 0 and not m[HASHED + block]:
            m[m[UNHASHED] + m[NUM_UNHASHED]] = block
            m[NUM_UNHASHED] += 1


@njit(inline="always")
def num_skipped(m, num_tokens):
    """Leading tokens that no later token sees."""
    return max(0, num_tokens - m[SLIDING] + 1) if m[SLIDING] else 0


@njit(inline="always")
def num_in_window(m):
    """Blocks in a row that the first token after a hit needs."""
    return cdiv(m[SLIDING] - 1, m[BLOCK_SIZE])


@njit
def set_null(m, f, u, maps, slot, first, stop):
    for k in range(first, stop):
        m[m[ROW + slot] + k] = m[BLOCKS]
    m[NUM_NULL + slot] = stop


@njit
def drop_out_of_window(m, f, u, maps, r, slot):
    computed = min(m[COMPUTED + r], m[MAX_MODEL_LEN])
    processed = max(0, computed - m[IN_FLIGHT + r])
    m[PROCESSED + slot] = processed
    stop = num_skipped(m, processed) // m[BLOCK_SIZE]
    if stop > m[NUM_NULL + slot]:
        free_blocks(m, f, u, maps, slot, m[NUM_NULL + slot], stop)
        set_null(m, f, u, maps, slot, m[NUM_NULL + slot], stop)


@njit
def worth_caching(m, f, u, maps, r, k):
    """Whether a later hit could end such that it needs the k-th full block."""
    in_window = num_in_window(m)
    per_segment = m[SEGMENT] // m[BLOCK_SIZE]
    if per_segment and (in_window >= per_segment or k % per_segment >= per_segment - in_window):
        return True
    end = (m[PROMPT + r] - 1) // m[BLOCK_SIZE]
    return m[KEEPS_BOUNDARY] == 1 and end - in_window <= k < end


@njit(inline="always")
def num_free(m, f, u, maps):
    return m[NUM_UNHASHED] + m[NUM_CACHED_FREE]


@njit(inline="always")
def past_the_end(m, f, u, maps, r, slot):
    return max(m[LENGTH + slot] * m[BLOCK_SIZE] - (m[END + r] - 1), 0)


@njit(inline="always")
def cache_blocks(m, f, u, maps, r, slot, num_tokens):
    if num_tokens < m[CACHED_TOKENS + slot] + m[BLOCK_SIZE]:
        return
    last = num_tokens // m[BLOCK_SIZE]
    extend_keys(m, f, u, maps, slot, r, last)
    for k in range(max(m[CACHED_TOKENS + slot] // m[BLOCK_SIZE], m[NUM_NULL + slot]), last):
        if m[SLIDING] and not worth_caching(m, f, u, maps, r, k):
            continue
        cache_block(m, f, u, maps, m[m[ROW + slot] + k], u[m[KEY_ROW + slot] + k])
    m[CACHED_TOKENS + slot] = last * m[BLOCK_SIZE]


@njit(inline="always")
def cdiv(a, b):
    return -(-a // b)


@njit
def lookup_window(m, f, u, maps, slot, limit):
    run, needed = 0, num_in_window(m)
    for k in range(limit - 1, -1, -1):
        block = find_block(m, f, u, maps, u[m[KEY_ROW + slot] + k])
        if block < 0:
            run = 0
            continue
        m[m[ROW + slot] + k] = block
        run += 1
        if run >= needed:
            return k + run
    return run


@njit
def lookup(m, f, u, maps, r, slot):
    """Return the number of cached blocks a waiting request could reuse."""
    limit = (m[NUM_TOKENS + r] - 1) // m[BLOCK_SIZE]
    if limit < 1:
        return 0
    extend_keys(m, f, u, maps, slot, r, limit)
    if m[SLIDING]:
        return lookup_window(m, f, u, maps, slot, limit)
    hit = 0
    while hit < limit:
        block = find_block(m, f, u, maps, u[m[KEY_ROW + slot] + hit])
        if block < 0:
            break
        m[m[ROW + slot] + hit] = block
        hit += 1
    return hit


@njit
def paged_admit(m, f, u, maps, r, slot, hit, num_new):
    """Admit with ``hit`` blocks that stand in the slot's table already."""
    free = num_free(m, f, u, maps)
    if m[NUM_RUNNING] > 0:
        free -= m[WATERMARK_BLOCKS]
    taken = 0
    skipped = num_skipped(m, hit * m[BLOCK_SIZE]) // m[BLOCK_SIZE]
    for k in range(skipped, hit):
        taken += m[REF_CNT + m[m[ROW + slot] + k]] == 0
    if m[RESERVE_FULL]:
        length = min(m[NUM_TOKENS + r], m[MAX_MODEL_LEN])
        blocks = cdiv(length, m[BLOCK_SIZE])
        if m[ADMISSION_CAP]:
            blocks = min(blocks, m[ADMISSION_CAP])
        if max(blocks - hit, 0) + taken > free:
            return False
    end = hit * m[BLOCK_SIZE] + num_new
    needed = max(cdiv(min(end + m[LOOKAHEAD], m[MAX_MODEL_LEN]), m[BLOCK_SIZE]) - hit, 0)
    if needed + taken > free:
        return False
    for k in range(skipped, hit):
        block = m[m[ROW + slot] + k]
        if m[REF_CNT + block] == 0:
            lru_remove(m, f, u, maps, block)
            m[NUM_USED] += 1
        m[REF_CNT + block] += 1
    set_null(m, f, u, maps, slot, 0, skipped)
    m[PROCESSED + slot] = hit * m[BLOCK_SIZE]
    m[LENGTH + slot] = hit
    m[NUM_TABLE_BLOCKS] += hit
    append_blocks(m, f, u, maps, slot, needed)
    m[FILLED + slot] = end
    m[CACHED_TOKENS + slot] = hit * m[BLOCK_SIZE]
    m[SUM_FILLED] += end
    m[SUM_INTERNAL] += past_the_end(m, f, u, maps, r, slot)
    if m[CACHING]:
        cache_blocks(m, f, u, maps, r, slot, min(end, m[NUM_TOKENS + r]))
    return True


@njit(inline="always")
def grow(m, f, u, maps, r, num_new):
    """Make room for a running request's next tokens."""
    slot = m[SLOT + r]
    end = m[COMPUTED + r] + num_new
    if m[PLACEMENT] == PAGED:
        if m[SLIDING]:
            drop_out_of_window(m, f, u, maps, r, slot)
        slots = min(end + m[LOOKAHEAD], m[MAX_MODEL_LEN])
        if slots > m[LENGTH + slot] * m[BLOCK_SIZE]:
            needed = cdiv(slots, m[BLOCK_SIZE]) - m[LENGTH + slot]
            if needed > num_free(m, f, u, maps):
                return False
            m[SUM_INTERNAL] -= past_the_end(m, f, u, maps, r, slot)
            append_blocks(m, f, u, maps, slot, needed)
            m[SUM_INTERNAL] += past_the_end(m, f, u, maps, r, slot)
        if m[CACHING]:
            cache_blocks(m, f, u, maps, r, slot, min(end, m[NUM_TOKENS + r]))
    else:
        end = rolled(m, end)
    m[SUM_FILLED] += end - m[FILLED + slot]
    m[FILLED + slot] = end
    return True


@njit
def free_request(m, f, u, maps, r):
    slot = m[SLOT + r]
    m[SUM_FILLED] -= m[FILLED + slot]
    if m[PLACEMENT] == PAGED:
        m[SUM_INTERNAL] -= past_the_end(m, f, u, maps, r, slot)
        free_blocks(m, f, u, maps, slot, m[NUM_NULL + slot], m[LENGTH + slot])
        m[NUM_TABLE_BLOCKS] -= m[LENGTH + slot]
        m[LENGTH + slot] = 0
    else:
        m[SUM_SIZE] -= m[SIZE + slot]
        m[SUM_ASKED] -= m[ASKED + slot]
        m[SUM_LAST] -= m[LAST + slot]
        if m[PLACEMENT] == BUDDY:
            buddy_free(m, f, u, maps, m[START + slot], m[SIZE + slot])
        else:
            fit_free(m, f, u, maps, m[START + slot], m[SIZE + slot])
    m[SLOT + r] = -1
    m[m[FREE_SLOTS] + m[NUM_FREE_SLOTS]] = slot
    m[NUM_FREE_SLOTS] += 1


# -- contiguous memory ----------------------------------------------------------------------------


@njit(inline="always")
def rolled(m, num_tokens):
    return num_tokens if m[WINDOW] == 0 else min(num_tokens, m[WINDOW])


@njit
def place_in(m, row, count, start):
    """First index of a sorted row that is not below ``start``."""
    at = 0
    while at < count and m[row + at] < start:
        at += 1
    return at


@njit
def insert(m, row, count, at, value):
    for k in range(count, at, -1):
        m[row + k] = m[row + k - 1]
    m[row + at] = value


@njit
def delete(m, row, count, at):
    for k in range(at, count - 1):
        m[row + k] = m[row + k + 1]


@njit
def buddy_allocate(m, f, u, maps, wanted_order):
    order = wanted_order
    while order < m[NUM_ORDERS] and m[m[NUM_HOLES] + order] == 0:
        order += 1
    if order == m[NUM_ORDERS]:
        return -1
    start = m[m[HOLES] + order * m[MAX_HOLES] + 0]
    delete(m, m[HOLES] + order * m[MAX_HOLES], m[m[NUM_HOLES] + order], 0)
    m[m[NUM_HOLES] + order] -= 1
    while order > wanted_order:
        order -= 1
        half = start + (np.int64(1) << order)
        row, count = m[HOLES] + order * m[MAX_HOLES], m[m[NUM_HOLES] + order]
        insert(m, row, count, place_in(m, row, count, half), half)
        m[m[NUM_HOLES] + order] = count + 1
    return start


@njit
def order_of(size):
    order = 0
    while (np.int64(1) << order) < size:
        order += 1
    return order


@njit
def buddy_free(m, f, u, maps, start, size):
    order = order_of(size)
    while True:
        row, count = m[HOLES] + order * m[MAX_HOLES], m[m[NUM_HOLES] + order]
        buddy = start ^ (np.int64(1) << order)
        at = place_in(m, row, count, buddy)
        if order + 1 >= m[NUM_ORDERS] or at == count or m[row + at] != buddy:
            break
        delete(m, row, count, at)
        m[m[NUM_HOLES] + order] = count - 1
        start = min(start, buddy)
        order += 1
    row, count = m[HOLES] + order * m[MAX_HOLES], m[m[NUM_HOLES] + order]
    insert(m, row, count, place_in(m, row, count, start), start)
    m[m[NUM_HOLES] + order] = count + 1


@njit
def fit_allocate(m, f, u, maps, wanted, best):
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
        delete(m, starts, count, at)
        delete(m, sizes, count, at)
        m[m[NUM_HOLES] + 0] = count - 1
    return start


@njit
def fit_free(m, f, u, maps, start, size):
    starts, sizes, count = m[HOLES], m[HOLES] + m[MAX_HOLES], m[m[NUM_HOLES] + 0]
    at = place_in(m, starts, count, start)
    after = at < count and m[starts + at] == start + size
    before = at > 0 and m[starts + at - 1] + m[sizes + at - 1] == start
    if before and after:
        m[sizes + at - 1] += size + m[sizes + at]
        delete(m, starts, count, at)
        delete(m, sizes, count, at)
        m[m[NUM_HOLES] + 0] = count - 1
    elif before:
        m[sizes + at - 1] += size
    elif after:
        m[starts + at] = start
        m[sizes + at] += size
    else:
        insert(m, starts, count, at, start)
        insert(m, sizes, count, at, size)
        m[m[NUM_HOLES] + 0] = count + 1


@njit
def contiguous_admit(m, f, u, maps, r, slot):
    output = m[MAX_TOKENS + r]
    if m[RESERVE] == RESERVE_MAX:
        asked = m[MAX_MODEL_LEN]
    elif m[RESERVE] == RESERVE_POW2:
        asked = min(m[PROMPT + r] + (np.int64(1) << order_of(output)), m[MAX_MODEL_LEN])
    else:
        asked = min(m[PROMPT + r] + output, m[MAX_MODEL_LEN])
    asked = rolled(m, asked)
    size = asked
    if m[PLACEMENT] == BUDDY:
        order = order_of(asked)
        size = np.int64(1) << order
        start = buddy_allocate(m, f, u, maps, order)
    else:
        start = fit_allocate(m, f, u, maps, asked, m[PLACEMENT] == BEST_FIT)
    if start < 0:
        return False
    m[START + slot] = start
    m[SIZE + slot] = size
    m[ASKED + slot] = asked
    m[LAST + slot] = min(rolled(m, m[PROMPT + r] + output - 1), asked)
    m[SUM_SIZE] += size
    m[SUM_ASKED] += asked
    m[SUM_LAST] += m[LAST + slot]
    m[FILLED + slot] = rolled(m, m[NUM_TOKENS + r])
    m[SUM_FILLED] += m[FILLED + slot]
    return True
