"""KV cache events of recorded cases, in the form of the log.

``ev`` are the events of one update: ``["S", hashes, parent, tokens, null, block_size, group,
medium, LoRA name, extra keys, kind, window]`` for stored blocks, ``["R", [hash], group, medium]``
for a removed block, ``["AllBlocksCleared"]`` for a reset. Hashes are numbered as they first appear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cases.group import Group
from kvsim.cases.player import Feature
from kvsim.records.events import CLEARED, STORED, UPDATE
from kvsim.results.kv_events import GPU

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.cases.case import CaseConfig, CaseRequest
    from kvsim.cases.player import Entry
    from kvsim.engine.replica import Replica

#: Index of the checksum of the tokens, which a case does not contain.
TOKENS = 4


def without_tokens(events: list[list[Any]]) -> list[list[Any]]:
    """Return recorded events without the fields that depend on token ids."""
    return [
        [*event[:TOKENS], None, *event[TOKENS + 1 :]] if event[0] == "S" else event
        for event in events
    ]


class EventNames:
    """Adapter names, extra keys and kinds of KV-cache groups, as a case's events have them.

    Parameters
    ----------
    config : configuration with the groups
    requests : the requests, by row
    """

    def __init__(self, config: CaseConfig, requests: Sequence[CaseRequest]) -> None:
        groups = config.groups or [Group(type="full", block_size=config.block_size)]
        self.kinds = [(group.spec.event_names[0], group.window) for group in groups]
        self.requests = requests

    def lora(self, row: int) -> str | None:
        """Return the name of a request's adapter."""
        lora = self.requests[row].lora
        return None if lora is None else f"lora{lora}"

    def extra_keys(self, row: int, first: int, stop: int) -> list[Any] | None:
        """Return the extra keys of a block's hash, in addition to its tokens."""
        request, lora = self.requests[row], self.lora(row)
        keys: list[Any] = [] if lora is None else [lora]
        keys += [
            [item.hash, item.offset - first]
            for item in request.mm
            if item.offset < stop and item.offset + item.length > first
        ]
        if request.cache_salt and first == 0:
            keys.append(request.cache_salt)
        return keys or None


class EventLog(Feature):
    """Adds published KV cache events to the entries of steps."""

    def __init__(self, replica: Replica, names: EventNames) -> None:
        self._replica = replica
        self._names = names
        self._numbers: dict[int, int] = {}
        self._waiting: list[list[Any]] = []  # for the next update

    def processed(self, entry: Entry) -> None:
        """Add the events published since the last step. Mutates the entry."""
        published: list[list[Any]] = []
        for rows in self._replica.take_events():
            for event in rows.events:
                if event["kind"] == UPDATE:
                    published += self._waiting
                    self._waiting = []
                    continue
                first = event["first_key"]
                span = slice(first, first + event["key_count"])
                if event["kind"] == CLEARED:
                    self._waiting.append(["AllBlocksCleared"])
                elif event["kind"] == STORED:
                    self._waiting.append(self._stored(event, rows.keys[span], rows.places[span]))
                else:
                    for key in rows.keys[span].tolist():
                        self._waiting.append(["R", [self._number(key)], int(event["group"]), GPU])
        if published:
            entry["ev"] = published

    def _stored(self, event: Any, keys: Any, places: Any) -> list[Any]:
        row, size, group = (int(event[name]) for name in ("row", "block_size", "group"))
        hashes = [self._number(key) for key in keys.tolist()]
        parent = self._number(int(event["key"])) if event["has_parent"] else None
        extra = [
            self._names.extra_keys(row, place * size, (place + 1) * size)
            for place in places.tolist()
        ]
        num_tokens = int(event["stop"] - event["first"])
        lora, kind = self._names.lora(row), self._names.kinds[group]
        return [
            *("S", hashes, parent, num_tokens, None, size, group, GPU, lora, extra or None, *kind)
        ]

    def _number(self, key: int) -> int:
        return self._numbers.setdefault(key, len(self._numbers))
