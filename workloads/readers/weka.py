"""Coding sessions of Claude Code, one a line (github.com/callanjfox/kv-cache-tester)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from workloads.draft import Draft
from workloads.readers.formats import reader, without_failed
from workloads.readers.mooncake import HASH_IDS, hash_ids
from workloads.readers.table import Table

_KEYS = ("t", "in", "out", "hash_ids")
BLOCK_RUNS = f"{HASH_IDS}, or of runs [first, count]"


@reader("weka", ["block_size", "requests"], ["id"])
def read_weka(table: Table, *, session_interval: float = 0.0, drop_failed: bool = True) -> Draft:
    """Read all sessions as one trace, in order of arrival.

    Hash ids belong to a session; ``hash_runs`` are runs of them, [first, count]. Id h stands for
    tokens ``h * block_size`` on of the session's one content, so that runs of ids are single
    segments; the tokens after the last full block are unique. Sub-agents run inside their session
    and share its ids. Their ``t`` is when they ended: their requests start ``duration_ms`` earlier,
    or at ``t`` where a sub-agent has none. Outputs have no ids, so a prompt that repeats an earlier
    output does so under ids of its own.

    Parameters
    ----------
    table : of the keys block_size and requests (each with t in seconds, in, out, hash_ids)
    session_interval : seconds from the start of one session to that of the next
    drop_failed : leave out requests with 0 output tokens, which were broken off
        How many were left out is in ``read(...).notes``. False refuses the first.
    """
    if not 0 <= session_interval < math.inf:
        raise ValueError(f"session_interval must be finite and at least 0, got {session_interval}")
    block_sizes = table.ints("block_size", least=1)
    sessions = table.convert("requests", _requests, "a list of objects")
    records = [{**r, "session": s} for s, requests in enumerate(sessions) for r in requests]
    if not records:
        raise table.error(0, "requests is empty, as in every session")
    places = [table.places[record["session"]] for record in records]
    flat = Table.of_records(table.path, records, [*_KEYS, "session"], places, table.unit)
    flat, notes = without_failed(flat, "out", drop_failed)
    session_id = flat.ints("session")
    lengths, runs = flat.tokens("in"), flat.convert("hash_ids", _runs, BLOCK_RUNS)
    segments = []
    for row, session in enumerate(session_id):
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
    times = zip(flat.floats("t"), session_id, strict=True)
    return Draft(
        lengths,
        flat.tokens("out"),
        arrival_time=[t + s * session_interval for t, s in times],
        segments=segments,
        session_id=session_id,
        places=flat.places,
        notes=notes,
        ends_by="eos",
    ).in_order_of_arrival()


def _requests(cell: Any) -> list[dict[str, Any]]:
    """Return the requests of a session or sub-agent, including those of its sub-agents."""
    requests: list[dict[str, Any]] = []
    for entry in cell:
        if "requests" not in entry:
            request = {key: entry.get(key) for key in _KEYS}
            if request["hash_ids"] is None:
                request["hash_ids"] = entry.get("hash_runs")
            requests.append(request)
            continue
        start = float(entry["t"]) - float(entry.get("duration_ms") or 0) / 1e3
        own = _requests(entry["requests"])
        requests.extend({**request, "t": start + float(request["t"])} for request in own)
    return requests


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
