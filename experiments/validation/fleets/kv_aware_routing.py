"""B15: KV-aware routing against round robin, where servers are saturated and where they are not.

The published runs replayed Mooncake's toolagent and arXiv traces, which cannot be had; its
conversation trace stands in. So times are not compared, but signs, and how many times faster.
Saturated means the lowest of some rates at which round robin's mean TTFT passes ten seconds. A
saturated queue grows as long as requests come, so the whole trace says more than the sample's 1,000
requests.

The other publication (M. Campi, 2026-06-27) ran Dynamo with and without its KV router: the first
1,000 requests of at most 16,384 tokens, as fast as the arXiv trace has them, blocks of 64, no CUDA
graphs. On four servers round robin kept up with that trace. These conversations share less, and
saturate four; so eight are judged, of which it tells, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kvsim
import workloads
from experiments.validation.fleets.bars import Row, above, shown
from kvsim.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

SETS = ("traces",)
FILES = ("mooncake_fast25_conversation.jsonl.gz", "mooncake_fast25_conversation_1000.jsonl.gz")
REQUESTS = 1000
#: NVIDIA's A/B: eight servers on two H200 each; requests per second that are tried, in order.
LARGE: dict[str, Any] = {
    "model": "qwen3-32b",
    "gpu": "h200-sxm",
    "tensor_parallel_size": 2,
    "data_parallel_size": 8,
    "max_model_len": 131_072,
}
RATES = (4.0, 5.0, 6.0, 7.0, 8.0)
SATURATED_MS = 10_000.0
#: The independent A/B: one A100 each, and median TTFT in ms by the number of servers.
LONGEST = 16_384
SMALL: dict[str, Any] = {
    "model": "qwen3-8b",
    "gpu": "a100-40gb",
    "block_size": 64,
    "max_model_len": LONGEST,
    "enforce_eager": True,
}
SERVERS, THEIRS = 8, (197.0, 339.0)
#: Requests per second: 21,167 of the trace's hour are short enough.
PACE = 21_167 / 3600
SHARES = (2, 3)
KV_AWARE, BLIND, OTHER = "dynamo", "dynamo+credit=0", "llm-d+index=precise"


def trace_of(data: Path) -> Trace:
    """Return the conversation trace, or its beginning if there is no more."""
    path = next(path for name in FILES if (path := data / "traces" / name).exists())
    return workloads.load(path)


def short_ones(trace: Trace, longest: int) -> Trace:
    """Keep the requests with prompts of at most ``longest`` tokens."""
    rows = np.flatnonzero(trace.num_prompt_tokens <= longest)
    return Trace.from_arrays(
        trace.arrival_time[rows],
        trace.num_prompt_tokens[rows],
        trace.num_output_tokens[rows],
        segments=[[tuple(piece) for piece in trace.segments_of(int(row))] for row in rows],
    )


def ttfts(trace: Trace, router: str, **options: Any) -> np.ndarray:
    """Return the time to first token of every request, milliseconds."""
    table = kvsim.simulate(trace, router=router, **options).requests
    found: np.ndarray = 1e3 * (table["first_token_time"] - table["arrival_time"])
    return found


def saturated(trace: Trace) -> tuple[float, float, float]:
    """Return the rate of the first saturated run, and mean TTFT of both routers there, ms."""
    for rate in RATES:
        at = trace.with_request_rate(rate)
        plain = float(ttfts(at, "round-robin", **LARGE).mean())
        if plain > SATURATED_MS:
            break
    return rate, plain, float(ttfts(at, KV_AWARE, **LARGE).mean())


def rows(data: Path) -> list[Row]:
    """Judge the gain where round robin is saturated, and the loss where no replica is."""
    trace = trace_of(data)
    rate, plain, aware = saturated(trace)
    note = f"{len(trace):,} requests of conversation, not toolagent, at {rate:g} per second: "
    note += f"{plain:,.0f} to {aware:,.0f} ms (theirs 63,652 to 2,586)"
    found = [above("saturated: mean TTFT, times faster", 63_652 / 2_586, plain / aware, 5, note)]
    light = short_ones(trace, LONGEST)[:REQUESTS].with_request_rate(PACE)
    medians = {
        router: float(np.median(ttfts(light, router, data_parallel_size=SERVERS, **SMALL)))
        for router in ("round-robin", KV_AWARE, BLIND, OTHER)
    }
    base = medians["round-robin"]
    for router in (KV_AWARE, BLIND, OTHER):
        what = f"unsaturated, {router}: median TTFT, times slower"
        note = f"{base:,.0f} to {medians[router]:,.0f} ms"
        ratio, published = medians[router] / base, THEIRS[1] / THEIRS[0]
        if router == KV_AWARE:
            theirs = f"theirs {THEIRS[0]:.0f} to {THEIRS[1]:.0f}, on four 312 to 411"
            found.append(above(what, published, ratio, 1, f"{note} ({theirs}); {CAUSE}"))
        else:
            found.append(shown(what, published, ratio, note))
    slower = [_ratio(light.with_request_rate(PACE / share)) for share in SHARES]
    told = " and ".join(f"{ratio:.2f}" for ratio in slower)
    if len(trace) <= REQUESTS:
        why = f"not judged: {len(trace):,} requests are no saturated trace"
        found = [row._replace(holds=None, note=f"{why}; {row.note}") for row in found]
    found.append(shown(f"the same, {KV_AWARE}, at half and a third of the pace", "", told))
    return found


def _ratio(trace: Trace) -> float:
    """Return how many times as late the median first token is with the KV router."""
    plain, aware = (
        np.median(ttfts(trace, router, data_parallel_size=SERVERS, **SMALL))
        for router in ("round-robin", KV_AWARE)
    )
    return float(aware / plain)


CAUSE = (
    "the sign comes out and little of its size: what a front end spends on reading prompts and "
    "looking them up is not simulated, and no router decides later than another"
)
