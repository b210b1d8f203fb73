"""Kernels that keep records: integrals over time, samples, memory maps (kvsim.engine.recorder)."""

from __future__ import annotations

import numpy as np
from numba import njit

from kvsim.engine.kernel_memory import num_free, num_skipped
from kvsim.engine.kernel_places import (
    ASKED,
    BINS,
    BLOCK_RECORD,
    BLOCK_SIZE,
    BLOCKS,
    C_CACHED,
    C_EXTERNAL,
    C_FREE,
    C_INTERNAL,
    C_RESERVATION,
    C_TOKEN_STATES,
    CACHED_S,
    CLOCK,
    DEAD,
    END,
    EXTERNAL_S,
    FILLED,
    GAPS,
    HASHED,
    INTERNAL_S,
    LAST,
    LENGTH,
    MAP_FILLED,
    MAP_LAST,
    MAP_UNUSED,
    MAX_SAMPLES,
    NUM_BLOCKS,
    NUM_CACHED_FREE,
    NUM_RUNNING,
    NUM_SAMPLES,
    NUM_STEPS,
    NUM_TABLE_BLOCKS,
    NUM_USABLE,
    NUM_USED,
    NUM_WAITING,
    PAGED,
    PEAK_RUNNING,
    PEAK_USAGE,
    PLACEMENT,
    PROCESSED,
    REF_CNT,
    REFUSED,
    REFUSED_S,
    RESERVATION_S,
    ROW,
    RUN,
    RUNNING_REFUSED_S,
    RUNNING_S,
    SAMPLE_FLOATS,
    SAMPLE_INTS,
    SIZE,
    SLIDING,
    SLOT,
    SLOT_BYTES,
    START,
    STRIDE,
    SUM_ASKED,
    SUM_FILLED,
    SUM_INTERNAL,
    SUM_LAST,
    SUM_SIZE,
    TOKEN_STATES_S,
    UNALLOCATED_S,
    UNIT_BYTES,
    USAGE_S,
    WAITING_S,
)

# -- records --------------------------------------------------------------------------------------


@njit
def out_of_window(m, f, u, maps):
    """Slots before the window in blocks that it still touches, in those of all who share one."""
    total = 0
    for k in range(m[NUM_RUNNING]):
        slot = m[SLOT + m[m[RUN] + k]]
        skipped = num_skipped(m, m[PROCESSED + slot])
        at = skipped // m[BLOCK_SIZE]
        if skipped % m[BLOCK_SIZE] == 0 or at >= m[LENGTH + slot]:
            continue
        block = m[m[ROW + slot] + at]
        # How many of its sharers were seen, and the fewest dead slots among them.
        seen, fewest = m[DEAD + block] >> 32, m[DEAD + block] & 0xFFFFFFFF
        dead = skipped % m[BLOCK_SIZE]
        fewest = min(fewest, dead) if seen else dead
        if seen + 1 < m[REF_CNT + block]:
            m[DEAD + block] = (seen + 1) << 32 | fewest
        else:
            m[DEAD + block] = 0
            total += fewest
    for k in range(m[NUM_RUNNING]):
        slot = m[SLOT + m[m[RUN] + k]]
        at = num_skipped(m, m[PROCESSED + slot]) // m[BLOCK_SIZE]
        if at < m[LENGTH + slot]:
            m[DEAD + m[m[ROW + slot] + at]] = 0
    return total


