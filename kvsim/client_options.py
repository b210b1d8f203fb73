"""Options of clients that serve sessions, as benchmarks of agents do."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from kvsim.errors import FieldError

#: Settings of benchmarks of agents.
BENCHMARKS: dict[str, dict[str, Any]] = {
    "agentx-v1": {
        "session_start": "0.25:0.75",
        "primers": True,
        "primer_requests": 10,
        "horizon": 3600.0,
        "tree_idle_cap": 300.0,
        "idle_cap": 10.0,
    },
    "aiperf-mvp": {
        "session_start": "0:1",
        "primers": True,
        "horizon": 1800.0,
        "start_gap_cap": 10.0,
    },
}


class ClientOptions(BaseModel, defer_build=True):
    """Options of the clients that send sessions."""

    clients: Literal["agentx-v1", "aiperf-mvp"] | None = Field(
        None, description="benchmark whose settings of lanes are taken where no others are given"
    )
    lanes: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="number of sessions at a time: a lane serves one, with its sub-agents, after "
        "the other [sessions begin as planned]",
    )
    shuffle_sessions: bool = Field(
        False, description="lanes take sessions in an order that the seed decides"
    )
    shared_prefix_tokens: Annotated[int, Field(ge=0)] = Field(
        0,
        description="first tokens of prompts that have the same content each time a session is "
        "played; with a horizon, lanes play all sessions again",
    )
    max_think_time: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="longest think_time of the trace, seconds; longer ones are cut [no limit]"
    )
    session_start: str | None = Field(
        None,
        description="LO:HI, parts of its recorded time within which each lane begins its first "
        "session, drawn by the seed [at the session's first request]",
    )
    primers: bool = Field(
        False,
        description="before the run, each conversation that a lane begins in the middle sends its "
        "last earlier prompt, for one output token",
    )
    primer_requests: Annotated[int, Field(ge=0)] = Field(
        0, description="requests of each lane that follow its primers, also for one output token"
    )
    start_gap_cap: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None,
        description="longest recorded time between starts of a session's requests, seconds; "
        "pauses shrink by what is cut [no limit]",
    )
    tree_idle_cap: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None,
        description="longest time without a request of a session in flight, seconds: then all its "
        "pauses shrink until one ends [no limit]",
    )
    idle_cap: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="the same for the requests of all sessions together [no limit]"
    )


def with_benchmark(values: dict[str, Any]) -> dict[str, Any]:
    """Return options with the settings of the benchmark that ``clients`` names.

    Raises
    ------
    FieldError
        If there are no lanes.
    """
    settings = BENCHMARKS.get(str(values.get("clients")), {})
    if settings and values.get("lanes") is None:
        raise FieldError("clients", "needs lanes: the number of sessions at a time")
    return {**settings, **values}


def check_start(options: ClientOptions) -> None:
    """Refuse a start in the middle of sessions without lanes, and primers without such a start.

    Raises
    ------
    FieldError
        As :func:`read_start` does, too.
    """
    if options.session_start is not None:
        read_start(options.session_start)
        if options.lanes is None:
            raise FieldError("session_start", "needs lanes, whose first sessions it begins")
    elif options.primers:
        raise FieldError("primers", "needs session_start, which says what lies before the run")
    elif options.primer_requests:
        raise FieldError("primer_requests", "needs session_start and primers, which they follow")


def read_start(text: str) -> tuple[float, float]:
    """Return the parts of a session's recorded time within which it begins.

    Raises
    ------
    FieldError
        For a text that is not LO:HI, or numbers out of order.
    """
    number = r"(\d*\.?\d+)"
    found = re.fullmatch(f"{number}:{number}", text)
    low, high = (float(one) for one in found.groups()) if found else (1.0, 0.0)
    if not low <= high <= 1.0:
        raise FieldError("session_start", f"is {text!r}: must be LO:HI, from 0:0 to 1:1")
    return low, high
