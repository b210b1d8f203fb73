"""Options of a run that ``kvsim calibrate`` does not have."""

from __future__ import annotations

from kvsim.client_options import ClientOptions

#: Options of requests, of recording, and of changes to a fleet, which a calibration does not have.
LEFT_OUT = (
    *("workload", "trace", "tokenizer", "request_rate", "num_requests", "max_concurrency"),
    *("seed", "goodput"),
    *("horizon", "kv_events_config", "record_steps", "record_memory_map", "check_invariants"),
    *("cost_model", "autoscaler", "cold_start", "failures", "migration"),
    "session_think_time",
    *ClientOptions.model_fields,
)
