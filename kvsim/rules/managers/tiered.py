"""A paged KV cache that evicts prefix blocks to host memory and fetches them on a hit.

A content is stored when its last block on the GPU is evicted, and fetched when it continues a
waiting request's hit on the GPU. The cache has one group, of full attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.contents import NO_CONTENT
from kvsim.rules.blocks.contents import find_content
from kvsim.rules.blocks.host_tier import pin
from kvsim.rules.blocks.paged import admit_paged, name_blocks
from kvsim.rules.blocks.prefix import find_hit

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def find_tiered(kv: KV, request: Request, own_blocks: RequestBlocks) -> int:
    """Return the tokens of the longest prefix on the GPU and of its continuation on the host."""
    host, size = kv.pool.host, kv.groups[0].block_size
    place = find_hit(kv, request, own_blocks) // size
    host.num_found = place
    if kv.enable_prefix_caching and host.contents.queue.length > 0:
        last = (request.num_tokens - 1) // size
        while place < last and find_content(host.contents, own_blocks.keys[place]) != NO_CONTENT:
            place += 1
    return place * size


def admit_tiered(
    kv: KV, request: Request, own_blocks: RequestBlocks, num_tokens: int, hit: int
) -> bool:
    """As :func:`admit_paged`; contents found in host memory are fetched into new blocks."""
    host, size = kv.pool.host, kv.groups[0].block_size
    first, last = host.num_found, hit // size
    pin(host, own_blocks, first, last, 1)  # allocating evicts blocks to the host, which may evict
    fetched = (last - first) * size
    admitted = admit_paged(kv, request, own_blocks, num_tokens, hit - fetched, fetched)
    pin(host, own_blocks, first, last, 0)
    if admitted:
        name_blocks(kv, request, own_blocks, 0, first, last)
        host.num_fetched += last - first
    return admitted


def count_transfers(kv: KV) -> None:
    """Count the bytes that admissions and evictions since the last step copy."""
    host = kv.pool.host
    kv.moved.fetched = host.num_fetched * kv.bytes_per_block
    kv.moved.stored = host.num_stored * kv.bytes_per_block
    host.num_fetched = 0
    host.num_stored = 0
