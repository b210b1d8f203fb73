"""Options of clients that serve sessions, as benchmarks of agents do."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


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
