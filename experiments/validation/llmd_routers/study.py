"""B1: four routers before eight servers of Qwen3-32B, llm-d's benchmark "73", simulated.

A run is one trace: a warm-up pass over all 750 prompts, then one burst of requests per stage, the
same prompts in the same order, with idle time between them until everything has drained; so caches
persist from stage to stage, as they did. Two constants, of a step and of the front end, were chosen
on `precise` alone (`_llmd_routers_fit`); estimated, load and random are predicted. One draw of
arrivals and prompts is judged; the rows after it show the two prefix routers in other draws.

Routers and servers are as that benchmark's README says (llm-d-kv-cache-manager,
benchmarking/73-capacity), in the form that these programs had in September 2025. `estimated` has
``hashBlockSize: 64, maxPrefixBlocksToMatch: 256``: characters of the prompt, not tokens, in the
Gateway API inference extension of then (00913f92, plugins/multi/prefix/plugin.go), so it matches at
most 16,384 characters, which lie in the system prompt: it knows groups, not prompts. `precise` has
``mode: cache_tracking``, with scores between the shortest and the longest prefix that any pod holds
(llm-d-inference-scheduler at c8e1e2a8, pkg/plugins/scorer/utils.go). Its index has blocks of 64
tokens, as the pods must.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

import kvsim
from experiments.validation.fleets.bars import Row, between, near, shown
from kvsim.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

SETS = ("fleet/llmd_routing",)
#: Requests per second and seconds of the warm-up and of each stage; those from 40 rps on are left
#: out, since there requests waited inside the client (FLEET's reading of the logs).
WARM_UP = (15, 50)
STAGES = ((3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21))
GROUPS, PER_GROUP, SYSTEM, QUESTION, OUTPUT = 150, 5, 6000, 1200, 1000
#: Seconds between the last request of a stage and the next stage: longer than any stage drains.
IDLE = 600.0
JUDGED = 30
SEED = 0

#: Seeds of the draws that are shown, not judged.
OTHER_SEEDS = tuple(range(1, 10))

#: Chosen on `precise`: seconds of the host per step beside kvsim's own, and seconds of client,
#: gateway and HTTP in every TTFT.
HOST_SECONDS, FRONT_END = 2.5e-3, 0.21
#: Seconds between two looks of the router at the metrics: llm-d's default.
AS_DEPLOYED = 0.05
#: GPU blocks of a pod's 307,328 tokens of KV, and tokens of each.
BLOCKS, BLOCK = 4802, 64

ROUTERS = {
    "precise": "llm-d+index=precise+prefix=3+queue=2+kv=2+prefix-scale=holders",
    "estimated": "llm-d+index=approximate+prefix=1+queue=1+kv=1+lru-entries=31250"
    "+block-size=16+max-blocks=256",
    "load": "llm-d+prefix=0+queue=1+kv=1",
    "random": "random",
}
SERVERS: dict[str, Any] = {
    "model": "qwen3-32b",
    "gpu": "h100-sxm",
    "tensor_parallel_size": 2,
    "data_parallel_size": 8,
    "block_size": BLOCK,
    "num_gpu_blocks_override": BLOCKS,
    "async_scheduling": False,  # vLLM of September 2025
}


class Stage(NamedTuple):
    """Client-side measurements of a stage: output tokens per second, and means in seconds."""

    output_rate: float
    ttft: float
    tpot: float


def trace_of(seed: int = SEED, stages: tuple[tuple[int, int], ...] = STAGES) -> Trace:
    """Return the client's requests; ``session_id`` is the stage, 0 the warm-up."""
    rng = np.random.default_rng(seed)
    prompts = [divmod(int(k), PER_GROUP) for k in rng.permutation(GROUPS * PER_GROUP)]
    times: list[float] = []
    segments, numbers = [], []
    for number, (rate, seconds) in enumerate((WARM_UP, *stages)):
        start = times[-1] + IDLE if times else 0.0
        times += (start + np.cumsum(rng.exponential(1 / rate, rate * seconds))).tolist()
        for k in range(rate * seconds):
            group, user = prompts[k % len(prompts)]
            own = GROUPS + group * PER_GROUP + user
            segments.append([(group, 0, SYSTEM), (own, 0, QUESTION)])
            numbers.append(number)
    total = len(times)
    return Trace.from_arrays(
        times, [SYSTEM + QUESTION] * total, [OUTPUT] * total, segments=segments, session_id=numbers
    )


def serve(
    trace: Trace,
    router: str,
    *,
    age: float = AS_DEPLOYED,
    host: float = HOST_SECONDS,
    **options: Any,
) -> dict[int, Stage]:
    """Return what a client would have seen, by the rate of the stage."""
    name = ROUTERS[router] + (f"+scrape-interval={age}" if router != "random" else "")
    options = {"cost_model": f"roofline+host-seconds={host}", **SERVERS, **options}
    rows = kvsim.simulate(trace, router=name, **options).requests
    found = {}
    rates = [rate for rate, _ in STAGES]
    for number in range(1, int(trace.session_id.max()) + 1):
        of = rows[trace.session_id == number]
        wall = of["finish_time"].max() - of["arrival_time"].min()
        ttft = of["first_token_time"] - of["arrival_time"]
        tpot = (of["finish_time"] - of["first_token_time"]) / (OUTPUT - 1)
        rate = rates[number - 1]
        found[rate] = Stage(len(of) * OUTPUT / wall, ttft.mean() + FRONT_END, tpot.mean())
    return found


