"""Operations of a case on the whole engine: pauses, and resets of the prefix cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.cases.player import Feature
from kvsim.records.connector import FAKE
from kvsim.records.engine import NO_PAUSE
from kvsim.rules.vllm.pausing import rests

if TYPE_CHECKING:
    from kvsim.cases.case import CaseConfig
    from kvsim.cases.player import Entry
    from kvsim.engine import replica
    from kvsim.engine.contents import Contents
    from kvsim.records.engine import Replica


class Upkeep(Feature):
    """Pauses and resets a replica at the steps that a case specifies.

    Parameters
    ----------
    replica : replica to which no request has arrived yet
    config : configuration with the pauses and resets
    """

    def __init__(self, replica: replica.Replica, config: CaseConfig) -> None:
        self._replica = replica
        self._pauses, self._resets = dict(config.pauses), dict(config.resets)
        self._outcome: int | None = None
        replica.state.limits.has_pauses = bool(config.pauses)
        if drops_output(config):
            show_numbers(replica.state)

    def arrived(self, step: int) -> None:
        state = self._replica.state
        state.pause = self._pauses.get(step, state.pause)
        if step in self._resets:
            self._outcome = self._replica.reset_prefix_cache(with_running=self._resets[step])

    def rests(self) -> bool:
        """Return True if a pause leaves a step nothing to do."""
        state = self._replica.state
        return state.pause != NO_PAUSE and rests(state) and state.num_batches == 0

    def next_step(self, step: int, arrival: int) -> int:
        """Return the next step of an idle engine: that of an arrival or of an operation."""
        return min(at for at in (arrival, *self._pauses, *self._resets) if at > step)

    def before(self, entry: Entry) -> None:
        """Add the outcome of the last reset. Mutates the entry."""
        if self._outcome is not None:
            entry["reset"] = self._outcome
        self._outcome = None


def drops_output(config: CaseConfig) -> bool:
    """Return True if sampled output may be dropped."""
    transfer = config.kv_transfer
    sends = transfer is not None and transfer.kind == FAKE and transfer.drops_stale
    return bool(config.resets) or sends


def number_tokens(contents: Contents) -> None:
    """Number output tokens as they are sampled; dropped tokens keep their numbers."""
    lists = contents.lists
    room = np.asarray(lists.get("asked_tokens", lists["max_tokens"])) + 1
    if "session" in lists:  # and the longest output of a turn
        room += lists["input_max_tokens"].max(initial=0)
    lists["number_offsets"] = np.cumsum([0, *room])
    lists["numbers"] = np.zeros(int(room.sum()), np.int64)
    for name in ("drops_stale", "next_number"):
        lists[name] = np.zeros(len(room), np.int64)


def show_numbers(state: Replica) -> None:
    """Let the rules that compute block keys read the numbers of output tokens."""
    state.limits.has_drops, trace = True, state.trace
    for h in range(state.kv.num_request_blocks):
        own_blocks = state.kv.request_blocks[h]
        own_blocks.has_numbers = True
        own_blocks.numbers, own_blocks.number_offsets = trace.numbers, trace.number_offsets
