"""The result tables: one visible list of columns each. Times are seconds, memory is bytes."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kvsim.kv.usage import COLUMNS


class FinishReason(IntEnum):
    """How a request ended: all its tokens out, refused for good, or still there at the horizon."""

    FINISHED = 0
    REJECTED = 1
    IN_FLIGHT = 2


#: One row per request of the trace, in its order. Times are NaN until they happen.
#: num_output_tokens counts tokens generated; num_cached_tokens is the hit at first admission.
REQUESTS = np.dtype(
    [
        ("request_id", np.int64),
        ("replica", np.int32),
        ("arrival_time", np.float64),
        ("first_scheduled_time", np.float64),
        ("first_token_time", np.float64),
        ("finish_time", np.float64),
        ("num_prompt_tokens", np.int64),
        ("num_output_tokens", np.int64),
        ("num_cached_tokens", np.int64),
        ("num_preemptions", np.int64),
        ("finish_reason", np.int8),
    ]
)

#: Samples of a replica's memory, taken right after a step was scheduled. kv_usage is the share of
#: blocks in use; the first five byte columns sum to the KV memory, cached is a part of the
#: unallocated (free or external) bytes.
MEMORY = np.dtype(
    [
        ("time", np.float64),
        ("replica", np.int32),
        ("num_running", np.int32),
        ("num_waiting", np.int32),
        ("kv_usage", np.float64),
        *((cause.column, np.int64) for cause in COLUMNS),
    ]
)

#: One row per step; flops and bytes are one GPU's.
STEPS = np.dtype(
    [
        ("replica", np.int32),
        ("start_time", np.float64),
        ("duration", np.float64),
        ("num_scheduled_tokens", np.int64),
        ("num_running", np.int32),
        ("num_preempted", np.int32),
        ("flops", np.float64),
        ("bytes", np.float64),
    ]
)

#: Most memory samples kept per replica; the next one halves them.
MAX_MEMORY_SAMPLES = 4096
