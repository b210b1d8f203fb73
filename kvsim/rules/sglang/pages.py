"""Page allocators: single slots go round first in, first out; longer pages come back to the front.

SGLang puts freed slots behind the others, and freed pages of more than one slot before them. What
is freed while a group is open comes back as one block when it closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.radix import Pages, Radix, Slot


def floor_page(num_tokens: int, page_size: int) -> int:
    """Round tokens down to whole pages."""
    return num_tokens // page_size * page_size


def ceil_page(num_tokens: int, page_size: int) -> int:
    """Round tokens up to whole pages."""
    return -(-num_tokens // page_size) * page_size


def take_page(pages: Pages) -> int:
    """Hand out the first free page; there is one."""
    page = pages.free[pages.first]
    pages.first += 1
    if pages.first == pages.num_pages:
        pages.first = 0
    pages.num_left -= 1
    return page


def open_group(pages: Pages) -> None:
    """Hold back what is freed from now on."""
    pages.is_grouping = True


def close_group(pages: Pages) -> None:
    """Give back as one block what was held."""
    pages.is_grouping = False
    make_way(pages, pages.num_grouped)
    for k in range(pages.num_grouped):
        queue_page(pages, k, pages.group[k])
    pages.num_left += pages.num_grouped
    pages.num_grouped = 0


def make_way(pages: Pages, count: int) -> None:
    """Move the front of the queue for a block of so many pages that comes back there."""
    if pages.page_size > 1:
        pages.first -= count
        if pages.first < 0:
            pages.first += pages.num_pages


def queue_page(pages: Pages, k: int, page: int) -> None:
    """Put the k-th page of a block into the queue; they count once all are there."""
    place = pages.first + k if pages.page_size > 1 else pages.first + pages.num_left + k
    pages.free[place if place < pages.num_pages else place - pages.num_pages] = page


def open_groups(tree: Radix) -> None:
    """Hold back what is freed from now on."""
    open_group(tree.pages)
    if tree.window > 0:
        open_group(tree.window_pages)


def close_groups(tree: Radix) -> None:
    """Give back as one block what was held."""
    close_group(tree.pages)
    if tree.window > 0:
        close_group(tree.window_pages)


def num_free_slots(tree: Radix) -> int:
    """Slots that any token finds: free in both pools, where there are two."""
    free = tree.pages.num_unused_slots
    return min(free, tree.window_pages.num_unused_slots) if tree.window > 0 else free


def page_behind(tree: Radix, page: int, count: int) -> int:
    """Return the page that comes so many after one."""
    for _ in range(count):
        page = tree.slots[page * tree.pages.page_size].next
    return page


def free_chain(tree: Radix, page: int, count: int) -> int:
    """Free pages that follow each other as one block; returns what comes after them."""
    if tree.window > 0:
        free_windows(tree, page, count)
    pages, slots, size = tree.pages, tree.slots, tree.pages.page_size
    if pages.is_grouping:
        for _ in range(count):
            pages.group[pages.num_grouped] = page
            pages.num_grouped += 1
            page = slots[page * size].next
        return page
    if pages.logs and count > 0:
        pages.log[pages.num_logged] = count
        pages.log[pages.num_logged + 1] = page
        pages.num_logged += 2
    make_way(pages, count)
    for k in range(count):
        queue_page(pages, k, page)
        page = slots[page * size].next
    pages.num_left += count
    return page


def free_parts(tree: Radix, page: int, start: int, end: int, dead: int) -> int:
    """Free pages of the tokens from ``start`` to ``end``, first those without window slots.

    These are those before the token ``dead``. Returns what comes after them.
    """
    size = tree.pages.page_size
    dead = min(max(dead, start), end)
    page = free_chain(tree, page, (dead - start) // size)
    return free_chain(tree, page, -(-(end - dead) // size))


def free_windows(tree: Radix, page: int, count: int) -> None:
    """Free the window slots of pages that follow each other: all of them have some, or none."""
    pages, size = tree.window_pages, tree.pages.page_size
    if count == 0 or tree.windows[page] == 0:
        return
    if not pages.is_grouping:
        make_way(pages, count)
    for k in range(count):
        if pages.is_grouping:
            pages.group[pages.num_grouped] = tree.windows[page]
            pages.num_grouped += 1
        else:
            queue_page(pages, k, tree.windows[page])
        tree.windows[page] = 0
        page = tree.slots[page * size].next
    if not pages.is_grouping:
        pages.num_left += count


def copy_names(
    source: list[Slot], a: int, target: list[Slot], b: int, num_pages: int, size: int
) -> None:
    """Write down of pages that they hold the same tokens as others."""
    for _ in range(num_pages):
        for k in range(size):
            target[b * size + k].content = source[a * size + k].content
            target[b * size + k].index = source[a * size + k].index
        a = source[a * size].next
        b = target[b * size].next
