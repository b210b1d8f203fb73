"""Encoder inputs of recorded cases: as they are given, and as they are logged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.records.encoder import Item

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvsim.cases.case import CaseRequest
    from kvsim.cases.log import Entry
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def contents_of(requests: Sequence[CaseRequest]) -> dict[str, int]:
    """Number the contents of all items in the order in which they are given."""
    contents: dict[str, int] = {}
    for request in requests:
        for item in request.mm:
            contents.setdefault(item.hash, len(contents))
    return contents


def items_of(requests: Sequence[CaseRequest]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the items of all requests, and where each request's begin."""
    contents = contents_of(requests)
    given = [item for request in requests for item in request.mm]
    rows = np.zeros(len(given), dtype=Item.dtype())
    rows["content"] = [contents[item.hash] for item in given]
    rows["offset"] = [item.offset for item in given]
    rows["num_tokens"] = [item.length for item in given]
    return rows, np.cumsum([0, *(len(request.mm) for request in requests)])


class EncoderLog:
    """Writes what the encoder does into a step's entry.

    ``enc`` items newly encoded, by request and by their place in it; ``encf`` contents evicted
    since the last step; ``ecf`` free tokens of the cache after scheduling; ``ecf2`` / ``ecb2`` free
    and reclaimable ones after the step's output.

    Parameters
    ----------
    hashes : of the contents, by number
    """

    def __init__(self, state: Replica, hashes: Sequence[str]) -> None:
        self._state = state
        self._hashes = hashes

    def scheduled(self, entry: Entry, name: Callable[[Request], str | int]) -> None:
        """Add what the step encodes and has evicted. Mutates the entry."""
        state, encoder = self._state, self._state.encoder
        encoded: dict[str | int, list[int]] = {}
        for n in range(encoder.num_encoded):
            request = state.requests[encoder.owners[n]]
            first = state.trace.item_offsets[request.request_id]
            encoded.setdefault(name(request), []).append(encoder.encoded[n] - first)
        if encoded:
            entry["enc"] = encoded
        if encoder.num_evicted:
            entry["encf"] = [self._hashes[encoder.evicted[n]] for n in range(encoder.num_evicted)]
        entry["ecf"] = encoder.num_free_tokens

    def processed(self, entry: Entry) -> None:
        """Add what is free afterwards. Mutates the entry."""
        entry["ecf2"] = self._state.encoder.num_free_tokens
        entry["ecb2"] = self._state.encoder.num_reclaimable_tokens
