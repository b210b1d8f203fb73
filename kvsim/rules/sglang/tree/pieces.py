"""Which tokens slots of the tree hold: pieces of contents, each noted at its first slot.

Tokens of one content that follow each other are compared, cut and copied at once. All lists of
pieces are those of the GPU or of the host, with the pages there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.blocks.keys import FIRST_KEY, mix, span_of
from kvsim.rules.sglang.tree.pages import floor_page, page_behind

if TYPE_CHECKING:
    from kvsim.records.radix import Pages, Piece, Radix
    from kvsim.records.request import Request


def stand_before(tree: Radix, request: Request, segment: int, offset: int) -> None:
    """Stand before the token of a request so many behind the beginning of a piece of it."""
    _, _, length = span_of(request, segment)
    while offset >= length:
        offset -= length
        segment += 1
        _, _, length = span_of(request, segment)
    tree.segment = segment
    tree.offset = offset


def num_common(tree: Radix, pieces: list[Piece], request: Request, page: int, most: int) -> int:
    """Count the tokens, of whole pages, that a request's next ones share with a chain of pages.

    The walk passes them.
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
        stand_before(tree, request, tree.segment, tree.offset + whole)
    return whole


def token_at(pieces: list[Piece], slot: int, place: int) -> tuple[int, int]:
    """Return content and index of the token so many behind that of a piece's first slot."""
    held = pieces[slot]
    while place >= held.num_tokens:
        place -= held.num_tokens
        held = pieces[held.behind]
    return held.content, held.index + place


def node_key(pieces: list[Piece], parent: int, salt: int, slot: int, page_size: int) -> int:
    """Name the child of a node that begins with a page, by its first and its last token.

    Names need not tell all pages apart: whoever looks one up compares the page.
    """
    content, index = token_at(pieces, slot, 0)
    key = mix(mix(mix(mix(FIRST_KEY, parent), salt), content), index)
    content, index = token_at(pieces, slot, page_size - 1)
    return mix(mix(key, content), index)


def name_tokens(
    tree: Radix, pieces: list[Piece], pages: Pages, request: Request, page: int, num_tokens: int
) -> None:
    """Write down which tokens a chain of pages holds: a request's, from where the walk stands."""
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
    """Let pieces begin at a slot, too, that is so many tokens behind a piece's first one."""
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
    """Write down of a chain of pages that it holds the same tokens as another."""
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
