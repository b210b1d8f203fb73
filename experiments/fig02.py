"""Fig. 2 of the PagedAttention paper: KV memory by cause, for each system.

OPT-13B serves ShareGPT-like requests at 2 per second for one hour; figures are shares of the memory
held, averaged over time. Band, stated before the first run: 4 points.

    python -m experiments.fig02 [--quick] [--out DIR]
"""

from __future__ import annotations

from typing import Any

import workloads
from experiments._setting import Figure, bars, main, near, serve
from kvsim.kv.usage import HELD

CAUSES = tuple(cause.summary_key for cause in HELD)
PAPER = {
    "Orca (Max)": (20.4, 13.3, 57.3, 8.9),
    "Orca (Pow2)": (26.8, 17.9, 13.6, 41.6),
    "Orca (Oracle)": (38.2, 25.2, 0.0, 36.6),
}
POINTS = 4.0


def measure(quick: bool) -> Figure:
    """Compare the shares; the paper gives one figure for all of vLLM's waste, 3.7 %."""
    trace = workloads.sharegpt(num_requests=1000 if quick else 7200, request_rate=2.0, seed=0)
    checks, rows = [], []
    for system in (*PAPER, "vLLM"):
        held = serve(system, trace).summary["kv_cache"]
        ours = [100 * held[cause] for cause in CAUSES]
        rows.append({"system": system, **dict(zip(CAUSES, ours, strict=True))})
        if system == "vLLM":
            checks.append(near("vLLM: token states, %", ours[0], 96.3, points=POINTS))
            checks.append(near("vLLM: all waste, %", sum(ours[1:]), 3.7, points=POINTS))
            continue
        for cause, value, paper in zip(CAUSES, ours, PAPER[system], strict=True):
            name = f"{system}: {cause.replace('_', ' ')}, %"
            checks.append(near(name, value, paper, points=POINTS))

    def draw(picture: Any) -> None:
        axes = picture.subplots()
        series = {cause: [row[cause] for row in rows] for cause in CAUSES}
        bars(axes, [row["system"] for row in rows], series)
        axes.set_ylabel("KV memory held, %")

    return Figure("Fig. 2: KV memory by cause", checks, rows, draw)


if __name__ == "__main__":
    main("fig02", measure, __doc__)
