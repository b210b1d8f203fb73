"""Causes why servers bound by prompts are simulated too fast, each tested alone.

Output rates of B1's saturated servers, behind random choice and choice by load, are 17 to 20 % too
high, and first tokens of Qwen3-14B with 256 requests in flight come 20 % early. A cause changes one
constant or option by more than is known of it. It is accepted if it brings both rates within 10 %
and moves no error of the fitted runs (TPOT of `precise`, throughput and TPOT of Qwen3-14B) by more
than 2 points away from zero. Errors of B1 are means over the stages from 20 requests/s on.

    python -m experiments.validation.llmd_routers.causes --data FOLDER [--out DIR]
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tomli_w

from experiments.validation.data import command, require
from experiments.validation.llmd_routers.study import HOST_SECONDS, SETS, measured, serve, trace_of
from experiments.validation.record import write_csv
from experiments.validation.serving import compare, qwen, simulate

if TYPE_CHECKING:
    from experiments.validation.llmd_routers.study import Stage
    from kvsim.trace import Trace

LOOPS = "serving/qwen3-14b_h100_vllm0.23"
#: Output rates (percent) and fitted errors (points) within which a cause is accepted.
RATE, WORSE = 10.0, 2.0


class Cause(NamedTuple):
    """A possible cause: constants of an H100, options of the servers, or other arrivals."""

    name: str
    constants: dict[str, float] = {}  # noqa: RUF012
    options: dict[str, Any] = {}  # noqa: RUF012
    host: float = 0.0
    spread: float = 1.0  # coefficient of variation of the gaps between arrivals


LINK = {"all_reduce": 8.7e-6, "all_reduce_exchange": 9.6e-6, "link": 0.29, "link_ring": 0.34}
CAUSES = (
    Cause("as shipped"),
    Cause("GEMMs under load: 0.70 of peak for 0.83", {"gemm": 0.70, "gemm_falloff": 0.01}),
    Cause("attention of prompts takes a quarter longer", {"prefill_attention": 0.563}),
    Cause("prompts slow decodes of their step twice as much", {"mixed_decode": 1.0}),
    Cause("1 ms of launches per layer beyond captured sizes", {"uncaptured_layer": 1e-3}),
    Cause("2.5 ms more of the host per step", host=2.5e-3),
    Cause("all-reduces take twice as long", LINK),
    Cause("steps of 2,048 tokens", options={"max_num_batched_tokens": 2048}),
    Cause("steps of 16,384 tokens", options={"max_num_batched_tokens": 16384}),
    Cause("arrivals in bursts: gaps vary three times as much", spread=3.0),
    Cause(
        "no block is found again, also not after a preemption",
        options={"enable_prefix_caching": False},
    ),
)
COLUMNS = ("cause", "random", "load", "precise", "Qwen3-14B", "verdict")


def cost_of(cause: Cause, host: float, folder: Path) -> str:
    """Return the cost model of a cause; a file of constants goes to ``folder``."""
    name = f"roofline+host-seconds={host + cause.host}"
    if cause.constants:
        file = folder / "constants.toml"
        file.write_text(tomli_w.dumps({"h100": cause.constants}))
        name += f"+constants={file}"
    return name


def spread_out(trace: Trace, spread: float) -> Trace:
    """Return the trace with gaps whose coefficient of variation is ``spread`` in each stage."""
    if spread == 1.0:
        return trace
    rng, times = np.random.default_rng(0), trace.arrival_time.copy()
    for number in range(int(trace.session_id.max()) + 1):
        of = np.flatnonzero(trace.session_id == number)
        gap = (times[of[-1]] - times[of[0]]) / len(of)
        gaps = rng.gamma(1 / spread**2, gap * spread**2, len(of))
        times[of] = times[of[0]] + np.cumsum(gaps)
    return replace(trace, arrival_time=times)


def of_router(theirs: dict[int, Stage], ours: dict[int, Stage]) -> list[float]:
    """Return mean errors of output rate, TTFT and TPOT, percent, over the saturated stages."""
    pairs = [(theirs[rate], ours[rate]) for rate in ours if rate >= 20]
    return [
        float(np.mean([100 * (own[i] / their[i] - 1) for their, own in pairs])) for i in range(3)
    ]


def errors_of(cause: Cause, data: Path) -> dict[str, list[float]]:
    """Return errors of output rate (throughput), TTFT and TPOT by server, percent."""
    theirs, trace = measured(data), spread_out(trace_of(), cause.spread)
    with tempfile.TemporaryDirectory() as place:
        cost = cost_of(cause, HOST_SECONDS, Path(place))
        found = {
            router: of_router(
                theirs[router], serve(trace, router, cost_model=cost, **cause.options)
            )
            for router in ("random", "load", "precise")
        }
        run = qwen(data / LOOPS)[-1]
        options = run.options | cause.options
        cost = cost_of(cause, 0.0, Path(place))
        loop = compare(run, simulate(run._replace(options=options), cost_model=cost))
    found["Qwen3-14B"] = [loop[name] for name in ("throughput", "TTFT", "TPOT")]
    return found


def verdict(errors: dict[str, list[float]], shipped: dict[str, list[float]]) -> str:
    """Say whether a cause is accepted, else by what it fails."""
    high = [router for router in ("random", "load") if abs(errors[router][0]) > RATE]
    judged = (("precise", 2, "TPOT"), ("Qwen3-14B", 0, "throughput"), ("Qwen3-14B", 2, "TPOT"))
    worse = [
        f"{name} of {server}"
        for server, place, name in judged
        if abs(errors[server][place]) > abs(shipped[server][place]) + WORSE
    ]
    failed = [f"rates of {' and '.join(high)}"] if high else []
    failed += [f"worse: {' and '.join(worse)}"] if worse else []
    return "; ".join(failed) or "accepted"


def table(data: Path) -> list[dict[str, str]]:
    """Lay out the causes; a cell has errors of output rate, TTFT and TPOT."""
    found = [(cause, errors_of(cause, data)) for cause in CAUSES]
    shipped = found[0][1]
    rows = []
    for cause, errors in found:
        cells = {server: ", ".join(f"{e:+.1f}" for e in errors[server]) for server in errors}
        told = verdict(errors, shipped) if cause is not CAUSES[0] else ""
        rows.append({"cause": cause.name, **cells, "verdict": told})
    return rows


def main() -> None:
    """Print the table and write it."""
    parser = command("validation.llmd_routers.causes", __doc__)
    options = parser.parse_args()
    require(parser, options.data, (*SETS, LOOPS))
    rows = table(options.data)
    for row in rows:
        print(" | ".join(row.values()))
    if options.out is not None:
        write_csv(options.out / "prompt-causes.csv", COLUMNS, (row.values() for row in rows))


if __name__ == "__main__":
    main()
