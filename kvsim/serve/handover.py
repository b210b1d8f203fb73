"""Transfers of KV from live prefill to decode replicas, as with vLLM's NIXL connector."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from kvsim.fleet.disaggregation.transfers import Transfers
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.scaling.failures import LEASE
from kvsim.serve.messages import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.serve.clock import Clock
    from kvsim.serve.live import Live


class RealTime:
    """The time and the timed calls of KV transfers, on a live clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def now(self) -> float:
        return self._clock.now

    def call_at(self, time: float, action: Callable[[], object]) -> None:
        """Call ``action`` at a time, simulated seconds."""
        asyncio.get_running_loop().call_later(self._clock.delay(time) or 0.0, action)


class Handover:
    """The KV that prefill replicas hold until a decode replica has read it, and its transfers.

    Parameters
    ----------
    clock : the clock of all replicas
    fabric : name of the network between them
    most_held : requests that may hold blocks at a replica without running; vLLM has no such
        limit, but an engine of kvsim has records for this number only
    """

    def __init__(self, clock: Clock, fabric: str, most_held: int) -> None:
        world: Any = RealTime(clock)
        self._most_held = most_held
        self._world, self._transfers = world, Transfers(world, fabric_of(fabric))
        self._kept: dict[tuple[Any, Any], tuple[Live, int]] = {}  # by engine id and request id
        self._keeps: set[tuple[Live, int]] = set()
        # By reader; None for blocks that were lost.
        self._sources: dict[tuple[Live, int], tuple[Live, int] | None] = {}
        self._loads: dict[tuple[Live, int], tuple[tuple[Live, int], int]] = {}  # and transfer

    def check(self, live: Live, params: Mapping[str, Any], num_samples: int) -> None:
        """Refuse a request if the replica cannot hand over or read its KV.

        Parameters
        ----------
        live : the replica
        params : ``kv_transfer_params`` of a request
        num_samples : samples of all its prompts

        Raises
        ------
        Refused
            The message names the parameter.
        """
        key = params.get("remote_engine_id"), params.get("remote_request_id")
        wrong = "do_remote_prefill" if live.role == "prefill" else "do_remote_decode"
        held = [one for one, _ in (*self._keeps, *self._sources) if one is live]
        if num_samples > 1:
            raise Refused("kv_transfer_params: needs one prompt and n=1")
        if params.get(wrong):
            raise Refused(f"kv_transfer_params: {wrong}: this is a {live.role} replica")
        named = [params.get(name) for name in ("remote_engine_id", "remote_request_id")]
        if params.get("do_remote_prefill") and not all(isinstance(one, str) for one in named):
            raise Refused(
                "kv_transfer_params: remote_engine_id and remote_request_id must be texts, those "
                "of the prefill replica's answer"
            )
        if params.get("do_remote_prefill") and key not in self._kept:
            raise Refused(
                f"kv_transfer_params: engine {key[0]} holds no blocks of request {key[1]}"
            )
        if len(held) >= self._most_held:
            raise Refused(
                f"{self._most_held} requests hold blocks for transfers, the --hold-limit; try "
                "again later",
                503,
            )

    def record_added(
        self, live: Live, request: int, params: Mapping[str, Any], num_tokens: int
    ) -> None:
        """Record that another replica will read a new request's KV, or provides it. Mutates.

        Parameters
        ----------
        live : the replica
        request : its number there
        params : ``kv_transfer_params``, as checked
        num_tokens : tokens of the prompt
        """
        if params.get("do_remote_decode"):
            self._keeps.add((live, request))
            live.promise("keep", request)
        elif params.get("do_remote_prefill"):
            key = params["remote_engine_id"], params["remote_request_id"]
            self._sources[live, request] = self._kept.pop(key)
            live.promise("offer", request, num_tokens=num_tokens)

    def ended(self, live: Live, request: int, name: str, num_tokens: int) -> dict[str, Any] | None:
        """Return the answer's kv_transfer_params if an ended request holds blocks. Mutates.

        Parameters
        ----------
        live : the replica
        request : its number there
        name : the request's id, as its client knows it
        num_tokens : tokens of the prompt
        """
        if (live, request) not in self._keeps:
            self._free_unloaded(live, request)
            return None
        blocks = live.remote.pinned_blocks(request)
        if not any(blocks):  # it was aborted
            self._keeps.discard((live, request))
            return None
        key = live.place["remote_engine_id"], name
        earlier = self._kept.pop(key, None)
        if earlier is not None:
            self._release(earlier)
        self._kept[key] = live, request
        self._world.call_at(self._world.now + LEASE, lambda: self._end_lease(key, live, request))
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": blocks,
            **live.place,
            "remote_request_id": name,
            "remote_num_tokens": num_tokens,
        }

    def start_loads(self, live: Live) -> None:
        """Start the transfers for which a replica has allocated blocks. Mutates."""
        for request, num_tokens, time in live.remote.pop_started_loads():
            source = self._sources.pop((live, request))
            live.metrics.record_external(request, num_tokens)
            if not num_tokens:  # all of it is cached there
                self._release(source)
            elif source is None:
                live.act("lose", request=request)
            else:
                self._begin(source, (live, request), num_tokens, time)

    def _begin(
        self, source: tuple[Live, int], reader: tuple[Live, int], num_tokens: int, time: float
    ) -> None:
        live, request = reader

        def end() -> None:
            del self._loads[reader]
            live.act("receive", request=request)
            self._release(source)

        size, pieces = live.remote.transfer_size(num_tokens)
        number = self._transfers.begin(source[0], live, size, pieces, time, end)
        self._loads[reader] = source, number

    def _release(self, source: tuple[Live, int] | None) -> None:
        """Let a prefill replica free the blocks that were read, if it has them. Mutates."""
        if source is None or source not in self._keeps:
            return
        live, request = source
        self._keeps.discard(source)
        live.act("release", request=request)

    def lose(self, live: Live) -> None:
        """Forget the KV of a failed replica, and cancel the transfers from and to it. Mutates.

        The requests that load its KV fail. The blocks that it has not read are free after vLLM's
        lease.
        """
        self._keeps = {one for one in self._keeps if one[0] is not live}
        self._kept = {key: one for key, one in self._kept.items() if one[0] is not live}
        for reader, at in list(self._sources.items()):
            if reader[0] is live:
                del self._sources[reader]
                self._begin_lease(at)
            elif at is not None and at[0] is live:
                self._sources[reader] = None
        for reader, (source, number) in list(self._loads.items()):
            if live not in (reader[0], source[0]):
                continue
            del self._loads[reader]
            self._transfers.cancel(number)
            if reader[0] is live:
                self._begin_lease(source)
            else:
                reader[0].act("lose", request=reader[1])

    def _begin_lease(self, source: tuple[Live, int] | None) -> None:
        self._world.call_at(self._world.now + LEASE, partial(self._release, source))

    def _end_lease(self, key: tuple[Any, Any], live: Live, request: int) -> None:
        """Free blocks that no decode replica has read; later readers are refused. Mutates."""
        if self._kept.get(key) == (live, request):
            self._release(self._kept.pop(key))
            live.metrics.record_expired()

    def _free_unloaded(self, live: Live, request: int) -> None:
        """Free the blocks that a request would have read, if it ended before its load. Mutates."""
        self._release(self._sources.pop((live, request), None))
