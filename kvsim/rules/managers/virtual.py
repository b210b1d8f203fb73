"""Contiguous virtual addresses over physical pages: vAttention (arXiv 2405.04437).

Every running request has two ranges of virtual memory per layer, for keys and for values. Each is
as long as max_model_len. Physical pages are mapped behind the ranges as the request grows, so
attention kernels need no block table. A page holds tokens of one tensor, so a token needs a slot in
every tensor of every layer, and each tensor's last page is partly empty.

Mapping takes no time here: pages of ended requests stay mapped until they are needed, and new pages
are mapped while the previous step computes (sections 6.1 and 6.2 of the paper). The page freed last
is used first; this affects only the memory map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.blocks.slots import end_within, num_slots, slots_up_to

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.request import Request
    from kvsim.records.virtual import MappedRows, TensorKind, Virtual, VirtualRange


def num_rows(memory: Virtual, kind: TensorKind, num_tokens: int) -> int:
    """Return the pages behind the first ``num_tokens`` tokens of a tensor, rounded up."""
    return cdiv(num_tokens * kind.token_bytes, memory.page_bytes)


def num_needed_pages(kv: KV, num_tokens: int) -> int:
    """Return the most pages that a request of ``num_tokens`` tokens holds at one time.

    With chunked prefill, a sliding-window layer holds only a window and the tokens in flight. They
    may begin and end inside a page.
    """
    memory, total = kv.virtual, 0
    for k in range(memory.num_kinds):
        kind = memory.tensors[k]
        rows = num_rows(memory, kind, num_tokens)
        if kind.window > 0 and not kv.reserve_output:
            held = slots_up_to(kv, kind.window - 1 + memory.max_in_flight_tokens)
            rows = min(rows, num_rows(memory, kind, held) + 1)
        total += rows * kind.num_tensors
    return total


def num_held_pages(memory: Virtual, virtual_range: VirtualRange) -> int:
    """Return the number of pages mapped to a virtual range."""
    total = 0
    for k in range(memory.num_kinds):
        rows = virtual_range.rows[k]
        total += (rows.end - rows.first) * memory.tensors[k].num_tensors
    return total


def allocate_pages(memory: Virtual, rows: MappedRows, first: int, stop: int) -> None:
    """Allocate free pages to the entries from ``first`` to ``stop`` of ``rows.pages``."""
    for place in range(first, stop):
        memory.num_free_pages -= 1
        rows.pages[place] = memory.free_pages[memory.num_free_pages]


def put_page(memory: Virtual, page: int) -> None:
    memory.free_pages[memory.num_free_pages] = page
    memory.num_free_pages += 1


def map_pages(memory: Virtual, virtual_range: VirtualRange, slots: int, spared: int) -> bool:
    """Map all missing pages of the first ``slots`` slots; without room, map none and return False.

    ``spared`` pages stay free.
    """
    wanted = 0
    for k in range(memory.num_kinds):
        kind = memory.tensors[k]
        wanted += (
            max(num_rows(memory, kind, slots) - virtual_range.rows[k].end, 0) * kind.num_tensors
        )
    if wanted == 0:
        return True
    if wanted > memory.num_free_pages - spared:
        return False
    for k in range(memory.num_kinds):
        kind, rows = memory.tensors[k], virtual_range.rows[k]
        end = max(num_rows(memory, kind, slots), rows.end)
        allocate_pages(memory, rows, rows.end * kind.num_tensors, end * kind.num_tensors)
        rows.end = end
    return True


def unmap_out_of_window(kv: KV, request: Request, virtual_range: VirtualRange) -> None:
    """Unmap the pages of a request that no later token sees."""
    memory = kv.virtual
    processed = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
    for k in range(memory.num_kinds):
        kind, rows = memory.tensors[k], virtual_range.rows[k]
        if kind.window == 0:
            continue
        seen_from = max(0, processed - kind.window + 1)
        first = min(seen_from * kind.token_bytes // memory.page_bytes, rows.end)
        for place in range(rows.first * kind.num_tensors, first * kind.num_tensors):
            put_page(memory, rows.pages[place])
        rows.first = max(rows.first, first)
        memory.dead_bytes += (seen_from - rows.seen_from) * kind.token_bytes * kind.num_tensors
        rows.seen_from = seen_from


def count_virtual_range(
    memory: Virtual, request: Request, virtual_range: VirtualRange, sign: int
) -> None:
    """Add a live request's bytes to the sums, or subtract them (sign -1)."""
    for k in range(memory.num_kinds):
        kind, rows = memory.tensors[k], virtual_range.rows[k]
        last = min(rows.end * memory.page_bytes, request.max_slots * kind.token_bytes)
        memory.dead_bytes += sign * rows.seen_from * kind.token_bytes * kind.num_tensors
        memory.last_bytes += sign * last * kind.num_tensors


def set_quiet_virtual(kv: KV, request: Request, virtual_range: VirtualRange) -> None:
    """Set the token count up to which a request only fills mapped pages."""
    if kv.has_windows:
        return  # windows may move at every step
    memory, quiet = kv.virtual, kv.max_model_len
    for k in range(memory.num_kinds):
        mapped = virtual_range.rows[k].end * memory.page_bytes // memory.tensors[k].token_bytes
        quiet = min(quiet, end_within(kv, mapped))
    request.next_bookkeeping_at = quiet


