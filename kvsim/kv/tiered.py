"""A paged KV cache whose evicted prefix blocks go to host memory, and come back on a hit.

What vLLM calls KV offloading (``--kv-offloading-size``), in its simplest form: a content goes down
when its last block on the GPU is handed out again, and comes up when a waiting request would hit it
right after what it hits on the GPU. Copies run beside the computation of the step that admits the
request (:class:`kvsim.cost.host_link.HostLink`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt

from kvsim.kv.attention import FullAttention
from kvsim.kv.host_tier import HostTier
from kvsim.kv.manager import ALLOCATORS, Hit, KVCacheConfig, Transfers
from kvsim.kv.paged import PagedManager

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.request import Request

Gib = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@ALLOCATORS.register("tiered")
class TieredManager(PagedManager):
    """Paged, with evicted prefix blocks kept in ``host_gib`` GiB of host memory per GPU.

    A content is on the GPU, in host memory, or in both: what was fetched is not stored again. Full
    attention only.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        host_gib: Gib = 64.0,
        block_size: PositiveInt | None = None,
        eviction: str = "lru",
    ) -> None:
        super().__init__(config, block_size=block_size, eviction=eviction)
        check_plain("tiered", self)
        self.host = HostTier(int(host_gib * 2**30) // self.bytes_per_block)
        self.pool.on_evict = self._store
        self._num_fetched = 0
        self._num_stored = 0

    def _store(self, key: int) -> None:
        self._num_stored += self.host.store(key)

    def lookup(self, request: Request) -> Hit:
        """Find the longest prefix on the GPU, then what follows it in host memory."""
        hit = super().lookup(request)
        if not self.enable_prefix_caching or not len(self.host):
            return hit
        limit = (request.num_tokens - 1) // self.block_size
        found = hit.blocks[0] if hit.blocks else []
        end = len(found)
        keys = self.prefix_cache.keys(request, limit * self.block_size, self.block_size)
        while end < limit and keys[end] in self.host:
            end += 1
        return Hit(end * self.block_size, [found], 0)

    def _admit(self, request: Request, num_new_tokens: int, hit: Hit) -> bool:
        first = len(hit.blocks[0]) if hit.blocks else 0
        last = hit.num_tokens // self.block_size
        keys = self.prefix_cache.keys(request, hit.num_tokens, self.block_size)[first:last]
        self.host.pin(keys)  # room for the request may push others out to the host
        admitted = super()._admit(request, num_new_tokens, hit)
        self.host.pin(())
        if admitted:
            table = self.block_ids(request)[0]
            for block, key in zip(table[first:last], keys, strict=True):
                self.pool.cache(block, key)
            self._num_fetched += len(keys)
        return admitted

    def take_transfers(self, requests: Sequence[Request]) -> Transfers:
        """Return what the admissions and evictions since the last step copy."""
        del requests
        size = self.bytes_per_block
        moved = Transfers(fetched=self._num_fetched * size, stored=self._num_stored * size)
        self._num_fetched = self._num_stored = 0
        return moved

    def check_integrity(self) -> None:  # noqa: D102 - see KVCacheManager
        super().check_integrity()
        if len(self.host) > self.host.num_blocks:
            raise RuntimeError(f"{len(self.host)} host blocks in use of {self.host.num_blocks}")


def check_plain(name: str, manager: PagedManager) -> None:
    """Refuse what only the plain paged manager serves.

    Raises
    ------
    ValueError
        For layers that are not all full attention.
    """
    if len(manager.groups) != 1 or not isinstance(manager.groups[0], FullAttention):
        raise ValueError(f"allocator {name!r}: layers with windows are not modelled; paged does")
