"""KV cache events over ZMQ, as vLLM 0.33 sends them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import zmq
import zmq.asyncio

from kvsim.serve.block_names import BlockNames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.results.kv_events import KVEventBatch
    from kvsim.serve.block_names import Adapter

#: Number of the last message to a subscriber that requested missed events.
END = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True)
class Transport:
    """Destination of events; names and defaults are those of vLLM's ``--kv-events-config``."""

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    @classmethod
    def of(cls, text: str | Mapping[str, Any]) -> Transport:
        """Read vLLM's JSON object, and ignore the keys that the engine reads."""
        given = json.loads(text) if isinstance(text, str) else text
        return cls(**{key: given[key] for key in cls.__dataclass_fields__ if key in given})

    def of_rank(self, rank: int) -> Transport:
        """Return the addresses of a replica: its number is added to the ports, as in vLLM."""
        replay = self.replay_endpoint and offset(self.replay_endpoint, rank)
        return replace(self, endpoint=offset(self.endpoint, rank), replay_endpoint=replay)


def offset(address: str, rank: int) -> str:
    """Return an address with a rank added to its port, or to the name of its socket."""
    stem, colon, port = address.rpartition(":")
    if address.startswith("tcp://") and port.isdigit():
        return f"{stem}{colon}{int(port) + rank}"
    return f"{address}_dp{rank}"


class Publisher:
    """A PUB socket for events, and a ROUTER socket for subscribers that missed some.

    Parameters
    ----------
    adapters : the LoRA adapters loaded so far, by name

    Raises
    ------
    ValueError
        For an address that cannot be used.
    """

    def __init__(self, transport: Transport, adapters: Mapping[str, Adapter] | None = None) -> None:
        self.transport = transport
        self._topic = transport.topic.encode()
        self._next = 0
        self._names = BlockNames(adapters)
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=transport.buffer_steps)
        context = zmq.asyncio.Context.instance()
        self._events = context.socket(zmq.PUB)
        self._events.set_hwm(transport.hwm)
        self._bind(self._events, transport.endpoint)
        self._replay = None
        if transport.replay_endpoint is not None:
            self._replay = context.socket(zmq.ROUTER)
            self._bind(self._replay, transport.replay_endpoint)
        # Subscribers of an earlier server must drop its blocks.
        self.send_cleared()

    @staticmethod
    def _bind(made: Any, address: str) -> None:
        made.setsockopt(zmq.LINGER, 0)
        try:
            made.bind(address)
        except zmq.ZMQError as error:
            raise ValueError(f"--kv-events-config: {address}: {error}") from None

    def send(self, batches: Sequence[KVEventBatch]) -> None:
        """Send one message per batch of events. Mutates."""
        for batch in batches:
            self._send([fields_of(event) for event in batch.events])

    def send_cleared(self) -> None:
        """Send an event that all blocks were cleared. Mutates."""
        self._send([{"type": "AllBlocksCleared"}])

    def _send(self, events: list[dict[str, Any]]) -> None:
        events = [self._names.rename(event) for event in events]
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._sent.append((self._next, payload))
        frames = [self._topic, self._next.to_bytes(8, "big"), payload]
        with contextlib.suppress(zmq.Again):  # a subscriber that is too slow requests a replay
            self._events.send_multipart(frames, zmq.NOBLOCK)
        self._next += 1

    async def answer_replays(self) -> None:
        """Send subscribers the messages that they missed, until the task is cancelled."""
        while self._replay is not None:
            asker, *_, first = await self._replay.recv_multipart()
            begin = int.from_bytes(first, "big")
            for number, payload in list(self._sent):
                if number >= begin:
                    frames = [asker, b"", self._topic, number.to_bytes(8, "big"), payload]
                    await self._replay.send_multipart(frames)
            await self._replay.send_multipart([asker, b"", self._topic, END, b""])
        await asyncio.Event().wait()

    def close(self) -> None:
        self._events.close()
        if self._replay is not None:
            self._replay.close()

    @property
    def source(self) -> dict[str, Any]:
        """The publisher's entry in the answer of ``/kv_event_sources``."""
        one = self.transport
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": one.endpoint,
            "replay_endpoint": one.replay_endpoint,
            "buffer_steps": one.buffer_steps,
            "hwm": one.hwm,
            "max_queue_size": one.max_queue_size,
            "topic": one.topic,
        }


def fields_of(event: Any) -> dict[str, Any]:
    """Return an event as a tagged map; extra keys only if a block has any."""
    found = {"type": type(event).__name__, **vars(event)}
    if found.get("extra_keys", True) is None or not any(found.get("extra_keys") or [None]):
        found.pop("extra_keys", None)
    if found.get("kv_cache_spec_sliding_window", True) is None:
        del found["kv_cache_spec_sliding_window"]
    return found
