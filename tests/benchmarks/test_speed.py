"""How fast the backends are: requests and steps per CPU-second, all accounting on.

Run by name: ``pytest -m benchmark tests/benchmarks``. Nothing here asserts a time.
"""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

import kvsim
import workloads

pytestmark = pytest.mark.benchmark(group="simulation", timer=time.process_time, min_rounds=5)

NUM_REQUESTS = 1000


@pytest.mark.parametrize("backend", ["python", "compiled"])
@pytest.mark.parametrize("num_running", [16, 64, 128])
@pytest.mark.parametrize("allocator", ["paged", "contiguous-oracle"])
def test_requests_per_cpu_second(
    benchmark: Any,
    capsys: pytest.CaptureFixture[str],
    allocator: str,
    num_running: int,
    backend: str,
) -> None:
    """ShareGPT-like requests, all there at once, Llama-3-8B on an A100-80GB."""
    trace = workloads.sharegpt(num_requests=NUM_REQUESTS, request_rate=math.inf, seed=0)
    options = {"model": "llama-3-8b", "gpu": "a100-80gb", "max_num_seqs": num_running}
    options |= {"allocator": allocator, "backend": backend}
    result = benchmark(kvsim.simulate, trace, **options)
    seconds = benchmark.stats.stats.median
    with capsys.disabled():
        print(
            f"\n{backend}, {allocator}, {num_running} running: "
            f"{NUM_REQUESTS / seconds:,.0f} requests and "
            f"{result.summary['num_steps'] / seconds:,.0f} steps per CPU-second"
        )
