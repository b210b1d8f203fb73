"""Closed loops that measure a running server, and options that its HTTP pages report."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.calibration.client import Client
from kvsim.calibration.server import known_model
from kvsim.config import RunConfig
from kvsim.fleet.simulate import run
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.calibration.client import Answer

#: Prompts are drawn from these token ids, which every vocabulary has.
TOKENS = (1_000, 30_000)
#: Lengths are drawn uniformly between this share of a loop's largest length and that length, so
#: that clients do not send in unison.
LEAST = 0.8
#: Prompt and output tokens of a request before the loops, which is not measured.
WARM_UP = (256, 16)
#: Options of a run by label in ``cache_config_info`` of a server's metrics.
LABELS = {"num_gpu_blocks": "num_gpu_blocks_override", "block_size": "block_size"}
_LINE = re.compile(r"^\w+:(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Loop(NamedTuple):
    """A closed loop: number of clients, and largest numbers of prompt and output tokens."""

    clients: int
    prompt: int
    output: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Prompt and output tokens, shape (requests, 2), equal at every call."""
        number = max(2 * self.clients, 6)
        most = np.array([self.prompt, self.output])
        drawn = np.random.default_rng(self).uniform(LEAST, 1.0, (number, 2))
        return np.maximum(np.round(most * drawn), 1).astype(np.int64)


#: Loads that distinguish the constants: one client and many, long prompts, long contexts in large
#: batches. The last loop lies between the others, and tests the fit.
LOOPS = (
    Loop(1, 128, 96),
    Loop(1, 4096, 32),
    Loop(1, 16384, 48),
    Loop(4, 1024, 96),
    Loop(8, 256, 128),
    Loop(32, 256, 128),
    Loop(64, 256, 96),
    Loop(96, 64, 128),
    Loop(48, 4096, 96),
    Loop(16, 1024, 96),
)


class Running(NamedTuple):
    """A running server: address, served model name, and the options and counters of its pages."""

    url: str
    name: str
    options: dict[str, Any]
    counters: dict[str, float]


def about(url: str, given: Mapping[str, Any]) -> Running:
    """Read a server's model, version, KV blocks and counters; ``given`` are the user's options.

    Raises
    ------
    ValueError
        If the server does not answer, or its model is unknown.
    """
    client = Client(url)
    models = client.page("/v1/models")
    if models is None:
        raise ValueError(f"--collect {url}: has no page /v1/models")
    card = json.loads(models)["data"][0]
    options: dict[str, Any] = {}
    if "model" not in given:
        options["model"] = known_model(str(card.get("root") or card["id"]), dict(given))
    if card.get("max_model_len"):
        options["max_model_len"] = int(card["max_model_len"])
    if version := _version(client.page("/version")):
        options["vllm_version"] = version
    metrics = client.page("/metrics") or ""
    client.close()
    for name, labels, _ in _LINE.findall(metrics):
        if name == "cache_config_info":
            told = dict(_LABEL.findall(labels))
            options |= {LABELS[k]: int(v) for k, v in told.items() if k in LABELS and v.isdigit()}
    return Running(url, card["id"], options, counted(metrics))


def _version(page: str | None) -> str | None:
    """Return vLLM's version without its local part; None for another server."""
    found = re.search(r'"version"\s*:\s*"(\d+\.\d+(?:\.\d+)?)', page or "")
    return None if found is None else found[1]


def counted(metrics: str) -> dict[str, float]:
    r"""Return the sums of counters and gauges over their labels.

    Examples
    --------
    >>> counted('vllm:num_preemptions_total{engine="0"} 2.0\nvllm:num_preemptions_total 1')
    {'num_preemptions': 3.0}
    """
    found: dict[str, float] = {}
    for told, _, value in _LINE.findall(metrics):
        name = told.removesuffix("_total")
        found[name] = found.get(name, 0.0) + float(value)
    return found


