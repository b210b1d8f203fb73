"""inference-perf's replay of conversations: what it draws, how its workers send it, and by what.

A benchmark of ``data.type: conversation_replay`` and ``load.type: concurrent`` draws everything
from its seed, so a published configuration says every length. It has as many slots as it may have
requests in flight. A slot plays one conversation, and plays it again when it is over. Requests come
in rounds, one turn of every slot per round, and a slot belongs to a worker.

Each worker takes its requests in that order, and each takes a place. A turn keeps its place while
it waits for the turn before it, so fewer are in flight than there are places (its issue 648).
Connections are kept: the one that has been idle longest is taken, a new one goes to any pod, since
a Kubernetes Service chooses for connections, and vLLM closes those that idle for five seconds.

Source: kubernetes-sigs/inference-perf of May 2026 (datagen/conversation_replay_datagen.py,
utils/distribution.py, loadgen/load_generator.py, client/modelserver/openai_client.py); aiohttp's
``BaseConnector``; ``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from kvsim.config import Config
from kvsim.fleet.clients import Clients
from kvsim.fleet.pool_setups import resolve_fleet
from kvsim.fleet.routing.router import ROUTERS, Router
from kvsim.fleet.simulate import serve
from kvsim.fleet.world import Phase
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView
    from kvsim.fleet.world import Process
    from kvsim.results.result import Result

NUM_WORKERS = 6  # of the published configurations
#: Seconds until a server closes an idle connection.
KEEP_ALIVE = 5.0
SERVICE = "kept-connections"
#: Tokens that servers see of a text of random tokens, per token drawn: decoded, these do not come
#: back as the same ones. Twelve published medians of prompts are 4 to 7 % above what was drawn.
RECOUNT = 1.05


class Lengths(NamedTuple):
    """A distribution of token counts, clipped; a log-normal one begins at its lowest."""

    kind: Literal["normal", "lognormal", "uniform"]
    low: int
    high: int
    mean: float = 0.0
    std: float = 0.0

    def draw(self, rng: np.random.Generator, number: int) -> NDArray[np.int64]:
        """Draw ``number`` lengths in tokens; shape (number,)."""
        if self.kind == "uniform":
            found = rng.uniform(self.low, self.high, number)
        elif self.kind == "normal":
            found = rng.normal(self.mean, self.std, number)
        else:
            mean = self.mean - self.low
            variance = np.log1p((self.std / mean) ** 2)
            normal = np.log(mean) - variance / 2, np.sqrt(variance)
            found = rng.lognormal(*normal, number) + self.low
        return np.round(np.clip(found, self.low, self.high)).astype(np.int64)


class Workload(NamedTuple):
    """Conversations as a configuration describes them.

    Attributes
    ----------
    shared : tokens that all prompts begin with, as drawn
    questions, answers : of each turn; answers are not drawn as text
    turns : of each conversation; None is one
    own : tokens after the shared ones, of each conversation; None is none
    rounds : turns that every slot plays
    vocabulary : size of the tokenizer's; random tokens are drawn between the lengths
    """

    shared: int
    questions: Lengths
    answers: Lengths
    rounds: int
    turns: Lengths | None = None
    own: Lengths | None = None
    vocabulary: int = 151_643


class Load(NamedTuple):
    """The requests, round by round; ``session_id`` is the slot.

    Attributes
    ----------
    trace : all at time 0
    begins : whether a request is the first turn of its conversation, shape (requests,)
    """

    trace: Trace
    begins: NDArray[np.bool_]


def recounted(tokens: ArrayLike) -> NDArray[np.int64]:
    """Return the token counts of texts after re-tokenizing, from the counts that were drawn."""
    return np.round(np.asarray(tokens) * RECOUNT).astype(np.int64)


def conversations(work: Workload, slots: int) -> Load:
    """Draw a run's requests; its seed is the number of its slots."""
    rng = np.random.default_rng(slots)
    turns = np.ones(slots, np.int64) if work.turns is None else work.turns.draw(rng, slots)
    own = np.zeros(slots, np.int64) if work.own is None else recounted(work.own.draw(rng, slots))
    rng.integers(0, work.vocabulary, size=work.shared)
    shared, total = int(recounted(work.shared)), int(turns.sum())
    asked, told = recounted(work.questions.draw(rng, total)), work.answers.draw(rng, total)
    first = np.cumsum(turns) - turns
    history: list[list[tuple[int, int, int]]] = [[] for _ in range(slots)]
    prompts, outputs, segments, answers, begins = [], [], [], [], []
    answer = 1 + slots + total  # contents: what is shared, own prompts, questions, answers
    for played in range(work.rounds):
        for slot in range(slots):
            turn = played % int(turns[slot])
            k = int(first[slot]) + turn
            if turn == 0:
                history[slot] = [(0, 0, shared), (1 + slot, 0, int(own[slot]))]
            history[slot] = [*history[slot], (1 + slots + k, 0, int(asked[k]))]
            segments.append([part for part in history[slot] if part[2]])
            prompts.append(sum(length for _, _, length in history[slot]))
            outputs.append(int(told[k]))
            answers.append(answer)
            begins.append(turn == 0)
            history[slot] = [*history[slot], (answer, 0, int(told[k]))]
            answer += 1
    trace = Trace.from_arrays(
        np.zeros(len(prompts)),
        prompts,
        outputs,
        segments=segments,
        output_content_id=answers,
        session_id=np.tile(np.arange(slots), work.rounds),
    )
    return Load(trace, np.array(begins))


