"""CPU time per request of agentic sessions on four replicas, by router and number of requests.

``python tests/benchmarks/agentic_sessions.py session,llm-d 1000,6000,72000``; 72,000 requests are
1,110 sessions. Results are compared by their digest, which an edit for speed must not change.
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

import numpy as np

import kvsim
import workloads

OPTIONS: Any = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 131072}
FEWEST = 60  # requests of a first run, which compiles


def trace_of(number: int) -> kvsim.Trace:
    return workloads.agentic(num_requests=number, request_rate=4, max_prompt=100_000)


def measure(router: str, trace: kvsim.Trace) -> tuple[float, kvsim.Result]:
    """Return the CPU seconds of a run, and its result."""
    start = time.process_time()
    result = kvsim.simulate(trace, router=router, data_parallel_size=4, **OPTIONS)
    return time.process_time() - start, result


def digest_of(result: kvsim.Result) -> str:
    names = result.requests.dtype.names or ()
    columns = (np.ascontiguousarray(result.requests[name]).tobytes() for name in names)
    return hashlib.sha256(b"".join(columns)).hexdigest()[:10]


def main(routers: str, numbers: str) -> None:
    """Print a line per number of requests and router."""
    for number in map(int, numbers.split(",")):
        trace = trace_of(number)
        for router in routers.split(","):
            measure(router, trace_of(FEWEST))
            seconds, result = measure(router, trace)
            sessions, steps = result.summary["sessions"]["num"], result.summary["num_steps"]
            print(
                f"{router}: {number:,} requests, {sessions:,} sessions, {steps:,} steps: "
                f"{seconds:.1f} CPU-s, {1e3 * seconds / number:.2f} ms a request, "
                f"digest {digest_of(result)}",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
