"""Keys of a request's blocks, for allocators and policies in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.memory import Zeros
from kvsim.records.paged import RequestBlocks
from kvsim.rules.blocks.keys import extend_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from kvsim.records.kv import KV
    from kvsim.records.request import Request


def block_keys(request: Request, num_blocks: int, block_size: int, lookahead: int = 0) -> list[int]:
    """Return the keys of a request's first ``num_blocks`` blocks; equal prefixes have equal keys.

    A key also covers ``lookahead`` tokens after its block. See :mod:`kvsim.rules.blocks.keys`.
    """
    keys: Any = Zeros()
    extend_keys(RequestBlocks(keys=keys), request, num_blocks, block_size, lookahead)
    return [keys[place] for place in range(num_blocks)]


def prompt_keys(kv: KV, requests: Iterable[Request]) -> Iterator[list[int]]:
    """Yield the keys of each prompt's full blocks that a hit may use."""
    size, lookahead, first = kv.hash_block_size, kv.num_hash_lookahead_tokens, kv.request_blocks[0]
    given = {name: getattr(first, name) for name in ("has_items", "items", "item_offsets")}
    for request in requests:
        keys: Any = Zeros()
        count = (request.num_prompt_tokens - 1) // size
        extend_keys(RequestBlocks(keys=keys, **given), request, count, size, lookahead)
        yield [keys[place] for place in range(count)]
