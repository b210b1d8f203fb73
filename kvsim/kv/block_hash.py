"""Names for full blocks: equal content behind an equal prefix gives an equal key.

vLLM hashes (parent's hash, token ids, extra keys) with SHA-256. The simulator knows no token ids
but the content a token belongs to, so it mixes (parent's key, the content pieces of the block, the
salt) by a 64-bit integer function. Any injective naming gives identical schedules; with 64 bits two
of 100 million different blocks collide with a probability of 0.03 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.request import Request

_MASK = 2**64 - 1
NONE_HASH = 0x9E3779B97F4A7C15  # parent of a first block (any constant)


def mix(key: int, value: int) -> int:
    """Fold an integer into a 64-bit key (the finaliser of SplitMix64, Steele et al. 2014)."""
    z = (key * 0x2545F4914F6CDD1D + value + NONE_HASH) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def extend_block_hashes(request: Request, num_blocks: int, block_size: int) -> list[int]:
    """Compute a request's keys up to its ``num_blocks``-th full block; returns all its keys.

    Mutates ``request.block_hashes`` and its cursor. Adjacent pieces of one content are merged, so
    the same tokens have the same key however the trace cut them into segments.
    """
    hashes = request.block_hashes
    if len(hashes) >= num_blocks:
        return hashes
    content = request.content
    index, offset = request.content_cursor
    while len(hashes) < num_blocks:
        key = hashes[-1] if hashes else mix(NONE_HASH, request.cache_salt)
        missing = block_size
        piece_id, piece_start, piece_len = -1, -1, 0
        while missing:
            content_id, start, length = content[index]
            taken = min(length - offset, missing)
            begin = start + offset
            if piece_len and content_id == piece_id and begin == piece_start + piece_len:
                piece_len += taken
            else:
                if piece_len:
                    key = mix(mix(mix(key, piece_id), piece_start), piece_len)
                piece_id, piece_start, piece_len = content_id, begin, taken
            missing -= taken
            offset += taken
            if offset == length:
                index, offset = index + 1, 0
        hashes.append(mix(mix(mix(key, piece_id), piece_start), piece_len))
    request.content_cursor = (index, offset)
    return hashes
