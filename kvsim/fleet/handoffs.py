"""The requests of a fleet that are between two replicas, and the KV that goes from one to another.

docs/howto/disaggregation.md tells the terms of a TTFT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.fleet.handoff import Handoff
from kvsim.fleet.pool import num_descriptors, transfer_bytes
from kvsim.fleet.transfers import Transfers
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvsim.fleet.drive import Drive
    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.handoff import Protocol
    from kvsim.fleet.member import Member
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import World


class Handoffs:
    """Brings requests from where their prompts are computed to where they go on.

    Parameters
    ----------
    world : SimPy's
    drive : advances the replicas
    main, prefill : where requests go on, and where prompts are computed
    fabric : what KV is moved over
    protocol : who moves it, and when
    proxy_latency : of the proxy, from a prompt's end to its request at the decode replica, seconds
    submit : gives a request to a replica at a time
    transfer_time : where the seconds of each transfer are written, by row

    Attributes
    ----------
    prefill_place : number of the replica that computed each prompt apart, -1 for none
    """

    def __init__(
        self,
        world: World,
        drive: Drive,
        main: Pool,
        prefill: Pool,
        *,
        fabric: Fabric,
        protocol: Protocol,
        proxy_latency: float,
        submit: Callable[[Member, int, float], object],
        transfer_time: NDArray[np.float64],
    ) -> None:
        self._world, self._drive = world, drive
        self._main, self._prefill = main, prefill
        self._protocol = protocol
        self._proxy_latency = proxy_latency
        self._submit = submit
        self._transfers = Transfers(world, fabric)
        self._open: dict[int, Handoff] = {}
        self._transfer_time = transfer_time
        self.prefill_place = np.full(len(transfer_time), -1, dtype=np.int32)

    def __len__(self) -> int:
        """Requests between two replicas."""
        return len(self._open)

    @property
    def transfer_bytes(self) -> int:
        """Bytes of KV that went from one replica to another."""
        return self._transfers.num_bytes

    def begin(self, row: int, source: Member, target: Member, now: float) -> None:
        """Let one replica compute a prompt, and another one go on. Mutates."""
        self._open[row] = Handoff(row, source, target)
        self.prefill_place[row] = source.number
        source.replica.keep(row)
        target.replica.offer(row, int(self._main.trace.num_prompt_tokens[row]))
        self._submit(source, row, now)
        if self._protocol == "push":
            self._submit(target, row, now)

    def asked(self, row: int, num_tokens: int, time: float) -> None:
        """Learn that the target has blocks for the tokens it lacks, or does without. Mutates."""
        handoff = self._open[row]
        handoff.num_tokens, handoff.asked_time = num_tokens, time
        self._start_if_ready(handoff, time)

    def prompt_ended(self, row: int, time: float) -> None:
        """Learn that the source has ended its part. Mutates."""
        handoff = self._open[row]
        if self._prefill.table["finish_reason"][row] != FinishReason.FINISHED:
            raise RuntimeError(f"request {row}: its prompt cannot be computed, and was sent")
        handoff.is_computed = True
        if self._protocol == "push":
            self._start_if_ready(handoff, time)
        else:
            arrival = time + self._proxy_latency
            self._world.call_at(arrival, lambda: self._submit(handoff.target, row, arrival))

    def _start_if_ready(self, handoff: Handoff, time: float) -> None:
        if not (handoff.is_computed and handoff.has_asked):
            return
        if handoff.num_tokens == 0:  # all is there, or is computed there: only the notice goes
            self._world.call_at(time, lambda: self._release(handoff))
            return
        setup, tokens = self._main.setup, handoff.num_tokens
        handoff.start_time = time
        self._transfers.begin(
            handoff.source.number,
            handoff.target.number,
            transfer_bytes(setup, tokens),
            num_descriptors(setup, tokens),
            time,
            lambda: self._see_end(handoff),
        )

    def _see_end(self, handoff: Handoff) -> None:
        """Learn that the KV of a request is where it goes on."""
        now = self._world.now
        handoff.end_time = now
        self._transfer_time[handoff.row] = now - handoff.start_time
        handoff.target.replica.report(now, received=handoff.row)
        self._drive.touch(handoff.target)
        self._release(handoff)

    def _release(self, handoff: Handoff) -> None:
        """Let the source free what was read."""
        handoff.source.replica.report(self._world.now, sent=handoff.row)
        self._drive.touch(handoff.source)
        del self._open[handoff.row]
