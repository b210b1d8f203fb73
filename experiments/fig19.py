"""Fig. 19 of the PagedAttention paper: recompute or swap, by block size, OPT-13B.

(a) The time to restore 256 tokens of KV. Recomputing does not depend on the block size; swapping
copies each block's keys and values layer by layer, and small copies over PCIe are slow. Band: the
curves cross at block sizes 16 to 64, where the paper calls both comparable. (b) Whole runs under
memory pressure, with recomputing and with swapping.

    python -m experiments.fig19 [--quick] [--out DIR]
"""

from __future__ import annotations

from typing import Any

import workloads
from experiments._setting import (
    HOST_SECONDS,
    MODELS,
    Check,
    Figure,
    lines,
    main,
    normalized_latency,
    serve,
)
from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.records.request import Request
from kvsim.sched.scheduler import StepPlan

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = 256


def bring_back(block_size: int) -> tuple[float, float]:
    """Return the seconds to recompute 256 tokens, and those that swapping them adds to a step."""
    cost_model = f"roofline+host-seconds={HOST_SECONDS}"
    setup = resolve(Config.build(**MODELS["13B"], block_size=block_size, cost_model=cost_model))
    cost = setup.cost

    def seconds(num_tokens: int, swapped_bytes: int) -> float:
        request = Request(0, 0.0, 1024, 1, [], 1)
        request.num_computed_tokens = num_tokens
        plan = StepPlan.of([(request, num_tokens)])
        plan.swapped_bytes = swapped_bytes
        return cost.step(plan).time

    both_ways = 2 * TOKENS * setup.kv_config.layout.bytes_per_token
    return seconds(TOKENS, 0), seconds(1, both_ways) - seconds(1, 0)


def measure(quick: bool) -> Figure:
    """Find the block size from which swapping is cheaper."""
    rows: list[dict[str, Any]] = []
    trace = workloads.sharegpt(num_requests=300 if quick else 1500, request_rate=2.5, seed=0)
    for size in SIZES:
        recompute, swap = bring_back(size)
        row = {"block_size": size, "recompute_ms": 1e3 * recompute, "swap_ms": 1e3 * swap}
        for mode in ("recompute", "swap"):
            result = serve("vLLM", trace, block_size=size, preemption_mode=mode)
            row[f"latency_{mode}"] = normalized_latency(result)
        rows.append(row)
    cheaper = [row["block_size"] for row in rows if row["swap_ms"] <= row["recompute_ms"]]
    flat = rows[0]["recompute_ms"] / rows[-1]["recompute_ms"]
    checks = [
        Check("smallest block size at which swapping is cheaper", min(cheaper), None, 16, 64),
        Check("recompute, block size 1 over 256", flat, 1, 0.999, 1.001),
        Check("swap, block size 1 over 256", rows[0]["swap_ms"] / rows[-1]["swap_ms"], None, 2, 50),
    ]
    for row in rows:
        if row["block_size"] in (16, 64):
            ratio = row["latency_swap"] / row["latency_recompute"]
            name = f"whole runs, block size {row['block_size']}: swap / recompute"
            checks.append(Check(name, ratio, 1, 0.8, 1.25))

    def draw(picture: Any) -> None:
        time, latency = picture.subplots(1, 2)
        for axes, keys in ((time, "{}_ms"), (latency, "latency_{}")):
            curves = {
                mode: [row[keys.format(mode)] for row in rows] for mode in ("recompute", "swap")
            }
            lines(axes, {mode: (SIZES, values) for mode, values in curves.items()})
            axes.set_xscale("log", base=2)
            axes.set_xlabel("block size")
        time.set_ylabel("256 tokens, ms")
        latency.set_ylabel("normalised latency, s/token")

    return Figure("Fig. 19: recompute or swap", checks, rows, draw)


if __name__ == "__main__":
    main("fig19", measure, __doc__)
