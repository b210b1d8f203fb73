"""Data of a page's memory-map explorer, as JSON of packed integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.kv.usage import HELD, WHOLE, Cause
from kvsim.report.page.pack import pack, pack_bytes
from kvsim.report.page.prefix_tree import largest, prefix_tree
from kvsim.results.block_events import BlockEvent
from kvsim.results.idle import idle_times, memory_with_gaps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvsim.results.result import Result

#: Limits of a page, over all its runs; a page that grows too large gets fewer of them.
MOST_EVENTS = 900_000
MOST_REQUESTS = 20_000
MOST_SAMPLES, MOST_BINS = 1000, 512
MOST_REPLICAS = 8
FLEET_COLUMNS = 400
PER_MILLE = 1000
#: Reasons why the history of blocks is not shown.
WITHOUT_BLOCKS = "Each request has contiguous memory: there are no blocks to show."
NOT_RECORDED = "Block events were not recorded; run with --record-block-events."
MICROSECONDS = 1e6


class Scope(NamedTuple):
    """The largest numbers of events and requests in a page."""

    most_events: int = MOST_EVENTS
    most_requests: int = MOST_REQUESTS


def explorer(named: Mapping[str, Result], scope: Scope) -> dict[str, Any]:
    """Return the data of the explorer: a view per run and replica, and notes on omitted parts."""
    views: list[dict[str, Any]] = []
    notes: list[str] = []
    with_events = [result for result in named.values() if len(result.block_events)]
    share = scope.most_events // max(len(with_events), 1)
    for name, result in named.items():
        numbers = [row["replica"] for row in result.summary["replicas"]]
        ran = [n for n in numbers if (result.memory["replica"] == n).any()]
        shown = ran[:MOST_REPLICAS]
        if len(shown) < len(ran):
            notes.append(f"{name}: replicas {shown[0]} to {shown[-1]} of {len(ran)}")
        events, until = _events(result, shown, share)
        if until is not None:
            total = len(result.block_events)
            notes.append(f"{name}: the first {len(events):,} of {total:,} events, to {until:.4g} s")
        notes += [f"{name}: {one}" for one in result.provenance["notes"] if "record ends" in one]
        trees = _tree(events, result) if len(events) else None
        made = [_view(name, result, number, events, len(shown) > 1) for number in shown]
        # Data of all replicas of a run are stored with its first one.
        if made:
            made[0]["tree"] = trees
            made[0]["requests"] = _requests(result, scope, notes, name)
            made[0]["fleet"] = _fleet(result, ran) if len(ran) > 1 else None
        views += made
    return {"views": views, "notes": list(dict.fromkeys(notes))}


def _events(result: Result, replicas: list[int], most: int) -> tuple[NDArray[Any], float | None]:
    """Return the first events of some replicas, and the time of truncation, None if complete."""
    every = result.block_events
    events: NDArray[Any] = every[np.isin(every["replica"], replicas) & (every["block"] >= -1)]
    if len(events) <= most:
        return events, None
    until = float(events["time"][most])
    return events[events["time"] < until], until - _origin(result)


def _origin(result: Result) -> float:
    return float(result.requests["arrival_time"].min())


def _micro(times: NDArray[np.float64], origin: float) -> NDArray[np.int64]:
    """Return microseconds since the start of the run; -1 for events that have not happened."""
    since = np.round((times - origin) * MICROSECONDS)
    return np.where(np.isnan(since), -1, since).astype(np.int64)


def _view(
    name: str, result: Result, replica: int, events: NDArray[Any], several: bool
) -> dict[str, Any]:
    cache, origin = result.summary["kv_cache"], _origin(result)
    mine = events[events["replica"] == replica]
    return {
        "name": f"{name}, replica {replica}" if several else name,
        "run": name,
        "replica": replica,
        "duration": round(float(result.summary["duration"]) * MICROSECONDS),
        "bytes": cache["bytes"],
        "numBlocks": _num_blocks(result, replica),
        "blockSize": cache["block_size"],
        "samples": _samples(result, replica),
        "map": _map(result, replica),
        "events": _packed_events(mine, events, origin) if len(events) else None,
        "why": WITHOUT_BLOCKS if result.config.record_block_events else NOT_RECORDED,
        "counts": {k.name.lower(): int((mine["kind"] == k).sum()) for k in BlockEvent},
        "tree": None,
        "requests": None,
        "fleet": None,
    }


def _num_blocks(result: Result, replica: int) -> int:
    """Return the largest block number of a replica plus one; block 0 is never allocated."""
    summary = result.summary
    (role,) = (one["role"] for one in summary["replicas"] if one["replica"] == replica)
    caches = {pool["role"]: pool for pool in summary["pools"] or ()}
    cache = caches.get(role, summary["kv_cache"])
    # Older saved runs lack this number; their pools had a null block.
    return 1 + int(cache.get("num_usable_blocks", cache["num_gpu_blocks"] - 1))


def _packed_events(mine: NDArray[Any], every: NDArray[Any], origin: float) -> dict[str, Any]:
    keys = np.unique(every["key"][every["key"] != 0])
    numbered = np.where(mine["key"] == 0, -1, np.searchsorted(keys, mine["key"]))
    # One text per column: deflate compresses adjacent values of one kind better.
    return {
        "count": len(mine),
        "time": pack(_micro(mine["time"], origin)),
        "kind": pack_bytes(mine["kind"].astype(np.uint8).tobytes()),
        "block": pack(mine["block"]),
        "request": pack(mine["request"]),
        "place": pack(mine["place"]),
        "key": pack(numbered),
    }


def _samples(result: Result, replica: int) -> dict[str, Any]:
    """Return memory by cause over time, in thousandths of the KV memory."""
    rows = memory_with_gaps(result, replica)
    rows = rows[_spread(rows["time"])]
    total = result.summary["kv_cache"]["bytes"] or 1
    packed = {
        cause.column: pack(np.round(rows[cause.column] / total * PER_MILLE)) for cause in WHOLE
    }
    return packed | {"count": len(rows), "time": pack(_micro(rows["time"], _origin(result)))}


def _spread(times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices of samples at evenly spaced instants; all indices if they are few."""
    if len(times) <= MOST_SAMPLES:
        return np.arange(len(times))
    instants = np.linspace(times[0], times[-1], MOST_SAMPLES)
    return np.unique(np.searchsorted(times, instants, side="right") - 1)


