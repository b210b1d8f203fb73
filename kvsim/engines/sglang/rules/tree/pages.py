"""Page allocators: single slots queue first in, first out; longer pages return to the front.

SGLang puts freed slots after the others, and freed pages of more than one slot before them. Pages
freed while a group is open return as one block when it closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Pages, Radix


def floor_page(num_tokens: int, page_size: int) -> int:
    """Round tokens down to whole pages."""
    return num_tokens // page_size * page_size


def ceil_page(num_tokens: int, page_size: int) -> int:
    """Round tokens up to whole pages."""
    return -(-num_tokens // page_size) * page_size


def page_after(pages: Pages, page: int) -> int:
    return page + 1 + pages.links[page].jump


def link_page(pages: Pages, page: int, following: int) -> None:
    """Make ``following`` the page after ``page``."""
    pages.links[page].jump = following - page - 1


def page_behind(pages: Pages, page: int, count: int) -> int:
    """Return the page that is ``count`` pages after another."""
    for _ in range(count):
        page = page_after(pages, page)
    return page


def next_chain(pages: Pages) -> None:
    """Advance to the next chain of free pages, after the front chain was allocated."""
    pages.first = page_after(pages, pages.front_last)
    if pages.num_left > 0:
        front = pages.chains[pages.first]
        pages.front_last = front.last
        pages.front_count = front.count


def allocate_page(pages: Pages) -> int:
    """Allocate the first free page; one must be free."""
    page = pages.first
    pages.num_left -= 1
    pages.front_count -= 1
    if pages.front_count == 0:
        next_chain(pages)
    else:
        pages.first = page_after(pages, page)
    return page


def allocate_chain(pages: Pages, count: int) -> int:
    """Allocate the first free pages, one or more, as a chain; return the last page.

    The caller has checked that there are enough. The chain begins with the first free page.
    """
    left, last = count, 0
    while left > 0 and left >= pages.front_count:
        left -= pages.front_count
        last = pages.front_last
        pages.num_left -= pages.front_count
        next_chain(pages)
    if left > 0:
        last = page_behind(pages, pages.first, left - 1)
        pages.first = page_after(pages, last)
        pages.front_count -= left
        pages.num_left -= left
    return last


def return_chain(pages: Pages, first: int, last: int, count: int) -> None:
    """Free a chain of pages as one block, after or before all others, or into the open group."""
    if count == 0:
        return
    chain = pages.chains[first]
    chain.last = last
    chain.count = count
    if pages.is_grouping:
        if pages.num_grouped == 0:
            pages.group_first = first
        else:
            link_page(pages, pages.group_last, first)
        pages.group_last = last
        pages.num_grouped += count
        return
    if pages.logs:
        pages.log[pages.num_logged] = count
        pages.log[pages.num_logged + 1] = first
        pages.num_logged += 2
    queue_pages(pages, first, last, count)


def queue_pages(pages: Pages, first: int, last: int, count: int) -> None:
    """Queue a block of one or more linked chains after, or before, all others."""
    if pages.num_left > 0 and pages.page_size == 1:
        link_page(pages, pages.last, first)
        pages.last = last
    else:
        if pages.num_left == 0:
            pages.last = last
        else:
            front = pages.chains[pages.first]
            front.last = pages.front_last
            front.count = pages.front_count
            link_page(pages, last, pages.first)
        pages.first = first
        pages.front_last = pages.chains[first].last
        pages.front_count = pages.chains[first].count
    pages.num_left += count


def open_group(pages: Pages) -> None:
    """Hold back the pages freed from now on."""
    pages.is_grouping = True


def close_group(pages: Pages) -> None:
    """Free the pages held back as one block."""
    pages.is_grouping = False
    if pages.num_grouped > 0:
        queue_pages(pages, pages.group_first, pages.group_last, pages.num_grouped)
        pages.num_grouped = 0


def open_groups(tree: Radix) -> None:
    """Hold back the pages freed from now on."""
    open_group(tree.pages)
    if tree.window > 0:
        open_group(tree.window_pages)


def close_groups(tree: Radix) -> None:
    """Free the pages held back as one block."""
    close_group(tree.pages)
    if tree.window > 0:
        close_group(tree.window_pages)


def num_free_slots(tree: Radix) -> int:
    """Return the number of tokens that can get slots; with two pools, slots in both."""
    free = tree.pages.num_unused_slots
    return min(free, tree.window_pages.num_unused_slots) if tree.window > 0 else free


def map_windows(tree: Radix, page: int, count: int) -> None:
    """Allocate window slots for consecutive pages; enough must be free."""
    for _ in range(count):
        tree.windows[page] = allocate_page(tree.window_pages)
        page = page_after(tree.pages, page)


def free_chain(tree: Radix, page: int, count: int) -> int:
    """Free consecutive pages as one block; return the page after them."""
    if count == 0:
        return page
    last = page_behind(tree.pages, page, count - 1)
    behind = page_after(tree.pages, last)
    free_whole(tree, page, last, count)
    return behind


def free_whole(tree: Radix, first: int, last: int, count: int) -> None:
    """Free a chain of pages at once, given its first and last page."""
    if tree.window > 0:
        free_windows(tree, first, count)
    return_chain(tree.pages, first, last, count)


def free_parts(tree: Radix, page: int, start: int, end: int, dead: int) -> int:
    """Free the pages of tokens ``start`` to ``end``; return the page after them.

    Pages before the token ``dead``, which have no window slots, are freed first.
    """
    size = tree.pages.page_size
    dead = min(max(dead, start), end)
    page = free_chain(tree, page, (dead - start) // size)
    return free_chain(tree, page, -(-(end - dead) // size))


def free_windows(tree: Radix, page: int, count: int) -> None:
    """Free the window slots of consecutive pages, if they have any (all or none do)."""
    if count == 0 or tree.windows[page] == 0:
        return
    pages, first, last = tree.window_pages, tree.windows[page], tree.windows[page]
    tree.windows[page] = 0
    for _ in range(count - 1):
        page = page_after(tree.pages, page)
        link_page(pages, last, tree.windows[page])
        last = tree.windows[page]
        tree.windows[page] = 0
    return_chain(pages, first, last, count)
