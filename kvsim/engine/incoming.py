"""A request on its way to a replica, as a router sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.engine.contents import Contents
from kvsim.kv.block_hash import block_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.records.request import Request
    from kvsim.trace import Trace


class IncomingRequest:
    """One row of a trace, read-only. The length of its output is not known yet.

    Parameters
    ----------
    trace : the requests
    request_id : row of the trace
    arrival_time : time at which the request was sent, seconds
    """

    __slots__ = ("_keys", "_request", "_trace", "arrival_time", "request_id")

    def __init__(self, trace: Trace, request_id: int, arrival_time: float) -> None:
        self.request_id = request_id
        self.arrival_time = arrival_time
        self._trace = trace
        self._request: Request | None = None
        self._keys: dict[tuple[int, int], Sequence[int]] = {}

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return int(self._trace.num_prompt_tokens[self.request_id])

    @property
    def session_id(self) -> int:
        """The request's conversation; -1 for none."""
        return int(self._trace.session_id[self.request_id])

    @property
    def priority(self) -> int:
        """The request's priority; lower values are served first."""
        return int(self._trace.priority[self.request_id])

    def prefix_keys(self, block_size: int, lookahead: int = 0) -> Sequence[int]:
        """Return the keys of the prompt's full blocks; equal prefixes have equal keys.

        Each key also covers ``lookahead`` tokens after its block.
        """
        if (block_size, lookahead) not in self._keys:
            number = max(self.num_prompt_tokens - lookahead, 0) // block_size
            keys = block_keys(self.as_request(), number, block_size, lookahead)
            self._keys[block_size, lookahead] = keys
        return self._keys[block_size, lookahead]

    def prefix_path(self, block_size: int, lookahead: int = 0) -> NDArray[np.int64]:
        """Return the keys of :meth:`prefix_keys` as an array."""
        return np.array(self.prefix_keys(block_size, lookahead), np.int64)

    def as_request(self) -> Request:
        """Return the request as a record in the state of a waiting request."""
        if self._request is None:
            self._request = Contents.of(self._trace).request(
                self.request_id, self.arrival_time, self.num_prompt_tokens + 1
            )
        return self._request
