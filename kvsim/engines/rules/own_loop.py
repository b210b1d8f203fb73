"""The rules of engines with their own loop, in place of those of the general loop.

Each branches on the scheduler. ``limits.has_own_loop`` is set for replicas of such engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.policies import SGLANG
from kvsim.engines.sglang.rules.abort import abort_sglang
from kvsim.engines.sglang.rules.arrival import add_sglang
from kvsim.engines.sglang.rules.direct import operate
from kvsim.engines.sglang.rules.loop import loop_has_work, pass_sglang, update_from_sglang_output

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def add_to_engine(state: Replica, k: int) -> None:
    """Queue a new arrival."""
    if state.limits.scheduler == SGLANG:
        add_sglang(state, k)


def schedule_engine(state: Replica) -> bool:
    """Schedule and start a step; return False if the scheduler is stuck or dies."""
    if state.limits.scheduler == SGLANG:
        return pass_sglang(state)
    return False


def complete_engine(state: Replica, batch: Batch) -> None:
    """Process the output of a step."""
    if state.limits.scheduler == SGLANG:
        update_from_sglang_output(state, batch)


def engine_has_work(state: Replica) -> bool:
    """Return True if any request is unfinished."""
    if state.limits.scheduler == SGLANG:
        return loop_has_work(state)
    return False


def is_deaf(state: Replica) -> bool:
    """Return True if a replica that has work does not receive requests before the next step."""
    return state.limits.scheduler == SGLANG and state.engines.sglang.is_deaf


def abort_in_engine(state: Replica, row: int) -> bool:
    """Abort a request; False if it is not on this replica."""
    if state.limits.scheduler == SGLANG:
        return abort_sglang(state, row)
    return False


def engine_died(state: Replica) -> bool:
    return state.engines.sglang.is_dead


def operate_engine(state: Replica, command: int, argument: int) -> int:
    """Execute an operation on the prefix cache alone, see :class:`kvsim.records.engine.Operation`.

    Return the number that the operation counts.
    """
    return operate(state, command, argument)
