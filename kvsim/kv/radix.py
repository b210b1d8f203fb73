"""SGLang's prefix cache: a radix tree over single slots or pages of them.

The rules are in :mod:`kvsim.rules.sglang`; docs/sglang-rules.md tells them in words. Requests keep
their computed prompts in the tree, where later ones find them token by token (page by page above a
page size of 1). What nobody holds is evicted leaf by leaf when slots are needed.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

from kvsim.kv.manager import ALLOCATORS, KVCacheConfig
from kvsim.kv.radix_check import check_tree
from kvsim.kv.rule_manager import RuleManager
from kvsim.records.kv import KV, RADIX
from kvsim.records.radix import Node, Rank, Slot

if TYPE_CHECKING:
    from kvsim.records.memory import Memory
    from kvsim.records.radix import Radix
    from kvsim.records.request import Request

#: SGLang's ``--radix-eviction-policy``.
Eviction = Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority", "tlru"]
EVICTIONS: tuple[str, ...] = get_args(Eviction)
#: Tokens of room that SGLang keeps for itself behind a prompt.
SPARE_TOKENS = 6


@ALLOCATORS.register("radix")
class RadixManager(RuleManager):
    """SGLang's radix cache; scheduled by ``sglang`` alone.

    Parameters
    ----------
    eviction : which leaf goes first
    protected_threshold : slru: hits from which on a node is protected
    tail_threshold, next_prompt_estimate : tlru: tokens of a conversation's end that go first
    """

    rules_of = RADIX
    evidence = "slots of recorded runs of SGLang 0.5.23 with full attention come out identical"
    default_scheduler = needs_scheduler = "sglang"
    keeps_untold = True
    ignores = MappingProxyType(
        {
            "watermark": "its scheduler counts on a share of what requests may generate",
            "num_lookahead_tokens": "it keeps no slots for drafts",
            "max_num_batched_tokens": "chunked_prefill_size bounds the prompts of a step",
            "long_prefill_token_threshold": "chunked_prefill_size bounds the prompts of a step",
            "max_num_active_seqs": "max_running_requests bounds those that run",
        }
    )

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        eviction: Eviction = "lru",
        protected_threshold: int = 2,
        tail_threshold: int = 0,
        next_prompt_estimate: int = 0,
    ) -> None:
        super().__init__(config)
        self.eviction = eviction
        self._numbers = (protected_threshold, tail_threshold, next_prompt_estimate)
        self.block_size = config.block_size
        self.token_bytes = sum(layer.bytes_per_token for layer in config.layout.layers)
        self.num_gpu_blocks = config.num_bytes // (self.token_bytes * self.block_size)
        self.total_bytes = self.num_gpu_blocks * self.block_size * self.token_bytes
        self.piece_bytes = self.block_size * self.token_bytes

    @property
    def pool_size(self) -> int:
        """Slots, SGLang's max_total_num_tokens."""
        return self.num_gpu_blocks * self.block_size

    def lay_out(self, kv: KV, memory: Memory, num_holdings: int) -> None:  # noqa: D102
        kv.manager = self.rules_of
        kv.max_model_len = self.config.max_model_len
        kv.enable_prefix_caching = self.config.enable_prefix_caching
        kv.num_holdings = num_holdings
        tree = kv.radix
        tree.enabled = self.config.enable_prefix_caching
        tree.token_bytes = self.token_bytes
        tree.rank = int(Rank[self.eviction.upper()])
        tree.protected_threshold, tree.tail_threshold, tree.next_prompt_estimate = self._numbers
        lay_out_tree(tree, memory, self.num_gpu_blocks, self.block_size)

    def add_holdings(self, kv: KV, memory: Memory, count: int) -> None:  # noqa: D102
        kv.num_holdings += count  # what requests hold is written down beside them

    def fill_holdings(self, kv: KV, memory: Memory, first: int, stop: int) -> None:
        """Lay out nothing: pages are linked to each other."""

    def room_for_map(self, kv: KV, memory: Memory) -> None:  # noqa: D102
        pages = self.num_gpu_blocks + 1
        kv.dead_ends, kv.live_ends = memory.floats(pages), memory.floats(pages)
        kv.last_ends, kv.unused = memory.floats(pages), memory.ints(pages)

    def fits(self, request: Request) -> bool:  # noqa: D102 - see KVCacheManager
        longest, prompt = min(self.config.max_model_len, self.pool_size), request.num_prompt_tokens
        return prompt < longest - SPARE_TOKENS and prompt + self.block_size < self.pool_size

    def check_integrity(self) -> None:  # noqa: D102
        check_tree(self.state)
        self.usage.check(self.total_bytes)


def lay_out_tree(tree: Radix, memory: Memory, num_pages: int, page_size: int) -> None:
    """Make an empty tree over free pages, numbered from 1 on as SGLang's are."""
    pages = tree.pages
    pages.page_size, pages.num_pages, pages.num_left = page_size, num_pages, num_pages
    pages.free = memory.list_of(range(1, num_pages + 1))
    pages.group = memory.ints(num_pages + 1)
    tree.slots = memory.room(Slot, (num_pages + 1) * page_size)
    tree.nodes = memory.room(Node, num_pages + 2)
    tree.heap = memory.ints(num_pages + 3)
    num_buckets = 1 << max(num_pages // 4, 16).bit_length()
    tree.buckets, tree.bucket_mask = memory.ints(num_buckets), num_buckets - 1
