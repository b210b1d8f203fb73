"""R-SWA: the prompt, and a sliding window of the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.attention.spec import ATTENTION, AttentionSpec
from kvsim.rules.blocks.window import drop_gap

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockTable, KVGroup
    from kvsim.records.request import Request


@ATTENTION.register("rswa")
@dataclass(frozen=True)
class ReferenceWindow(AttentionSpec):
    """A token sees the prompt and the ``window`` tokens before it (R-SWA)."""

    block_size: int
    window: int
    event_names = ("rswa", "rswa")
    sees_all = True
    has_holes = True

    @property
    def reference_window(self) -> int:
        return self.window

    @staticmethod
    def drop_unseen(
        kv: KV, request: Request, group: KVGroup, table: BlockTable, num_processed: int
    ) -> None:
        drop_gap(kv, request, group, table, num_processed)

    @staticmethod
    def has_unseen(group: KVGroup, table: BlockTable, num_processed: int) -> bool:
        return True