def admit_virtual(kv: KV, request: Request, virtual_range: VirtualRange, num_tokens: int) -> bool:
    """Map all pages for a waiting request's first tokens; False if too few pages are free."""
    memory = kv.virtual
    spared = memory.num_spared if kv.num_held > 0 else 0
    length = request.num_tokens if kv.reserve_full_isl else num_tokens
    needed = num_needed_pages(kv, min(length, kv.max_model_len))
    if needed > memory.num_free_pages - spared:
        return False
    for k in range(memory.num_kinds):
        virtual_range.rows[k].first = 0
        virtual_range.rows[k].end = 0
        virtual_range.rows[k].seen_from = 0
    if not map_pages(memory, virtual_range, num_slots(kv, request, num_tokens), spared):
        return False
    request.num_filled = num_tokens
    kv.num_filled += num_tokens
    count_virtual_range(memory, request, virtual_range, 1)
    set_quiet_virtual(kv, request, virtual_range)
    return True


def allocate_virtual(kv: KV, request: Request, num_tokens: int) -> bool:
    """Map all pages for a running request's next tokens; False if too few pages are free.

    Pages out of the window are unmapped even if the result is False, as vLLM frees such blocks.
    """
    end = request.num_computed_tokens + num_tokens
    if end > request.next_bookkeeping_at and not grow_virtual(kv, request, end):
        return False
    end = min(end, request.max_slots)  # a surplus step goes beyond the request's end
    kv.num_filled += end - request.num_filled
    request.num_filled = end
    return True


def grow_virtual(kv: KV, request: Request, end: int) -> bool:
    """Map the pages of the tokens up to ``end``; False if too few pages are free."""
    memory = kv.virtual
    virtual_range = memory.virtual_ranges[request.own_blocks]
    if kv.has_windows:
        unmap_out_of_window(kv, request, virtual_range)
    count_virtual_range(memory, request, virtual_range, -1)
    mapped = map_pages(memory, virtual_range, num_slots(kv, request, end), 0)
    count_virtual_range(memory, request, virtual_range, 1)
    set_quiet_virtual(kv, request, virtual_range)
    return mapped


def retire_virtual(kv: KV, request: Request) -> None:
    """Record that a request of a static batch has ended; its slots stay until the batch ends."""
    kv.num_filled -= request.num_filled
    count_virtual_range(kv.virtual, request, kv.virtual.virtual_ranges[request.own_blocks], -1)


def free_virtual(kv: KV, request: Request) -> None:
    """Free a request's pages, the last ones first."""
    memory = kv.virtual
    virtual_range = memory.virtual_ranges[request.own_blocks]
    if not kv.request_blocks[request.own_blocks].retired:
        retire_virtual(kv, request)
    for k in range(memory.num_kinds):
        rows, count = virtual_range.rows[k], memory.tensors[k].num_tensors
        for place in range(rows.end * count - 1, rows.first * count - 1, -1):
            put_page(memory, rows.pages[place])


def measure_virtual(kv: KV) -> None:
    """Set ``kv.usage``, in bytes, from the sums over live requests."""
    memory, usage = kv.virtual, kv.usage
    held = (memory.num_pages - memory.num_free_pages) * memory.page_bytes
    written = kv.num_filled * memory.token_bytes
    usage.token_states = written - memory.dead_bytes
    usage.reservation = memory.last_bytes - written
    usage.internal = held - usage.token_states - usage.reservation
    usage.external = 0
    usage.unallocated = memory.num_free_pages * memory.page_bytes
    usage.cached = 0


# -- swapping -------------------------------------------------------------------------------------


def swap_out_virtual(kv: KV, request: Request) -> int:
    """Move a request's pages to the host; return the bytes moved, 0 if they do not fit there."""
    memory = kv.virtual
    num_pages = num_held_pages(memory, memory.virtual_ranges[request.own_blocks])
    if num_pages > memory.num_free_host_pages:
        return 0
    free_virtual(kv, request)
    memory.num_free_host_pages -= num_pages
    request.next_bookkeeping_at = 0
    return num_pages * memory.page_bytes


def swap_in_virtual(kv: KV, request: Request) -> int:
    """Move a request's pages back to the GPU; return the bytes moved, 0 if there is no room.

    If other requests hold memory, ``num_spared`` pages and one more page of every tensor, for the
    next token, must be free as well.
    """
    memory = kv.virtual
    virtual_range = memory.virtual_ranges[request.own_blocks]
    num_pages = num_held_pages(memory, virtual_range)
    more = memory.num_tensors + memory.num_spared if kv.num_held > 0 else 0
    if num_pages + more > memory.num_free_pages:
        return 0
    memory.num_free_host_pages += num_pages
    for k in range(memory.num_kinds):
        rows, count = virtual_range.rows[k], memory.tensors[k].num_tensors
        allocate_pages(memory, rows, rows.first * count, rows.end * count)
    kv.num_filled += request.num_filled
    count_virtual_range(memory, request, virtual_range, 1)
    set_quiet_virtual(kv, request, virtual_range)
    return num_pages * memory.page_bytes
