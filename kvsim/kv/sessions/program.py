"""Continuum: the blocks of a program are protected while a short tool runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.sessions.ttl import SessionTtl
from kvsim.trace.turns import holds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvsim.trace.turns import Turns


@EVICTION_POLICIES.register("session-program")
class SessionProgram(SessionTtl):
    """As ``session-ttl``, but protects only sessions with a mean pause of at most ``ttl`` so far.

    This is the rule of Continuum's released code (arXiv 2511.02230), where ``ttl`` is 2 s, with two
    differences. The mean is over the pauses of the session instead of a tool, as a trace does not
    name tools. And a request does not wait for memory if protected blocks can be evicted for it.
    """

    ttl: float = 2.0

    def kept(self, turns: Turns) -> NDArray[np.float64]:
        return holds(turns, self.ttl).astype(float)
