"""Options of clients that serve sessions, as benchmarks of agents do."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, Field

from kvsim.errors import FieldError


class ClientOptions(BaseModel, defer_build=True):
    """Options of the clients that send sessions."""

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
