"""A run as trace events, for Perfetto and chrome://tracing.

The format is Chrome's JSON: a process is a replica, times are microseconds. Steps are complete
events, requests are async slices around their phases, and KV transfers between replicas are flows.
"""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.files import write_whole, writing
from kvsim.report.title import model_name
from kvsim.results.block_events import BlockEvent
from kvsim.results.idle import gone_time, memory_with_gaps
from kvsim.results.phases import TRANSFER, marks_of, phases
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from kvsim.results.result import Result

    Event = dict[str, Any]

MICROSECONDS = 1e6
#: Default number of drawn requests.
MOST_REQUESTS = 10_000
#: Letter in front of a replica's number, by role.
LETTERS = {"prefill": "P", "decode": "D", "mixed": "R"}


@dataclass(frozen=True)
class Window:
    """The drawn part of a run.

    ``start`` and ``stop`` are seconds since its first arrival; at most ``num_requests`` requests
    are drawn.
    """

    start: float = 0.0
    stop: float = math.inf
    num_requests: int = MOST_REQUESTS

    @classmethod
    def of(cls, text: str | None, num_requests: int | None) -> Window:
        """Read FROM:TO, either of which may be missing."""
        given = num_requests or MOST_REQUESTS
        if text is None:
            return cls(num_requests=given)
        first, colon, last = text.partition(":")
        try:
            start, stop = float(first or 0.0), float(last or math.inf)
        except ValueError:
            colon = ""
        if not colon or not 0 <= start < stop:
            raise ValueError(f"--window {text}: must be FROM:TO in seconds, e.g. 10:20")
        return cls(start, stop, given)


def write_timeline(result: Result, path: Path, window: Window | None = None) -> None:
    """Write a run as trace events, gzipped, whole or not at all."""

    def write(file: Any) -> None:
        with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
            packed.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
            for k, event in enumerate(events_of(result, window or Window())):
                line = json.dumps(event, separators=(",", ":"), allow_nan=False)
                packed.write((",\n" * (k > 0) + line).encode())
            packed.write(b"\n]}\n")

    with writing(path):
        write_whole(path, write)


def events_of(result: Result, window: Window) -> Iterator[Event]:
    """Return the trace events of a run.

    Steps need ``record_steps=True``; preemptions, transfers and evictions
    ``record_block_events=True``.
    """
    origin = float(result.requests["arrival_time"].min())
    scene = _Scene(result, origin, window)
    for row in result.summary["replicas"]:
        yield from _process(result, row)
        yield from _steps(scene, row["replica"])
        yield from _counters(scene, row["replica"])
    yield from _requests(scene)
    yield from _evictions(scene)
    yield from _scaling(scene)