def _map(result: Result, replica: int) -> dict[str, Any] | None:
    """Return the cause of each address over time, stored address by address."""
    if not result.memory_map.size:
        return None
    mine = result.memory["replica"] == replica
    times, causes = result.memory["time"][mine], result.memory_map[mine]
    causes = causes[:, :: max(1, causes.shape[1] // MOST_BINS)]
    gaps = idle_times(result, replica)
    before = np.maximum(np.searchsorted(times, gaps, side="right") - 1, 0)
    left = Cause.CACHED if (causes == Cause.CACHED).any() else Cause.FREE
    idle = np.where(np.isin(causes[before], HELD), left, causes[before]).astype(np.uint8)
    times, causes = np.concatenate([times, gaps]), np.concatenate([causes, idle])
    order = np.argsort(times, kind="stable")
    kept = order[_spread(times[order])]
    times, causes = times[kept], causes[kept]
    return {
        "columns": len(causes),
        "bins": causes.shape[1],
        "time": pack(_micro(times, _origin(result))),
        "causes": pack_bytes(np.ascontiguousarray(causes.T).tobytes()),
    }


def _requests(result: Result, scope: Scope, notes: list[str], name: str) -> dict[str, Any]:
    rows, origin = result.served[: scope.most_requests], _origin(result)
    if len(rows) < len(result.served):
        notes.append(f"{name}: facts of the first {len(rows):,} of {len(result.served):,} requests")
    packed = {
        column: pack(rows[column])
        for column in (
            *("replica", "num_prompt_tokens", "num_output_tokens", "num_cached_tokens"),
            "num_preemptions",
        )
    }
    if len(result.tenant):
        packed["tenant"] = pack(result.tenant[: len(rows)])
    times = ("arrival_time", "first_scheduled_time", "first_token_time", "finish_time")
    packed |= {column: pack(_micro(rows[column], origin)) for column in times}
    return packed | {"count": len(rows), "complete": len(rows) == len(result.served)}


def _fleet(result: Result, replicas: list[int]) -> dict[str, Any]:
    """Return KV use by replica over time, in percent."""
    duration = float(result.summary["duration"]) or 1.0
    columns = _origin(result) + np.linspace(0.0, duration, FLEET_COLUMNS, endpoint=False)
    use = np.zeros((len(replicas), FLEET_COLUMNS), np.uint8)
    for k, number in enumerate(replicas):
        rows = memory_with_gaps(result, number)
        at = np.searchsorted(rows["time"], columns, side="right") - 1
        shown = np.append(rows["kv_usage"], 0.0)[at]
        use[k] = np.round(100 * shown)
    return {"replicas": replicas, "columns": FLEET_COLUMNS, "use": pack_bytes(use.tobytes())}


def _tree(events: NDArray[Any], result: Result) -> dict[str, Any] | None:
    """Return the largest nodes of the prefix tree, and the node of each key."""
    nodes = prefix_tree(events)
    if not nodes:
        return None
    kept = largest(nodes)
    place = {old: new for new, old in enumerate(kept)}
    keys = np.unique(events["key"][events["key"] != 0])
    node_of = np.full(len(keys), -1, np.int64)
    for new, old in enumerate(kept):
        node_of[np.searchsorted(keys, np.array(nodes[old].keys, np.int64))] = new
    size = result.summary["kv_cache"]["block_size"]
    return {
        "total": len(nodes),
        "parent": [place.get(nodes[old].parent, -1) for old in kept],
        "tokens": [len(nodes[old].keys) * size for old in kept],
        "hits": [nodes[old].hits for old in kept],
        "evictions": [nodes[old].evictions for old in kept],
        "nodeOf": pack(node_of),
    }
