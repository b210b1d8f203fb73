"""Contiguous virtual addresses over physical pages: vAttention (arXiv 2405.04437).

Every running request has, per layer, a stretch of virtual memory for its keys and one for its
values, each as long as max_model_len; physical pages are mapped behind them as the request grows,
so attention kernels need no block table. A page holds tokens of one tensor of one layer: a token
needs a slot in all of them, and each tensor's last page is partly empty. CUDA maps pages of 2 MiB;
smaller ones take the authors' change to the driver.

Mapping costs no time here: pages of ended requests stay mapped until they are needed, and new ones
are mapped ahead, while the step before computes (sections 6.1 and 6.2 there). Which page a request
gets decides only what the memory map looks like: the last ones returned come first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from kvsim.kv.manager import (
    ALLOCATORS,
    NO_HIT,
    Hit,
    KVCacheConfig,
    KVCacheManager,
)
from kvsim.kv.usage import Cause, KVUsage, paint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.memory.layout import KVLayout
    from kvsim.records.request import Request

#: vAttention's page groups, in bytes (its section 6.2).
PAGE_SIZES = {"64KiB": 2**16, "128KiB": 2**17, "256KiB": 2**18, "2MiB": 2**21}
PageSize: TypeAlias = Literal["64KiB", "128KiB", "256KiB", "2MiB"]


class TensorKind(NamedTuple):
    """Tensors that are mapped alike: how many, bytes per token of one, and its window."""

    num_tensors: int
    token_bytes: int
    window: int | None

    def first_token(self, num_computed: int) -> int:
        """First token that the next one after ``num_computed`` tokens still sees."""
        return 0 if self.window is None else max(0, num_computed - self.window + 1)


class Mapped(NamedTuple):
    """Rows of pages behind the tensors of one kind: [first, end); a row is a page of each."""

    first: int
    end: int


def tensor_kinds(layout: KVLayout) -> list[TensorKind]:
    """Collect the K and V tensors of all layers by what they keep.

    Chunked-local layers keep all, as their pages fall due at once.
    """
    counts: dict[tuple[int, int | None], int] = {}
    for layer in layout.layers:
        window = layer.window if layer.kind == "sliding" else None
        key = (layer.bytes_per_token // layer.num_tensors, window)
        counts[key] = counts.get(key, 0) + layer.num_tensors
    return [TensorKind(count, *key) for key, count in counts.items()]


class _Stretch:
    """A request's virtual memory: mapped rows and their pages by kind, and what is written."""

    __slots__ = ("counted", "filled", "pages", "request", "retired", "rows", "seen_from")

    def __init__(self, request: Request, num_kinds: int) -> None:
        self.request = request
        self.rows = [Mapped(0, 0)] * num_kinds
        self.pages: list[list[int]] = [[] for _ in range(num_kinds)]  # row by row
        self.filled = 0
        self.seen_from = [0] * num_kinds  # first token in the window
        self.retired = False
        self.counted = (0, 0, 0)  # its part of the manager's sums


