"""The result tables: one visible list of columns each. Times are seconds, memory is bytes."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kvsim.records.engine import MemorySample, RequestRow, StepRow
from kvsim.rules.recorder import MAX_MEMORY_SAMPLES


class FinishReason(IntEnum):
    """Reason why a request ended: all its tokens out, refused for good, or neither by the horizon.

    In flight: sent by then; unsent: not sent by then, and excluded from metrics. Aborted: its
    client disconnected; failed: its KV could not be loaded.
    """

    FINISHED = 0
    REJECTED = 1
    IN_FLIGHT = 2
    UNSENT = 3
    ABORTED = 4
    FAILED = 5


#: One row per request of the trace, in its order. Times are NaN until they happen.
#: num_output_tokens counts tokens generated, by all samples; num_cached_tokens is the hit at first
#: admission. Of several samples the row is what a client gets that waits for all of them.
#: prefill_replica computed the prompt if that was another one, else -1; its KV then came within
#: transfer_time, from when it could go, else 0.
REQUESTS = RequestRow.dtype()

#: One row per sample, in the order of requests and samples, where a request has several that the
#: engine serves as requests of their own (vllm). request_id counts them; parent_id is the request.
SAMPLES = np.dtype(
    [*((name, REQUESTS[name]) for name in REQUESTS.names or ()), ("parent_id", "i8")]
)

#: Samples of a replica's memory, taken right after a step was scheduled. kv_usage is the share of
#: blocks in use; the first five byte columns sum to the KV memory, cached is a part of the
#: unallocated (free or external) bytes.
MEMORY = MemorySample.dtype()

#: One row per step; flops and bytes are one GPU's.
STEPS = StepRow.dtype()

#: Count of each gap between two tokens, in seconds: the middles of bins of 0.1 %.
TOKEN_GAPS = np.dtype([("replica", "i4"), ("gap", "f8"), ("count", "i8")])

__all__ = [
    "MAX_MEMORY_SAMPLES",
    "MEMORY",
    "REQUESTS",
    "SAMPLES",
    "STEPS",
    "TOKEN_GAPS",
    "FinishReason",
]