def loops_for(options: Mapping[str, Any]) -> list[Loop]:
    """Return the loops, limited to the server's max_model_len and KV blocks, if known."""
    longest = RunConfig.build(**options).max_model_len or math.inf
    room = math.inf
    if "num_gpu_blocks_override" in options:
        room = options["num_gpu_blocks_override"] * options.get("block_size", 16)
    found = []
    for loop in LOOPS:
        prompt = int(max(min(loop.prompt, min(longest, room) - loop.output), 1))
        clients = int(max(min(loop.clients, room // (prompt + loop.output)), 1))
        found.append(loop._replace(clients=clients, prompt=prompt))
    return found


def cost_of(options: Mapping[str, Any], loops: Sequence[Loop]) -> str:
    """Return a text with the cost of the loops: simulated minutes, and tokens."""
    config = RunConfig.build(**options)
    seconds = 0.0
    for loop in loops:
        lengths = loop.lengths
        trace = Trace.from_arrays(np.zeros(len(lengths)), *lengths.T)
        result = run(config.model_copy(update={"max_concurrency": loop.clients}), trace)
        seconds += float(np.nanmax(result.requests["finish_time"]))
    tokens = sum(int(loop.lengths.sum()) for loop in loops)
    return (
        f"{len(loops)} closed loops of up to {max(loop.clients for loop in loops)} clients, "
        f"{tokens:,} tokens: about {seconds / 60:.1f} minutes; other clients should not use it then"
    )


def collect(
    server: Running,
    loops: Sequence[Loop],
    *,
    speed: float = 1.0,
    on_progress: Callable[[int], object] = lambda done: None,
) -> list[dict[str, Any]]:
    """Run the loops on a server; return each as ``vllm bench serve --save-detailed`` saves it.

    Parameters
    ----------
    server : the server, from :func:`about`
    loops : the loops, which run one after another
    speed : seconds of the server per second of the client; differs from 1 only for kvsim's own
        server
    on_progress : called with the number of loops that have ended
    """
    prompt, output = WARM_UP
    client = Client(server.url)
    client.complete(server.name, _ids(prompt), output)
    client.close()
    found = []
    for loop in loops:
        found.append(_result(loop, _driven(server, loop), speed))
        on_progress(len(found))
    return found


def _ids(number: int) -> list[int]:
    """Draw a random prompt, which shares no prefix with others."""
    drawn: list[int] = np.random.default_rng().integers(*TOKENS, number).tolist()
    return drawn


def _driven(server: Running, loop: Loop) -> list[Answer]:
    """Send the requests of a loop in order, each by the next free client; return the answers."""
    waiting = deque((_ids(prompt), output) for prompt, output in loop.lengths.tolist())

    def serve(_: int) -> list[Answer]:
        client, found = Client(server.url), []
        while waiting:
            try:
                prompt, output = waiting.popleft()
            except IndexError:  # another client sends the last one
                break
            found.append(client.complete(server.name, prompt, output))
        client.close()
        return found

    with ThreadPoolExecutor(loop.clients) as pool:
        return [answer for answers in pool.map(serve, range(loop.clients)) for answer in answers]


def _result(loop: Loop, answers: Sequence[Answer], speed: float) -> dict[str, Any]:
    answers = sorted(answers, key=lambda answer: answer.sent)
    ttfts = [(one.first - one.sent) * speed for one in answers]
    return {
        "request_rate": "inf",
        "max_concurrency": loop.clients,
        "completed": len(answers),
        "mean_ttft_ms": 1e3 * float(np.mean(ttfts)),
        "input_lens": [one.num_prompt_tokens for one in answers],
        "output_lens": [one.num_output_tokens for one in answers],
        "ttfts": ttfts,
        "itls": [[(one.last - one.first) * speed] for one in answers],
    }


def notes_on(before: Running, after: Running, sent: int) -> list[str]:
    """Return notes if the server's counters contradict a measurement of ``sent`` requests."""
    was, now = before.counters, after.counters
    if not now:
        return ["the server has no /metrics: its KV blocks are computed, not read"]
    more = {name: value - was.get(name, 0.0) for name, value in now.items()}
    found = (
        (was.get("num_requests_running", 0.0), "requests of others ran when the loops began"),
        (more.get("request_success", 0.0) - sent, "requests of others ended during the loops"),
        (more.get("num_preemptions", 0.0), "requests were preempted: KV memory is short"),
        (more.get("prefix_cache_hits", 0.0), "prompt tokens were hits, and count as computed"),
    )
    return [f"{count:.0f} {what}" for count, what in found if count > 0]
