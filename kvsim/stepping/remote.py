"""An engine that sends the KV of prompts, or receives it, as with vLLM's NIXL connector."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.fleet.disaggregation.connectors import connected
from kvsim.fleet.disaggregation.transfer_size import num_descriptors, transfer_bytes
from kvsim.stepping.engine import Engine
from kvsim.stepping.growing import FIRST_ROOM
from kvsim.stepping.looks import block_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.config import Config
    from kvsim.engine.setup import Setup
    from kvsim.pool_config import Role


class RemoteEngine(Engine):
    """An engine of a prefill or a decode pool; its caller moves the KV.

    Parameters
    ----------
    role : ``prefill`` or ``decode``
    most_held : requests that may hold blocks without running
    """

    def __init__(self, role: Role, most_held: int = FIRST_ROOM, **options: Any) -> None:
        self._role: Role = role
        self._room = max(most_held, FIRST_ROOM)
        super().__init__(**options)

    def _resolve(self, config: Config) -> Setup:
        return connected(super()._resolve(config), self._role)

    def keep(self, request: int) -> None:
        """Pin the blocks of a request just added, from its end until they are read. Mutates."""
        self._replica.keep(self._first_row[request], keeps=True)

    def offer(self, request: int, num_tokens: int) -> None:
        """Offer the KV of its first ``num_tokens`` tokens to a request just added. Mutates."""
        self._replica.offer(self._first_row[request], num_tokens)

    def pop_started_loads(self) -> list[tuple[int, int, float]]:
        """Return the loads started since the last call: request, missing tokens, time. Mutates."""
        found = self._replica.pop_started_loads()
        return [(self._request_of[row], tokens, time) for row, tokens, time in found]

    def receive(self, request: int) -> None:
        """Report that the KV of a request has arrived now. Mutates."""
        self._replica.report(self.now, received=self._first_row[request])

    def lose(self, request: int) -> None:
        """Report that the KV of a request will not arrive, which ends the request. Mutates."""
        self._replica.report(self.now, received=self._first_row[request], failed=True)

    def halt(self) -> None:
        """Free the blocks held for transfers, and end the steps that have begun. Mutates.

        All requests must have ended.
        """
        for row in range(len(self._rows)):
            self._replica.drop_pinned(row, self.now)
        self.run_until(math.inf)

    def release(self, request: int) -> None:
        """Free the blocks of an ended request after another engine has read them. Mutates."""
        self._replica.report(self.now, sent=self._first_row[request])

    def pinned_blocks(self, request: int) -> list[list[int]]:
        """Return the pinned blocks of an ended request, in one list per KV-cache group."""
        connector, row = self._replica.state.connector, self._first_row[request]
        return block_table(self._replica, connector.place[row]) if connector.is_pinned[row] else []

    def transfer_size(self, num_tokens: int) -> tuple[int, int]:
        """Return the bytes of the KV of ``num_tokens`` tokens, and its number of descriptors."""
        return transfer_bytes(self._setup, num_tokens), num_descriptors(self._setup, num_tokens)


def make_engine(role: Role, most_held: int, options: Mapping[str, Any]) -> Engine:
    """Return the engine of a replica with a role; ``most_held`` is for prefill and decode."""
    return Engine(**options) if role == "mixed" else RemoteEngine(role, most_held, **options)
