"""KV transfers in a case: its connector, and the KV that each request loads and sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvsim.cases.part import Count, Part, Whole
from kvsim.records.connector import FAKE, OFFLOADING, Connector
from kvsim.sched.connector import FailurePolicy, Role, make_connector
from kvsim.sched.offloading import make_offloading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.cases.case import CaseConfig
    from kvsim.records.offloading import Offloading


class OffloadingOptions(Part):
    """Options of vLLM's native offloading; in a case, a token has 8 bytes of KV per group."""

    blocks_per_chunk: Count = 1
    eviction_policy: Literal["lru", "arc"] = "lru"
    store_threshold: Whole = 0
    offload_prompt_only: bool = True
    sync_load_budget_bytes: Whole = 0


class ConnectorPart(Part):
    """A connector of a case; ``fake`` offers the tokens that the requests specify."""

    kind: Literal["fake", "offloading"]
    role: Role = "kv_both"
    failure_policy: FailurePolicy = "recompute"
    cpu_chunks: Whole = 0
    load_steps: Whole = 1
    store_steps: Whole = 1
    extra: OffloadingOptions = OffloadingOptions()

    @property
    def settings(self) -> Connector:
        if self.kind == "offloading":
            return make_connector(OFFLOADING)
        return make_connector(FAKE, self.role, self.failure_policy)

    def offloading(self, num_groups: int) -> Offloading | None:
        """Return the host cache for ``num_groups`` KV-cache groups, None if the case has none."""
        if self.kind != "offloading":
            return None
        steps = {"load_steps": self.load_steps, "store_steps": self.store_steps}
        return make_offloading(self.extra, self.cpu_chunks, 8 * num_groups, **steps)


class Transfer(Part):
    """KV that a request loads and sends.

    The connector has KV for the whole prompt (``remote_prefill``) or for ``ext_tokens`` of it, but
    leaves the first ``unknown`` look-ups unanswered. A load ends in the step that starts it
    (``sync``), or ``load_steps`` later. With ``remote_decode`` the request's blocks are sent after
    its end, for ``send_steps``. Loads fail for the blocks of its table from ``fail_from_block`` on,
    or with ``fail_request`` for all.
    """

    remote_prefill: bool = False
    ext_tokens: Whole | None = None
    sync: bool = False
    unknown: Whole = 0
    load_steps: Whole = 1
    fail_from_block: Whole | None = None
    fail_request: bool = False
    remote_decode: bool = False
    send_steps: Whole = 1


#: Kinds of groups that native offloading stores.
OFFLOADED = ("full", "mla", "sliding_window", "sliding_window_mla")


def offloading_conflicts(config: CaseConfig) -> Iterator[str]:
    """Return the settings of a case that native offloading does not support."""
    for group in config.groups or ():
        if group.type not in OFFLOADED or group.replay:
            kind = f"{group.type} with replay" if group.replay else group.type
            yield (
                f"connector: offloading of {kind} groups is in no recorded case; that "
                f"of {', '.join(OFFLOADED)} is"
            )
    speculation = config.speculation
    if speculation is not None and speculation.drops_last_block:
        yield (
            f"connector: offloading under {speculation.method}, which drops a block of each hit, "
            "is in no recorded case; with draft_model, ngram, disable_eagle_block_drop it is"
        )
