"""Start and end of a live endpoint."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aiohttp import web

import kvsim
from kvsim.config import Config
from kvsim.fleet.pool_setups import pools_of
from kvsim.serve.admission import admission_of
from kvsim.serve.app import VERSION, Server
from kvsim.serve.behind import Behind
from kvsim.serve.clock import Clock, precise_loop, speed_of
from kvsim.serve.failing import failing_replicas, failures_of
from kvsim.serve.handover import Handover
from kvsim.serve.limits import BURST, IDLE, MOST_HEADER, Door, most_connections
from kvsim.serve.live import Live
from kvsim.serve.metrics import Metrics
from kvsim.serve.publisher import Publisher, Transport
from kvsim.serve.recording import Recording
from kvsim.serve.tokens import OfFile, StandIn
from kvsim.stepping.growing import FIRST_ROOM
from kvsim.stepping.remote import make_engine

if TYPE_CHECKING:
    from kvsim.fleet.scaling.failures import Failures
    from kvsim.pool_config import PoolConfig, Role
    from kvsim.stepping.engine import Engine

#: Options of the fleet, which its replicas do not get.
OF_FLEET = (
    *("data_parallel_size", "pool", "router", "kv_transfer_fabric", "failures", "cold_start"),
    *("num_prefill_workers", "num_decode_workers"),
)
#: Port of the first replica for vLLM's NIXL connectors; kvsim reports it, but does not open it.
SIDE_CHANNEL = 5600
DEFAULT_FABRIC = Config.model_fields["kv_transfer_fabric"].default
#: Addresses that only this machine reaches.
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass
class Endpoint:
    """Address and options of a live endpoint.

    Attributes
    ----------
    names : names by which clients call the model
    clock : ``wall``, or a speed
    record : file for the requests, as a trace
    queue_limit : number of waiting requests at which new ones get status 429
    events : destination of KV cache events, None for no events
    hold_limit : requests of P/D pools that may hold blocks for transfers
    router : router of the port after the replicas' ports; None for no such port
    """

    names: list[str] = field(default_factory=list)
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    tokenizer: str | None = None
    clock: str = "wall"
    record: str | None = None
    queue_limit: int | None = None
    events: Transport | None = None
    router: str | None = None
    hold_limit: int = FIRST_ROOM

    def of_replica(self, number: int) -> Endpoint:
        """Return the endpoint of one of several replicas, with its own ports and record."""
        events, record = self.events, self.record
        if events is not None:
            events = events.of_rank(number)
        if record is not None:
            stem, dot, ending = record.rpartition(".jsonl")
            record = f"{stem}.{number}{dot}{ending}"
        port = self.port and self.port + number
        return replace(self, port=port, record=record, events=events)


def make_server(
    endpoint: Endpoint, deployment: dict[str, Any], role: Role = "mixed", clock: Clock | None = None
) -> Server:
    """Return the server of an engine, before it listens."""
    speed = speed_of(endpoint.clock)
    tokenizer = StandIn() if endpoint.tokenizer is None else OfFile(endpoint.tokenizer)
    engine = make_engine(role, endpoint.hold_limit, deployment)
    engine.run_until(0.0)  # compiles the rules, before the clock starts
    facts = facts_of(engine, deployment, endpoint.names[0])
    metrics = Metrics(engine, endpoint.names[0], facts["max_model_len"], facts["cache_config"])
    recording = None
    if endpoint.record is not None:
        facts_of_start = {"role": role, "hold_limit": endpoint.hold_limit}
        recording = Recording(endpoint.record, deployment, **facts_of_start)
    live = Live(
        engine,
        clock or Clock(speed),
        metrics,
        longest=facts["max_model_len"],
        recording=recording,
        most_waiting=endpoint.queue_limit,
        admission=admission_of(deployment),
    )
    return Server(live, tokenizer, endpoint.names, facts, api_key=endpoint.api_key)


def facts_of(engine: Engine, deployment: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the facts of a server for dashboards and routers."""
    fits = kvsim.capacity(**deployment)
    cache = {"block_size": fits.block_size, "num_gpu_blocks": fits.num_gpu_blocks}
    prefixes = deployment.get("enable_prefix_caching", True)
    return {
        "model_id": name,
        "model_path": name,
        "kv_block_size": fits.block_size,
        "max_model_len": fits.max_model_len,
        "instance_id": "kvsim",
        "data_parallel_size": 1,
        "version": VERSION,
        "enable_lora": bool(deployment.get("enable_lora")),
        "cache_config": cache | {"enable_prefix_caching": prefixes},
        "engine": engine.name,
    }


def serve_until_stopped(endpoint: Endpoint, deployment: dict[str, Any]) -> None:
    """Serve until Ctrl-C or a termination signal."""
    pool, prefill = live_pools(deployment)
    if prefill is not None:
        run(handing_over(endpoint, deployment, prefill, pool))
        return
    number, router = pool.replicas, endpoint.router or pool.router or deployment.get("router")
    endpoint = replace(endpoint, router=router)
    fleet, deployment = deployment, options_of(deployment, pool)
    if number > 1 and deployment.get("enable_expert_parallel"):
        raise ValueError("--data-parallel-size: must be 1 with --enable-expert-parallel")
    endpoints = [endpoint]
    if number > 1 or endpoint.router is not None:
        endpoints = [endpoint.of_replica(k) for k in range(number)]
    clock = Clock(speed_of(endpoint.clock))
    pairs = [(one, make_server(one, deployment, clock=clock)) for one in endpoints]
    clock.restart()  # what the engines compiled has taken no time
    let_fail([server for _, server in pairs], failures_of(fleet, (pool,)), fleet, deployment)
    if endpoint.router is not None:
        front = Behind([server for _, server in pairs], endpoint.router, deployment)
        pairs.append((replace(endpoint.of_replica(number), events=None), front))
    run(pairs)


