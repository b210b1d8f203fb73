"""Chunked-local attention: Llama 4's local layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.attention.spec import ATTENTION, AttentionSpec
from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import KVGroup, RequestBlocks
    from kvsim.records.request import Request


@ATTENTION.register("chunked_local")
@dataclass(frozen=True)
class ChunkedLocal(AttentionSpec):
    """A token sees only its own chunk of ``chunk`` tokens."""

    block_size: int
    chunk: int
    layer = "chunked"
    letter = "C"
    has_window = True
    title = "chunked attention"
    event_names = ("chunked_local_attention", "chunked_local_attention")

    @property
    def window(self) -> int:
        """Tokens of a chunk."""
        return self.chunk

    @staticmethod
    def num_skipped(window: int, num_tokens: int) -> int:
        return num_tokens // window * window

    @staticmethod
    def admission_cap(
        window: int, block_size: int, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        return cdiv(min(window + max_in_flight_tokens, max_model_len), block_size)

    @staticmethod
    def last_quiet_end(
        kv: KV, request: Request, group: KVGroup, own_blocks: RequestBlocks, last: int
    ) -> int:
        return min(last, (own_blocks.num_processed_tokens // group.window + 1) * group.window)

    @staticmethod
    def num_pairs(window: int, num_tokens: int) -> int:
        chunks = num_tokens // window
        rest = num_tokens - chunks * window
        return chunks * (window * (window + 1) // 2) + rest * (rest + 1) // 2

    @staticmethod
    def num_keys(window: int, num_computed: int, num_new: int) -> int:
        return num_computed % window + num_new
