"""Ends the run of a replica that steps without progress."""

from __future__ import annotations

from typing import Any

from kvsim.errors import UnfinishedError, shown_numbers
from kvsim.records import engine as records
from kvsim.records.memory import column
from kvsim.records.request import FINISHED

#: Consecutive checks without progress, one per call of the rules, after which a run is refused.
MOST_LOOKS = 5


class Watchdog:
    """Checks a replica's progress at intervals."""

    def __init__(self) -> None:
        self._far: tuple[int, ...] = ()
        self._num_looks = 0

    def refuse(self, outcome: int, state: Any, scheduler: str) -> None:
        """Refuse to continue after a call of the rules if no progress is possible.

        Raises
        ------
        RuntimeError
            If the scheduler is stuck or dead, or the replica makes no progress.
        """
        if outcome == records.DIED:
            raise RuntimeError(
                f"scheduler {scheduler} runs out of memory at {state.clock} s, and dies: decodes "
                "mixed into a long prompt took the slots of its next chunk"
            )
        if outcome == records.STUCK:
            raise RuntimeError(
                f"invariant 7: {scheduler} has {state.num_running} running and "
                f"{state.waiting.length} waiting requests at {state.clock} s but schedules "
                "none of them"
            )
        if outcome == records.PAUSED:
            self._look(state)

    def _look(self, state: Any) -> None:
        """Check the progress since the last call.

        Raises
        ------
        UnfinishedError
            If since ``MOST_LOOKS`` calls no request arrived, got a token, ended or was computed.
        """
        names = "request_id", "status", "max_computed_tokens", "num_computed_tokens"
        columns = [column(state.requests, name, state.num_requests) for name in names]
        live = [row for row in zip(*columns, strict=True) if row[1] != FINISHED]
        computed = sum(max(row[2:]) for row in live)
        far = (state.num_generated_tokens, state.num_outstanding, state.trace.next, computed)
        self._num_looks = self._num_looks + 1 if far == self._far else 0
        self._far = far
        if self._num_looks >= MOST_LOOKS:
            rows = shown_numbers([row[0] for row in live])
            raise UnfinishedError(
                "a replica recomputes the same tokens again and again at "
                f"{state.clock:g} s: requests {rows} make no progress"
            )
