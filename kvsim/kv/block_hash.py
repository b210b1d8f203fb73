"""Keys of a request's blocks, for allocators and policies in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.memory import Zeros
from kvsim.records.paged import RequestBlocks
from kvsim.rules.blocks.keys import extend_keys

if TYPE_CHECKING:
    from typing import Any

    from kvsim.records.request import Request


def block_keys(request: Request, num_blocks: int, block_size: int, lookahead: int = 0) -> list[int]:
    """Return the keys of a request's first ``num_blocks`` blocks; equal prefixes have equal keys.

    A key also covers ``lookahead`` tokens after its block. See :mod:`kvsim.rules.blocks.keys`.
    """
    keys: Any = Zeros()
    extend_keys(RequestBlocks(keys=keys), request, num_blocks, block_size, lookahead)
    return [keys[place] for place in range(num_blocks)]