def let_fail(
    servers: list[Server],
    failures: Failures | None,
    fleet: dict[str, Any],
    deployment: dict[str, Any],
) -> None:
    """Make the replicas of a pool fail as their fleet asks for. Mutates."""
    found = failing_replicas([one.live for one in servers], failures, fleet, deployment)
    for server, one in zip(servers, found, strict=True):
        server.failing = one


def run(pairs: list[tuple[Endpoint, Server]]) -> None:
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_serve(pairs))


def live_pools(deployment: dict[str, Any]) -> tuple[PoolConfig, PoolConfig | None]:
    """Return the pool that answers, and the prefill pool, if any.

    Raises
    ------
    ValueError
        If the number of replicas may change.
    """
    pools = pools_of(Config.build(**deployment))
    for pool in pools:
        if pool is not None and pool.autoscaler is not None:
            raise ValueError(
                f"pool {pool.name!r}: autoscaler: kvsim serve has a fixed number of ports"
            )
    return pools


def options_of(deployment: dict[str, Any], pool: PoolConfig) -> dict[str, Any]:
    """Return the options of a pool's replicas."""
    options = {name: value for name, value in deployment.items() if name not in OF_FLEET}
    return options | dict(pool.options)


def handing_over(
    endpoint: Endpoint, deployment: dict[str, Any], prefill: PoolConfig, decode: PoolConfig
) -> list[tuple[Endpoint, Server]]:
    """Return the servers of prefill replicas, then of decode replicas, on one clock.

    Raises
    ------
    ValueError
        For a router, which needs replicas that serve whole requests.
    """
    router = endpoint.router or prefill.router or decode.router or deployment.get("router")
    if router is not None:
        raise ValueError("--router: is for replicas that do whole requests (role mixed)")
    failures = failures_of(deployment, (decode, prefill))
    clock, pairs = Clock(speed_of(endpoint.clock)), list[tuple[Endpoint, Server]]()
    fabric = deployment.get("kv_transfer_fabric", DEFAULT_FABRIC)
    handover = Handover(clock, fabric, endpoint.hold_limit)
    for pool in (prefill, decode):
        options = options_of(deployment, pool)
        for _ in range(pool.replicas):
            one = endpoint.of_replica(len(pairs))
            server = make_server(one, options, pool.role, clock)
            live = server.live
            live.handover, live.role = handover, pool.role
            live.metrics.is_connected = True
            live.place = {
                "remote_engine_id": f"kvsim-{len(pairs)}",
                "remote_host": endpoint.host,
                "remote_port": SIDE_CHANNEL + len(pairs),
                "tp_size": options.get("tensor_parallel_size", 1),
            }
            pairs.append((one, server))
        let_fail([server for _, server in pairs[-pool.replicas :]], failures, deployment, options)
    clock.restart()  # what the engines compiled has taken no time
    return pairs


async def _serve(pairs: list[tuple[Endpoint, Server]]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stopped.set)
    runners, doors, most = [], list[asyncio.Server](), most_connections() // len(pairs)
    try:
        for endpoint, server in pairs:
            if endpoint.events is not None:
                server.live.publisher = Publisher(endpoint.events, server.live.loads)
            runner = web.AppRunner(
                server.app(),
                handler_cancellation=True,
                access_log=None,
                keepalive_timeout=IDLE,
                max_field_size=MOST_HEADER,
            )
            runners.append(runner)
            await runner.setup()
            assert runner.server is not None
            listener = listening(endpoint.host, endpoint.port)
            door = Door(runner.server, most)
            doors.append(await loop.create_server(door, sock=listener, backlog=BURST))
            say(endpoint, server, listener.getsockname()[1])
        gc.freeze()  # a full collection of all these objects would halt the streams for 0.1 s
        await stopped.wait()
    finally:
        for closing in doors:
            closing.close()
        for runner in reversed(runners):  # the router's port first
            await runner.cleanup()
        for _, server in pairs:
            server.close()


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    try:
        return socket.create_server((host, port), backlog=BURST)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # repeats the address
        raise ValueError(f"--host {host} --port {port}: {reason}") from None


def say(endpoint: Endpoint, server: Server, port: int) -> None:
    """Print the server's address, its tokenizer and a warning if others can reach it."""
    behind = f" behind router {endpoint.router}" if isinstance(server, Behind) else ""
    where = f"http://{endpoint.host}:{port}{behind}"
    lines = [
        f"serving {endpoint.names[0]} on {where}, clock {endpoint.clock}",
        f"tokenizer: {server.tokenizer.described}",
    ]
    if endpoint.host not in LOOPBACK:
        key = "they need the API key" if endpoint.api_key else "and no API key is set"
        lines.append(f"WARNING: other machines can reach {endpoint.host}; {key}")
    for line in lines:
        print(f"kvsim: {line}", file=sys.stderr, flush=True)  # noqa: T201
