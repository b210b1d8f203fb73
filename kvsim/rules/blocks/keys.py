"""Keys of full blocks: equal content after an equal prefix gives an equal key.

vLLM hashes (parent's hash, token ids, extra keys) with SHA-256. The simulator knows the content of
each token instead of its id, so it mixes (parent's key, content spans of the block, salt) by an
integer function. Any function without collisions gives the same schedules. With 63 bits, the
probability that any two of 100 million different blocks collide is 0.06 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request

START = 0x9E3779B97F4A7C15
LENGTH_WORD = START  # added to a span's number once per token
FIRST_KEY = 1  # key of the parent of a first block (any constant)
ENDLESS = 2**62  # tokens of an output's content, more than any output has
ITEM = 2**61 + 1  # precedes an encoder item in a key; no content has this number


def times_plus(a: int, b: int, c: int) -> int:
    """Return the lowest 64 bits of ``a * b + c``.

    The compiled backend has an unsigned implementation, as signed products must not overflow there.
    Its result is then read as a signed number, so callers mask it after a shift.
    """
    return (a * b + c) & (2**64 - 1)


def fold(key: int, value: int) -> int:
    """Fold an integer into a key of 64 bits (the finaliser of SplitMix64, Steele et al. 2014)."""
    z = times_plus(key, 0x2545F4914F6CDD1D, times_plus(value, 1, START))
    z = times_plus(z ^ ((z >> 30) & (2**34 - 1)), 0xBF58476D1CE4E5B9, 0)
    z = times_plus(z ^ ((z >> 27) & (2**37 - 1)), 0x94D049BB133111EB, 0)
    return z ^ ((z >> 31) & (2**33 - 1))


def mix(key: int, value: int) -> int:
    """Fold an integer into a 63-bit key."""
    return (fold(key, value) >> 1) & (2**63 - 1)


def mix_span(key: int, content: int, start: int, length: int) -> int:
    """Fold a span of content into a 63-bit key.

    The span is first turned into a number without the key, so that one fold depends on the key.
    """
    return mix(key, times_plus(length, LENGTH_WORD, mix(content, start)))


def draw_parent(request_id: int, end: int, beam: int, num_beams: int, beam_switch: float) -> int:
    """Draw the beam whose tokens a beam continues at length ``end``; usually its own."""
    draw = fold(fold(fold(request_id, end), beam), 1)
    if not (draw >> 11) & (2**53 - 1) < beam_switch * 2.0**53:  # exact in both engines
        return beam
    draw = fold(draw, 2)
    other = ((draw >> 1 & (2**63 - 1)) % (num_beams - 1) * 2 + (draw & 1)) % (num_beams - 1)
    return other + (1 if other >= beam else 0)


def span_of(request: Request, segment: int) -> tuple[int, int, int]:
    """Return (content, start, length) of a request's span: the segments first, then the output."""
    if segment >= max(request.num_segments, 1):
        return request.output_content_id, 0, ENDLESS
    if request.num_segments == 0:  # a prompt that shares nothing
        return -2 * request.request_id - 1, 0, request.num_prompt_tokens
    given = request.segments[request.first_segment + segment]
    return given.content_id, given.start, given.num_tokens


def span_at(own_blocks: RequestBlocks, request: Request, segment: int) -> tuple[int, int, int]:
    """As :func:`span_of`; if output tokens are numbered, each of them is a span of its own."""
    place = segment - max(request.num_segments, 1)
    if not own_blocks.has_numbers or place < 0:
        return span_of(request, segment)
    first = own_blocks.number_offsets[request.request_id]
    return request.output_content_id, own_blocks.numbers[first + place], 1


def fold_tokens(key: int, own_blocks: RequestBlocks, request: Request, num_tokens: int) -> int:
    """Fold the tokens after a block into its key, one by one."""
    segment, offset = own_blocks.segment, own_blocks.offset
    for _ in range(num_tokens):
        content, start, length = span_at(own_blocks, request, segment)
        key = mix(mix(key, content), start + offset)
        offset += 1
        if offset == length:
            segment += 1
            offset = 0
    return key


def add_items(key: int, own_blocks: RequestBlocks, row: int, start: int, stop: int) -> int:
    """Fold the encoder items that overlap a block, and their offsets in it, into its key."""
    for place in range(own_blocks.item_offsets[row], own_blocks.item_offsets[row + 1]):
        item = own_blocks.items[place]
        if item.offset < stop and item.offset + item.num_tokens > start:
            key = mix(mix(mix(key, ITEM), item.content), item.offset - start)
    return key


def extend_keys(
    own_blocks: RequestBlocks, request: Request, num_keys: int, block_size: int, lookahead: int
) -> None:
    """Compute a request's first ``num_keys`` keys, each with ``lookahead`` tokens after its block.

    Adjacent spans of one content are merged, so that the same tokens have the same key even if the
    trace splits them into different segments.
    """
    if own_blocks.owner != request.request_id:
        own_blocks.owner = request.request_id
        own_blocks.num_keys = own_blocks.segment = own_blocks.offset = 0
    for k in range(own_blocks.num_keys, num_keys):
        key = own_blocks.keys[k - 1] if k > 0 else mix(FIRST_KEY, request.cache_salt)
        missing = block_size
        span, span_start, span_length = 0, 0, 0
        while missing > 0:
            content, start, length = span_at(own_blocks, request, own_blocks.segment)
            taken = min(length - own_blocks.offset, missing)
            begin = start + own_blocks.offset
            if span_length > 0 and content == span and begin == span_start + span_length:
                span_length += taken
            else:
                if span_length > 0:
                    key = mix_span(key, span, span_start, span_length)
                span, span_start, span_length = content, begin, taken
            missing -= taken
            own_blocks.offset += taken
            if own_blocks.offset == length:
                own_blocks.segment += 1
                own_blocks.offset = 0
        key = mix_span(key, span, span_start, span_length)
        if lookahead > 0:
            key = fold_tokens(key, own_blocks, request, lookahead)
        if own_blocks.has_items:
            stop = (k + 1) * block_size + lookahead
            key = add_items(key, own_blocks, request.request_id, k * block_size, stop)
        own_blocks.keys[k] = key
    own_blocks.num_keys = max(own_blocks.num_keys, num_keys)
