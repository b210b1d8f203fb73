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
