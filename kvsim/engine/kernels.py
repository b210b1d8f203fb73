"""Kernels of the engine: one step, runs of steps, and the loop around them.

The rules are those of kvsim.sched and kvsim.engine.replica; see kvsim.engine.kernel_places for the
arrays.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from kvsim.engine.kernel_memory import (
    append_blocks,
    cache_blocks,
    contiguous_admit,
    free_request,
    grow,
    lookup,
    num_free,
    paged_admit,
    past_the_end,
)
from kvsim.engine.kernel_places import (
    ADAPTIVE,
    ARRIVAL,
    ARRIVAL_ID,
    ARRIVAL_TIME,
    ASIDE,
    ASYNCHRONOUS,
    BATCH_END,
    BATCH_REQUEST,
    BATCH_SIZE,
    BATCH_TOKENS,
    BATCH_UNFINISHED,
    BINS,
    BLOCK_SIZE,
    BODY_FLOPS,
    BUDGET,
    BY_PRIORITY,
    CACHED,
    CACHED_TOKENS,
    CACHING,
    CHUNKED,
    CLOCK,
    COMPUTED,
    CONSTANT_TIME,
    DECODE_KEYS,
    DECODE_TIME,
    DECODE_TIME_PER_REQUEST,
    DEPTH,
    DONE,
    EMPTY_STEPS,
    END,
    END_TIME,
    FILLED,
    FINISH,
    FINISHED,
    FIRST_BATCH,
    FIRST_SCHEDULED,
    FIRST_TOKEN,
    FREE_SLOTS,
    GEMM_FALLOFF,
    GEMM_RATE,
    GEMM_RIDGE,
    HEAD_BYTES,
    HEAD_FLOPS,
    IN_FLIGHT,
    IS_PREEMPTED,
    KV_BYTES,
    KV_RATE,
    LAST_TOKEN,
    LAST_TOKEN_TIME,
    LAST_WEIGHT,
    LENGTH,
    LOGIT_BYTES,
    LOOKAHEAD,
    MAX_ACTIVE,
    MAX_BATCHES,
    MAX_COMPUTED,
    MAX_EMPTY,
    MAX_MODEL_LEN,
    MIXED_DECODE,
    MIXED_TOKENS,
    MUST_COMPLETE,
    NEXT_ARRIVAL,
    NUM_ARRIVALS,
    NUM_BATCHES,
    NUM_DECODES,
    NUM_FAILURES,
    NUM_FREE_SLOTS,
    NUM_PREEMPTED,
    NUM_PREEMPTIONS,
    NUM_RECOMPUTED,
    NUM_RUNNING,
    NUM_SAMPLED,
    NUM_STAGES,
    NUM_STEPS,
    NUM_TOKENS,
    NUM_WAITING,
    ONE_SHOT,
    ONE_SHOT_TOKEN,
    ORCA,
    OUTCOME,
    OUTSTANDING,
    PAGED,
    PAIR_FLOPS,
    PAUSED,
    PHASE_COUNT,
    PHASE_FIRST,
    PHASE_LAST,
    PHASE_NEXT,
    PLACEHOLDERS,
    PLACEMENT,
    PREEMPTIONS,
    PREFILL_KEYS,
    PREFILL_PAIRS,
    PREFILL_RATE,
    PREFILL_TIME,
    PREFILL_TIME_PER_TOKEN,
    PROMPT,
    PROMPT_PAIR_FLOPS,
    RECORD,
    REFUSED,
    REQUEST_TIME,
    REQUESTS,
    RUN,
    RUNS,
    SEEN_WINDOW,
    SLIDING,
    SLOT,
    STAGE_FREE,
    STALE,
    STATUS,
    STEADY,
    STEP_TIME,
    STEP_TOKENS,
    STREAM_RATE,
    STRIDE,
    STUCK,
    SUM_FILLED,
    SUM_INTERNAL,
    THRESHOLD,
    TOKEN_BYTES,
    TOKEN_TIME,
    TRIED,
    TWO_SHOT,
    TWO_SHOT_TOKEN,
    WAITING_S,
    WAITS,
    WEIGHT_BYTES,
    WINDOW,
)
from kvsim.engine.kernel_queue import (
    before,
    queue_append,
    queue_head,
    queue_push_front,
    queue_remove,
)
from kvsim.engine.kernel_records import gap, pass_time, sample

# -- one step -------------------------------------------------------------------------------------


@njit
def see_arrivals(m, f, u, maps):
    at, clock = m[NEXT_ARRIVAL], f[CLOCK]
    while at < m[NUM_ARRIVALS] and f[m[ARRIVAL_TIME] + at] <= clock:
        r = REQUESTS + RECORD * m[m[ARRIVAL_ID] + at]
        f[ARRIVAL + r] = f[m[ARRIVAL_TIME] + at]
        m[STATUS + r] = WAITS
        m[NUM_TOKENS + r] = m[PROMPT + r]
        queue_append(m, f, u, maps, r)
        m[TRIED] = 0
        f[WAITING_S] += clock - f[m[ARRIVAL_TIME] + at]
        at += 1
    m[NEXT_ARRIVAL] = at


@njit(inline="always")
def batch_rows(m, b):
    row = b * m[MAX_ACTIVE]
    return (
        m[BATCH_REQUEST] + row,
        m[BATCH_TOKENS] + row,
        m[BATCH_UNFINISHED] + row,
    )


@njit(inline="always")
def num_pairs(m, num_tokens):
    """Pairs of query and key among the first tokens."""
    window = m[SEEN_WINDOW]
    if window == 0 or num_tokens <= window:
        return num_tokens * (num_tokens + 1) // 2
    return window * (window + 1) // 2 + (num_tokens - window) * window


@njit(inline="always")
def tally(m, r, end, n, sign):
    """Count what the step computes, or take it back."""
    computed = end - n
    if computed < m[MAX_COMPUTED + r]:
        m[NUM_RECOMPUTED] += sign * (min(end, m[MAX_COMPUTED + r]) - computed)
    m[STEP_TOKENS] += sign * n
    keys = end
    if m[SEEN_WINDOW]:
        keys = min(computed, m[SEEN_WINDOW] - 1) + n
    if n == 1:
        m[NUM_DECODES] += sign
        m[DECODE_KEYS] += sign * keys
    else:
        m[PREFILL_KEYS] += sign * keys
        m[PREFILL_PAIRS] += sign * (num_pairs(m, end) - num_pairs(m, computed))


@njit(inline="always")
def plan(m, f, u, maps, b, r, n):
    """Schedule the next tokens of a request, and advance its counts."""
    end = m[COMPUTED + r] + n
    at = m[m[BATCH_SIZE] + b]
    m[m[BATCH_SIZE] + b] = at + 1
    requests, tokens, unfinished = batch_rows(m, b)
    m[requests + at] = r
    m[tokens + at] = n
    m[COMPUTED + r] = end
    m[IN_FLIGHT + r] += n
    if end < m[NUM_TOKENS + r] + m[PLACEHOLDERS + r]:
        m[unfinished + at] = 1
    else:
        m[unfinished + at] = 0
        m[NUM_SAMPLED] += 1
        m[PLACEHOLDERS + r] += m[ASYNCHRONOUS]
    tally(m, r, end, n, 1)


@njit
def drop(m, f, u, maps, b, r):
    """Take a request out of the plan; returns the tokens it gives back."""
    size = m[m[BATCH_SIZE] + b]
    requests, tokens, unfinished = batch_rows(m, b)
    for k in range(size):
        if m[requests + k] == r:
            n = m[tokens + k]
            tally(m, r, m[COMPUTED + r], n, -1)
            if not m[unfinished + k]:
                m[NUM_SAMPLED] -= 1
                m[PLACEHOLDERS + r] -= m[ASYNCHRONOUS]
            m[COMPUTED + r] -= n
            m[IN_FLIGHT + r] -= n
            for later in range(k, size - 1):
                m[requests + later] = m[requests + later + 1]
                m[tokens + later] = m[tokens + later + 1]
                m[unfinished + later] = m[unfinished + later + 1]
            m[m[BATCH_SIZE] + b] = size - 1
            return n
    return 0


@njit
def choose_victim(m, f, u, maps):
    at = m[NUM_RUNNING] - 1
    if m[BY_PRIORITY]:
        at = 0
        for k in range(1, m[NUM_RUNNING]):
            if before(m, f, u, maps, m[m[RUN] + at], m[m[RUN] + k]):
                at = k
    return at


@njit
def preempt(m, f, u, maps, r):
    free_request(m, f, u, maps, r)
    m[STATUS + r] = IS_PREEMPTED
    m[MAX_COMPUTED + r] = max(m[MAX_COMPUTED + r], m[COMPUTED + r])
    m[COMPUTED + r] = 0
    m[STALE + r] = m[IN_FLIGHT + r]
    m[PLACEHOLDERS + r] = 0
    m[PREEMPTIONS + r] += 1
    m[NUM_PREEMPTIONS] += 1
    m[NUM_PREEMPTED] += 1
    m[REFUSED] = 0
    queue_push_front(m, f, u, maps, r)


@njit
def schedule_running(m, f, u, maps, b, budget, threshold):
    index = 0
    longest, run = m[MAX_MODEL_LEN] - 1, m[RUN]
    while index < m[NUM_RUNNING] and budget > 0:
        r = m[run + index]
        computed, placeholders = m[COMPUTED + r], m[PLACEHOLDERS + r]
        end = m[END + r]
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
            if grow(m, f, u, maps, r, n):
                plan(m, f, u, maps, b, r, n)
                budget -= n
                index += 1
                break
            m[NUM_FAILURES] += 1
            at = choose_victim(m, f, u, maps)
            victim = m[m[RUN] + at]
            for k in range(at, m[NUM_RUNNING] - 1):
                m[m[RUN] + k] = m[m[RUN] + k + 1]
            m[NUM_RUNNING] -= 1
            budget += drop(m, f, u, maps, b, victim)
            preempt(m, f, u, maps, victim)
            if at < index:
                index -= 1
            if victim == r:
                if not m[BY_PRIORITY]:
                    return budget
                break
    return budget


@njit
def admit(m, f, u, maps, b, r, slot, hit_tokens, n):
    queue_remove(m, f, u, maps, r)
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
    plan(m, f, u, maps, b, r, n)


@njit
def schedule_waiting(m, f, u, maps, b, budget, threshold):
    num_aside = 0
    while budget > 0 and m[NUM_WAITING] > 0 and m[NUM_RUNNING] < m[MAX_ACTIVE]:
        r = queue_head(m, f, u, maps)
        if m[STALE + r]:
            queue_remove(m, f, u, maps, r)
            m[m[ASIDE] + num_aside] = r
            num_aside += 1
            continue
        slot = m[m[FREE_SLOTS] + m[NUM_FREE_SLOTS] - 1]
        hit = 0
        if m[CACHING]:
            hit = lookup(m, f, u, maps, r, slot)
        n = m[NUM_TOKENS + r] - hit * m[BLOCK_SIZE]
        if 0 < threshold < n:
            n = threshold
        if n > budget and not m[CHUNKED]:
            m[REFUSED] = 0
            break
        n = min(n, budget)
        if not paged_admit(m, f, u, maps, r, slot, hit, n):
            m[REFUSED] = 1
            m[TRIED] = 1
            m[NUM_FAILURES] += 1
            break
        m[REFUSED] = 0
        admit(m, f, u, maps, b, r, slot, hit * m[BLOCK_SIZE], n)
        budget -= n
    for k in range(num_aside - 1, -1, -1):
        queue_push_front(m, f, u, maps, m[m[ASIDE] + k])


@njit
def schedule_vllm(m, f, u, maps, b):
    unfinished = m[NUM_RUNNING] + m[NUM_WAITING]
    budget = m[BUDGET]
    threshold = m[THRESHOLD] if unfinished > 1 else 0
    if threshold and m[ADAPTIVE]:
        threshold = max(threshold, budget // unfinished)
    budget = schedule_running(m, f, u, maps, b, budget, threshold)
    if m[NUM_PREEMPTED] == 0:
        schedule_waiting(m, f, u, maps, b, budget, threshold)


@njit
def schedule_orca(m, f, u, maps, b):
    for k in range(m[NUM_RUNNING]):
        r = m[m[RUN] + k]
        n = m[NUM_TOKENS + r] - m[COMPUTED + r]
        if n and grow(m, f, u, maps, r, n):
            plan(m, f, u, maps, b, r, n)
    while m[NUM_WAITING] > 0 and m[NUM_RUNNING] < m[MAX_ACTIVE]:
        r = queue_head(m, f, u, maps)
        slot = m[m[FREE_SLOTS] + m[NUM_FREE_SLOTS] - 1]
        if not contiguous_admit(m, f, u, maps, r, slot):
            m[REFUSED] = 1
            m[TRIED] = 1
            m[NUM_FAILURES] += 1
            break
        m[REFUSED] = 0
        admit(m, f, u, maps, b, r, slot, 0, m[NUM_TOKENS + r])


@njit
def gemm_time(f, moved, flops, tokens):
    memory = moved / f[STREAM_RATE]
    arithmetic = flops / f[GEMM_RATE] * (1.0 + tokens * f[GEMM_FALLOFF])
    slower, faster = max(memory, arithmetic), min(memory, arithmetic)
    return slower + f[GEMM_RIDGE] * faster * faster / slower


@njit
def price(m, f, u, maps, requests, tokens, sampled, decodes, decode_keys, keys, pairs):
    """The roofline of kvsim.cost.roofline."""
    time = f[STEP_TIME] + requests * f[REQUEST_TIME]
    moved = f[m[WEIGHT_BYTES] + min(tokens, m[LAST_WEIGHT])] + tokens * f[TOKEN_BYTES]
    time += gemm_time(f, moved, tokens * f[BODY_FLOPS], tokens)
    if sampled:
        moved = f[HEAD_BYTES] + sampled * f[LOGIT_BYTES]
        time += gemm_time(f, moved, sampled * f[HEAD_FLOPS], sampled)
    prefill_tokens = tokens - decodes
    if decodes:
        decode_bytes = np.float64(decode_keys * m[KV_BYTES])
        decode_flops = decode_keys * f[PAIR_FLOPS]
        reading = max(decode_bytes / f[KV_RATE], decode_flops / f[PREFILL_RATE])
        mixed = min(prefill_tokens / f[MIXED_TOKENS], 1.0)
        launches = f[DECODE_TIME] + decodes * f[DECODE_TIME_PER_REQUEST]
        time += launches + reading * (1.0 + f[MIXED_DECODE] * mixed)
    if prefill_tokens:
        moving = f[PREFILL_TIME] + prefill_tokens * f[PREFILL_TIME_PER_TOKEN]
        prefill_bytes = np.float64(keys * m[KV_BYTES])
        prefill_flops = pairs * f[PROMPT_PAIR_FLOPS]
        time += moving + max(prefill_bytes / f[KV_RATE], prefill_flops / f[PREFILL_RATE])
    time += tokens * f[TOKEN_TIME]
    time += min(f[ONE_SHOT] + tokens * f[ONE_SHOT_TOKEN], f[TWO_SHOT] + tokens * f[TWO_SHOT_TOKEN])
    return time


@njit
def step_time(m, f, u, maps, size):
    """Return the time of the step just planned."""
    if f[CONSTANT_TIME] >= 0:
        return f[CONSTANT_TIME]
    tokens, sampled, decodes = m[STEP_TOKENS], m[NUM_SAMPLED], m[NUM_DECODES]
    keys, prompt_keys, pairs = m[DECODE_KEYS], m[PREFILL_KEYS], m[PREFILL_PAIRS]
    return price(m, f, u, maps, size, tokens, sampled, decodes, keys, prompt_keys, pairs)


@njit
def record_step(m, f, u, maps):
    if m[NUM_STEPS] % m[STRIDE] == 0:
        sample(m, f, u, maps)
    m[NUM_STEPS] += 1


@njit
def schedule(m, f, u, maps):
    """Decide a step and start it; returns False if the scheduler is stuck."""
    now = f[CLOCK]
    b = (m[FIRST_BATCH] + m[NUM_BATCHES]) % m[MAX_BATCHES]
    m[m[BATCH_SIZE] + b] = 0
    m[STEP_TOKENS] = m[NUM_SAMPLED] = m[NUM_DECODES] = 0
    m[DECODE_KEYS] = m[PREFILL_KEYS] = m[PREFILL_PAIRS] = 0
    m[NUM_PREEMPTED] = 0
    m[STEADY] = 1
    m[TRIED] = 0
    if m[ORCA]:
        schedule_orca(m, f, u, maps, b)
    else:
        schedule_vllm(m, f, u, maps, b)
    last = (m[FIRST_BATCH] + m[NUM_BATCHES] - 1) % m[MAX_BATCHES]
    if m[m[BATCH_SIZE] + b]:
        time = step_time(m, f, u, maps, m[m[BATCH_SIZE] + b])
        start = max(now, f[STAGE_FREE])
        f[STAGE_FREE] = start + time / f[NUM_STAGES]
        last_end = f[m[BATCH_END] + last] if m[NUM_BATCHES] else now
        f[m[BATCH_END] + b] = max(start + time, last_end)
        record_step(m, f, u, maps)
        m[EMPTY_STEPS] = 0
    else:
        record_step(m, f, u, maps)
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
def complete(m, f, u, maps):
    """Take in the tokens of the oldest step; returns how many requests have ended."""
    b = m[FIRST_BATCH]
    end = f[m[BATCH_END] + b]
    pass_time(m, f, u, maps, end)
    m[MUST_COMPLETE] = 0
    m[FIRST_BATCH] = (b + 1) % m[MAX_BATCHES]
    m[NUM_BATCHES] -= 1
    previous = f[LAST_TOKEN_TIME]
    num_regular = num_sampled = num_finished = 0
    requests, tokens, unfinished = batch_rows(m, b)
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
        if last == previous:
            num_regular += 1
        elif np.isnan(last):
            f[FIRST_TOKEN + r] = end
        else:
            gap(m, f, u, maps, end - last, 1)
        f[LAST_TOKEN + r] = end
        if not stale and m[PLACEHOLDERS + r] > 0:
            m[PLACEHOLDERS + r] -= 1
            if names_late and m[STATUS + r] == RUNS:
                cache_blocks(m, f, u, maps, r, m[SLOT + r], m[COMPUTED + r] - m[IN_FLIGHT + r])
        if m[NUM_TOKENS + r] >= m[END + r]:
            if m[STATUS + r] == RUNS:
                free_request(m, f, u, maps, r)
            else:
                queue_remove(m, f, u, maps, r)
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
        m[OUTSTANDING] -= num_finished
    if num_regular:
        gap(m, f, u, maps, end - previous, num_regular)
    if num_sampled:
        f[LAST_TOKEN_TIME] = end
    return num_finished


# -- runs of steps --------------------------------------------------------------------------------


@njit
def longest_run(m, f, u, maps):
    """Return for how many steps the batch changes only by arithmetic; 0 if it is not steady.

    Every running request decodes, nobody ends, nobody joins. With asynchronous scheduling the step
    under way holds just these requests, too.
    """
    running = m[NUM_RUNNING]
    if m[DEPTH] > 1 + m[ASYNCHRONOUS] or m[NUM_BATCHES] != m[ASYNCHRONOUS]:
        return 0
    if m[WINDOW] or m[SLIDING] or m[SEEN_WINDOW]:
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
        longest = min(longest, m[END + r] - tokens - 1)
    return longest


@njit
def join_phase(m, steps, k):
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
def sort_by_phase(m, f, u, maps):
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
        join_phase(m, taking, 2 * k)
        if m[CACHING] and (taking - filling) % m[BLOCK_SIZE]:
            join_phase(m, filling, 2 * k + 1)
    return sum_computed


@njit
def tend_blocks(m, f, u, maps, step):
    """Take and name the blocks of one step of a run; returns False, unchanged, if they run out."""
    phase = step % m[BLOCK_SIZE]
    k = m[m[PHASE_FIRST] + phase]
    if m[m[PHASE_COUNT] + phase] > num_free(m, f, u, maps):
        return False
    while k >= 0:
        r = m[m[RUN] + k // 2]
        slot = m[SLOT + r]
        end = m[COMPUTED + r] + step + 1
        if min(end + m[LOOKAHEAD], m[MAX_MODEL_LEN]) > m[LENGTH + slot] * m[BLOCK_SIZE]:
            m[SUM_INTERNAL] -= past_the_end(m, f, u, maps, r, slot)
            append_blocks(m, f, u, maps, slot, 1)
            m[SUM_INTERNAL] += past_the_end(m, f, u, maps, r, slot)
        if m[CACHING]:
            cache_blocks(m, f, u, maps, r, slot, end - m[ASYNCHRONOUS])
        k = m[m[PHASE_NEXT] + k]
    return True


@njit
def run_of_steps(m, f, u, maps, most_steps):
    """Advance a steady batch by whole steps; returns how many. Nothing is approximated.

    Times are the same sequence of additions, and blocks change hands in the same order, as step by
    step.
    """
    longest = min(longest_run(m, f, u, maps), most_steps)
    if longest < 2:
        return 0
    running = m[NUM_RUNNING]
    tries = m[NUM_WAITING] > 0 and running < m[MAX_ACTIVE]
    tries = tries and (m[ORCA] == 1 or running < m[BUDGET])
    next_arrival = np.inf
    if m[NEXT_ARRIVAL] < m[NUM_ARRIVALS]:
        next_arrival = f[m[ARRIVAL_TIME] + m[NEXT_ARRIVAL]]
    keys = sort_by_phase(m, f, u, maps)
    under_way = f[m[BATCH_END] + m[FIRST_BATCH]]  # end of the step in flight, if asynchronous
    step = flushed = 0
    while step < longest and f[CLOCK] < next_arrival and f[CLOCK] < f[END_TIME]:
        if m[PLACEMENT] == PAGED and not tend_blocks(m, f, u, maps, step):
            break
        now = f[CLOCK]
        m[SUM_FILLED] += running
        m[NUM_FAILURES] += tries
        keys += running
        time = f[CONSTANT_TIME]
        if time < 0:
            time = price(m, f, u, maps, running, running, running, running, keys, 0, 0)
        start = max(now, f[STAGE_FREE])
        f[STAGE_FREE] = start + time / f[NUM_STAGES]
        end = max(start + time, under_way if m[ASYNCHRONOUS] else now)
        step += 1
        if m[BINS] and m[NUM_STEPS] % m[STRIDE] == 0:
            for k in range(running):
                m[FILLED + m[SLOT + m[m[RUN] + k]]] += step - flushed
            flushed = step
        record_step(m, f, u, maps)
        if m[ASYNCHRONOUS]:
            end, under_way = under_way, end
        pass_time(m, f, u, maps, end)
        gap(m, f, u, maps, end - f[LAST_TOKEN_TIME], running)
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
def run_until(m, f, u, maps, horizon, until_finish, max_steps):
    """Run until the outside may matter, or for ``max_steps`` steps; returns requests ended."""
    num_ended = 0
    steps = 0
    m[OUTCOME] = DONE
    while not (until_finish and num_ended):
        if m[MUST_COMPLETE]:
            if f[m[BATCH_END] + m[FIRST_BATCH]] > horizon:
                break
            num_ended += complete(m, f, u, maps)
            continue
        see_arrivals(m, f, u, maps)
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
                run = run_of_steps(m, f, u, maps, max_steps - steps)
                steps += run
                if run:
                    continue
            steps += 1
            if not schedule(m, f, u, maps):
                m[OUTCOME] = STUCK
                break
        elif m[NUM_BATCHES]:
            m[MUST_COMPLETE] = 1
        else:
            break
    return num_ended


@njit
def itself(array):
    return array


@intrinsic
def data_of(typing_context, array):
    def generate(context, builder, signature, arguments):
        return make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@njit
def borrowed(array):
    return data_of(array)


# Numba counts references to an array at every call, atomically, and tests every place for being
# negative: half of a run. A pointer does neither; the caller keeps the arrays alive.
borrow = itself if numba.config.DISABLE_JIT or numba.config.BOUNDSCHECK else borrowed


@njit(cache=True)
def advance(m, f, u, maps, horizon, until_finish, max_steps):
    """Run until the outside may matter, or for ``max_steps`` steps; returns requests ended."""
    return run_until(
        borrow(m), borrow(f), borrow(u), borrow(maps), horizon, until_finish, max_steps
    )
