"""The port of a router in front of several live replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.config import Config
from kvsim.engine.incoming import IncomingRequest
from kvsim.engine.setup import of_engine
from kvsim.fleet.facts import Facts, decode_timer, prefill_timer
from kvsim.fleet.gateways import ROUTING
from kvsim.fleet.pool_setups import resolve_fleet
from kvsim.fleet.prefix_index.index import PrefixIndex
from kvsim.fleet.routing.router import REJECT, Router, make_routers
from kvsim.fleet.routing.view import ReplicaView
from kvsim.serve.app import Server, answer
from kvsim.serve.messages import Chat, Completion, Refused, read
from kvsim.stepping.tokens import PromptTree
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from aiohttp import web

    from kvsim.serve.live import Live

#: Headers that name a conversation; the first one in a request counts.
SESSION = ("X-Session-Affinity", "X-Session-ID", "X-Correlation-ID")


class Shown:
    """A live replica as a router sees it now."""

    def __init__(self, live: Live) -> None:
        self._live = live

    @property
    def clock(self) -> float:
        return self._live.engine.now

    def next_event_time(self) -> float:
        """Time of the replica's next event, seconds."""
        return self._live.engine.next_event_time

    def num_outstanding(self) -> int:
        """Requests that have not ended."""
        return self._live.num_open


class NumberedRequest(IncomingRequest):
    """The only request of a trace; its id is its number among all requests of the server."""

    def __init__(self, trace: Trace, number: int, now: float) -> None:
        super().__init__(trace, 0, now)
        self._prompt, self._session = int(trace.num_prompt_tokens[0]), int(trace.session_id[0])
        self.as_request()  # reads the row, and keeps it
        self.request_id = number

    @property
    def num_prompt_tokens(self) -> int:
        return self._prompt

    @property
    def session_id(self) -> int:
        return self._session


class Behind(Server):
    """The endpoints of a fleet: a router chooses the replica of each request.

    Metrics, load and events cover all replicas, and changes of settings apply to all of them. The
    other endpoints answer as the first replica does.

    Parameters
    ----------
    servers : the servers of the replicas
    router : name and parameters of the router
    deployment : options of a replica

    Raises
    ------
    ValueError
        For an unknown router, and for one that reads values which a live replica does not report.
    """

    def __init__(self, servers: list[Server], router: str, deployment: Mapping[str, Any]) -> None:
        first = servers[0]
        super().__init__(
            first.live, first.tokenizer, first.names, first.facts, api_key=first.api_key
        )
        self._servers = servers
        self.facts = first.facts | {"data_parallel_size": len(servers)}
        self._router = live_router(router)
        self._router.start(facts_for(dict(deployment), len(servers)))
        shown: list[Any] = [Shown(one.live) for one in servers]
        self._views = [ReplicaView(k, one, shares=False) for k, one in enumerate(shown)]
        self._tree, self._sessions = PromptTree(), dict[str, int]()
        self._count = 0

    @property
    def lives(self) -> list[Live]:
        return [one.live for one in self._servers]

    async def _run_engine(self, app: web.Application) -> AsyncIterator[None]:
        yield  # the replicas' servers run their engines

    def close(self) -> None:
        """Do nothing: the replicas close their records."""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer ``/v1/completions`` from the replica chosen for its first prompt."""
        body: Completion = read(await request.read(), Completion)
        chosen = self._choose(request, self._prompts(body)[0])
        return await chosen.completions(request)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer ``/v1/chat/completions`` from the chosen replica."""
        body: Chat = read(await request.read(), Chat)
        return await self._choose(request, self._conversation(body)).chat(request)

    async def event_sources(self, request: web.Request) -> web.Response:
        """Answer where each replica publishes its KV cache events."""
        found = [one.publisher for one in self.lives]
        return answer({str(k): one.source for k, one in enumerate(found) if one is not None})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """Empty the prefix cache of each replica."""
        emptied = [one.reset_prefix_cache() for one in self.lives]
        return answer({"success": all(emptied)})

    async def sleep(self, request: web.Request) -> web.Response:
        """Let all replicas sleep, if none has a request."""
        await super().sleep(request)
        return await self._by_all(Server.sleep, request)

    async def wake_up(self, request: web.Request) -> web.Response:
        await super().wake_up(request)
        return await self._by_all(Server.wake_up, request)

    async def load_adapter(self, request: web.Request) -> web.Response:
        """Add the name of a LoRA adapter to all replicas."""
        return await self._by_all(Server.load_adapter, request)

    async def unload_adapter(self, request: web.Request) -> web.Response:
        """Remove the name of a LoRA adapter from all replicas."""
        return await self._by_all(Server.unload_adapter, request)

    async def _by_all(
        self,
        handler: Callable[[Server, web.Request], Awaitable[web.Response]],
        request: web.Request,
    ) -> web.Response:
        answers = [await handler(one, request) for one in self._servers]
        return answers[0]

    def _choose(self, request: web.Request, prompt: list[int]) -> Server:
        for one in self._servers:
            one.live.advance()
        name = next((request.headers[one] for one in SESSION if one in request.headers), None)
        session = -1 if name is None else self._sessions.setdefault(name, len(self._sessions))
        spans = self._tree.spans(np.array(prompt), self._count)
        row = Trace.from_arrays([0.0], [len(prompt)], [1], segments=[spans], session_id=[session])
        incoming = NumberedRequest(row, self._count, self.live.clock.now)
        self._count += 1
        choice = self._router.choose(incoming, self._views)
        if choice == REJECT:
            raise Refused("the router rejects the request; try again later", 429)
        return self._servers[choice]


def live_router(text: str) -> Router:
    """Return the router that ``text`` names, if it reads only values that a live replica reports.

    Raises
    ------
    ValueError
        For an unknown router, for several gateways, and for a router that reads other values.
    """
    routers = make_routers(text)
    router = routers[0]
    reads = {
        "scraped metrics": router.scrape_interval is not None,
        "KV cache events": router.event_delay is not None,
        "the state of the prefix cache": router.needs_prefix_cache,
        "the times of first and last tokens": router.watches_requests,
        "several gateways": len(routers) > 1,
    }
    for what, is_read in reads.items():
        if is_read:
            raise ValueError(
                f"--router {text}: needs {what}, which kvsim serve does not offer to routers; "
                "round-robin, least-outstanding and chwbl, for example, are allowed"
            )
    return router


def facts_for(deployment: dict[str, Any], num_replicas: int) -> Facts:
    """Return the properties of the fleet, for its router."""
    setup = resolve_fleet(of_engine(Config.build(**deployment)))
    size = setup.kv.block_size
    return Facts(
        num_replicas=num_replicas,
        block_size=size,
        num_kv_tokens=setup.kv.num_gpu_blocks * size,
        max_num_batched_tokens=setup.scheduler_config.max_num_batched_tokens,
        start_time=0.0,
        rng=np.random.default_rng([setup.config.seed, ROUTING, 0]),
        index=PrefixIndex(num_replicas),
        entry_tokens=size,
        entry_path=lambda _request: np.empty(0, np.int64),
        prefill_time=prefill_timer(setup),
        step_time=decode_timer(setup),
    )
