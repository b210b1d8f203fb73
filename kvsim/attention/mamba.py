"""States of Mamba and linear attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvsim.attention.spec import ATTENTION, AttentionSpec
from kvsim.rules.blocks.mamba import last_quiet_state
from kvsim.rules.blocks.prefix import find_state

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import KVGroup, LookupSpec, RequestBlocks
    from kvsim.records.request import Request


class StateCache(NamedTuple):
    """Storage of the states of Mamba and linear-attention layers.

    ``mode`` is vLLM's ``mamba_cache_mode``: none keeps only the newest state, align also the state
    at the end of each block, for prefix caching. The other fields count further blocks per request.
    """

    mode: Literal["none", "align"] = "none"
    num_speculative_blocks: int = 0
    num_checkpoint_blocks: int = 0

    @property
    def num_blocks(self) -> int:
        """Largest number of blocks that a request holds at once in a group."""
        if self.mode == "none":
            return 1 + self.num_speculative_blocks
        return 2 + self.num_speculative_blocks + self.num_checkpoint_blocks


@ATTENTION.register("mamba")
@dataclass(frozen=True)
class Mamba(AttentionSpec):
    """A state that every token overwrites, as in Mamba and linear attention.

    Parameters
    ----------
    mode : ``none`` keeps only the newest state; ``align`` also caches states at block ends
    spec_blocks : additional blocks for the states of drafts
    checkpoint_blocks : number of states that can be cached inside a prompt chunk, 0 or 1
    checkpoint_alignment : such a state follows a multiple of this number of tokens of the chunk
    """

    block_size: int
    mode: Literal["none", "align"] = "align"
    spec_blocks: int = 0
    checkpoint_blocks: int = 0
    checkpoint_alignment: int = 1
    window = 0
    layer = "mamba"
    title = "state"
    event_names = ("mamba", "mamba")
    can_offload = True
    has_holes = True
    is_state = True

    @classmethod
    def of_layer(cls, block_size: int, window: int | None, state: StateCache) -> Mamba:
        return cls(
            block_size, state.mode, state.num_speculative_blocks, state.num_checkpoint_blocks
        )

    @property
    def caches_states(self) -> bool:
        return self.mode == "align"

    @property
    def num_spec_blocks(self) -> int:
        return self.spec_blocks

    def most_states(self, num_tokens: int) -> int:
        last = 1 if self.mode == "none" else 2 + self.checkpoint_blocks
        return min(last, -(-num_tokens // self.block_size)) + self.spec_blocks

    @staticmethod
    def num_skipped(window: int, num_tokens: int) -> int:
        return max(0, num_tokens - 1)

    @staticmethod
    def find(kv: KV, own_blocks: RequestBlocks, spec: LookupSpec, limit: int, drops: bool) -> int:
        return find_state(kv, own_blocks, spec, limit)

    @staticmethod
    def keeps_all(kv: KV, group: KVGroup) -> bool:
        return not kv.keeps_boundaries

    @staticmethod
    def run_length(group: KVGroup) -> int:
        return 1

    @staticmethod
    def last_quiet_end(
        kv: KV, request: Request, group: KVGroup, own_blocks: RequestBlocks, last: int
    ) -> int:
        return last_quiet_state(kv, request, group, own_blocks.tables[group.index], last)