@ALLOCATORS.register("virtual")
class VirtualManager(KVCacheManager):
    """Contiguous virtual addresses over physical pages of 64KiB to 2MiB: vAttention.

    Out-of-window pages are unmapped even when the call is then refused, as blocks are in vLLM.
    """

    has_block_table = False
    can_swap = True

    def __init__(self, config: KVCacheConfig, *, page_size: PageSize = "2MiB") -> None:
        self.page_bytes = page_bytes = PAGE_SIZES[page_size]
        self.kinds = tensor_kinds(config.layout)
        self.num_pages = config.num_bytes // page_bytes
        self.total_bytes = self.num_pages * page_bytes
        self.block_size = max(page_bytes // max(kind.token_bytes for kind in self.kinds), 1)
        num_tensors = sum(kind.num_tensors for kind in self.kinds)
        self.num_gpu_blocks = self.num_pages // num_tensors
        self.piece_bytes = page_bytes * num_tensors
        self._config = config
        self._num_spared = int(config.watermark * self.num_pages)
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._stretches: dict[int, _Stretch] = {}
        self._swapped: dict[int, _Stretch] = {}
        self._num_cpu_free = config.swap_space_bytes // page_bytes
        self._sums = [0, 0, 0]  # token states, reservation, internal; bytes

    def num_rows(self, kind: TensorKind, num_tokens: int) -> int:
        """Pages behind the first ``num_tokens`` tokens of one tensor, the last one partly used."""
        return -(-num_tokens * kind.token_bytes // self.page_bytes)

    # -- the protocol ------------------------------------------------------------------------

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        """Map what the next tokens need in every tensor, or nothing."""
        del hit
        end = request.num_computed_tokens + num_new_tokens
        state = self._stretches.get(request.request_id)
        if state is None:
            return self._admit(request, end)
        self._unmap_out_of_window(state)
        if not self._map(state, self._num_slots(request, end)):
            self._count(state)
            return False
        state.filled = end
        self._count(state)
        return True

    def _admit(self, request: Request, end: int) -> bool:
        config = self._config
        length = request.num_tokens if config.reserve_full_isl else end
        spared = self._num_spared if self._stretches else 0
        if self._num_needed(min(length, config.max_model_len)) > len(self._free) - spared:
            return False
        slots = self._num_slots(request, end)
        state = _Stretch(request, len(self.kinds))
        if not self._map(state, slots, spared):
            return False
        self._stretches[request.request_id] = state
        state.filled = end
        self._count(state)
        return True

    def _num_slots(self, request: Request, end: int) -> int:
        """Slots to own when the tokens up to ``end`` are scheduled."""
        if self._config.reserve_output:
            end = max(end, request.max_slots)
        return min(end + self._config.num_lookahead_tokens, self._config.max_model_len)

    def _num_needed(self, num_tokens: int) -> int:
        """Most pages that a request of so many tokens holds at once.

        Where prompts are computed in chunks, a window and what is in flight are all a sliding layer
        holds; a stretch of them may begin and end inside a page.
        """
        config, total = self._config, 0
        for kind in self.kinds:
            rows = self.num_rows(kind, num_tokens)
            if kind.window is not None and not config.reserve_output:
                held = kind.window - 1 + config.max_in_flight_tokens + config.num_lookahead_tokens
                rows = min(rows, self.num_rows(kind, held) + 1)
            total += rows * kind.num_tensors
        return total

    def _map(self, state: _Stretch, slots: int, spared: int = 0) -> bool:
        """Map the pages of the first ``slots`` slots that are not yet mapped, all or none."""
        ends = [
            max(self.num_rows(kind, slots), rows.end)
            for kind, rows in zip(self.kinds, state.rows, strict=True)
        ]
        wanted = [
            (end - rows.end) * kind.num_tensors
            for kind, rows, end in zip(self.kinds, state.rows, ends, strict=True)
        ]
        if not any(wanted):
            return True
        if sum(wanted) > len(self._free) - spared:
            return False
        for k, count in enumerate(wanted):
            if count:
                state.pages[k] += self._take(count)
                state.rows[k] = state.rows[k]._replace(end=ends[k])
        return True

    def _take(self, count: int) -> list[int]:
        pages = self._free[: -count - 1 : -1]
        del self._free[-count:]
        return pages

    def _unmap_out_of_window(self, state: _Stretch) -> None:
        request = state.request
        processed = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        for k, kind in enumerate(self.kinds):
            if kind.window is None:
                continue
            seen_from = kind.first_token(processed)
            first = min(seen_from * kind.token_bytes // self.page_bytes, state.rows[k].end)
            count = (first - state.rows[k].first) * kind.num_tensors
            if count > 0:
                self._free += state.pages[k][:count]
                del state.pages[k][:count]
                state.rows[k] = state.rows[k]._replace(first=first)
            state.seen_from[k] = seen_from

    def free(self, request: Request) -> None:  # noqa: D102 - see KVCacheManager
        state = self._stretches.pop(request.request_id)
        self._add(state.counted, -1)
        for pages in state.pages:
            self._free += reversed(pages)

    def retire(self, request: Request) -> None:  # noqa: D102
        state = self._stretches[request.request_id]
        state.retired = True
        self._count(state)

    def swap_out(self, request: Request) -> int:  # noqa: D102
        state = self._stretches[request.request_id]
        num_pages = sum(len(pages) for pages in state.pages)
        if num_pages > self._num_cpu_free:
            return 0
        self.free(request)
        self._num_cpu_free -= num_pages
        self._swapped[request.request_id] = state
        return num_pages * self.page_bytes

    def swap_in(self, request: Request) -> int:  # noqa: D102
        state = self._swapped[request.request_id]
        counts = [len(pages) for pages in state.pages]
        # A page of every tensor more for its next token; a lone request takes what there is.
        more = sum(kind.num_tensors for kind in self.kinds) + self._num_spared
        if sum(counts) + (more if self._stretches else 0) > len(self._free):
            return 0
        del self._swapped[request.request_id]
        self._num_cpu_free += sum(counts)
        state.pages = [self._take(count) if count else [] for count in counts]
        self._stretches[request.request_id] = state
        self._add(state.counted, +1)
        return sum(counts) * self.page_bytes

    def fits(self, request: Request) -> bool:  # noqa: D102
        tokens = request.num_prompt_tokens + request.max_tokens + self._config.num_lookahead_tokens
        return self._num_needed(min(tokens, self._config.max_model_len)) <= self.num_pages

    @property
    def num_free(self) -> int:
        """Tokens' worth of free pages, in blocks of ``block_size``."""
        return len(self._free) // sum(kind.num_tensors for kind in self.kinds)

    # -- accounting --------------------------------------------------------------------------

    def _causes(self, state: _Stretch) -> tuple[int, int, int]:
        """Bytes of token states, reservation and internal waste in a request's pages."""
        tokens = reserved = internal = 0
        last = max(state.request.max_slots, state.filled)
        for kind, rows, seen_from in zip(self.kinds, state.rows, state.seen_from, strict=True):
            held = (rows.end - rows.first) * self.page_bytes
            live = later = 0
            if not state.retired:
                live = (state.filled - seen_from) * kind.token_bytes
                written = state.filled * kind.token_bytes
                later = max(min(rows.end * self.page_bytes, last * kind.token_bytes) - written, 0)
            tokens += live * kind.num_tensors
            reserved += later * kind.num_tensors
            internal += (held - live - later) * kind.num_tensors
        return tokens, reserved, internal

    def _add(self, part: Sequence[int], sign: int) -> None:
        for i, num_bytes in enumerate(part):
            self._sums[i] += sign * num_bytes

    def _count(self, state: _Stretch) -> None:
        """Bring the sums up to date with a request."""
        self._add(state.counted, -1)
        state.counted = self._causes(state)
        self._add(state.counted, +1)

    @property
    def kv_usage(self) -> float:  # noqa: D102
        return (self.num_pages - len(self._free)) / self.num_pages if self.num_pages else 0.0

    @property
    def usage(self) -> KVUsage:  # noqa: D102
        tokens, reserved, internal = self._sums
        return KVUsage(tokens, reserved, internal, 0, len(self._free) * self.page_bytes, 0)

    def memory_map(self, num_bins: int) -> NDArray[np.uint8]:  # noqa: D102
        # Of each page: where its dead, live and reserved slots end, in bytes from its start.
        ends = np.zeros((3, self.num_pages))
        causes = np.full(self.num_pages, Cause.FREE, dtype=np.uint8)
        for state in self._stretches.values():
            last = max(state.request.max_slots, state.filled)
            for k, kind in enumerate(self.kinds):
                pages = np.array(state.pages[k], dtype=np.int64)
                rows = np.repeat(np.arange(*state.rows[k]), kind.num_tensors)
                marks = (0, 0, 0) if state.retired else (state.seen_from[k], state.filled, last)
                for row, token in enumerate(marks):
                    ends[row, pages] = token * kind.token_bytes - rows * self.page_bytes
                causes[pages] = Cause.INTERNAL
        return paint(num_bins, ends / self.page_bytes, causes)

    def check_integrity(self) -> None:  # noqa: D102
        states = list(self._stretches.values())
        held = [page for state in states for pages in state.pages for page in pages]
        if sorted([*held, *self._free]) != list(range(self.num_pages)):
            raise RuntimeError(
                f"invariants 2 and 4: {len(held)} pages mapped and {len(self._free)} free "
                f"of {self.num_pages}"
            )
        for state in states:
            for kind, rows, pages in zip(self.kinds, state.rows, state.pages, strict=True):
                if len(pages) != (rows.end - rows.first) * kind.num_tensors:
                    raise RuntimeError("a request has other pages than its rows say")
                if state.filled * kind.token_bytes > rows.end * self.page_bytes:
                    raise RuntimeError("a request has more tokens than slots")
        sums = [sum(self._causes(state)[i] for state in states) for i in range(3)]
        if sums != self._sums:
            raise RuntimeError(f"bytes by cause: {self._sums} counted, {sums} found")
        self.usage.check(self.total_bytes)
