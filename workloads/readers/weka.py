"""Coding sessions of Claude Code, one a line (github.com/callanjfox/kv-cache-tester)."""

from __future__ import annotations

import math
from itertools import compress
from typing import Any

import numpy as np

from workloads.draft import Draft
from workloads.readers.formats import reader, without_failed
from workloads.readers.mooncake import HASH_IDS, hash_ids
from workloads.readers.table import Table
from workloads.readers.weka_waits import Session, Turn, in_one_list, session_ids, without_rows

_KEYS = ("t", "in", "out", "hash_ids")
BLOCK_RUNS = f"{HASH_IDS}, or of runs [first, count]"


@reader("weka", ["block_size", "requests"], ["id"])
def read_weka(
    table: Table, *, session_interval: float = 0.0, drop_failed: bool = True, waits: bool = True
) -> Draft:
    """Read all sessions as one trace, in order of arrival.

    Hash ids belong to a session; ``hash_runs`` are runs of them, [first, count]. Id h stands for
    tokens ``h * block_size`` on of the session's one content, so that runs of ids are single
    segments; the tokens after the last full block are unique. A sub-agent is a session of its own
    that shares these ids. Its ``t`` is when it ended: its requests start ``duration_ms`` earlier,
    or at ``t`` where a sub-agent has none. A turn waits for the answer before and for sub-agents
    that ended before it, then for its ``think_time``. Outputs have no ids, so a prompt that
    repeats an earlier output does so under ids of its own.

    Parameters
    ----------
    table : of the keys block_size and requests (each with t in seconds, in, out, hash_ids)
    session_interval : seconds from the start of one session to that of the next
    drop_failed : leave out requests with 0 output tokens, which were broken off
        How many were left out is in ``read(...).notes``. False refuses the first.
    waits : requests wait for others; False leaves the recorded times
    """
    if not 0 <= session_interval < math.inf:
        raise ValueError(f"session_interval must be finite and at least 0, got {session_interval}")
    block_sizes = table.ints("block_size", least=1)
    sessions = table.convert("requests", _session, "a list of objects")
    turns = [turn for session in sessions for turn in session.turns]
    if not turns:
        raise table.error(0, "requests is empty, as in every session")
    lines = [line for line, session in enumerate(sessions) for _ in session.turns]
    records = [_record(turn) for turn in turns]
    places = [table.places[line] for line in lines]
    flat = Table.of_records(table.path, records, _KEYS, places, table.unit)
    is_kept = [not (drop_failed and is_zero) for is_zero in flat.zeros("out")]
    flat, notes = without_failed(flat, "out", drop_failed)
    lines = list(compress(lines, is_kept))
    turns = without_rows(in_one_list(sessions), is_kept)
    lengths, runs = flat.tokens("in"), flat.convert("hash_ids", _runs, BLOCK_RUNS)
    segments = []
    for row, session in enumerate(lines):
        size, num_ids = block_sizes[session], sum(count for _, count in runs[row])
        unhashed = lengths[row] - num_ids * size
        if not -size < unhashed < size:
            raise flat.error(
                row,
                f"hash_ids has {num_ids} entries, must have one per {size} tokens "
                f"of in {lengths[row]}",
            )
        pieces = [(session, first * size, count * size) for first, count in runs[row]]
        if unhashed < 0:
            content, start, length = pieces[-1]
            pieces[-1] = (content, start, length + unhashed)
        segments.append(pieces + [(len(sessions) + row, 0, unhashed)] * (unhashed > 0))
    flat.floats("t")  # refuses what is no time
    times = [turn.t + line * session_interval for turn, line in zip(turns, lines, strict=True)]
    return Draft(
        lengths,
        flat.tokens("out"),
        arrival_time=times,
        segments=segments,
        session_id=session_ids(turns, lines),
        places=flat.places,
        notes=notes,
        ends_by="eos",
        after=[turn.after for turn in turns] if waits else None,
        think_time=[turn.think_time for turn in turns] if waits else None,
    ).in_order_of_arrival()


def _session(cell: Any) -> Session:
    """Return the requests of a session, including those of its sub-agents."""
    session = Session()
    session.add(cell, 0.0, [])
    return session


def _record(turn: Turn) -> dict[str, Any]:
    """Return the cells of a request, with its time in the session."""
    record = {key: turn.entry.get(key) for key in _KEYS}
    if record["hash_ids"] is None:
        record["hash_ids"] = turn.entry.get("hash_runs")
    return {**record, "t": turn.t}


def _runs(cell: Any) -> list[tuple[int, int]]:
    """Return the first id and the length of each run of ids."""
    if type(cell) is list and cell and type(cell[0]) is list:
        runs = [(first, count) for first, count in cell]
        hash_ids([number for run in runs for number in (*run, run[1] - 1)])  # counts are not 0
        return runs
    blocks = np.array(hash_ids(cell), dtype=np.int64)
    first = np.flatnonzero(np.diff(blocks, prepend=-2) != 1)
    counts = np.diff(first, append=len(blocks))
    return list(zip(blocks[first].tolist(), counts.tolist(), strict=True))
