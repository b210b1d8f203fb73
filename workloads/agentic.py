"""Coding agents: prompts that grow by tool results, pauses, and sub-agents that turns wait for.

The constants are fits to 111 recorded Claude Code sessions (callanjfox/kv-cache-tester 94f6046,
Apache-2.0: 7,169 requests, and 63 sub-agents with 676).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.trace import Trace  # noqa: TC001 - the registry resolves annotations
from workloads.arrivals import draw_arrivals
from workloads.draft import Draft, Pace
from workloads.generators import NUM_REQUESTS, streams
from workloads.lengths import LogNormal
from workloads.registry import WORKLOADS
from workloads.sessions import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

# Standard deviations of the logarithms of turns, first prompts (cut at 180,000 tokens) and outputs
# in the sample; the defaults of the means (64.6, 69,164 and 443) are its means.
TURNS_SIGMA, FIRST_SIGMA, OUTPUT_SIGMA = 1.21, 1.16, 0.84
# Tokens that a turn adds to the last output: median 448, 90th percentile 3,827.
GROWTH_SIGMA = 1.67
# The longest first prompt, and the longest prompt after a compaction, as shares of max_prompt.
FIRST_SHARE, COMPACTED = 0.9, 0.25
# Pauses between an answer and the next prompt: standard deviation of the logarithm.
THINK_SIGMA = 1.48
# 38 requests wait for sub-agents: 22 for one, 9 for two, 7 for three.
SPAWNS, GROUPS = 38 / 7169, (22 / 38, 9 / 38, 7 / 38)
# A sub-agent: 10.7 requests, a first prompt of 10,899 tokens, and 5,851 more with each request.
SUB_TURNS = LogNormal(10.7, 0.5, high=100)
SUB_FIRST = LogNormal(10_899, 0.15, low=1000, high=100_000)
SUB_GROWTH = LogNormal(5851, 1.55, high=100_000)
# Tokens of tools and system prompt at the start of every sub-agent's prompt: an assumption.
SUB_SYSTEM = 1000
# Median seconds from the end of the last sub-agent to the parent's next prompt.
JOIN_TIME = 30.0
# Seconds per output token in planned times, which order the requests; a run has its own times.
TOKEN_TIME = 0.02
# Retention that clients request, relative to the next pause, which they do not know exactly.
HINT_MARGIN = 2.0


@WORKLOADS.register("agentic")
def agentic(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = 2.0,
    seed: int = 0,
    arrival: str = "poisson",
    turns: float = 64.6,
    system: int = 14_452,
    first: float = 69_164.0,
    growth: float = 1806.0,
    output: float = 443.0,
    think_time: float = 20.1,
    max_think_time: float = 300.0,
    max_prompt: int = 200_000,
    sub_agents: float = 1.0,
    hints: bool = False,
) -> Trace:
    """Generate sessions of coding agents; each turn waits for the previous answer and a pause.

    A turn may spawn one to three sub-agents; the next turn waits for all of them. The last session
    ends when ``num_requests`` is reached.

    Parameters
    ----------
    num_requests : number of requests of all sessions and sub-agents together
    request_rate : mean requests per second while sessions arrive; see ``workloads.multi_turn``
    seed : equal seeds give equal traces
    arrival : arrival process of the sessions, e.g. ``"gamma+cv=3"``
    turns : mean turns of a session, log-normal
    system : tokens of tools and system prompt, the same for all sessions; 0 is none
    first, growth, output : mean tokens of a first prompt, of the text that a turn adds to it, and
        of an answer
    think_time : median seconds from an answer to the next turn, log-normal
    max_think_time : longest of these times, seconds; the gain of a retention policy depends on it
    max_prompt : tokens; a session whose prompt would be longer is compacted
    sub_agents : frequency of spawning sub-agents, relative to the sample; 0 is never
    hints : requests have retention hints: keep the blocks for twice the next pause (``hint_ttl``),
        and not at all after a last turn (``hint_priority`` 0)

    Raises
    ------
    ValueError
        For a value out of range or an unknown arrival process.
    """
    _check(num_requests, system, max_prompt, think_time, max_think_time, sub_agents)
    of_turns, of_lengths, of_pauses, of_subs, of_times = streams(seed, 5)
    high = max(int(FIRST_SHARE * max_prompt), 1)
    longest = LogNormal(min(max(first, 1.0), high), FIRST_SIGMA, high=high)
    lengths = (longest, _lengths("growth", growth, GROWTH_SIGMA), _lengths("output", output))
    pauses = think_time * np.exp(THINK_SIGMA * of_pauses.standard_normal(num_requests))
    firsts, growths, outputs = (one.sample(of_lengths, num_requests).tolist() for one in lengths)
    tree = _Trees(
        firsts,
        growths,
        outputs,
        np.minimum(pauses, max_think_time).tolist(),
        Script(),
        max_prompt,
        of_subs,
    )
    contents = tree.script.new_content(), tree.script.new_content()
    for num_turns in _lengths("turns", turns, TURNS_SIGMA).sample(of_turns, num_requests).tolist():
        if len(tree.script) == num_requests:
            break
        tree.session(num_turns, (system, contents[0]), contents[1], SPAWNS * sub_agents)
    starts = draw_arrivals(
        arrival, len(tree.roots), request_rate * len(tree.roots) / num_requests, of_times
    )
    draft = tree.script.draft(Pace())
    times = tree.planned_times(starts.tolist(), list(draft.num_output_tokens))
    draft = replace(draft, arrival_time=times, after=tree.after, think_time=tree.think_times)
    return (_with_hints(draft) if hints else draft).in_order_of_arrival().build()


def _with_hints(draft: Draft) -> Draft:
    """Return the draft with a retention hint for the blocks of each turn."""
    start, session = np.asarray(draft.arrival_time), np.asarray(draft.session_id)
    is_last = np.append(session[1:] != session[:-1], True)
    pauses = np.roll(start, -1) - start - np.asarray(draft.num_output_tokens) * TOKEN_TIME
    return replace(
        draft,
        hint_ttl=np.where(is_last, -1.0, HINT_MARGIN * np.maximum(pauses, 0.0)).tolist(),
        hint_priority=np.where(is_last, 0, -1).tolist(),
    )


def _check(
    num_requests: int,
    system: int,
    max_prompt: int,
    think_time: float,
    max_think_time: float,
    sub_agents: float,
) -> None:
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {num_requests}")
    if not 0 <= system < max_prompt:
        raise ValueError(f"system must be 0 to below max_prompt ({max_prompt}), got {system}")
    if not 0 <= sub_agents <= 1 / SPAWNS:
        raise ValueError(f"sub_agents must be 0 to {1 / SPAWNS:.0f}, got {sub_agents}")
    for name, seconds in (("think_time", think_time), ("max_think_time", max_think_time)):
        if not 0 <= seconds < np.inf:
            raise ValueError(f"{name} must be finite and at least 0, got {seconds}")


def _lengths(name: str, mean: float, sigma: float = OUTPUT_SIGMA) -> LogNormal:
    if not 1 <= mean <= 1_000_000:
        raise ValueError(f"{name} must be 1 to 1,000,000 on average, got {mean}")
    return LogNormal(mean, sigma, high=int(100 * mean))


@dataclass
class _Trees:
    """Builds sessions with their sub-agents, request by request."""

    first: list[int]
    growth: list[int]
    output: list[int]
    pause: list[float]
    script: Script
    max_prompt: int
    rng: np.random.Generator
    after: list[list[int]] = field(default_factory=list)
    think_times: list[float] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)  # rows, each after the rows it waits for

    def session(
        self, num_turns: int, system: tuple[int, int], sub_content: int, spawns: float
    ) -> None:
        """Add a session's requests, and then those of its sub-agents."""
        begin = len(self.script)
        num_turns = min(num_turns, len(self.first) - begin)
        self.roots.append(begin)
        groups = self._groups(num_turns, spawns)
        self.script.begin()
        own = max(self.first[begin], system[0] + 1) - system[0]
        for turn in range(num_turns):
            row = begin + turn
            added = own if turn == 0 else self.growth[row]
            if turn and self.script.num_tokens + added > self.max_prompt:
                self.script.forget()
                added = max(min(own, int(COMPACTED * self.max_prompt) - system[0]), 1)
            if self.script.num_tokens == 0:
                self.script.say(*system)
            self.script.say(added)
            self._ask(self.output[row], [row - 1] if turn else [], self.pause[row])
        turns = list(range(begin, begin + num_turns))
        done = 0
        for turn, size in groups:
            self.order += turns[done : turn + 1]
            done = turn + 1
            ends = [self._sub_agent(turns[turn], sub_content) for _ in range(size)]
            joined = [row for row in ends if row is not None]
            if joined:
                self.after[turns[done]] += joined
                self.think_times[turns[done]] = JOIN_TIME
        self.order += turns[done:]

    def _groups(self, num_turns: int, spawns: float) -> list[tuple[int, int]]:
        """Return pairs: a turn that spawns sub-agents, and the number of sub-agents."""
        spawning = np.flatnonzero(self.rng.random(num_turns)[:-1] < spawns)
        sizes = self.rng.choice((1, 2, 3), len(spawning), p=GROUPS)
        return list(zip(spawning.tolist(), sizes.tolist(), strict=True))

    def _sub_agent(self, parent: int, system_content: int) -> int | None:
        """Add a sub-agent's requests; return the last one, None if no request is left."""
        left = len(self.first) - len(self.script)
        num_turns = min(int(SUB_TURNS.sample(self.rng, 1)[0]), left)
        if num_turns == 0:
            return None
        begin = len(self.script)
        self.script.begin()
        self.script.say(SUB_SYSTEM, system_content)
        added = SUB_GROWTH.sample(self.rng, num_turns).tolist()
        added[0] = int(SUB_FIRST.sample(self.rng, 1)[0]) - SUB_SYSTEM
        for row, tokens in enumerate(added, begin):
            self.script.say(min(tokens, max(self.max_prompt - self.script.num_tokens, 1)))
            before = parent if row == begin else row - 1
            self._ask(self.output[row], [before], self.pause[row] if row > begin else 0.0)
            self.order.append(row)
        return begin + num_turns - 1

    def _ask(self, output: int, after: list[int], pause: float) -> None:
        self.script.answer(output)
        self.after.append(after)
        self.think_times.append(pause if after else 0.0)

    def planned_times(self, starts: Sequence[float], outputs: list[int]) -> list[float]:
        """Return the send time of each request, seconds, if a token takes :data:`TOKEN_TIME`."""
        times = [0.0] * len(outputs)
        for root, start in zip(self.roots, starts, strict=True):
            times[root] = start
        for row in self.order:
            if self.after[row]:
                ends = [times[other] + outputs[other] * TOKEN_TIME for other in self.after[row]]
                times[row] = max(ends) + self.think_times[row]
        return times
