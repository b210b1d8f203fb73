"""A fleet made by hand, for tests of routers: views that say what they are told to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsim.engine.incoming import IncomingRequest
from kvsim.fleet.facts import Facts
from kvsim.fleet.prefix_index.index import PrefixIndex
from kvsim.fleet.routing.router import Router, make_router
from kvsim.fleet.routing.view import Local, Scraped
from kvsim.trace import Trace

#: Prompt tokens per second of every replica.
RATE = 1000.0
BLOCK = 16


@dataclass
class View:
    """A replica's view."""

    index: int
    outstanding: int = 0
    local: Local = field(default_factory=Local)
    scraped: Scraped = field(default_factory=lambda: Scraped(0.0))

    def num_outstanding(self) -> int:
        return self.outstanding


def views(
    outstanding: Sequence[int] = (0, 0, 0),
    *,
    uncached: Sequence[int] | None = None,
    waiting: Sequence[int] | None = None,
    running: Sequence[int] | None = None,
    usage: Sequence[float] | None = None,
    as_of: float = 0.0,
) -> list[Any]:
    none = [0] * len(outstanding)
    columns = (uncached or none, waiting or none, running or none, usage or none)
    return [
        View(i, n, Local(n, 0, 0, u), Scraped(as_of, w, r, k))
        for i, (n, u, w, r, k) in enumerate(zip(outstanding, *columns, strict=True))
    ]


def requests(
    *prompts: Sequence[tuple[int, int]],
    sessions: Sequence[int] | None = None,
    priorities: Sequence[int] | None = None,
    gap: float = 1.0,
) -> list[IncomingRequest]:
    """Requests a gap apart; a prompt is a list of contents and their numbers of tokens."""
    lengths = [sum(tokens for _, tokens in prompt) for prompt in prompts]
    trace = Trace.from_arrays(
        [gap * k for k in range(len(prompts))],
        lengths,
        [4] * len(prompts),
        segments=[[(content, 0, tokens) for content, tokens in prompt] for prompt in prompts],
        session_id=list(sessions) if sessions else None,
        priority=list(priorities) if priorities else None,
    )
    return [IncomingRequest(trace, k, gap * k) for k in range(len(prompts))]


def started(
    text: str, num_replicas: int = 3, *, seed: int = 0, num_kv_tokens: int = 10**6, **facts: Any
) -> Any:
    """A router that knows its fleet, and the index in which a test may enter what is cached."""
    router: Router = make_router(text)
    router.start(
        Facts(
            num_replicas=num_replicas,
            block_size=BLOCK,
            num_kv_tokens=num_kv_tokens,
            max_num_batched_tokens=2000,
            start_time=0.0,
            rng=np.random.default_rng(seed),
            index=PrefixIndex(num_replicas),
            entry_tokens=BLOCK,
            entry_path=lambda request: request.prefix_path(BLOCK),
            prefill_time=lambda tokens, cached: (tokens - cached) / RATE,
            step_time=lambda requests, tokens: 0.01 * requests + tokens / 1e5,
            **facts,
        )
    )
    return router


def cache(router: Router, request: IncomingRequest, num_blocks: Sequence[int]) -> None:
    """Let each replica hold the first blocks of a prompt, as its events would tell."""
    for replica, number in enumerate(num_blocks):
        router.facts.index.insert(replica, request.prefix_keys(BLOCK)[:number])
