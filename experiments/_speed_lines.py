"""The lines that `speed` measures, as plain data, and the child process that measures one of them.

As a script, this file reads a line as JSON, serves it with the kvsim that its interpreter imports,
and prints JSON. So the same file can measure two checkouts.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any, NamedTuple

#: CPU-seconds of a measurement, in one run or several; the most requests of a run; and the requests
#: of the first trial run.
FILL = 1.0
MOST = 50_000
PILOT = 200

LLAMA = {"model": "llama-3-8b", "gpu": "h100-sxm", "max_model_len": 8192, "max_num_seqs": 256}
SGLANG = LLAMA | {"engine": "sglang", "max_running_requests": 256}
PLAIN = LLAMA | {"enable_prefix_caching": False}


class Line(NamedTuple):
    """A workload and its options; without ``num_requests``, the run lasts about a CPU-second."""

    name: str
    options: dict[str, Any]
    num_requests: int | None = None
    workload: str = "sharegpt"
    request_rate: float = float("inf")
    is_long: bool = False


def lines(eviction_policies: list[str]) -> list[Line]:
    """Return all lines; a line is saturated unless its name gives a rate."""
    big = {"max_num_batched_tokens": 8192, "num_gpu_blocks_override": 90_000}
    azure = {"model": "llama-2-7b", "gpu": "a100-80gb"}
    return [
        Line("saturated", PLAIN),
        Line("prefix caching", LLAMA),
        Line("half load (26 requests/s)", PLAIN, request_rate=26.0),
        Line("Azure conv-like, 1 replica", azure, None, "azure-conv", 5.0),
        Line("256 decoding", PLAIN | big, None, "fixed+prompt=64+output=5000"),
        Line("contiguous-max", PLAIN | {"allocator": "contiguous-max"}),
        *(Line(f"growth: {n:,} requests", PLAIN, n) for n in (1_000, 10_000, 100_000)),
        *(
            Line(
                f"growth: {n} running",
                PLAIN | {"max_num_seqs": n, "max_num_batched_tokens": 8192},
            )
            for n in (16, 64, 1024)
        ),
        Line("Gemma-3-27B", LLAMA | {"model": "gemma-3-27b"}),
        Line("gpt-oss-20b", LLAMA | {"model": "gpt-oss-20b"}),
        Line("Llama-4-Scout", LLAMA | {"model": "llama-4-scout", "tensor_parallel_size": 8}),
        *(
            Line(f"eviction: {policy}", LLAMA | {"allocator": f"paged+eviction={policy}"})
            for policy in eviction_policies
        ),
        *(Line(f"sglang, pages of {size}", SGLANG | {"page_size": size}) for size in (1, 16)),
        Line("tiered", LLAMA | {"allocator": "tiered"}),
        Line("static", LLAMA | {"scheduler": "static"}),
        Line("vllm-v0", LLAMA | {"scheduler": "vllm-v0"}),
        Line("virtual", LLAMA | {"allocator": "virtual"}),
        Line("four samples (vllm-v0)", LLAMA | {"scheduler": "vllm-v0", "num_samples": 4}),
        Line("dynamic", LLAMA | {"allocator": "dynamic"}),
        Line("16 replicas, 300,000 requests", PLAIN | {"data_parallel_size": 16}, 300_000),
        Line("1,000,000 requests", PLAIN, 1_000_000),
        Line("10,000,000 requests", PLAIN, 10_000_000, is_long=True),
    ]


def served(line: Line, num_requests: int) -> tuple[float, Any]:
    """Return the CPU-seconds of one run, without the generation of its trace, and the result."""
    import kvsim
    import workloads

    trace = workloads.generate(
        line.workload, num_requests=num_requests, request_rate=line.request_rate, seed=0
    )
    begin = time.process_time()
    result = kvsim.simulate(trace, **line.options)
    return time.process_time() - begin, result


def fitting(line: Line) -> int:
    """Return the number of requests of a run of a CPU-second, estimated by longer runs."""
    n = PILOT
    seconds, _ = served(line, n)
    while seconds < FILL / 10 and n < MOST:
        n = min(10 * n, MOST)
        seconds, _ = served(line, n)
    return max(PILOT, min(MOST, round(n * FILL / seconds)))


def measure(line: Line) -> dict[str, Any]:
    """Measure a line; rules are loaded, and compiled if necessary, before the measurement."""
    import kvsim

    served(line, 20)
    n = line.num_requests or fitting(line)
    total, num_runs = 0.0, 0
    summary: dict[str, Any] = {}
    while total < FILL / 2:
        seconds, result = served(line, n)
        total, num_runs, summary = total + seconds, num_runs + 1, result.summary
        backend = result.provenance["engine"]
        del result
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "requests": n,
        "seconds": total / num_runs,
        "steps": summary["num_steps"],
        "backend": backend,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9,
        "package": kvsim.__file__,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Line(*json.loads(sys.argv[1])))))
