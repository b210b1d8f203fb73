"""How fast kvsim is: requests and steps per CPU-second, compiled beside plain Python, and memory.

One row per job, medians of CPU time with the kernels' cache warm; ``--quick`` runs a tenth. Nothing
here asserts a time: machines differ, and only ratios within one run mean much.

    python -m experiments.speed [--quick] [--repeat 5]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable  # noqa: TC003 - NamedTuple reads the annotation
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import kvsim
import workloads
from kvsim.trace import Trace

LLAMA = {"model": "llama-3-8b", "gpu": "h100-sxm", "max_model_len": 8192}


class Job(NamedTuple):
    """What is served, under which options, and requests that plain Python gets instead."""

    name: str
    make: Callable[[int], Trace]
    num_requests: int
    options: dict[str, Any]
    python_requests: int = 1000


def sharegpt(rate: float) -> Callable[[int], Trace]:
    """ShareGPT-like requests at a rate."""
    return lambda n: workloads.sharegpt(num_requests=n, request_rate=rate, seed=0)


def decodes(num_waves: int, num_tokens: int) -> Trace:
    """Waves of 256 requests that start and end together and only decode, after a short prompt."""
    n = 256 * num_waves
    return Trace.from_arrays([0.0] * n, [64] * n, [num_tokens] * n)


def jobs() -> list[Job]:
    """The jobs of the speed goals, and growth in requests and in running requests."""
    plain = LLAMA | {"enable_prefix_caching": False, "max_num_seqs": 256}
    cached = plain | {"enable_prefix_caching": True}
    chat = {"model": "llama-2-7b", "gpu": "a100-80gb"}
    saturated = sharegpt(float("inf"))
    listed = [
        Job("saturated, 256 running", saturated, 1_000_000, plain),
        Job("the same, prefix caching", saturated, 200_000, cached),
        Job("half load (26 requests/s)", sharegpt(26.0), 200_000, plain),
        Job("Azure conv-like, 1 replica", azure, 10_000, chat),
    ]
    sizes = (1_000, 10_000, 100_000)
    listed += [Job(f"growth: {n:,} requests", saturated, n, plain) for n in sizes]
    for running in (16, 64, 256, 1024):
        options = plain | {"max_num_seqs": running, "max_num_batched_tokens": 8192}
        listed.append(Job(f"growth: {running} running", saturated, 50_000, options))
    return listed


def azure(num_requests: int) -> Trace:
    """Lengths of the Azure 2023 conversation trace at 5 requests per second."""
    return workloads.generate("azure-conv", num_requests=num_requests, request_rate=5.0, seed=0)


def measure(trace: Trace, backend: str, options: dict[str, Any], repeat: int) -> tuple[float, int]:
    """Return the median CPU time and the number of steps."""
    times = []
    steps = 0
    for _ in range(repeat):
        begin = time.process_time()
        result = kvsim.simulate(trace, backend=backend, **options)
        times.append(time.process_time() - begin)
        steps = result.summary["num_steps"]
    return statistics.median(times), steps


def decode_rate(backend: str, repeat: int) -> float:
    """Steps per CPU-second of 256 decoding requests: one wave and many, so set-up cancels out."""
    options = LLAMA | {
        "enable_prefix_caching": False,
        "max_num_seqs": 256,
        "num_gpu_blocks_override": 90_000,
    }
    waves, num_tokens = (201, 5_000) if backend == "compiled" else (4, 100)
    few = measure(decodes(1, num_tokens), backend, options, repeat)
    many = measure(decodes(waves, num_tokens), backend, options, repeat)
    return (many[1] - few[1]) / max(many[0] - few[0], 1e-9)


def peak_memory(num_requests: int) -> float:
    """Peak resident memory in GB of a process that serves a saturated trace."""
    code = (
        "import kvsim, workloads, resource;"
        f"t = workloads.sharegpt(num_requests={num_requests}, request_rate=float('inf'), seed=0);"
        "kvsim.simulate(t, backend='compiled', model='llama-3-8b', gpu='h100-sxm',"
        " max_model_len=8192, max_num_seqs=256, enable_prefix_caching=False);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    return int(done.stdout) * unit / 1e9


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests, one repeat")
    parser.add_argument("--repeat", type=int, default=5, help="runs per row; the median counts")
    given = parser.parse_args()
    if given.repeat < 1:
        parser.error("--repeat must be at least 1")
    repeat = 1 if given.quick else given.repeat
    console = Console(width=120)
    kvsim.simulate(decodes(1, 2), backend="compiled", **LLAMA)  # loads the kernels
    table = Table("job", "requests", "CPU s", "requests/s", "steps/s", "python requests/s", "ratio")
    for job in jobs():
        n = max(job.num_requests // (10 if given.quick else 1), 1000)
        seconds, steps = measure(job.make(n), "compiled", job.options, repeat)
        slow, _ = measure(job.make(job.python_requests), "python", job.options, 1)
        python = job.python_requests / slow
        table.add_row(
            *(job.name, f"{n:,}", f"{seconds:.2f}", f"{n / seconds:,.0f}"),
            *(f"{steps / seconds:,.0f}", f"{python:,.0f}", f"{n / seconds / python:.0f}x"),
        )
    fast, slow = decode_rate("compiled", repeat), decode_rate("python", 1)
    row = ("256 decoding, runs of steps", "256", "", "", f"{fast:,.0f}", f"{slow:,.0f} steps/s")
    table.add_row(*row, f"{fast / slow:,.0f}x")
    console.print(table)
    n = 100_000 if given.quick else 1_000_000
    console.print(f"peak memory, {n:,} requests: {peak_memory(n):.2f} GB")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    console.print(f"load average {load:.1f}; numpy {np.__version__}; {repeat} runs per row")
    console.print(
        f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"
    )


if __name__ == "__main__":
    main()
