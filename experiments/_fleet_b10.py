"""B10: token-aware routing beside round robin at the knee of three workloads, llm-d's blog.

Each router is taken where the publication puts its knee, and the figure is the ratio of throughputs
there: all tokens over the time from the first request to the last answer. Conversations are closed
loops (`_fleet_loop`), which a trace cannot say. Of lengths the means and ranges are published, not
the shapes: a clipped normal and log-normals stand in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import kvsim
from experiments import _fleet_b1
from experiments._fleet import Row, between, near, shown
from experiments._fleet_loop import closed_loop
from kvsim.trace import Trace
from workloads.lengths import around

if TYPE_CHECKING:
    from pathlib import Path

SETS: tuple[str, ...] = ()
SEEDS = (0, 1, 2)
SERVERS: dict[str, Any] = {
    "model": "qwen3-32b",
    "gpu": "h100-sxm",
    "tensor_parallel_size": 2,
    "max_num_batched_tokens": 8192,
    "max_model_len": 262_144,  # nothing is refused
}
ROUND_ROBIN = "round-robin"
TOKENS = "llm-d-token-aware+index=approximate+rate=20480+max-wait=14"
#: For decodes: the same filter, then the fewest requests in flight.
ACTIVE = (
    "llm-d+prefix=0+queue=0+kv=0+active=1+affinity=0.8+explore=0+max-ttft-penalty=14"
    "+scrape-interval=10"  # no score reads the metrics
)
#: Rates around both knees of the shared prefixes.
STAGES = ((3, 20), (10, 20), (15, 20), (18, 42), (22, 34), (25, 30), (30, 25), (35, 21), (38, 20))


#: Rounds in which the times of a closed loop are sought: decodes settle soon.
LOOPS = {"num_prompt_tokens": 10, "num_output_tokens": 6}


class Knees(NamedTuple):
    """Where the knees are, in conversations or requests per second, and throughput there."""

    matched: int
    round_robin: int
    theirs: tuple[float, float]


CODE = Knees(60, 30, (46e3, 16e3))
REASONING = Knees(350, 250, (7.0e3, 6.8e3))
SHARED = Knees(38, 18, (90e3, 45e3))


def code_generation(conversations: int, seed: int = SEEDS[0]) -> Trace:
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


def reasoning(conversations: int, seed: int = SEEDS[0]) -> Trace:
    """Return prompts behind one system prompt, each asked three times in turn, of long outputs."""
    rng = np.random.default_rng(seed)
    total = 3 * conversations
    outputs = np.clip(around(8000, 0.8).sample(rng, total), 1, 32_000)
    clients = [k % conversations for k in range(total)]
    segments = [[(0, 0, 250), (1 + client, 0, 1000)] for client in clients]
    times = [0.0] * total
    return Trace.from_arrays(times, [1250] * total, outputs, segments=segments, session_id=clients)


def rate_of(trace: Trace, router: str, tokens: str) -> tuple[float, str]:
    """Return tokens per second of a closed loop, and what is to be told of it."""
    rounds = LOOPS[tokens]
    loop = closed_loop(trace, rounds=rounds, router=router, data_parallel_size=10, **SERVERS)
    rate = int(getattr(trace, tokens).sum()) / loop.seconds
    return rate, f"{rate:,.0f} tokens/s, {100 * loop.hit_rate:.0f} % hits, {loop.off:.0f} s off"


def code_rows() -> list[Row]:
    """Judge conversations about code: the mean of several draws, for they differ much."""
    tokens, ratios, notes = "num_prompt_tokens", [], []
    for seed in SEEDS:
        ours, here = rate_of(code_generation(CODE.matched, seed), TOKENS, tokens)
        base, there = rate_of(code_generation(CODE.round_robin, seed), ROUND_ROBIN, tokens)
        ratios.append(ours / base)
        notes.append(f"{ratios[-1]:.2f} ({here}; round robin {there})")
    theirs = CODE.theirs[0] / CODE.theirs[1]
    note = "the longest conversation ends the run, so draws differ: " + ", ".join(notes)
    what = "code generation: over round robin's"
    return [near(what, theirs, float(np.mean(ratios)), percent=25, note=note)]


def reasoning_rows() -> list[Row]:
    """Judge long outputs, where routing must not matter."""
    tokens = "num_output_tokens"
    few, many = (reasoning(number) for number in (REASONING.round_robin, REASONING.matched))
    ours, here = rate_of(many, ACTIVE, tokens)
    base, there = rate_of(few, ROUND_ROBIN, tokens)
    same, _ = rate_of(many, ROUND_ROBIN, tokens)
    theirs = REASONING.theirs[0] / REASONING.theirs[1]
    note = f"350 clients: {here}; round robin, 250 clients: {there}"
    ratio = ours / base
    why = "the clients make the miss, not the router"
    return [
        between("reasoning: over round robin's", theirs, ratio, 0.9, 1.1, note),
        shown("reasoning: the same, both at 350 clients", "", ours / same, why),
    ]


def shared_rows() -> list[Row]:
    """Judge the ratio of the shared prefixes, sent as in B1, stage by stage."""
    trace = _fleet_b1.trace_of(stages=STAGES)
    rates = []
    for router, rate in ((TOKENS, SHARED.matched), (ROUND_ROBIN, SHARED.round_robin)):
        number = 1 + [r for r, _ in STAGES].index(rate)
        rows = kvsim.simulate(trace, router=router, **SERVERS | {"data_parallel_size": 8}).requests
        of = rows[trace.session_id == number]
        wall = of["finish_time"].max() - of["arrival_time"].min()
        rates.append(float(of["num_prompt_tokens"].sum() / wall))
    theirs = SHARED.theirs[0] / SHARED.theirs[1]
    note = f"at 38 rps {rates[0]:,.0f}, round robin at 18 rps {rates[1]:,.0f} input tokens/s; how "
    note += "long their stages are is not told: of 40 s instead of 20 makes it 1.55"
    what = "shared prefixes (b2b): over round robin's"
    return [near(what, theirs, rates[0] / rates[1], percent=25, note=note)]


def rows(data: Path) -> list[Row]:
    """Judge the three ratios."""
    del data
    found = [*code_rows(), *shared_rows(), *reasoning_rows()]
    for name, knees in (("code generation", CODE), ("b2b", SHARED), ("reasoning", REASONING)):
        texts = [f"{rate:,.0f}" for rate in knees.theirs]
        found.append(shown(f"{name}: tokens/s at the knees, theirs", " and ".join(texts), ""))
    return found
