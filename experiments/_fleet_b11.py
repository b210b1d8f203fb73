"""A planner whose replicas start late: Dynamo's simulated studies of an hour of traffic.

Their trace (Mooncake's toolagent) is not to be had; Mooncake's conversations of an hour stand in
for it. Qwen3-32B on two H200s a replica, at most 16, four at the start; targets of 1.5 s and 50 ms.
Theirs is another simulator's print, so the shape is judged: start-up times that do not matter up to
three minutes, then do, and a shorter interval between decisions that buys events and no latency.
Nothing is fitted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pandas as pd

import kvsim
import workloads
from experiments._fleet import Row, between

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.trace import Trace

SETS = ("fleet/dynosim", "traces")
TRACE = "traces/mooncake_fast25_conversation.jsonl.gz"
START_UP = tuple(range(0, 301, 30))  # seconds
INTERVALS = (1, 2, 5, 10)  # seconds


def planned(trace: Trace, cold_start: float, interval: float) -> tuple[float, int]:
    """Return p90 TTFT in ms and how often the planner changed the number of replicas."""
    summary = kvsim.simulate(
        trace,
        model="qwen3-32b",
        gpu="h200",
        tensor_parallel_size=2,
        max_model_len=131_072,
        data_parallel_size=4,
        router="least-outstanding",
        autoscaler=f"dynamo-sla+max=16+interval={interval}",
        cold_start=cold_start,
    ).summary
    return summary["p90_ttft_ms"], summary["scaling"]["num_scaling_events"]


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
    trace = workloads.load(data / TRACE)
    printed = table[table["experiment"] == "startup_s"].set_index("tag")["ttft_p90_ms"]
    theirs = {s: float(printed[str(s)]) for s in START_UP}
    ours = {s: planned(trace, s, 5)[0] for s in START_UP}
    flat = [max(p[s] for s in START_UP if s <= 180) / p[0] for p in (theirs, ours)]
    cliff = [max(p[s] for s in START_UP if s > 180) / p[0] for p in (theirs, ours)]
    found = [
        between("p90 TTFT, worst up to 180 s of start-up over none", flat[0], flat[1], 0, 2),
        Row("p90 TTFT, worst from 210 s on over none", cliff[0], cliff[1], "> 5", cliff[1] > 5),
        Row("p90 TTFT, s, for 0 to 300 s", _line(theirs), _line(ours), "", None),
    ]
    studied = table[table["experiment"] == "load_interval_s"].set_index("tag")
    was = [int(studied.loc[str(i), ["scale_up", "scale_down"]].max()) for i in INTERVALS]
    now = [planned(trace, 0, i)[1] for i in INTERVALS]
    falls = all(later < sooner for sooner, later in pairwise(now))
    shown = [" / ".join(map(str, numbers)) for numbers in (was, now)]
    found.append(Row("events at intervals of 1, 2, 5, 10 s", shown[0], shown[1], "fall", falls))
    return found


def _line(latencies: dict[int, float]) -> str:
    return " / ".join(f"{value / 1000:.1f}" for value in latencies.values())