def measured(data: Path) -> dict[str, dict[int, Stage]]:
    """Return what the client wrote down, by router and rate; two stream events make a token."""
    table = pd.read_csv(data / SETS[0] / "per_qps.csv")
    found: dict[str, dict[int, Stage]] = {}
    for row in table[table.target_rps.notna()].itertuples():
        stage = Stage(row.output_tok_per_s, row.ttft_mean_s, 2 * row.itl_mean_s)
        found.setdefault(row.router, {})[int(row.target_rps)] = stage
    return found


def rows(data: Path) -> list[Row]:
    """Serve the trace by every router, and other draws of it by the first two."""
    theirs, trace = measured(data), trace_of()
    footprint = GROUPS * SYSTEM + GROUPS * PER_GROUP * QUESTION
    pod = BLOCKS * BLOCK
    note = "all prompts together; a pod's and the fleet's KV: who can hold them decides who wins"
    found = [shown("tokens of unique prompts", f"{footprint:,}", f"{pod:,}, {8 * pod:,}", note)]
    ours = {router: serve(trace, router) for router in ROUTERS}
    found += judge(theirs, ours)
    return found + other_draws(theirs)


def other_draws(theirs: dict[str, dict[int, Stage]]) -> list[Row]:
    """Show the judged stage in other draws, and how often precise is ahead."""
    drawn = {
        router: [serve(trace_of(seed), router)[JUDGED].output_rate for seed in OTHER_SEEDS]
        for router in ("precise", "estimated")
    }
    ahead = sum(a > b for a, b in zip(drawn["precise"], drawn["estimated"], strict=True))
    what = f"{len(OTHER_SEEDS)} other draws: precise before estimated"
    found = [shown(what, "1 of 1", f"{ahead} of {len(OTHER_SEEDS)}")]
    for router, rates in drawn.items():
        text = f"{np.mean(rates):,.0f}, {np.min(rates):,.0f} to {np.max(rates):,.0f}"
        rate = f"{theirs[router][JUDGED].output_rate:,.0f}"
        found.append(shown(f"{router}, other draws: output tokens/s, mean and range", rate, text))
    return found


def judge(theirs: dict[str, dict[int, Stage]], ours: dict[str, dict[int, Stage]]) -> list[Row]:
    """Hold the runs against the bands at 30 requests per second."""
    here = {router: stages[JUDGED] for router, stages in ours.items()}
    there = {router: theirs[router][JUDGED] for router in ours}
    found = [ranks(there, here)]
    for router, stage in here.items():
        base, own = there["random"].output_rate, here["random"].output_rate
        rate = there[router].output_rate
        what = f"{router} (fitted): " if router == "precise" else f"{router}: "
        found.append(near(f"{what}output tokens/s", rate, stage.output_rate, percent=25))
        if router != "random":
            ratio = stage.output_rate / own
            found.append(near(f"{what}over random's", rate / base, ratio, percent=15))
        ttft, low, high = there[router].ttft, *TTFT[router]
        found.append(between(f"{what}mean TTFT, s", ttft, stage.ttft, low, high))
        tpot = 1e3 * there[router].tpot
        found.append(near(f"{what}TPOT, ms", tpot, 1e3 * stage.tpot, percent=10))
    return found + [others(theirs[r], stages, r) for r, stages in ours.items()]


#: Seconds between which the mean TTFT must lie.
TTFT = {"precise": (0, 1), "estimated": (0, 1), "load": (25, 42), "random": (25, 42)}


def ranks(there: dict[str, Stage], here: dict[str, Stage]) -> Row:
    """Hold the order of the routers; load and random may change places."""

    def order(of: dict[str, Stage]) -> list[str]:
        return sorted(of, key=lambda router: -of[router].output_rate)

    holds = order(here)[:2] == order(there)[:2]
    texts = (" > ".join(order(of)) for of in (there, here))
    return Row("order of output tokens/s", *texts, "the first two", holds)


def others(theirs: dict[int, Stage], ours: dict[int, Stage], router: str) -> Row:
    """Show how far output rates of the other stages are off; no band was stated for them."""
    rates = [rate for rate in ours if rate != JUDGED]
    errors = [100 * (ours[r].output_rate / theirs[r].output_rate - 1) for r in rates]
    text = ", ".join(f"{error:+.0f}" for error in errors)
    names = ", ".join(map(str, rates))
    return shown(f"{router}: output tokens/s at {names} rps", "", f"{text} %")
