"""Sliding windows, over keys and values or over latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.attention.spec import ATTENTION, AttentionSpec
from kvsim.rules.blocks.attention import cdiv, run_length
from kvsim.rules.blocks.prefix import find_window
from kvsim.rules.blocks.window import first_to_leave

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import KVGroup, LookupSpec, RequestBlocks
    from kvsim.records.request import Request


@ATTENTION.register("sliding_window")
@dataclass(frozen=True)
class SlidingWindow(AttentionSpec):
    """A token sees itself and the ``window - 1`` tokens before it.

    Parameters
    ----------
    extra_retained : tokens before the window that are kept as well (multi-module MTP)
    replay : no block of the window is cached; the window's tokens are recomputed after a hit
    """

    block_size: int
    window: int
    extra_retained: int = 0
    replay: bool = False
    layer = "sliding"
    letter = "S"
    has_window = True
    title = "sliding window"
    event_names = ("sliding_window", "sliding_window_mla")
    is_linear = True
    can_offload = True
    can_transfer = True

    @property
    def is_cached(self) -> bool:
        return not self.replay

    @property
    def num_kept_tokens(self) -> int:
        return self.window + self.extra_retained

    @property
    def event_window(self) -> int:
        return self.window

    @property
    def replay_window(self) -> int:
        return self.window if self.replay else 0

    @staticmethod
    def num_skipped(window: int, num_tokens: int) -> int:
        return max(0, num_tokens - window + 1)  # a token sees itself and the window - 1 before it

    @staticmethod
    def admission_cap(
        window: int, block_size: int, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        longest = min(window - 1 + max_in_flight_tokens, max_model_len)
        return cdiv(longest, block_size) + 1  # the window may start inside a block

    @staticmethod
    def find(kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, limit: int, drops: bool) -> int:
        return find_window(kv, own_blocks, spec, limit, drops)

    @staticmethod
    def keeps_all(kv: KV, group: KVGroup) -> bool:
        length = run_length(group.kind, group)
        return kv.segment > 0 and length >= kv.segment // group.block_size

    @staticmethod
    def last_quiet_end(
        kv: KV, request: Request, group: KVGroup, own_blocks: RequestBlocks, last: int
    ) -> int:
        first = first_to_leave(group, own_blocks.tables[group.index])
        if own_blocks.num_processed_tokens < first:
            return min(last, first + 1)
        return min(last, first + group.block_size)

    @staticmethod
    def loses_token(group: KVGroup, own_blocks: RequestBlocks) -> bool:
        table = own_blocks.tables[group.index]
        return own_blocks.num_processed_tokens >= first_to_leave(group, table)

    @staticmethod
    def num_pairs(window: int, num_tokens: int) -> int:
        if num_tokens <= window:
            return num_tokens * (num_tokens + 1) // 2
        return window * (window + 1) // 2 + (num_tokens - window) * window

    @staticmethod
    def num_keys(window: int, num_computed: int, num_new: int) -> int:
        return min(num_computed, window - 1) + num_new


@ATTENTION.register("sliding_window_mla")
@dataclass(frozen=True)
class MLASlidingWindow(SlidingWindow, own_rules=False):
    """A sliding window over latents."""

    event_names = ("sliding_window_mla", "sliding_window_mla")
