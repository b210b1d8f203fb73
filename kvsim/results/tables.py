"""The columns of the result tables. Times are in seconds, memory in bytes."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kvsim.records.engine import MemorySample, RequestRow, StepRow
from kvsim.rules.recorder import MAX_MEMORY_SAMPLES


class FinishReason(IntEnum):
    """Reason why a request ended, or its state at the horizon.

    Finished: all its tokens were generated; rejected: it can never fit, or was declined. In
    flight: sent by the horizon, and not ended; unsent: not sent by the horizon, and excluded from
    metrics. Aborted: its client disconnected; failed: its KV could not be loaded.
    """

    FINISHED = 0
    REJECTED = 1
    IN_FLIGHT = 2
    UNSENT = 3
    ABORTED = 4
    FAILED = 5


#: One row per request of the trace, in the trace's order. Times of events that did not happen are
#: NaN. num_output_tokens counts the generated tokens of all samples; num_cached_tokens is the hit
#: at the first admission. A request with several samples has one row, as seen by a client that
#: waits for all samples. prefill_replica is the replica that computed the prompt, -1 if it is the
#: same one; transfer_time is the time from the moment its KV can be sent to its arrival, else 0.
REQUESTS = RequestRow.dtype()

#: One row per sample, in the order of requests and samples, if the engine serves several samples of
#: a request as separate requests (vllm). request_id numbers the samples; parent_id is the request.
SAMPLES = np.dtype(
    [*((name, REQUESTS[name]) for name in REQUESTS.names or ()), ("parent_id", "i8")]
)

#: Samples of a replica's memory, each taken right after a step was scheduled. kv_usage is the share
#: of blocks in use. The first five byte columns sum to the KV memory; cached is a part of the
#: unallocated (free or external) bytes.
MEMORY = MemorySample.dtype()

#: One row per step; flops and bytes are one GPU's.
STEPS = StepRow.dtype()

#: Gaps between two tokens: the middle of each bin, 0.1 % wide, in seconds, and the count in it.
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
