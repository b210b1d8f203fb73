"""The result of a stepped engine up to now, assembled as for a run over its trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.fleet.gateways import Gateways
from kvsim.fleet.member import Member
from kvsim.fleet.pool import Pool
from kvsim.fleet.result_assembly import close, collect
from kvsim.fleet.simulate import with_block_events
from kvsim.results.tables import FinishReason
from kvsim.trace.family import family_of

if TYPE_CHECKING:
    from kvsim.engine.history.block_recorder import BlockRecorder
    from kvsim.engine.replica import Replica
    from kvsim.engine.setup import Setup
    from kvsim.fleet.plan import Plan
    from kvsim.results.result import Result
    from kvsim.stepping.growing import GrowingContents
    from kvsim.trace import Trace


@dataclass(frozen=True)
class Run:
    """A run of one replica: its plan, its parts, and its requests by row."""

    plan: Plan
    setup: Setup
    replica: Replica
    rows: GrowingContents
    reason: str


def result_of(run: Run, trace: Trace, recorder: BlockRecorder | None) -> Result:
    """Return the result of a run up to now; requests that have not ended are in flight."""
    family = family_of(trace) if (trace.num_samples > 1).any() else None
    rows = trace if family is None else family.children
    table = run.rows.table[: len(run.rows)]
    start = float(trace.arrival_time[0])
    member = Member(0, 0, "mixed", run.replica, table, lambda _row, _now: None, start, start)
    member.is_first = True
    asked, routers = run.plan.main.asked, run.plan.main.routers
    pool = Pool(asked.name, asked.role, run.setup, rows, run.rows, table, [member], [member])
    pool.gateways = Gateways(
        routers, run.setup, rows, table, [run.replica], start, name=run.plan.main.router_name
    )
    end_time, totals = close([pool], -math.inf)
    pool.table = settled(run, end_time)
    none = np.zeros(len(rows), np.bool_)
    result = collect(run.plan, rows, [pool], end_time, totals, run.reason, none, {}, family)
    return result if recorder is None else with_block_events(result, recorder, trace)


def settled(run: Run, end_time: float) -> np.ndarray:
    """Return the requests table up to a time; requests that arrive later are unsent in it."""
    table = run.rows.table[: len(run.rows)].copy()
    arrives = table["arrival_time"] > end_time
    table["finish_reason"][arrives & (table["finish_reason"] == FinishReason.IN_FLIGHT)] = (
        FinishReason.UNSENT
    )
    return table
