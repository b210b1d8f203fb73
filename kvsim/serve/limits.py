"""Limits of a live endpoint on clients: sizes, connections, and time to send and to read."""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING, cast

from kvsim.serve.messages import Refused

if TYPE_CHECKING:
    from aiohttp import web

#: Limits: bytes of a body and of a header, seconds of an idle connection and of sending a body,
#: bytes of an answer that a client has not read, and number of connections.
MOST_BODY, MOST_HEADER, IDLE, BODY_TIME = 32 * 2**20, 16 * 2**10, 75.0, 30.0
MOST_UNREAD, MOST_CONNECTIONS = 2**20, 10_000
#: Seconds between two checks of the bytes that a client has not read.
LOOK = 5.0
#: Connections that may be accepted at one instant, before any of them is counted.
BURST = 256
#: Open files of a server other than the counted connections.
OTHER_FILES = 64 + BURST


async def take_body(request: web.Request) -> None:
    """Read the body of a request.

    Raises
    ------
    Refused
        For a client that sends the body too slowly.
    """
    try:
        async with asyncio.timeout(BODY_TIME):
            await request.read()
    except TimeoutError:
        raise Refused(f"the body did not arrive within {BODY_TIME:g} s", 408) from None


async def wait_while_read(ended: asyncio.Event, transport: asyncio.WriteTransport) -> None:
    """Wait for the end of a stream, and close the connection of a client that does not read.

    A closed connection drops the bytes still to send, and cancels its request.
    """
    while not ended.is_set():
        try:
            async with asyncio.timeout(LOOK):
                await ended.wait()
        except TimeoutError:
            if transport.get_write_buffer_size() > MOST_UNREAD:
                transport.abort()


class Full(asyncio.Protocol):
    """Answers a connection over the limit with 503, and closes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        refused = Refused("too many connections; try again later", 503)
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(refused.body)}\r\n"
        sent = head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n"
        writes = cast("asyncio.Transport", transport)
        writes.write(sent + refused.body)
        writes.close()


class Door:
    """Makes the protocol of each new connection.

    Parameters
    ----------
    most : largest number of open connections
    """

    def __init__(self, server: web.Server, most: int) -> None:
        self._server, self._most = server, most

    def __call__(self) -> asyncio.BaseProtocol:
        return Full() if len(self._server.connections) >= self._most else self._server()


def most_connections() -> int:
    """Return the most connections of this process, after raising its limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(MOST_CONNECTIONS, soft - OTHER_FILES))
