"""B10: token-aware routing beside a Kubernetes Service at three knees, llm-d's blog.

Each router is taken where the publication puts its knee, and the figure is the ratio of throughputs
there: all tokens over the time from the first request to the last answer. What it calls round robin
is a Kubernetes Service, whose proxy picks a pod at random for every connection (kube-proxy's
default); each row shows the same with pods dealt in turn beside it.

Lengths are those of inference-perf's catalog of workloads where the publication changed nothing, a
clipped normal and log-normals where it gives means and ranges only. It names knees of the shared
prefixes by the rate that was achieved, 38 and 18 per second: the stages of 40 and 20 of its ladder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import kvsim
from experiments import _fleet_b1
from experiments._fleet import Row, between, near, shown
from kvsim.trace import Trace
from workloads.lengths import around

if TYPE_CHECKING:
    from pathlib import Path

SETS: tuple[str, ...] = ()
#: The longest of few conversations ends a run, so draws differ much.
SEEDS = tuple(range(10))
SERVERS: dict[str, Any] = {
    "model": "qwen3-32b",
    "gpu": "h100-sxm",
    "tensor_parallel_size": 2,
    "data_parallel_size": 10,
    "max_num_batched_tokens": 8192,
    "max_model_len": 262_144,  # nothing is refused
}
SERVICE, IN_TURN = "random", "round-robin"
TOKENS = "llm-d-token-aware+index=approximate+rate=20480+max-wait=14"
#: For decodes: the same filter, then the fewest requests in flight.
ACTIVE = (
    "llm-d+prefix=0+queue=0+kv=0+active=1+affinity=0.8+explore=0+max-ttft-penalty=14"
    "+scrape-interval=10"  # no score reads the metrics
)
#: Of llm-d's guide, up to the knee: requests per second, and seconds.
STAGES = (*_fleet_b1.STAGES, (40, 38))


class Knees(NamedTuple):
    """Where the knees are, in conversations or requests per second, and throughput there."""

    matched: int
    service: int
    theirs: tuple[float, float]


CODE = Knees(60, 30, (46e3, 16e3))
REASONING = Knees(350, 250, (7.0e3, 6.8e3))
SHARED = Knees(40, 20, (90e3, 45e3))


def code_generation(conversations: int, seed: int) -> Trace:
    """Return conversations of 2 to 20 turns about 3,000 to 100,000 tokens of code."""
    rng = np.random.default_rng(seed)
    system = np.clip(rng.normal(55e3, 25e3, conversations), 3e3, 100e3).astype(int)
    turns = np.minimum(1 + rng.geometric(1 / 5, conversations), 20)
    prompts, outputs, segments, sessions, answers = [], [], [], [], []
    content = conversations
    for number in range(conversations):
        history = [(number, 0, int(system[number]))]
        asked = np.clip(around(1500, 0.8).sample(rng, int(turns[number])), 100, 10_000)
        told = np.clip(around(800, 0.8).sample(rng, int(turns[number])), 50, 4000)
        for question, answer in zip(asked.tolist(), told.tolist(), strict=True):
            history = [*history, (content, 0, question)]
            segments.append(history)
            prompts.append(sum(length for _, _, length in history))
            outputs.append(answer)
            sessions.append(number)
            answers.append(content + 1)
            history = [*history, (content + 1, 0, answer)]
            content += 2
    return Trace.from_arrays(
        [0.0] * len(prompts),
        prompts,
        outputs,
        segments=segments,
        output_content_id=answers,
        session_id=sessions,
    )


def reasoning(conversations: int, seed: int) -> Trace:
    """Return prompts behind one system prompt, each asked three times in turn, of long outputs.

    Source: workload-catalog/reasoning of inference-perf at 5cbfb21c.
    """
    rng = np.random.default_rng(seed)
    asked = np.clip(around(1000, 0.8).sample(rng, conversations), 100, 5000)
    told = np.clip(rng.exponential(8000, conversations), 500, 32_000).astype(int)
    who = np.tile(np.arange(conversations), 3)
    segments = [[(0, 0, 250), (1 + k, 0, int(asked[k]))] for k in who.tolist()]
    return Trace.from_arrays(np.zeros(len(who)), 250 + asked[who], told[who], segments=segments)


def rate_of(trace: Trace, router: str, tokens: str, **options: Any) -> float:
    """Return tokens per second of a run from its first request to its last answer."""
    rows = kvsim.simulate(trace, router=router, **SERVERS, **options).requests
    wall = rows["finish_time"].max() - rows["arrival_time"].min()
    return float(getattr(trace, tokens).sum() / wall)


def judged(what: str, knees: Knees, rates: dict[str, list[float]], row: Any) -> Row:
    """Hold the mean ratio of the draws against the published one; tell of both baselines."""
    means = {router: float(np.mean(found)) for router, found in rates.items()}
    ratios = np.array(rates["matched"]) / np.array(rates[SERVICE])
    spread = f", {ratios.min():.2f} to {ratios.max():.2f} in {len(ratios)} draws"
    ours, service, in_turn = (means[name] for name in ("matched", SERVICE, IN_TURN))
    note = (
        f"{ours:,.0f} for {service:,.0f} tokens/s{spread if len(ratios) > 1 else ''}, theirs "
        f"{knees.theirs[0]:,.0f} for {knees.theirs[1]:,.0f}; pods in turn: {in_turn:,.0f}, "
        f"{ours / in_turn:.2f} times"
    )
    found: Row = row(f"{what}: over a Service's", float(ratios.mean()), note)
    return found


def code_row() -> Row:
    """Judge conversations whose next turn is sent when the last one is answered."""
    rates: dict[str, list[float]] = {"matched": [], SERVICE: [], IN_TURN: []}
    for seed in SEEDS:
        for name, router, number in (
            ("matched", TOKENS, CODE.matched),
            (SERVICE, SERVICE, CODE.service),
            (IN_TURN, IN_TURN, CODE.service),
        ):
            trace = code_generation(number, seed)
            rate = rate_of(trace, router, "num_prompt_tokens", session_think_time=0.0, seed=seed)
            rates[name].append(rate)
    theirs = CODE.theirs[0] / CODE.theirs[1]
    return judged(
        "code generation", CODE, rates, lambda w, r, n: near(w, theirs, r, percent=25, note=n)
    )


def reasoning_rows() -> list[Row]:
    """Judge long outputs, where routing must not matter: so many in flight, of three times that."""
    rates: dict[str, list[float]] = {"matched": [], SERVICE: [], IN_TURN: []}
    alike, longer = [], []
    theirs = REASONING.theirs[0] / REASONING.theirs[1]
    for seed in SEEDS[:4]:
        few, many = (reasoning(n, seed) for n in (REASONING.service, REASONING.matched))
        for name, trace, router, clients in (
            ("matched", many, ACTIVE, REASONING.matched),
            (SERVICE, few, SERVICE, REASONING.service),
            (IN_TURN, few, IN_TURN, REASONING.service),
        ):
            options = {"max_concurrency": clients, "seed": seed}
            rates[name].append(rate_of(trace, router, "num_output_tokens", **options))
        options = {"max_concurrency": REASONING.matched, "seed": seed}
        same = rate_of(many, SERVICE, "num_output_tokens", **options)
        alike.append(rates["matched"][-1] / same)
        ours, tokens = (rates["matched"][-1], rates[SERVICE][-1]), many.num_output_tokens.sum()
        walls = [tokens / m - few.num_output_tokens.sum() / s for m, s in (REASONING.theirs, ours)]
        longer.append(walls)
    published, found = (float(seconds) for seconds in np.mean(longer, axis=0))
    clients_do = "the clients make the miss, not the router"
    rates_say = "so said by the rates: theirs are near all that the pods give, ours await the tail"
    return [
        judged("reasoning", REASONING, rates, lambda w, r, n: between(w, theirs, r, 0.9, 1.1, n)),
        shown("reasoning: the same, both with 350 clients", "", float(np.mean(alike)), clients_do),
        shown("reasoning: seconds longer with 350", published, found, rates_say),
    ]


def shared_row() -> Row:
    """Judge the ratio of the shared prefixes, sent as in B1, stage by stage."""
    trace = _fleet_b1.trace_of(stages=STAGES)
    rates: dict[str, list[float]] = {}
    for name, router, rate in (
        ("matched", TOKENS, SHARED.matched),
        (SERVICE, SERVICE, SHARED.service),
        (IN_TURN, IN_TURN, SHARED.service),
    ):
        number = 1 + [r for r, _ in STAGES].index(rate)
        rows = kvsim.simulate(trace, router=router, **SERVERS | {"data_parallel_size": 8}).requests
        of = rows[trace.session_id == number]
        wall = of["finish_time"].max() - of["arrival_time"].min()
        rates[name] = [float(of["num_prompt_tokens"].sum() / wall)]
    theirs = SHARED.theirs[0] / SHARED.theirs[1]
    what = "shared prefixes (b2b)"
    return judged(what, SHARED, rates, lambda w, r, n: near(w, theirs, r, percent=25, note=n))


def rows(data: Path) -> list[Row]:
    """Judge the three ratios."""
    del data
    return [code_row(), shared_row(), *reasoning_rows()]
