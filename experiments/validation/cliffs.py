"""Published collapses of prefix hits: the value where each was seen, and where kvsim has it.

A setting is what a report states. What it leaves out (cards, tails, requests) is assumed; a note
says where that moves the value, or why kvsim cannot serve a report.

    python -m experiments.validation.cliffs
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.validation.record import write_csv
from experiments.validation.trust import RECORDS
from kvsim.api.requests import requests_of
from kvsim.cliffs.cliffs import find_cliffs
from kvsim.trace import Trace
from workloads.lengths import around

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FILE = "cliffs.csv"
RUNS = 20
#: Most jumps of a search that are listed one by one.
LISTED = 3
HEADINGS = ("report", "model", "setting", "reported", "found", "verdict", "note")
HERE = "experiments.validation.cliffs"
ALONE = {"max_concurrency": 1, "request_rate": "inf"}
#: States of Mamba and linear-attention layers stay at the ends of blocks: `align`.
STATES = {**ALONE, "gpu": "h200-sxm", "max_model_len": 32768, "num_gpu_blocks_override": 2000}
SHARED = {"num_requests": 32, "workload": f"{HERE}:in_turn+sessions=4+suffix=100+output=8"}


class Report(NamedTuple):
    """A published collapse: what it says, and the search that looks for it; None: cannot be run."""

    name: str
    model: str
    setting: str = ""
    reported: str = ""
    vary: str | None = None
    options: dict[str, Any] = {}  # noqa: RUF012
    note: str = ""
    scale: int = 1


REPORTS = (
    Report(
        "vllm#48435",
        "gemma-4-31b",
        "tokens of three sessions in turn",
        "34,000 to 38,000",
        "workload.prefix=8000:16000:100",
        {
            "gpu": "rtx-5090",
            "quantization": "int4",
            "kv_cache_dtype": "fp8",
            "max_model_len": 65536,
            "max_num_seqs": 8,
            "gpu_memory_utilization": 0.93,
            "language_model_only": True,
            "prefix_cache_retention_interval": "none",
            "num_gpu_blocks_override": 8549,
            "num_requests": 12,
            "workload": f"{HERE}:in_turn+sessions=3",
            **ALONE,
        },
        "pool as logged; sessions are not counted: two break at 42,400 tokens, four at 29,200",
        3,
    ),
    Report(
        "vllm#45238",
        "qwen3.5-9b",
        "shared tokens before 600 own ones",
        "1,500 to 1,600",
        "workload.prefix=1400:1700",
        {
            **STATES,
            "max_num_batched_tokens": 2048,
            "prefix_cache_retention_interval": "none",
            "num_requests": 64,
            "workload": f"{HERE}:in_turn+sessions=12+suffix=600+output=8",
        },
        "52 of 64 requests hit above it, as reported, and 40 below it, as in later versions"
        " (reported 0); for the 4B model, whose blocks have 528 tokens, too",
    ),
    Report(
        "vllm#40696",
        "qwen3.5-9b",
        "shared tokens",
        "528",
        "workload.prefix=200:1000",
        {**STATES, **SHARED},
        "reported for the 4B model, whose blocks have 528 tokens, too",
    ),
    Report(
        "vllm#47430",
        "qwen3.5-27b",
        "shared tokens",
        "784",
        "workload.prefix=400:1200",
        {**STATES, **SHARED},
        "reported for Qwen3.6 of that size",
    ),
    Report(
        "vllm#53749",
        "qwen3.5-35b-a3b",
        "shared tokens",
        "908 to 1,308",
        "workload.prefix=600:1600",
        {**STATES, **SHARED},
        "reported for Qwen3.6 of that size, blocks of 1,056 tokens",
    ),
    Report(
        "vllm#53749",
        "nemotron-3-nano-30b-a3b",
        "shared tokens",
        "2,096",
        "workload.prefix=1000:4000",
        {**STATES, **SHARED},
        "reported for Nemotron 3.5 of that size",
    ),
    Report(
        "vllm#48401",
        "nemotron-3-super-120b-a12b",
        "shared tokens",
        "8,320",
        "workload.prefix=4000:16000",
        {**STATES, **SHARED, "gpu": "b200", "quantization": "nvfp4", "kv_cache_dtype": "fp8"},
        "",
    ),
    Report(
        "sglang#38000",
        "qwen3.5-9b",
        "--max-mamba-cache-size, three chains of 32,768 tokens and a branch at 8,192",
        "48 or more",
        "max_mamba_cache_size=32:80",
        {
            "gpu": "h200-sxm",
            "engine": "sglang",
            "max_running_requests": 4,
            "chunked_prefill_size": 2048,
            "mamba_radix_cache_strategy": "extra_buffer",
            "max_model_len": 40000,
            "num_gpu_blocks_override": 600,
            "workload": f"{HERE}:branches",
            **ALONE,
        },
        "the last four hits below it are the reported 0, 8,192, 0 and 0 tokens; chains of 33,000"
        " tokens break at 50 / 51; reported for the 4B model, as #36935",
    ),
    Report(
        "Mooncake, SSD offloading",
        "qwen3-8b",
        "tokens of 20 sessions in a fixed order",
        "491,520 to 573,440",
        "workload.prefix=20000:30000:16",
        {
            "gpu": "a100-80gb",
            "max_model_len": 40960,
            "num_gpu_blocks_override": 80 * 10**9 // (147456 * 16),
            "num_requests": 60,
            "workload": f"{HERE}:in_turn+sessions=20+output=1",
            **ALONE,
        },
        "full attention loses hits step by step; seventh round, which the report serves in a "
        "random order",
        20,
    ),
    Report(
        "vllm#42948, #43302, #43447",
        "deepseek-v4-flash",
        "prompts of 32,000 tokens in turn, two a client",
        "4 to 8",
        "workload.sessions=4:32",
        {
            "gpu": "h200-sxm",
            "tensor_parallel_size": 2,
            "cost_model": "constant+seconds=0.05",
            "max_model_len": 65536,
            "max_concurrency": 4,
            "request_rate": "inf",
            "prefix_cache_retention_interval": "none",
            "num_requests": 64,
            "workload": f"{HERE}:in_turn+prefix=32000+output=64",
        },
        "the pool is not stated: half of it breaks at 8 / 9, a quarter at 3 / 4; interval 0 removes"
        " the jump, as reported; steps of a constant time",
    ),
    Report(
        "sglang#35129, #34653, #36131",
        "DeepSeek-V4",
        note="not served: SGLang's pools for it are not modelled",
    ),
    Report(
        "DeepSeek-v4.1-Flash-DGX-Sparks#27",
        "DeepSeek-V4.1-Flash",
        "sessions",
        "1 to 2",
        note="not served: V4.1 is not modelled",
    ),
    Report(
        "vllm#53749",
        "Ling-3.0-flash",
        "shared tokens",
        "1,920",
        note="not served: its shapes are not known",
    ),
    Report(
        "vllm#54661",
        "a drafter with windows",
        "tokens of a session",
        "50,000",
        note="not served: the shapes of the drafter are not known",
    ),
    Report(
        "sglang#39436",
        "GLM-5.3-Flash",
        "states in host memory",
        "565 to 734",
        note="not served: the host tier is not modelled with pools of states",
    ),
)


def in_turn(
    *,
    num_requests: int = 12,
    request_rate: float = 1.0,
    seed: int = 0,
    sessions: int = 3,
    prefix: int = 1000,
    suffix: int = 64,
    output: int = 32,
    sigma: float = 0.0,
) -> Trace:
    """Generate sessions that send one after another, each its prompt and new tokens every round.

    Parameters
    ----------
    num_requests, request_rate, seed : how many, how often, and the seed of what is drawn
    sessions : number of sessions
    prefix, suffix, output : tokens of a session's prompt, of what is new, and of an answer
    sigma : log-normal width of suffix and output; 0 fixes them
    """
    draw = np.random.default_rng(seed)
    own, outputs = (around(mean, sigma).sample(draw, num_requests) for mean in (suffix, output))
    segments = [
        [(row % sessions, 0, prefix), (sessions + row, 0, tokens)]
        for row, tokens in enumerate(own.tolist())
    ]
    return _trace(request_rate, segments, outputs)


def branches(
    *,
    num_requests: int = 7,
    request_rate: float = 1.0,
    seed: int = 0,
    chains: int = 3,
    prompt: int = 32768,
    fork: int = 8192,
) -> Trace:
    """Generate chains of tokens, a branch of the first one, and every chain again.

    Parameters
    ----------
    num_requests, request_rate, seed : as in ``in_turn``; the number is that of the chains
    chains, prompt : number of chains, and tokens of each
    fork : tokens that the branch shares
    """
    whole = [[(chain, 0, prompt)] for chain in range(chains)]
    branch = [(0, 0, fork), (chains, 0, prompt - fork)]
    return _trace(request_rate, [*whole, branch, *whole], 8)


def _trace(
    request_rate: float, segments: list[list[tuple[int, int, int]]], output: int | NDArray[np.int64]
) -> Trace:
    times = np.arange(len(segments)) / request_rate
    prompts = np.array([sum(piece[2] for piece in pieces) for pieces in segments])
    return Trace.from_arrays(
        times, prompts, np.broadcast_to(output, len(segments)), segments=segments
    )


class Step(NamedTuple):
    """Neighbouring values between which hits jump, and the shares of hits at both."""

    below: int
    above: int
    hits: tuple[float, float]


def steps_of(report: Report) -> list[Step]:
    """Return the jumps of one search, each by itself, in order of value."""
    given = {"model": report.model, **report.options}
    cliffs = find_cliffs(str(report.vary), given, requests_of, most=RUNS)["cliffs"]
    if not cliffs:
        raise RuntimeError(f"{report.name}: no jump of hits was found")
    return [
        Step(
            round(report.scale * one["below"]),
            round(report.scale * one["above"]),
            (one["hits"][0], one["hits"][1]),
        )
        for one in cliffs
    ]


def verdict(reported: str, steps: Sequence[Step]) -> str:
    """Compare jumps with a published value, a range of values, or a least value.

    Returns
    -------
    "not served" without jumps; "inside" if a jump is at the value or within the range; else
    "outside", and by which share of the nearest end
    """
    if not steps:
        return "not served"
    ends = [int(text.replace(",", "")) for text in re.findall(r"[\d,]+", reported)]
    low, high = ends[0], math.inf if reported.endswith("or more") else ends[-1]
    if any(low <= one.above and one.below < high for one in steps):
        return "inside"
    below = max((one.above for one in steps if one.above < low), default=-math.inf)
    above = min((one.above for one in steps if one.below >= high), default=math.inf)
    if above == math.inf or low - below <= above - high:
        return f"outside: {100 * (low - below) / low:.1f} % lower"
    return f"outside: {100 * (above - high) / high:.1f} % higher"


def row_of(report: Report, steps: Sequence[Step]) -> list[str]:
    """Return the cells of a report; many jumps are the steps of a decline."""
    found = "; ".join(f"{one.below:,} / {one.above:,}" for one in steps)
    hits = "; ".join(f"{100 * one.hits[0]:.0f} / {100 * one.hits[1]:.0f} %" for one in steps)
    if len(steps) > LISTED:
        first, last = steps[0], steps[-1]
        found = f"{len(steps)} steps from {first.below:,} to {last.above:,}"
        hits = f"{100 * first.hits[0]:.0f} to {100 * last.hits[1]:.0f} %"
    note = "; ".join(filter(None, [f"{hits} hits" if steps else "", report.note]))
    return [*report[:4], found, verdict(report.reported, steps), note]


def main() -> None:
    """Write the values found beside the published ones."""
    rows = []
    for report in REPORTS:
        rows.append(row_of(report, [] if report.vary is None else steps_of(report)))
        print(*rows[-1], sep=" | ", flush=True)
    write_csv(RECORDS / FILE, HEADINGS, rows)


if __name__ == "__main__":
    main()
