"""KV transfers in a case: its connector, and what each request loads and sends."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvsim.records.connector import FAKE
from kvsim.sched.connector import ConnectorConfig, FailurePolicy, Role

Whole = Annotated[int, Field(ge=0)]


class ConnectorPart(BaseModel):
    """A connector of a case; ``fake`` offers what the requests say."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    kind: Literal["fake"]
    role: Role = "kv_both"
    failure_policy: FailurePolicy = "recompute"

    @property
    def config(self) -> ConnectorConfig:
        """The same as vLLM has it."""
        return ConnectorConfig(FAKE, self.role, self.failure_policy)


class Transfer(BaseModel):
    """What a request loads and sends.

    The whole prompt is there (``remote_prefill``), or ``ext_tokens`` of it, after ``unknown``
    look-ups without an answer; with ``sync`` when its step runs, else ``load_steps`` later.
    ``remote_decode``: its blocks are read at its end, for ``send_steps``. Blocks of its table from
    ``fail_from_block`` on, or with ``fail_request`` all of it, cannot be loaded.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    remote_prefill: bool = False
    ext_tokens: Whole | None = None
    sync: bool = False
    unknown: Whole = 0
    load_steps: Whole = 1
    fail_from_block: Whole | None = None
    fail_request: bool = False
    remote_decode: bool = False
    send_steps: Whole = 1
