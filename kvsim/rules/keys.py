"""Names for full blocks: equal content behind an equal prefix gives an equal key.

vLLM hashes (parent's hash, token ids, extra keys) with SHA-256. The simulator knows no token ids
but the content a token belongs to, so it mixes (parent's key, the content pieces of the block, the
salt) by an integer function. Any injective naming gives identical schedules; with 63 bits two of
100 million different blocks collide with a probability of 0.06 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.paged import Holding
    from kvsim.records.request import Request

START = 0x9E3779B97F4A7C15
LENGTH_WORD = START  # of a piece's number, so many times its tokens
FIRST_KEY = 1  # parent of a first block (any constant)
ENDLESS = 2**62  # tokens of an output's content; it never runs out
ITEM = 2**61 + 1  # before an item that an encoder computes, in a key; no content's number


def fold(key: int, value: int) -> int:
    """Fold an integer into a 64-bit key (the finaliser of SplitMix64, Steele et al. 2014).

    This rule, and those three that call it, have a second text, in unsigned arithmetic, for the
    compiled engine: they need the wrap-around of 64-bit products, which signed integers there do
    not have.
    """
    z = (key * 0x2545F4914F6CDD1D + value + START) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def mix(key: int, value: int) -> int:
    """Fold an integer into a 63-bit key."""
    return fold(key, value) >> 1


def mix_piece(key: int, content: int, start: int, length: int) -> int:
    """Fold a piece of content into a 63-bit key; has a second text, as :func:`fold` has.

    The piece becomes a number first, which waits for no key: one fold only follows the key before.
    """
    return mix(key, (mix(content, start) + length * LENGTH_WORD) % 2**64)


def draw_parent(request_id: int, end: int, beam: int, num_beams: int, beam_switch: float) -> int:
    """Draw which of two or more beams a beam continues at a length: mostly itself."""
    draw = fold(fold(fold(request_id, end), beam), 1)
    if not draw < beam_switch * 2.0**64:
        return beam
    other = fold(draw, 2) % (num_beams - 1)
    return other + (1 if other >= beam else 0)


def piece_of(request: Request, segment: int) -> tuple[int, int, int]:
    """Return content, start and length of a piece of a request: its segments, then its output."""
    if segment >= max(request.num_segments, 1):
        return request.output_content_id, 0, ENDLESS
    if request.num_segments == 0:  # a prompt that shares nothing
        return -2 * request.request_id - 1, 0, request.num_prompt_tokens
    given = request.segments[request.first_segment + segment]
    return given.content_id, given.start, given.num_tokens


def piece_at(holding: Holding, request: Request, segment: int) -> tuple[int, int, int]:
    """Do as :func:`piece_of`, token by token of an output whose tokens are numbered."""
    place = segment - max(request.num_segments, 1)
    if not holding.has_numbers or place < 0:
        return piece_of(request, segment)
    first = holding.number_offsets[request.request_id]
    return request.output_content_id, holding.numbers[first + place], 1


def look_ahead(key: int, holding: Holding, request: Request, num_tokens: int) -> int:
    """Fold the tokens after a block into its key, one by one."""
    segment, offset = holding.segment, holding.offset
    for _ in range(num_tokens):
        content, start, length = piece_at(holding, request, segment)
        key = mix(mix(key, content), start + offset)
        offset += 1
        if offset == length:
            segment += 1
            offset = 0
    return key


def add_items(key: int, holding: Holding, row: int, start: int, stop: int) -> int:
    """Fold the encoder's items that overlap a block into its key, and where they begin in it."""
    for place in range(holding.item_offsets[row], holding.item_offsets[row + 1]):
        item = holding.items[place]
        if item.offset < stop and item.offset + item.num_tokens > start:
            key = mix(mix(mix(key, ITEM), item.content), item.offset - start)
    return key


def extend_keys(
    holding: Holding, request: Request, num_keys: int, block_size: int, lookahead: int
) -> None:
    """Compute a request's first keys; each also covers ``lookahead`` tokens after its block.

    Adjacent pieces of one content are merged, so that the same tokens have the same key however
    the trace cut them into segments.
    """
    if holding.owner != request.request_id:
        holding.owner = request.request_id
        holding.num_keys = holding.segment = holding.offset = 0
    for k in range(holding.num_keys, num_keys):
        key = holding.keys[k - 1] if k > 0 else mix(FIRST_KEY, request.cache_salt)
        missing = block_size
        piece, piece_start, piece_length = 0, 0, 0
        while missing > 0:
            content, start, length = piece_at(holding, request, holding.segment)
            taken = min(length - holding.offset, missing)
            begin = start + holding.offset
            if piece_length > 0 and content == piece and begin == piece_start + piece_length:
                piece_length += taken
            else:
                if piece_length > 0:
                    key = mix_piece(key, piece, piece_start, piece_length)
                piece, piece_start, piece_length = content, begin, taken
            missing -= taken
            holding.offset += taken
            if holding.offset == length:
                holding.segment += 1
                holding.offset = 0
        key = mix_piece(key, piece, piece_start, piece_length)
        if lookahead > 0:
            key = look_ahead(key, holding, request, lookahead)
        if holding.has_items:
            stop = (k + 1) * block_size + lookahead
            key = add_items(key, holding, request.request_id, k * block_size, stop)
        holding.keys[k] = key
    holding.num_keys = max(holding.num_keys, num_keys)
