"""Conversations: the prompt of a turn repeats all earlier prompts and outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvsim.trace import Trace  # noqa: TC001 - the registry resolves annotations
from kvsim.trace.slices import Slices
from workloads.arrivals import draw_arrivals
from workloads.draft import Draft, Pace
from workloads.generators import NUM_REQUESTS, streams
from workloads.lengths import around
from workloads.registry import WORKLOADS


@WORKLOADS.register("multi-turn")
def multi_turn(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = 2.0,
    seed: int = 0,
    arrival: str = "poisson",
    turns: float = 4.0,
    system: int = 256,
    user: float = 64.0,
    output: float = 338.0,
    sigma: float = 0.8,
    think_time: float = 10.0,
    time_per_output_token: float = 0.045,
    max_prompt: int | None = None,
) -> Trace:
    """Generate chats: every prompt is the system prompt, all turns so far and a new question.

    Sessions arrive by the arrival process; turn k + 1 is planned a think time after the expected
    answer of turn k. The last session ends when ``num_requests`` is reached.

    Parameters
    ----------
    num_requests : number of requests of all sessions together
    request_rate : mean requests per second while sessions arrive
        Sessions arrive at this rate divided by their mean number of turns. The trace is longer, by
        the turns after the last session's arrival. ``inf`` starts every session at time 0.
    seed : equal seeds give equal traces
    arrival : arrival process of the sessions, e.g. ``"gamma+cv=3"``
    turns : mean turns of a session, geometric, at least 1
    system : tokens of the system prompt, the same for all sessions; 0 is none
    user, output : mean tokens of a question and of an answer, log-normal, clipped at 8 times each
    sigma : log-normal width of both; 0 makes them constant
    think_time, time_per_output_token : seconds, see :class:`workloads.draft.Pace`
    max_prompt : a longer prompt keeps only its last ``max_prompt`` tokens, as in the PagedAttention
        paper's chat (section 6.4, 1,024 tokens); None keeps all

    Raises
    ------
    ValueError
        For a value out of range or an unknown arrival process.
    """
    _check_multi_turn(num_requests, turns, system, max_prompt)
    of_turns, of_users, of_outputs, of_times = streams(seed, 4)
    num_turns = of_turns.geometric(1 / turns, num_requests)
    users = around(user, sigma).sample(of_users, num_requests).tolist()
    outputs = around(output, sigma).sample(of_outputs, num_requests)
    starts = set(np.cumsum(num_turns).tolist()) | {0}
    script = Script(max_prompt)
    system_content = script.new_content()
    for row, answer in enumerate(outputs.tolist()):
        if row in starts:
            script.begin()
            script.say(system, system_content)
        script.say(users[row])
        script.answer(answer)
    draft = script.draft(Pace(think_time, time_per_output_token))
    return plan(draft, request_rate, of_times, arrival).build()


def _check_multi_turn(num_requests: int, turns: float, system: int, max_prompt: int | None) -> None:
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {num_requests}")
    if not 1 <= turns < np.inf:
        raise ValueError(f"turns must be finite and at least 1, got {turns}")
    if system < 0:
        raise ValueError(f"system must be at least 0 tokens, got {system}")
    if max_prompt is not None and max_prompt < 1:
        raise ValueError(f"max_prompt must be at least 1 token, got {max_prompt}")


def plan(
    draft: Draft, request_rate: float, rng: np.random.Generator, arrival: str = "poisson"
) -> Draft:
    """Draw arrival times of requests, and sort the requests by them.

    Sessions arrive at ``request_rate`` divided by their mean number of turns; turns follow in order
    at the draft's pace. A request without a session is a session of one turn.
    """
    of_starts, of_thinks = rng.spawn(2)
    session = np.arange(len(draft)) if draft.session_id is None else np.asarray(draft.session_id)
    first = np.concatenate(([True], (session[1:] != session[:-1]) | (session[1:] < 0)))
    number = np.cumsum(first) - 1
    num_sessions = int(number[-1]) + 1
    rate = request_rate * num_sessions / len(draft)
    starts = draw_arrivals(arrival, num_sessions, rate, of_starts)
    busy = np.asarray(draft.num_output_tokens) * draft.pace.time_per_output_token
    think = of_thinks.exponential(draft.pace.think_time, len(draft))
    since_start = np.cumsum(np.where(first, 0.0, think + np.concatenate(([0.0], busy[:-1]))))
    since_start -= since_start[first][number]
    times = (starts[number] + since_start).tolist()
    return replace(draft, arrival_time=times).in_order_of_arrival()


class Script:
    """Builds conversations turn by turn, with a content id for every text and every output.

    Parameters
    ----------
    max_prompt : a longer prompt keeps only its last ``max_prompt`` tokens; None keeps all
    """

    def __init__(self, max_prompt: int | None = None) -> None:
        self._max_prompt = max_prompt
        self._contents = 0
        self._session = -1
        self._texts: list[tuple[int, int]] = []  # content and tokens of all sessions
        self._begins = 0  # index of the session's first text
        self.num_tokens = 0
        self._runs: list[tuple[int, int, int]] = []  # of each prompt: first text, end, tokens cut
        self._prompts: list[int] = []
        self._outputs: list[int] = []
        self._output_content_id: list[int] = []
        self._session_id: list[int] = []
        self._places: list[int] = []

    def __len__(self) -> int:
        return len(self._outputs)

    def new_content(self) -> int:
        self._contents += 1
        return self._contents - 1

    def begin(self) -> None:
        """Start the next session, without any text."""
        self._session += 1
        self.forget()

    def forget(self) -> None:
        """Drop the session's texts so far, as in a compaction."""
        self._begins, self.num_tokens = len(self._texts), 0

    def say(self, num_tokens: int, content_id: int | None = None) -> None:
        """Append a text to the session, by default with new content; 0 tokens append nothing."""
        if num_tokens > 0:
            content = self.new_content() if content_id is None else content_id
            self._texts.append((content, num_tokens))
            self.num_tokens += num_tokens

    def answer(self, num_tokens: int, place: int = 0) -> None:
        """Add a request with all texts so far as the prompt, and append its output to the session.

        Parameters
        ----------
        num_tokens : tokens of the output
        place : line of the file with the turn
        """
        excess = 0 if self._max_prompt is None else max(self.num_tokens - self._max_prompt, 0)
        self._prompts.append(self.num_tokens - excess)
        first = self._begins
        while excess and excess >= self._texts[first][1]:
            excess -= self._texts[first][1]
            first += 1
        self._runs.append((first, len(self._texts), excess))
        content = self.new_content()
        self._outputs.append(num_tokens)
        self._output_content_id.append(content)
        self._session_id.append(self._session)
        self._places.append(place)
        self.say(num_tokens, content)

    def draft(self, pace: Pace, notes: tuple[str, ...] = ()) -> Draft:
        """Return the requests written so far, without times."""
        content, tokens = np.array(self._texts, np.int64).reshape(-1, 2).T
        first, end, cut = np.array(self._runs, np.int64).reshape(-1, 3).T
        return Draft(
            self._prompts,
            self._outputs,
            segments=Slices(content, tokens, first, end, cut),
            output_content_id=self._output_content_id,
            session_id=self._session_id,
            ends_by="eos",
            places=self._places,
            pace=pace,
            notes=notes,
        )
