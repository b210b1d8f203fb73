"""Full attention, over keys and values or over latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.attention.spec import ATTENTION, AttentionSpec

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import KVGroup, RequestBlocks
    from kvsim.records.request import Request


@ATTENTION.register("full")
@dataclass(frozen=True)
class FullAttention(AttentionSpec):
    """Every token attends to all tokens before it; no block is freed while the request lives."""

    block_size: int
    window = 0
    letter = "F"
    sees_all = True
    is_linear = True
    can_offload = True
    can_transfer = True

    @staticmethod
    def last_quiet_end(
        kv: KV, request: Request, group: KVGroup, own_blocks: RequestBlocks, last: int
    ) -> int:
        return last


@ATTENTION.register("mla")
@dataclass(frozen=True)
class MLA(FullAttention, own_rules=False):
    """Full attention over latents; prefix look-ups treat it as another kind of attention."""

    event_names = ("mla_attention", "mla_attention")
