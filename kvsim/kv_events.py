"""Destination of a run's KV cache events: vLLM's KVEventsConfig."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import unknown_name
from kvsim.json_object import read_object

#: Keys of vLLM's object that configure the transport of a server's events.
WITHOUT_EFFECT = frozenset(
    ("endpoint", "replay_endpoint", "buffer_steps", "hwm", "max_queue_size", "topic")
)
PUBLISHERS = ("null", "zmq")
#: Formats of a file, by the end of its name.
SUFFIXES = (".jsonl", ".msgpack")


@dataclass(frozen=True)
class KVEventsConfig:
    """Publication of KV cache events; names are vLLM's, except the last two.

    Parameters
    ----------
    enable_kv_cache_events : publish events
    publisher : ``zmq``, or ``null`` to drop them; by default ``zmq`` if events are enabled
    path : output file of the events that a server would send, ``.jsonl`` or ``.msgpack``
    token_ids : write token ids of stored blocks, which kvsim derives from their contents
    """

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    path: str | None = None
    token_ids: bool = False

    @classmethod
    def of(cls, given: object) -> KVEventsConfig:
        """Read vLLM's JSON object, as text or as a dict.

        Raises
        ------
        ValueError
            If the object is malformed, or has unknown keys or wrong values.
        """
        if isinstance(given, KVEventsConfig):
            return given
        example = '{"enable_kv_cache_events": true, ...}'
        what = "setting of KV cache events"
        config = cls(**read_object(given, cls, what, example, WITHOUT_EFFECT))
        config.check()
        return config

    def check(self) -> None:
        """Raise ValueError for the first wrong value, with its key and what is allowed."""
        for key in ("enable_kv_cache_events", "token_ids"):
            if not isinstance(getattr(self, key), bool):
                raise ValueError(f"{key} is {getattr(self, key)!r}: must be true or false")
        if self.publisher is not None and self.publisher not in PUBLISHERS:
            raise unknown_name("publisher", str(self.publisher), PUBLISHERS)
        if self.path is not None:
            path: Any = self.path
            if not isinstance(path, str) or Path(path).suffix not in SUFFIXES:
                raise ValueError(f"path is {path!r}: must end with {' or '.join(SUFFIXES)}")

    @property
    def writes(self) -> bool:
        """Return True if events are written to a file."""
        sends = self.enable_kv_cache_events and self.publisher != "null"
        return sends and self.path is not None