@njit(inline="always")
def used_bytes(m, f, u, maps):
    """Bytes of token states, reservation, internal, external, unallocated and cached."""
    b = m[SLOT_BYTES]
    if m[PLACEMENT] == PAGED:
        unfilled = m[NUM_TABLE_BLOCKS] * m[BLOCK_SIZE] - m[SUM_FILLED]
        past = m[SUM_INTERNAL]
        used = m[NUM_USED]
        dead = out_of_window(m, f, u, maps) if m[SLIDING] else 0
        return (
            (used * m[BLOCK_SIZE] - unfilled - dead) * b,
            (unfilled - past) * b,
            (past + dead) * b,
            used * (m[UNIT_BYTES] - m[BLOCK_SIZE] * b),
            num_free(m, f, u, maps) * m[UNIT_BYTES],
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
def kv_usage(m, f, u, maps):
    if m[NUM_USABLE] == 0:
        return 0.0
    if m[PLACEMENT] == PAGED:
        return (m[NUM_USABLE] - num_free(m, f, u, maps)) / m[NUM_USABLE]
    return m[SUM_SIZE] / m[NUM_USABLE]


@njit(inline="always")
def head_refused(m, f, u, maps):
    return m[REFUSED] == 1 and m[NUM_WAITING] > 0


@njit(cache=True)
def pass_time(m, f, u, maps, to):
    """Let time pass in which nothing changes. Mutates."""
    if not to > f[CLOCK]:
        return
    seconds = to - f[CLOCK]
    f[CLOCK] = to
    tokens, reserved, internal, external, unallocated, cached = used_bytes(m, f, u, maps)
    running = m[NUM_RUNNING]
    f[TOKEN_STATES_S] += tokens * seconds
    f[RESERVATION_S] += reserved * seconds
    f[INTERNAL_S] += internal * seconds
    f[UNALLOCATED_S] += unallocated * seconds
    f[CACHED_S] += cached * seconds
    f[RUNNING_S] += running * seconds
    f[WAITING_S] += m[NUM_WAITING] * seconds
    if head_refused(m, f, u, maps):
        external += unallocated
        f[REFUSED_S] += seconds
        f[RUNNING_REFUSED_S] += running * seconds
    f[EXTERNAL_S] += external * seconds
    usage = kv_usage(m, f, u, maps)
    f[USAGE_S] += usage * seconds
    f[PEAK_USAGE] = max(f[PEAK_USAGE], usage)
    m[PEAK_RUNNING] = max(m[PEAK_RUNNING], running)


@njit
def halve_samples(m, f, u, maps):
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
def sample(m, f, u, maps):
    if m[NUM_SAMPLES] == MAX_SAMPLES:
        halve_samples(m, f, u, maps)
        if m[NUM_STEPS] % m[STRIDE]:
            return
    k = m[NUM_SAMPLES]
    m[NUM_SAMPLES] = k + 1
    tokens, reserved, internal, external, unallocated, cached = used_bytes(m, f, u, maps)
    free = unallocated
    if head_refused(m, f, u, maps):
        external += unallocated
        free = 0
    f[m[SAMPLE_FLOATS] + k * 2 + 0] = f[CLOCK]
    f[m[SAMPLE_FLOATS] + k * 2 + 1] = kv_usage(m, f, u, maps)
    row = m[SAMPLE_INTS] + k * 8
    m[row], m[row + 1] = m[NUM_RUNNING], m[NUM_WAITING]
    m[row + 2], m[row + 3], m[row + 4] = tokens, reserved, internal
    m[row + 5], m[row + 6], m[row + 7] = external, free, cached
    if m[BINS]:
        if m[PLACEMENT] == PAGED:
            map_blocks(m, f, u, maps, k * m[BINS])
        else:
            map_pieces(m, f, u, maps, k * m[BINS])
        if head_refused(m, f, u, maps):
            for at in range(m[BINS]):
                if maps[k * m[BINS] + at] == C_FREE:
                    maps[k * m[BINS] + at] = C_EXTERNAL


@njit
def map_blocks(m, f, u, maps, row):
    for block in range(m[NUM_BLOCKS]):
        f[m[MAP_FILLED] + block] = 0.0
        f[m[MAP_LAST] + block] = 0.0
        m[m[MAP_UNUSED] + block] = (
            C_CACHED if m[HASHED + m[BLOCKS] + BLOCK_RECORD * block] else C_FREE
        )
    for at in range(m[NUM_RUNNING]):
        r = m[m[RUN] + at]
        slot = m[SLOT + r]
        last = m[END + r] - 1
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
def paint(m, maps, row, start, stop, cause):
    double = 2 * m[NUM_USABLE]
    first = -((m[NUM_USABLE] - 2 * start * m[BINS]) // double)
    last = -((m[NUM_USABLE] - 2 * stop * m[BINS]) // double)
    for at in range(first, last):
        maps[row + at] = cause


@njit
def map_pieces(m, f, u, maps, row):
    for at in range(m[BINS]):
        maps[row + at] = C_FREE
    for at in range(m[NUM_RUNNING]):
        slot = m[SLOT + m[m[RUN] + at]]
        start = m[START + slot]
        filled, last = start + m[FILLED + slot], start + m[LAST + slot]
        paint(m, maps, row, start, filled, C_TOKEN_STATES)
        paint(m, maps, row, filled, last, C_RESERVATION)
        paint(m, maps, row, last, start + m[ASKED + slot], C_INTERNAL)
        paint(m, maps, row, start + m[ASKED + slot], start + m[SIZE + slot], C_EXTERNAL)


@njit
def gap(m, f, u, maps, seconds, num_tokens):
    m[m[GAPS] + (np.float64(seconds).view(np.int64) >> 42)] += num_tokens
