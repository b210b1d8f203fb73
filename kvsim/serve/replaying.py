"""Serves a recorded live run again, and finds the first difference from the record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.files import open_bytes
from kvsim.serve.recording import beside, outcome_of
from kvsim.stepping.remote import make_engine
from kvsim.stepping.tokens import names_of

if TYPE_CHECKING:
    from kvsim.stepping.engine import Engine

#: The id of a prompt token is the number of its content times this, plus its index in the content.
IDS_PER_CONTENT = 2**32
#: Recorded events that are methods of the engine; most are called with a request.
METHODS = ("abort", "reset_prefix_cache", "receive", "lose", "release", "halt")
#: Those of a request that has not arrived.
PROMISES = ("keep", "offer")


def first_difference(path: str) -> tuple[str | None, int]:
    """Serve a recorded run again, and compare the outcomes of its requests.

    Requests that the killed server had not answered are served, but not compared.

    Returns
    -------
    difference : request, column, recorded and replayed value; None if no request differs
    number : number of requests compared

    Raises
    ------
    ValueError
        The message names the file, and the line that is no record.
    """
    rows = lines_of(Path(path))
    events = lines_of(beside(path))
    try:
        engine = engine_of(events[0])
        serve_again(engine, rows, events)
        ends = [one for one in events if one["event"] == "end"]
        for one in ends:
            found = outcome_of(engine.row(one["request"]))
            for name, value in found.items():
                if one[name] != value:
                    what = f"request {one['request']}: {name}: recorded {one[name]}"
                    return f"{what}, replayed {value}", len(ends)
    except (LookupError, TypeError) as error:
        raise ValueError(f"{path}: is not a record of kvsim serve: {error!r}") from None
    return None, len(ends)


def engine_of(start: dict[str, Any]) -> Engine:
    """Return a new engine for a record with this first line."""
    return make_engine(start["role"], start["hold_limit"], start["options"])


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file, one per line, without a last line that was cut off.

    Raises
    ------
    ValueError
        For a missing, empty or damaged file.
    """
    try:
        with open_bytes(path) as file:
            lines = file.read().splitlines(keepends=True)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            found.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path}, line {number}: is not JSON") from None
    if not found:
        raise ValueError(f"{path}: has no complete line of a record")
    return found


def serve_again(engine: Engine, rows: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
    """Serve recorded requests, with the events between them that change the engine. Mutates."""
    outputs = {row["output_content_id"] for row in rows}
    promises = {one["request"]: one for one in events if one["event"] in PROMISES}
    added = 0
    end = {"event": "finish", "after": len(rows), "step": 0, "time": math.inf}
    for event in [*(one for one in events if "after" in one), end]:
        for request in range(added, event["after"]):
            add(engine, rows[request], outputs, promises.get(request))
        added = event["after"]
        advance(engine, event["step"], event["time"])
        if event["event"] in METHODS:
            getattr(engine, event["event"])(*([event["request"]] if "request" in event else []))


def add(
    engine: Engine, row: dict[str, Any], outputs: set[int], promise: dict[str, Any] | None
) -> None:
    """Add a recorded request, with equal prompt ids for equal contents. Mutates."""
    parts = [
        names_of(content, first, number)
        if content in outputs
        else content * IDS_PER_CONTENT + np.arange(first, first + number)
        for content, first, number in row["segments"]
    ]
    engine.add_request(
        np.concatenate(parts),  # type: ignore[arg-type]
        row["num_output_tokens"],
        arrival_time=row["arrival_time"],
        priority=row["priority"],
        cache_salt=row["cache_salt"],
        lora_id=row["lora_id"],
    )
    if promise is not None:
        fields = {name: value for name, value in promise.items() if name != "event"}
        getattr(engine, promise["event"])(**fields)


def advance(engine: Engine, num_steps: int, time: float) -> None:
    """Advance to the end of a step, and then to a time if it is later. Mutates."""
    if engine.num_steps < num_steps:
        for _ in engine.steps_until(math.inf):
            if engine.num_steps == num_steps:
                break
    if engine.now < time:
        engine.run_until(time)
