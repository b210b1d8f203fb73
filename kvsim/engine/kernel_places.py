"""Where everything lies in the arrays of the compiled engine.

The kernels (``kernel_*.py`` and ``kernels.py``) are the plain-Python modules over again, for speed:
every rule and every order of floating-point operations is theirs, and names are, too. Their
compiled code is cached under a hash of all these files; they import nothing else of kvsim.

All state lives in four flat arrays, because every array that a kernel gets costs time at each call:
``m`` (int64), ``f`` (float64), ``u`` (uint64, keys of content) and ``maps`` (uint8, memory maps).
Names in capitals are places in them. ``m[NUM_RUNNING]`` is a scalar; ``m[m[RUN] + k]`` is an entry
of an array that begins at ``m[RUN]``; requests, slots and blocks are named by the place of their
record, so that ``m[COMPUTED + r]`` is a field of one.
"""

from __future__ import annotations

#: Scalars of ``m`` that change.
COUNTS = (
    NUM_RUNNING, NUM_WAITING, NUM_ARRIVALS, NEXT_ARRIVAL, NUM_BATCHES, FIRST_BATCH, MUST_COMPLETE,
    OUTSTANDING, EMPTY_STEPS, REFUSED, NUM_STEPS, STRIDE, NUM_SAMPLES, NUM_PREEMPTIONS,
    NUM_RECOMPUTED, NUM_FAILURES, PEAK_RUNNING, NUM_UNHASHED, NUM_CACHED_FREE, NUM_USED,
    NUM_FREE_SLOTS, SUM_FILLED, NUM_TABLE_BLOCKS, SUM_INTERNAL, QUEUE_HEAD, QUEUE_TAIL, LRU_HEAD,
    LRU_TAIL, SUM_SIZE, SUM_ASKED, SUM_LAST, NUM_PREEMPTED, OUTCOME, TRIED, STEADY,
    STEP_TOKENS, NUM_SAMPLED, NUM_DECODES, DECODE_KEYS, PREFILL_KEYS, PREFILL_PAIRS,
) = tuple(range(41))  # fmt: skip
#: Scalars of ``m`` that do not change: the configuration, and widths of rows. Sizes are in tokens;
#: ``WINDOW`` makes a piece a ring, ``SLIDING`` drops blocks, ``SEEN_WINDOW`` is the cost model's;
#: ``NUM_USABLE`` counts blocks, or slots of a contiguous memory, and ``UNIT_BYTES`` is one's size.
SETTINGS = (
    PLACEMENT, RESERVE, ORCA, BLOCK_SIZE, NUM_USABLE, UNIT_BYTES, SLOT_BYTES, MAX_MODEL_LEN,
    MAX_ACTIVE, BUDGET, THRESHOLD, ADAPTIVE, CHUNKED, BY_PRIORITY, ASYNCHRONOUS, CACHING,
    WATERMARK_BLOCKS, RESERVE_FULL, LOOKAHEAD, WINDOW, DEPTH, BINS, KV_BYTES, MAX_HOLES,
    NUM_ORDERS, NUM_BLOCKS, BUCKET_MASK, MAX_BATCHES, LAST_WEIGHT,
    SLIDING, SEEN_WINDOW, ADMISSION_CAP, SEGMENT, KEEPS_BOUNDARY,
) = tuple(range(41, 75))  # fmt: skip
#: Offsets of arrays in ``m``: by request, of queues, of blocks, of holes in a contiguous memory, of
#: steps in flight, of records.
INT_ARRAYS = (
    SEGMENT_OFFSET, SEGMENT_ID, SEGMENT_START, SEGMENT_LENGTH, OUTPUT_ID, SALT,
    RUN, HEAP, ASIDE, ARRIVAL_ID, FREE_SLOTS,
    BLOCKS, UNHASHED, BUCKET, MAP_UNUSED,
    HOLES, NUM_HOLES, PHASE_FIRST, PHASE_LAST, PHASE_NEXT, PHASE_COUNT,
    BATCH_REQUEST, BATCH_TOKENS, BATCH_UNFINISHED, BATCH_SIZE,
    SAMPLE_INTS, GAPS,
) = tuple(range(75, 102))  # fmt: skip
#: Offsets, held in ``m``, of arrays in ``f``.
FLOAT_ARRAYS = (
    ARRIVAL_TIME, BATCH_END, SAMPLE_FLOATS, WEIGHT_BYTES, MAP_FILLED, MAP_LAST,
) = tuple(range(102, 108))  # fmt: skip
#: Where the records of requests begin, in ``m`` and in ``f``, and the length of a record. A request
#: is named by the place of its record: ``m[COMPUTED + r]``, ``f[FINISH + r]``.
REQUESTS, RECORD = 112, 16
INT_FIELDS = (
    PROMPT, MAX_TOKENS, PRIORITY, NUM_TOKENS, COMPUTED, IN_FLIGHT, STALE, PLACEHOLDERS,
    MAX_COMPUTED, PREEMPTIONS, CACHED, STATUS, SLOT, QUEUE_NEXT, QUEUE_PREVIOUS, END,
) = tuple(range(16))  # fmt: skip
FLOAT_FIELDS = ARRIVAL, FIRST_SCHEDULED, FIRST_TOKEN, LAST_TOKEN, FINISH = tuple(range(5))
#: A running request has a slot, named by the place of its record in ``m``: its block table and keys
#: start at ``m[ROW + slot]`` in ``m`` and ``m[KEY_ROW + slot]`` in ``u``; or it has a piece.
SLOT_FIELDS = (
    ROW, KEY_ROW, LENGTH, CACHED_TOKENS, FILLED, KEY_OWNER, NUM_KEYS, KEY_SEGMENT, KEY_OFFSET,
    START, SIZE, ASKED, LAST, NUM_NULL, PROCESSED,
) = tuple(range(15))  # fmt: skip
#: A block is named by the place of its record, one cache line of ``m``. The key is kept as int64.
BLOCK_RECORD = 8
BLOCK_FIELDS = (
    REF_CNT, LRU_PREVIOUS, LRU_NEXT, HASHED, CHAIN, COPY, BLOCK_KEY, DEAD,
) = tuple(range(8))  # fmt: skip
#: Scalars of ``f``: what changes (times in seconds, integrals over time), and the settings.
SUMS = (
    CLOCK, STAGE_FREE, LAST_TOKEN_TIME, TOKEN_STATES_S, RESERVATION_S, INTERNAL_S, EXTERNAL_S,
    UNALLOCATED_S, CACHED_S, USAGE_S, RUNNING_S, WAITING_S, REFUSED_S, RUNNING_REFUSED_S,
    PEAK_USAGE,
) = tuple(range(15))  # fmt: skip
RATES = (
    NUM_STAGES, END_TIME, CONSTANT_TIME, STEP_TIME, REQUEST_TIME, STREAM_RATE, GEMM_RATE,
    BODY_FLOPS, HEAD_FLOPS, HEAD_BYTES, PAIR_FLOPS, KV_RATE, PREFILL_RATE, GEMM_RIDGE,
    TOKEN_TIME, DECODE_TIME, DECODE_TIME_PER_REQUEST, MIXED_DECODE, MIXED_TOKENS,
    PREFILL_TIME, PREFILL_TIME_PER_TOKEN, GEMM_FALLOFF, ONE_SHOT, ONE_SHOT_TOKEN, TWO_SHOT,
    TWO_SHOT_TOKEN, TOKEN_BYTES, LOGIT_BYTES, PROMPT_PAIR_FLOPS,
) = tuple(range(15, 44))  # fmt: skip

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
