"""B7: a prefix pulled from another replica, or computed again: two lines, and what a fleet gains.

Five lengths were measured. Both lines have two constants, decided by the shortest and the longest
prefix, and are tested on the three between them: a pull is a fixed time and bytes over a bandwidth;
a recomputation is a fixed time and a factor on kvsim's own step times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import kvsim
from experiments.validation.fleets.bars import Row, between, near, shown
from experiments.validation.fleets.kv_transfers import bytes_per_token, fit
from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.fleet.facts import prefill_timer
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SETS = ("fleet/llmd_p2p",)
MODEL, GPU, PERCENT = "gpt-oss-120b", "h200-sxm", 10.0
#: The fleet: number of prefixes, tokens of each, and seconds of arrivals.
PREFIXES, PREFIX_TOKENS, SECONDS = 64, 16_000, 90.0
#: Not published: prompt tokens after a prefix, and output tokens.
PROMPT_TOKENS, OUTPUT_TOKENS = PREFIX_TOKENS + 128, 100
#: Not published either, but "larger than any single pod's cache": prefixes that a pod holds. With
#: this number the fleet without pulls completes 10.7 requests/s of 16; 10.3 were measured.
HELD = 22
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
    """Judge both lines, and the fleet."""
    table = pd.read_csv(data / SETS[0] / "load_balanced_16k.csv")
    return [*line_rows(data), *fleet_rows(table)]


def line_rows(data: Path) -> list[Row]:
    """Judge the three points of each line that decided nothing."""
    table = pd.read_csv(data / SETS[0] / "pull_vs_recompute.csv")
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
    return found


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


def trace(rate: float) -> Trace:
    """Draw requests that begin with one of the prefixes, each as likely."""
    rng, number = np.random.default_rng(0), int(rate * SECONDS)
    arrivals = np.cumsum(rng.exponential(1.0 / rate, number))
    segments = [
        [(int(k), 0, PREFIX_TOKENS), (PREFIXES + i, 0, PROMPT_TOKENS - PREFIX_TOKENS)]
        for i, k in enumerate(rng.integers(PREFIXES, size=number))
    ]
    return Trace.from_arrays(
        arrivals, [PROMPT_TOKENS] * number, [OUTPUT_TOKENS] * number, segments=segments
    )


def serve(rate: float, *, pulls: bool) -> dict[str, Any]:
    """Serve them on four pods that share the load, and perhaps their prefixes."""
    block = 16
    summary: dict[str, Any] = kvsim.simulate(
        trace(rate),
        model="llama-3.1-8b",
        gpu=GPU,
        data_parallel_size=4,
        router="least-outstanding",
        block_size=block,
        num_gpu_blocks_override=HELD * -(-PROMPT_TOKENS // block),
        max_model_len=PROMPT_TOKENS + OUTPUT_TOKENS,
        kv_store="peer" if pulls else None,
    ).summary
    return summary


def told(value: float) -> str:
    """Write a figure, if there is one."""
    return "?" if np.isnan(value) else f"{value:g}"


def fleet_rows(table: pd.DataFrame) -> list[Row]:
    """Serve a fleet with and without pulls, at the rate of the band and at the others."""
    found = []
    for row in table.itertuples():
        rate = float(row.offered_rps)
        alone, sharing = serve(rate, pulls=False), serve(rate, pulls=True)
        if rate == 12:
            gain = 100 * (row.achieved_rps_with_p2p / row.achieved_rps_without_p2p - 1)
            ours = 100 * (sharing["request_throughput"] / alone["request_throughput"] - 1)
            note = (
                "the size of a pod's cache is not told: the one that completes what they did at 16 "
                "rps without pulls; 128 tokens behind a prefix and 100 of output are assumed"
            )
            found.append(between("gain of requests/s at 12 rps, %", gain, ours, 10, 25, note))
        found.append(
            shown(
                f"{rate:g} rps: p50 latency, s, and requests/s, without and with pulls",
                f"{row.p50_s_without_p2p:g} to {row.p50_s_with_p2p:g}, "
                f"{told(row.achieved_rps_without_p2p)} to {told(row.achieved_rps_with_p2p)}",
                f"{alone['median_e2el_ms'] / 1e3:.2f} to {sharing['median_e2el_ms'] / 1e3:.2f}, "
                f"{alone['request_throughput']:.1f} to {sharing['request_throughput']:.1f}",
            )
        )
    return found
