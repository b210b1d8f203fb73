"""B4: DistServe's placement of OPT-13B on four A100, by its own step times.

Searched as its README says: the 90th percentile of TTFT within 200 ms and of TPOT within 100 ms,
300 requests, halving between 0 and 5 requests/s per GPU until less than 0.25 is left. Here a
placement is one prefill and one decode replica within four GPUs; its search has pipelines besides.
``experiments.validation.distserve.profile`` holds its rules, its step times and its requests.

Its figure is one draw of gaps between requests. That decides much: ours are ten draws, the mean is
judged, and their least and most are noted.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from experiments.validation.distserve.profile import MODEL, requests
from experiments.validation.fleets.bars import Row, close, shown
from kvsim.config import Config
from kvsim.fleet.simulate import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from typing import Any

SETS = ("fleet/distserve_profiles",)
NUM_GPUS, NUM_REQUESTS, DRAWS = 4, 300, 10
#: Expected by its README: requests/s per GPU, its search step, and the degrees (prefill, decode).
THEIRS, STEP, PLACEMENT = 1.56, 0.25, (2, 1)
#: Start of its search, requests/s per GPU.
MOST = 5.0
TTFT_MS, TPOT_MS = 200.0, 100.0

Degrees = tuple[int, int]


def placements() -> list[Degrees]:
    """Return the degrees of a prefill and a decode replica that fit."""
    return [d for d in product((1, 2, 4), repeat=2) if sum(d) <= NUM_GPUS]


def halved(passes: Callable[[float], bool]) -> float:
    """Return the highest rate that passed, tried as DistServe's search does; 0 if none did."""
    low, high = 0.0, MOST
    while high - low > STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


def capacities(data: Path) -> dict[int, int]:
    """Return the blocks of a replica by its degree, of the tokens that its simulator gives it."""
    lines = (data / SETS[0] / "max_num_tokens.csv").read_text("utf-8").split()
    cells = [line.split(",") for line in lines]
    return {int(tp): int(n) // 16 for name, tp, pp, n in cells if name == MODEL and pp == "1"}


def options(data: Path) -> dict[str, Any]:
    """Return what all placements share, ``blocks`` by degree; as there, nothing else binds."""
    profile = data / SETS[0] / "profiler-a100-80g.distserve.json"
    return {
        "model": MODEL,
        "gpu": "a100-80gb",
        "cost_model": f"experiments.validation.distserve.profile:OfProfile+profile={profile}",
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 65536,
        "async_scheduling": False,
        "enable_prefix_caching": False,
        "first_token_from": "prefill",
        "blocks": capacities(data),
    }


def served(degrees: Degrees, rate: float, draw: int, common: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a placement at a rate per GPU."""
    blocks = common["blocks"]
    pools = [
        {"role": role, "tensor_parallel_size": tp, "num_gpu_blocks_override": blocks[tp]}
        for role, tp in zip(("prefill", "decode"), degrees, strict=True)
    ]
    given = {name: value for name, value in common.items() if name != "blocks"}
    trace = requests(NUM_REQUESTS, rate * sum(degrees), draw)
    return run(Config.build(**given, pool=pools), trace).summary


def p90_ttft(degrees: Degrees, common: dict[str, Any], source: str) -> float:
    """Return the mean over the draws of the 90th percentile of TTFT at DistServe's rate, ms."""
    asked = {**common, "first_token_from": source}
    found = [served(degrees, THEIRS, draw, asked)["p90_ttft_ms"] for draw in range(DRAWS)]
    return float(np.mean(found))


def best_rate(degrees: Degrees, draw: int, common: dict[str, Any]) -> float:
    """Return the highest rate per GPU of a placement."""

    def passes(rate: float) -> bool:
        summary = served(degrees, rate, draw, common)
        return bool(summary["p90_ttft_ms"] < TTFT_MS and summary["p90_tpot_ms"] < TPOT_MS)

    return halved(passes)


def means(
    common: dict[str, Any], places: Iterable[Degrees], draws: int
) -> dict[Degrees, tuple[float, float, float]]:
    """Return the least, mean and most of the rates that a placement has over the draws."""
    found = {}
    for degrees in places:
        rates = [best_rate(degrees, draw, common) for draw in range(draws)]
        found[degrees] = (min(rates), float(np.mean(rates)), max(rates))
    return found


def rows(data: Path) -> list[Row]:
    """Judge the placement and its rate; show what the source of the first token changes."""
    common = options(data)
    found = means(common, placements(), DRAWS)
    best = max(found, key=lambda degrees: found[degrees][1])
    told = f"prefill {best[0]}, decode {best[1]}"
    theirs = f"prefill {PLACEMENT[0]}, decode {PLACEMENT[1]}"
    note = "; ".join(f"({p}, {d}): {rate:.2f}" for (p, d), (_, rate, _) in found.items())
    low, mean, high = found[PLACEMENT]
    return [
        Row("tensor-parallel degrees", theirs, told, "exact", best == PLACEMENT, note),
        close(
            "requests/s per GPU",
            THEIRS,
            mean,
            points=STEP,
            note=f"mean of {DRAWS} draws of gaps, {low:.2f} to {high:.2f}",
        ),
        shown(
            "p90 TTFT at their rate, ms",
            f"below {TTFT_MS:g}",
            p90_ttft(PLACEMENT, common, "prefill"),
            f"first token from the decode replica: {p90_ttft(PLACEMENT, common, 'decode'):.0f}",
        ),
    ]
