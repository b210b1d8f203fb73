"""A paged KV cache whose evicted prefix blocks go to host memory, and come back on a hit.

What vLLM calls KV offloading (``--kv-offloading-size``), in its simplest form: a content goes down
when its last block on the GPU is handed out again, and comes up when a waiting request would hit it
right after what it hits on the GPU. Copies run beside the computation of the step that admits the
request (:class:`kvsim.cost.host_link.HostLink`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveInt

from kvsim.kv.attention import FullAttention
from kvsim.kv.host_tier import HostTier
from kvsim.kv.manager import ALLOCATORS, Hit, KVCacheConfig, KVCacheManager, Transfers
from kvsim.kv.paged import PagedManager, paged_arguments, plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.request import Request

Gib = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TieredManager(PagedManager):
    """Blocks on the GPU over ``num_host_blocks`` in host memory; full attention only.

    A content is on the GPU, in host memory, or in both: what was fetched is not stored again.
    """

    def __init__(self, num_gpu_blocks: int, num_host_blocks: int, **arguments: Any) -> None:
        super().__init__(num_gpu_blocks, **arguments)
        self.host = HostTier(num_host_blocks)
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


def check_plain(name: str, config: KVCacheConfig, manager: PagedManager) -> None:
    """Refuse what only the plain paged manager serves.

    Raises
    ------
    ValueError
        For several sequences per request, and layers that are not all full attention.
    """
    if config.has_samples:
        raise ValueError(f"num_samples: {name} serves one sequence per request; paged serves more")
    if len(manager.groups) != 1 or not isinstance(manager.groups[0], FullAttention):
        raise ValueError(f"allocator {name!r}: layers with windows are not modelled; paged does")


@ALLOCATORS.register("tiered")
def tiered(
    config: KVCacheConfig,
    *,
    host_gib: Gib = 64.0,
    block_size: PositiveInt | None = None,
    eviction: str = "lru",
) -> KVCacheManager:
    """Paged, with evicted prefix blocks kept in ``host_gib`` GiB of host memory per GPU."""
    plan = plan_of(config, block_size)
    manager = TieredManager(
        config.num_bytes // plan.bytes_per_block,
        int(host_gib * 2**30) // plan.bytes_per_block,
        **paged_arguments(config, plan),
        eviction=eviction,
    )
    check_plain("tiered", config, manager)
    return manager
