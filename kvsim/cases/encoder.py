"""Encoder inputs of recorded cases, and their entries in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.cases.player import Feature, add
from kvsim.cases.rows import numbers, offsets
from kvsim.records.encoder import Item

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.cases.case import CaseRequest
    from kvsim.cases.player import Entry
    from kvsim.records.engine import Replica


def hashes_of(requests: Sequence[CaseRequest]) -> list[str]:
    """Return the different hashes of all items in the order of their first occurrence."""
    return list(dict.fromkeys(item.hash for request in requests for item in request.mm))


def items_of(requests: Sequence[CaseRequest]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the items of all requests, and the offset of each request's items."""
    given = [item for request in requests for item in request.mm]
    rows = np.zeros(len(given), dtype=Item.dtype())
    rows["content"] = [number - 1 for number in numbers(item.hash for item in given)]
    rows["offset"] = [item.offset for item in given]
    rows["num_tokens"] = [item.length for item in given]
    return rows, offsets(request.mm for request in requests)


class EncoderLog(Feature):
    """Writes the encoder's actions into a step's entry.

    ``enc``: indices of newly encoded items, by request; ``encf``: hashes evicted since the last
    step; ``ecf``: free tokens of the cache after scheduling; ``ecf2`` / ``ecb2``: free and
    reclaimable tokens after the step's output.

    Parameters
    ----------
    names : names of the requests, by row
    hashes : hashes of the contents, by number
    """

    def __init__(
        self, state: Replica, names: Mapping[int, str | int], hashes: Sequence[str] = ()
    ) -> None:
        self._state, self._names, self._hashes = state, names, hashes

    def scheduled(self, entry: Entry) -> None:
        state, encoder = self._state, self._state.encoder
        encoded: dict[str | int, list[int]] = {}
        for n in range(encoder.num_encoded):
            row = state.requests[encoder.owners[n]].request_id
            first = state.trace.item_offsets[row]
            encoded.setdefault(self._names[row], []).append(encoder.encoded[n] - first)
        evicted = [self._hashes[encoder.evicted[n]] for n in range(encoder.num_evicted)]
        add(entry, enc=encoded or None, encf=evicted or None, ecf=encoder.num_free_tokens)

    def processed(self, entry: Entry) -> None:
        encoder = self._state.encoder
        add(entry, ecf2=encoder.num_free_tokens, ecb2=encoder.num_reclaimable_tokens)
