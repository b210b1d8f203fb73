"""Clients that take too much of a live endpoint: one clear error each, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

pytest.importorskip("aiohttp")

from aiohttp import web

from kvsim.serve import app, limits
from kvsim.serve.start import Endpoint, make_server

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DEPLOYMENT = {
    "model": MODEL,
    "gpu": "h100-sxm",
    "num_gpu_blocks_override": 4096,
    "max_model_len": 65_536,
    "backend": "python",
}


def served(body, *, most=100):
    """Run a client's coroutine against a port; no request and no task of it may be left."""

    async def run():
        server = make_server(Endpoint([MODEL], clock="1000"), DEPLOYMENT)
        runner = web.AppRunner(server.app(), handler_cancellation=True, keepalive_timeout=0.2)
        await runner.setup()
        door = limits.Door(runner.server, most)
        plain = socket.create_server(("127.0.0.1", 0))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # fills soon
        listener = await asyncio.get_running_loop().create_server(door, sock=plain)
        before = len(asyncio.all_tasks())
        found = await body(listener.sockets[0].getsockname()[1])
        for _ in range(200):
            if len(asyncio.all_tasks()) == before and not server.live.num_open:
                break
            await asyncio.sleep(0.02)
        assert (len(asyncio.all_tasks()), server.live.num_open) == (before, 0)
        assert server.live.engine.num_free_blocks == DEPLOYMENT["num_gpu_blocks_override"] - 1
        listener.close()
        await runner.cleanup()
        return found

    return asyncio.run(asyncio.wait_for(run(), 60))


def asking(body, **fields):
    """Return a request as bytes."""
    data = json.dumps({"prompt": [1, 2, 3], **fields}).encode() if body is None else body
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def told(port, data):
    """Return the answer to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.read(65_536)
    finally:
        writer.close()


def test_a_body_that_does_not_arrive_is_answered_408(monkeypatch):
    monkeypatch.setattr(limits, "BODY_TIME", 0.1)
    said = served(lambda port: told(port, asking(b"x" * 100)[:-50]))
    assert said.startswith(b"HTTP/1.1 408")
    assert b"the body did not arrive within 0.1 s" in said


@pytest.mark.parametrize("data", [b"", b"POST /v1/comple", b"POST / HTTP/1.1\r\nHost: x\r\nA"])
def test_a_connection_without_a_whole_header_is_closed(data):
    assert served(lambda port: told(port, data)) == b""


def test_a_broken_header_is_answered_400():
    assert served(lambda port: told(port, b"no such thing\r\n\r\n")).startswith(b"HTTP/1.0 400")


def test_connections_over_the_limit_are_answered_503():
    async def body(port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await asyncio.sleep(0.05)
        full = await told(port, asking(None))
        for _, writer in opened:
            writer.close()
        await asyncio.sleep(0.1)
        return full, await told(port, asking(None, max_tokens=1))

    full, free = served(body, most=3)
    assert full.startswith(b"HTTP/1.1 503")
    assert b"too many connections" in full
    assert free.startswith(b"HTTP/1.1 200")


def test_a_client_that_does_not_read_is_left(monkeypatch):
    monkeypatch.setattr(limits, "LOOK", 0.05)
    monkeypatch.setattr(limits, "MOST_UNREAD", 1000)
    closed = asyncio.Event()
    wait = limits.wait_while_read

    async def noted(*args):
        try:
            await wait(*args)
        finally:
            closed.set()

    monkeypatch.setattr(app, "wait_while_read", noted)

    async def body(port):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(asking(None, max_tokens=65_000, stream=True))
        await asyncio.wait_for(closed.wait(), 30)
        parts = [b""]
        with client:  # it gets what the system had taken
            while len(parts) == 1 or parts[-1]:
                parts.append(await asyncio.to_thread(client.recv, 2**16))
        return b"".join(parts)

    said = served(body)
    assert said.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in said


def test_a_process_takes_as_many_connections_as_it_may_open_files():
    assert 0 < limits.most_connections() <= limits.MOST_CONNECTIONS
