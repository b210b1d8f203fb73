"""Tokens in the slots of the tree: pieces of contents, each recorded at its first slot.

Consecutive tokens of one content are compared, cut and copied at once. There is a list of pieces
for the GPU's pages, and another one for the host's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.tree.pages import floor_page, page_behind
from kvsim.rules.blocks.keys import FIRST_KEY, mix, span_of

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Pages, Piece, Radix
    from kvsim.records.request import Request


def seek(tree: Radix, request: Request, segment: int, offset: int) -> None:
    """Set the position in the request to a token, given by its offset in a segment."""
    _, _, length = span_of(request, segment)
    while offset >= length:
        offset -= length
        segment += 1
        _, _, length = span_of(request, segment)
    tree.segment = segment
    tree.offset = offset


def num_common(tree: Radix, pieces: list[Piece], request: Request, page: int, most: int) -> int:
    """Count the tokens, in whole pages, that a request's next tokens share with a chain of pages.

    The position in the request, ``tree.segment`` and ``tree.offset``, moves past them.
    """
    segment, offset, same, passed = tree.segment, tree.offset, 0, 0
    content, start, length = span_of(request, segment)
    held = pieces[page * tree.pages.page_size]
    while same < most:
        if held.content != content or held.index + passed != start + offset:
            break
        step = min(held.num_tokens - passed, length - offset, most - same)
        same += step
        passed += step
        offset += step
        if passed == held.num_tokens and same < most:
            held = pieces[held.behind]
            passed = 0
        while offset >= length:
            offset -= length
            segment += 1
            content, start, length = span_of(request, segment)
    whole = floor_page(same, tree.pages.page_size)
    if whole == same:
        tree.segment = segment
        tree.offset = offset
    elif whole > 0:
        seek(tree, request, tree.segment, tree.offset + whole)
    return whole


def token_at(pieces: list[Piece], slot: int, place: int) -> tuple[int, int]:
    """Return content and index of the token ``place`` tokens after a piece's first token."""
    held = pieces[slot]
    while place >= held.num_tokens:
        place -= held.num_tokens
        held = pieces[held.behind]
    return held.content, held.index + place


def node_key(pieces: list[Piece], parent: int, salt: int, slot: int, page_size: int) -> int:
    """Compute the key of a node's child from the first and the last token of its first page.

    Keys need not be unique: a look-up compares the page.
    """
    content, index = token_at(pieces, slot, 0)
    key = mix(mix(mix(mix(FIRST_KEY, parent), salt), content), index)
    content, index = token_at(pieces, slot, page_size - 1)
    return mix(mix(key, content), index)


def name_tokens(
    tree: Radix, pieces: list[Piece], pages: Pages, request: Request, page: int, num_tokens: int
) -> None:
    """Record a request's tokens, from the position in the request on, for a chain of pages."""
    size, segment, offset, place = tree.pages.page_size, tree.segment, tree.offset, 0
    held = pieces[page * size]
    while num_tokens > 0:
        content, start, length = span_of(request, segment)
        count = min(length - offset, num_tokens)
        if count > 0:
            held.content = content
            held.index = start + offset
            held.num_tokens = count
            num_tokens -= count
            if num_tokens > 0:
                place += count
                page = page_behind(pages, page, place // size)
                place %= size
                held.behind = page * size + place
                held = pieces[held.behind]
        segment += 1
        offset = 0


def cut_pieces(pieces: list[Piece], slot: int, num_tokens: int, behind: int) -> None:
    """Split a piece at the slot ``behind``, ``num_tokens`` tokens after its first slot."""
    held = pieces[slot]
    while num_tokens >= held.num_tokens:
        num_tokens -= held.num_tokens
        slot = held.behind
        held = pieces[slot]
    if num_tokens > 0:
        rest = pieces[behind]
        rest.content = held.content
        rest.index = held.index + num_tokens
        rest.num_tokens = held.num_tokens - num_tokens
        rest.behind = held.behind


def copy_pieces(
    source: list[Piece],
    slot: int,
    target: list[Piece],
    pages: Pages,
    page: int,
    num_tokens: int,
    page_size: int,
) -> None:
    """Record that a chain of pages holds the same tokens as another."""
    held, new, place = source[slot], target[page * page_size], 0
    while num_tokens > 0:
        count = min(held.num_tokens, num_tokens)
        new.content = held.content
        new.index = held.index
        new.num_tokens = count
        num_tokens -= count
        if num_tokens > 0:
            place += count
            page = page_behind(pages, page, place // page_size)
            place %= page_size
            new.behind = page * page_size + place
            new = target[new.behind]
            held = source[held.behind]