@dataclass(frozen=True)
class _Scene:
    """A run, its start time, and the part of it that is drawn."""

    result: Result
    origin: float
    window: Window

    def at(self, time: float) -> float:
        """Return microseconds since the start of the run, to the nanosecond."""
        return round((time - self.origin) * MICROSECONDS, 3)

    def shows(self, start: float, stop: float) -> bool:
        """Return True if an interval from start to stop is drawn."""
        return stop - self.origin >= self.window.start and start - self.origin <= self.window.stop

    def shown(self, times: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask of the instants that are drawn."""
        since = times - self.origin
        return (since >= self.window.start) & (since <= self.window.stop)


def _process(result: Result, row: dict[str, Any]) -> Iterator[Event]:
    config, number = result.config, row["replica"]
    letter = LETTERS.get(row.get("role") or "mixed", "R")
    ranks = config.tensor_parallel_size
    for pool in config.pool or ():
        if pool.role == row.get("role"):
            ranks = dict(pool.options).get("tensor_parallel_size", ranks)
    name = f"{letter}{number} {model_name(config)} tp{ranks}"
    for what, args in (
        ("process_name", {"name": name}),
        ("process_sort_index", {"sort_index": number}),
    ):
        yield {"ph": "M", "pid": number, "tid": 0, "ts": 0, "name": what, "args": args}


def _steps(scene: _Scene, replica: int) -> Iterator[Event]:
    """Return a replica's steps; overlapping steps of pipeline stages are on separate threads."""
    table = scene.result.steps
    rows = table[(table["replica"] == replica) & (table["duration"] > 0)]
    free: list[float] = []  # when each thread's last step ends
    gone = gone_time(scene.result, replica)  # in the middle of a step, if it fails
    for row in rows:
        begun = float(row["start_time"])
        start, stop = scene.at(begun), scene.at(min(begun + float(row["duration"]), gone))
        lane = next((k for k, end in enumerate(free) if end <= start + 1e-2), len(free))
        if lane == len(free):
            free.append(0.0)
            name = "steps" if lane == 0 else f"steps {lane + 1}"
            yield {"ph": "M", "pid": replica, "tid": lane, "ts": 0, "name": "thread_name"} | {
                "args": {"name": name}
            }
        # Perfetto drops a slice that begins a nanosecond before the last one on its thread ends.
        start = max(start, free[lane])
        free[lane] = stop
        if not scene.shows(row["start_time"], row["start_time"] + row["duration"]):
            continue
        yield {
            "ph": "X",
            "pid": replica,
            "tid": lane,
            "ts": start,
            "dur": round(stop - start, 3),
            "name": "step",
            "cat": "step",
            "args": {
                "num_running": int(row["num_running"]),
                "num_scheduled_tokens": int(row["num_scheduled_tokens"]),
                "num_preempted": int(row["num_preempted"]),
            },
        }


def _counters(scene: _Scene, replica: int) -> Iterator[Event]:
    rows = memory_with_gaps(scene.result, replica)
    for row in rows[scene.shown(rows["time"])]:
        common = {"ph": "C", "pid": replica, "tid": 0, "ts": scene.at(float(row["time"]))}
        for name, value in (
            ("kv_used", round(float(row["kv_usage"]), 6)),
            ("running", int(row["num_running"])),
            ("waiting", int(row["num_waiting"])),
        ):
            yield {**common, "name": name, "args": {"value": value}}


def _requests(scene: _Scene) -> Iterator[Event]:
    """Return requests as async slices with their phases, and arrows between their replicas."""
    result, drawn = scene.result, 0
    marks = marks_of(result)
    end = scene.origin + result.summary["duration"]
    for row in result.served:
        number = int(row["request_id"])
        parts = phases(row, marks.get(number, []), end)
        if int(row["finish_reason"]) == FinishReason.REJECTED:
            if scene.shows(row["arrival_time"], row["arrival_time"]):
                yield _instant(scene, float(row["arrival_time"]), 0, f"reject request {number}")
            continue
        if not parts or not scene.shows(parts[0][1], parts[-1][2]):
            continue
        drawn += 1
        if drawn > scene.window.num_requests:
            return
        yield from _slices(scene, row, parts)
        if int(row["prefill_replica"]) >= 0:
            yield from _flow(scene, row, parts)


def _slices(scene: _Scene, row: Any, parts: list[tuple[str, float, float]]) -> Iterator[Event]:
    number = int(row["request_id"])
    # An id that is local to the process puts the request among the replica's tracks.
    place = {"id2": {"local": f"{number:#x}"}, "pid": int(row["replica"]), "tid": 0}
    common = {"cat": "request", **place}
    args = {
        name: int(row[name])
        for name in ("num_prompt_tokens", "num_output_tokens", "num_cached_tokens")
    } | {"num_preemptions": int(row["num_preemptions"])}
    name = f"request {number}"
    yield {**common, "ph": "b", "ts": scene.at(parts[0][1]), "name": name, "args": args}
    for phase, start, stop in parts:
        yield {**common, "ph": "b", "ts": scene.at(start), "name": phase}
        yield {**common, "ph": "e", "ts": scene.at(stop), "name": phase}
        if phase == "preempted":
            yield {**common, "ph": "n", "ts": scene.at(start), "name": "preempt"}
    yield {**common, "ph": "e", "ts": scene.at(parts[-1][2]), "name": name}


def _flow(scene: _Scene, row: Any, parts: list[tuple[str, float, float]]) -> Iterator[Event]:
    """Join the last prefill step before a KV transfer with the first step after it."""
    moved = [part for part in parts if part[0] == TRANSFER]
    if not moved:
        return
    source, target = int(row["prefill_replica"]), int(row["replica"])
    out = _step_around(scene, source, moved[0][1], before=True)
    into = _step_around(scene, target, moved[-1][2], before=False)
    if out is None or into is None or into < out:
        return
    common = {"cat": "kv", "name": "KV transfer", "id": int(row["request_id"]), "tid": 0}
    yield {**common, "ph": "s", "pid": source, "ts": scene.at(out)}
    yield {**common, "ph": "f", "bp": "e", "pid": target, "ts": scene.at(into)}


def _step_around(scene: _Scene, replica: int, time: float, *, before: bool) -> float | None:
    """Return the middle of a replica's last step before a time, or of its first step after it."""
    table = scene.result.steps
    rows = table[(table["replica"] == replica) & (table["duration"] > 0)]
    at = int(np.searchsorted(rows["start_time"], time - 1e-9)) - int(before)
    if not 0 <= at < len(rows):
        return None
    return float(rows["start_time"][at] + rows["duration"][at] / 2)


def _instant(scene: _Scene, time: float, pid: int, name: str, **args: Any) -> Event:
    common = {"ph": "i", "s": "p", "pid": pid, "tid": 0, "ts": scene.at(time)}
    return {**common, "name": name, "args": args}


def _evictions(scene: _Scene) -> Iterator[Event]:
    """Return one instant event per time at which cached content is evicted."""
    events = scene.result.block_events
    gone = events[(events["kind"] == BlockEvent.EVICT) & scene.shown(events["time"])]
    pairs, counts = np.unique(gone[["replica", "time"]], return_counts=True)
    for (replica, time), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        yield _instant(scene, time, replica, "evict", blocks=count)


def _scaling(scene: _Scene) -> Iterator[Event]:
    scaling = scene.result.summary["scaling"]
    for change in scaling["timeline"] if scaling else ():
        time = scene.origin + change["time"]
        if scene.shows(time, time):
            told = {name: change[name] for name in ("ready", "starting", "draining")}
            yield _instant(scene, time, 0, "scale", **told)
    for pool in (scaling.get("pools") or {"": scaling}).values() if scaling else ():
        for failure in pool["failures"]:
            time = scene.origin + failure["time"]
            if scene.shows(time, time):
                yield _instant(scene, time, failure["replica"], "fail")
