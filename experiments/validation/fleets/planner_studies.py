"""A planner whose replicas start late: Dynamo's simulated studies of an hour of traffic.

Their trace (Mooncake's toolagent) is not available. A similar one replaces it: Mooncake's
conversations of an hour, twice as many requests, as toolagent has, with prompts and outputs scaled
to toolagent's means. Two replicas of Qwen3-32B at the start and eight at most, under round robin;
targets of 1.5 s and 50 ms. Start-up times are studied with decisions every 10 s and never fewer
replicas than the requests of the last 300 s need, intervals with load alone (ai-dynamo/dynamo at
9bdb4cb3, planner_exp_2 and planner_exp_3).

The scripts ask for two H200s a replica by AIConfigurator, and their runs without a planner have its
steps: the least gap between tokens is 10.78 ms (kvsim, bf16: 10.83). In all runs with one it is
5.79 ms, which no precision explains (fp8: 7.9): the bridge to the planner passed the engine's
arguments on without AIConfigurator (``PlannerReplayBridge::new``; a review of ai-dynamo/dynamo#9598
found the same of its blocks), so the mocker's own formulas priced the steps
(``dynamo_mocker``). Those begin at 5.74 ms, and a full step of prompts with decodes
takes up to 203 ms, where their print has a 99th percentile of 195 to 202. So do the steps here.
Nothing is fitted; that the load is like theirs shows in the GPU-hours without a start-up time.

Theirs is another simulator's output, so the shape is judged: start-up times do not matter up to
three minutes, then do; a shorter interval between decisions adds scaling events and does not lower
latency.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import kvsim
import workloads
from experiments.validation.fleets.bars import Row, between, shown
from experiments.validation.fleets.dynamo_mocker import ENGINE
from kvsim.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

SETS = ("fleet/dynosim", "traces")
TRACE = "traces/mooncake_fast25_conversation.jsonl.gz"
START_UP = tuple(range(0, 301, 30))  # seconds
INTERVALS = (1, 2, 5, 10)  # seconds
STUDIED = (10, 300)  # seconds between decisions, by load and by throughput
#: Mean tokens of toolagent's prompts and outputs (Mooncake, FAST'25, table 2).
MEANS = (8596, 182)
#: By which shares of the hour the second copy comes later; p90 of one such trace says little, a
#: request more or less decides when the planner acts.
LATER = (0.25, 0.5, 0.75)


def like_tool_calls(trace: Trace, later: float) -> Trace:
    """Return a trace over itself, so much of its length later, and scaled to :data:`MEANS`.

    The later copy shares nothing with the first; what comes after the end goes on at the start.
    """
    asked, told = trace.num_prompt_tokens, trace.num_output_tokens
    shares = MEANS[0] / asked.mean(), MEANS[1] / told.mean()
    start, length = trace.arrival_time[0], trace.duration
    moved = start + (trace.arrival_time - start + later * length) % length
    times = np.concatenate([trace.arrival_time, moved])
    order = np.argsort(times, kind="stable")
    scaled = [_scaled(trace, row, shares[0]) for row in range(len(trace))]
    others = 1 + max(content for pieces in scaled for content, _, _ in pieces)
    segments = []
    for place in order.tolist():
        copy, row = divmod(place, len(trace))
        segments.append([(content + copy * others, at, n) for content, at, n in scaled[row]])
    prompts = [sum(n for _, _, n in pieces) for pieces in segments]
    outputs = np.maximum(1, np.round(told * shares[1]).astype(int))[order % len(trace)]
    return Trace.from_arrays(times[order], prompts, outputs, segments=segments)


def _scaled(trace: Trace, row: int, share: float) -> list[tuple[int, int, int]]:
    """Return a prompt's pieces, all shorter by as much: equal ones stay equal."""
    return [
        (piece.content_id, round(piece.start * share), max(1, round(piece.num_tokens * share)))
        for piece in trace.segments_of(row)
    ]


def planned(trace: Trace, cold_start: float, interval: float, floor: float = 0) -> dict[str, Any]:
    """Return the summary of an hour with a planner."""
    return kvsim.simulate(
        trace,
        model="qwen3-32b",
        gpu="h200",
        tensor_parallel_size=2,
        max_model_len=131_072,
        data_parallel_size=2,
        router="round-robin",
        autoscaler=f"dynamo-sla+max=8+interval={interval}+throughput-interval={floor}",
        cold_start=cold_start,
        **ENGINE,
    ).summary


def rows(data: Path) -> list[Row]:
    """Judge the shape of TTFT over start-up times, and of events over intervals.

    Parameters
    ----------
    data : the folder with the measurements
    """
    if not (data / TRACE).exists():
        lacking = f"needs {TRACE}"
        return [
            Row("p90 TTFT over start-up times", "", "not run", "flat, then a cliff", False, lacking)
        ]
    table = pd.read_csv(data / SETS[0] / "planner_sim.csv")
    conversations = workloads.load(data / TRACE)
    traces = [like_tool_calls(conversations, later) for later in LATER]
    printed = table[table["experiment"] == "startup_s"].set_index("tag")
    runs = {s: [planned(trace, s, *STUDIED) for trace in traces] for s in START_UP}
    theirs = {s: float(printed["ttft_p90_ms"][str(s)]) for s in START_UP}
    ours = {s: _mean(runs[s], "p90_ttft_ms") for s in START_UP}
    flat = [max(p[s] for s in START_UP if s <= 180) / p[0] for p in (theirs, ours)]
    cliff = [max(p[s] for s in START_UP if s > 180) / p[0] for p in (theirs, ours)]
    found = [
        between("p90 TTFT, worst up to 180 s of start-up over none", flat[0], flat[1], 0, 2),
        Row("p90 TTFT, worst from 210 s on over none", cliff[0], cliff[1], "> 5", cliff[1] > 5),
        Row("p90 TTFT, s, for 0 to 300 s", _line(theirs), _line(ours), "", None),
        shown(
            "GPU-hours without a start-up time",
            float(printed["gpu_hours"]["0"]),
            _mean(runs[0], "gpu_hours"),
        ),
    ]
    studied = table[table["experiment"] == "load_interval_s"].set_index("tag")
    was = [int(studied.loc[str(i), ["scale_up", "scale_down"]].sum()) for i in INTERVALS]
    scaled = [
        [planned(t, 0, i)["scaling"]["num_scaling_events"] for t in traces] for i in INTERVALS
    ]
    now = [round(np.mean(events)) for events in scaled]
    falls = all(later < sooner for sooner, later in pairwise(now))
    texts = [" / ".join(map(str, numbers)) for numbers in (was, now)]
    what = "events at intervals of 1, 2, 5, 10 s"
    found.append(Row(what, texts[0], texts[1], "fall", falls))
    return found


def _mean(runs: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([run[name] for run in runs]))


def _line(latencies: dict[int, float]) -> str:
    return " / ".join(f"{value / 1000:.1f}" for value in latencies.values())
