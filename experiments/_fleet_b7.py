"""B7: a prefix pulled from another replica, or computed again: two lines, and what a fleet gains.

Five lengths were measured. Both lines have two constants, decided by the shortest and the longest
prefix, and are tested on the three between them: a pull is a fixed time and bytes over a bandwidth;
a recomputation is a fixed time and a factor on kvsim's own step times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments._fleet import Row, near, not_built, shown
from experiments._fleet_b3 import bytes_per_token, fit
from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.fleet.facts import prefill_timer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SETS = ("fleet/llmd_p2p",)
MODEL, GPU, PERCENT = "gpt-oss-120b", "h200-sxm", 10.0
#: Places of the measured prefixes that decide the constants.
DECIDE = (0, -1)


def line(x: NDArray[Any], y: NDArray[Any], decide: Sequence[int] = DECIDE) -> NDArray[Any]:
    """Return the line through two points, at every x."""
    a, b = (int(i) % len(x) for i in decide)
    slope = (y[b] - y[a]) / (x[b] - x[a])
    found: NDArray[Any] = y[a] + slope * (x - x[a])
    return found


def prefill_ms(lengths: NDArray[Any]) -> NDArray[Any]:
    """Return what kvsim's step times say of prompts of some lengths, on one card, alone."""
    setup = resolve(Config.build(model=MODEL, gpu=GPU, async_scheduling=False))
    time = prefill_timer(setup)
    return np.array([1e3 * time(int(n), 0) for n in lengths])


def rows(data: Path) -> list[Row]:
    """Judge the three points of each line that decided nothing."""
    folder = data / SETS[0]
    table = pd.read_csv(folder / "pull_vs_recompute.csv")
    tokens = table.prefix_tokens.to_numpy()
    times = {"pull": table.pull_ms.to_numpy(), "recompute": table.recompute_ms.to_numpy()}
    steps = prefill_ms(tokens)
    lines = {"pull": line(tokens, times["pull"]), "recompute": line(steps, times["recompute"])}
    factor = (times["recompute"][-1] - times["recompute"][0]) / (steps[-1] - steps[0])
    notes = {"pull": pairs_note(tokens, times["pull"]), "recompute": ""}
    notes["recompute"] = (
        f"kvsim's own time of the same prompt, times {factor:.2f}: on how many cards they computed "
        "is not told, one is taken"
    )
    found = []
    for kind, theirs in times.items():
        for k in range(1, len(tokens) - 1):
            what = f"{kind}, {tokens[k]:,} tokens, ms"
            note = notes[kind] if k == 1 else ""
            found.append(
                near(what, float(theirs[k]), float(lines[kind][k]), percent=PERCENT, note=note)
            )
    return [*found, *fleet_rows(pd.read_csv(folder / "load_balanced_16k.csv"))]


def pairs_note(tokens: NDArray[Any], measured: NDArray[Any]) -> str:
    """Say what any two of the points, or all, would have made of the others."""
    worst = [
        float(np.abs(line(tokens, measured, (a, b)) / measured - 1).max())
        for a in range(len(tokens))
        for b in range(a + 1, len(tokens))
    ]
    base, bandwidth = fit(tokens * float(bytes_per_token(MODEL, 1)), measured / 1e3)
    errors = (base + tokens * bytes_per_token(MODEL, 1) / bandwidth) / (measured / 1e3) - 1
    return (
        f"no line through two of the five points meets the others within 10 %: the best is "
        f"{100 * min(worst):.1f} % off; one through none of them {100 * np.abs(errors).max():.1f} %"
    )


def fleet_rows(table: pd.DataFrame) -> list[Row]:
    """Say what is to come: replicas that pull from each other."""
    at = table[table.offered_rps == 12].iloc[0]
    gain = 100 * (at.achieved_rps_with_p2p / at.achieved_rps_without_p2p - 1)
    note = "replicas do not pull prefixes from each other yet"
    p50 = f"{at.p50_s_without_p2p:g} to {at.p50_s_with_p2p:g}"
    return [
        not_built("gain of requests/s at 12 rps, %", gain, "10 to 25", note),
        shown("p50 latency at 12 rps, s", p50, "not built", note),
    ]
