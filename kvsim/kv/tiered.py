"""A paged KV cache with a host tier, which keeps evicted prefix blocks for later hits.

This is the simplest form of vLLM's KV offloading (``--kv-offloading-size``). A content is copied to
the host when its last block on the GPU is evicted. It is copied back when a waiting request hits it
there, directly after the part of the prompt that hits on the GPU. The copies overlap with the step
that admits the request. The rules are in :mod:`kvsim.rules.managers.tiered`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt

from kvsim.kv.eviction import init_contents
from kvsim.kv.manager import ALLOCATORS, Hit, KVCacheConfig
from kvsim.kv.paged import PagedManager
from kvsim.records.kv import PAGED
from kvsim.records.paged import FULL

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.memory import Memory

Gib = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@ALLOCATORS.register("tiered")
class TieredManager(PagedManager):
    """Paged memory that keeps evicted prefix blocks in ``host_gib`` GiB of host memory per GPU.

    A fetched content stays in host memory, so it is not stored again. Full attention only.
    """

    rules_of = PAGED
    speculates = False

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        host_gib: Gib = 64.0,
        block_size: PositiveInt | None = None,
        eviction: str = "lru",
    ) -> None:
        super().__init__(config, block_size=block_size, eviction=eviction)
        self.num_host_blocks = int(host_gib * 2**30) // self.bytes_per_block
        check_plain("tiered", self)

    def init_state(self, kv: KV, memory: Memory, num_request_blocks: int) -> None:
        super().init_state(kv, memory, num_request_blocks)
        kv.pool.has_host = True
        kv.pool.host.num_blocks = self.num_host_blocks
        init_contents(memory, kv.pool.host.contents, self.num_host_blocks)

    def hit_blocks(self, num_tokens: int) -> list[list[int]]:
        """Return the GPU blocks of the last hit; the rest of the hit is in host memory."""
        return super().hit_blocks(self.kv.pool.host.num_found * self.block_size)

    def take_hit(self, hit: Hit) -> None:
        super().take_hit(hit)
        self.kv.pool.host.num_found = len(hit.blocks[0]) if hit.blocks else 0

    @property
    def num_host_blocks_used(self) -> int:
        """Number of blocks in host memory."""
        return self.kv.pool.host.contents.queue.length

    def check_integrity(self) -> None:
        super().check_integrity()
        used = self.num_host_blocks_used
        if used > self.num_host_blocks:
            raise RuntimeError(f"{used} host blocks in use of {self.num_host_blocks}")


def check_plain(name: str, manager: PagedManager) -> None:
    """Check that all layers have full attention.

    Raises
    ------
    ValueError
        Naming the allocator that supports other layers.
    """
    if len(manager.groups) != 1 or manager.groups[0].kind != FULL:
        raise ValueError(f"allocator {name!r}: layers with windows are not modelled; paged does")
