"""Other replicas as a store: a prefix is read from the replica that holds most of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.kv_store.store import STORES, Portion, Store
from kvsim.fleet.parameters import Delay  # noqa: TC001 - checked when one is made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.prefix_index.event_reader import EventReader


@STORES.register("peer")
class Peer(Store):
    """The prefix caches of the fleet's own replicas, as their events report them.

    If a block of a prefix has been evicted before its transfer starts, the replica computes the
    prefix. Blocks that are evicted during a transfer still arrive.

    Source: llm-d's peer-to-peer sharing (llm-d/llm-d.github.io at 9a8058f7, blog of 2026-08-15).

    Parameters
    ----------
    delay : seconds until a new block can be found by other replicas
    """

    reads_replicas = True

    def __init__(self, *, delay: Delay = 0.0) -> None:
        self.event_delay = delay

    def start(self, reader: EventReader, entry_bytes: float) -> None:
        del entry_bytes
        self._reader = reader

    def look_up(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        held = self._reader.index.match(keys, now)
        held[replica] = 0
        best = max(range(len(held)), key=held.__getitem__)
        return [Portion("peer", best, held[best])] if held[best] else []