class Workers(Clients):
    """Sends requests as the workers do: in order, each from the place it has taken."""

    def __init__(self, *args: Any, begins: NDArray[np.bool_], **options: Any) -> None:
        trace = args[1]
        slots = int(options["max_concurrency"])
        super().__init__(*args, **options)
        self._worker = trace.session_id % NUM_WORKERS
        self._before = np.where(begins, -1, np.arange(len(trace)) - slots)
        self._lines: list[deque[int]] = [deque() for _ in range(NUM_WORKERS)]
        for row, worker in enumerate(self._worker.tolist()):
            self._lines[worker].append(row)
        self._free_places = [len(range(w, slots, NUM_WORKERS)) for w in range(NUM_WORKERS)]
        self._waiting: dict[int, int] = {}  # turns with a place, by the row they wait for
        self._over = np.zeros(len(trace), bool)

    def process(self) -> Process:
        """Take as many requests as there are places."""
        yield self._world.at(0.0, Phase.REQUEST_IS_SENT)
        for worker in range(NUM_WORKERS):
            self._take(worker)

    def _take(self, worker: int) -> None:
        while self._free_places[worker] and self._lines[worker]:
            row = self._lines[worker].popleft()
            self._free_places[worker] -= 1
            before = int(self._before[row])
            if before >= 0 and not self._over[before]:
                self._waiting[before] = row
            else:
                self._go(row)

    def _go(self, row: int) -> None:
        self._num_sent += 1
        self.sent_time[row] = self._world.now
        self._send(row)

    def _free(self, rows: list[int]) -> None:
        for row in rows:
            self._over[row] = True
            if row in self._waiting:
                self._go(self._waiting.pop(row))
            worker = int(self._worker[row])
            self._free_places[worker] += 1
            self._take(worker)


@ROUTERS.register(SERVICE)
class KeptConnections(Router):
    """A Kubernetes Service before clients that keep their connections."""

    watches_requests = True

    def start(self, facts: Facts) -> None:
        """Begin with no open connection."""
        super().start(facts)
        self._idle: list[deque[tuple[int, float]]] = [deque() for _ in range(NUM_WORKERS)]
        self._worker: dict[int, int] = {}

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose a pod whose connection the worker still has open, else any."""
        worker = request.session_id % NUM_WORKERS
        self._worker[request.request_id] = worker
        while self._idle[worker]:
            pod, since = self._idle[worker].popleft()
            if request.arrival_time - since < KEEP_ALIVE:
                return pod
        return int(self.facts.rng.integers(len(replicas)))

    def on_finish(self, request_id: int, replica: int, time: float, num_tokens: int) -> None:
        """Keep the connection of the finished request open for its worker."""
        self._idle[self._worker.pop(request_id)].append((replica, time))


def play(load: Load, router: str, **servers: Any) -> Result:
    """Send a run's requests to some servers, as many at once as there are slots."""
    slots = int(load.trace.session_id.max()) + 1
    config = Config.build(router=router, max_concurrency=slots, **servers)
    # kvsim's own clients take a place when a request is sent, not when a turn begins to wait.
    clients = partial(Workers, begins=load.begins)
    return serve(resolve_fleet(config), load.trace, make_clients=clients)


def play_within(
    load: Load, router: str, timeout: float, **servers: Any
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Play with a client that aborts a request after ``timeout`` seconds.

    Returns the requests table of the last run, and True per request that was late in any run.

    An aborted request ends at its timeout: its output is cut, and the run is played again, until no
    request is late, or no late request has output left to cut (no token came in time).
    """
    trace = load.trace
    outputs, late = trace.num_output_tokens.copy(), np.zeros(len(trace), bool)
    while True:
        cut = load._replace(trace=replace(trace, num_output_tokens=outputs.copy()))
        rows = play(cut, router, **servers).requests
        over = rows["finish_time"] - rows["arrival_time"] > timeout * 1.002
        late |= over
        over &= outputs > 1
        if not over.any():
            return rows, late
        cut_rows = rows[over]
        first = cut_rows["first_token_time"]
        each = (cut_rows["finish_time"] - first) / (cut_rows["num_output_tokens"] - 1)
        left = np.maximum(timeout - (first - cut_rows["arrival_time"]), 0.0)
        outputs[over] = 1 + (left / each).astype(np.int64)
