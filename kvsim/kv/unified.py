"""KV in unified memory: more blocks than the GPU holds, paged in on demand at every step.

An allocation of CUDA's managed memory may exceed the GPU's memory: the driver copies touched pages
in over PCIe, and evicts the least recently used ones. Attention touches every block of every
request in each step, in the same order. So once the blocks exceed the GPU's memory, the least
recently used page is always the one that is needed next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import PositiveInt  # noqa: TC002 - the registry reads the annotation

from kvsim.kv.manager import ALLOCATORS, KVCacheConfig, Transfers
from kvsim.kv.paged import PagedManager
from kvsim.kv.tiered import Gib, check_plain
from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.records.request import Request

#: Bytes that the driver moves per page fault: a 2 MiB block of virtual addresses.
PAGE_BYTES = 2 * 2**20


@ALLOCATORS.register("unified")
class UnifiedManager(PagedManager):
    """Blocks in the GPU's memory and ``host_gib`` GiB of host memory; page faults move them.

    At most ``num_resident`` blocks are on the GPU at a time. Full attention only.
    """

    speculates = False

    def __init__(
        self, config: KVCacheConfig, *, host_gib: Gib = 64.0, block_size: PositiveInt | None = None
    ) -> None:
        both = replace(config, num_bytes=config.num_bytes + int(host_gib * 2**30))
        super().__init__(both, block_size=block_size)
        self.num_resident = config.num_bytes // self.bytes_per_block
        if not self.num_resident:
            raise ValueError(
                f"allocator 'unified': the GPU's KV memory holds no block of "
                f"{self.bytes_per_block} bytes"
            )
        check_plain("unified", self)
        self._resident: dict[int, None] = {}  # least recently touched first
        self._on_host: set[int] = set()
        self._faults_per_block = cdiv(self.bytes_per_block, PAGE_BYTES)

    def take_transfers(self, requests: Sequence[Request]) -> Transfers:
        """Touch every block of the step's requests; return the bytes that page faults move."""
        resident, on_host = self._resident, self._on_host
        num_faults = num_in = num_out = 0
        for request in requests:
            written = cdiv(request.num_filled, self.block_size)  # a reservation is not touched
            for block in self.block_ids(request)[0][:written]:
                if block in resident:
                    del resident[block]
                else:
                    num_faults += 1
                    if block in on_host:  # else it is new, without content to move
                        on_host.remove(block)
                        num_in += 1
                    if len(resident) >= self.num_resident:
                        oldest = next(iter(resident))
                        del resident[oldest]
                        on_host.add(oldest)
                        num_out += 1
                resident[block] = None
        size = self.bytes_per_block
        return Transfers(
            paged_in=num_in * size,
            paged_out=num_out * size,
            num_faults=num_faults * self._faults_per_block,
        )

    def check_integrity(self) -> None:
        super().check_integrity()
        if len(self._resident) > self.num_resident or self._on_host & self._resident.keys():
            raise RuntimeError("a block is in two places, or more are resident than fit")
