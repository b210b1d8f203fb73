"""Contiguous virtual addresses over physical pages: vAttention (arXiv 2405.04437).

The rules, with a description, are in :mod:`kvsim.rules.managers.virtual`. CUDA maps pages of 2 MiB;
smaller pages need the authors' change to the driver.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from kvsim.kv.manager import ALLOCATORS, KEEPS_NO_PREFIXES, KVCacheConfig
from kvsim.kv.rule_manager import RuleManager
from kvsim.records.kv import KV, VIRTUAL
from kvsim.records.memory import Objects, assign, head
from kvsim.records.virtual import MappedRows, TensorKind, VirtualRange
from kvsim.rules.blocks.slots import num_slots
from kvsim.rules.managers.virtual import num_needed_pages, num_rows

if TYPE_CHECKING:
    from kvsim.budget.layout import KVLayout
    from kvsim.records.memory import Memory
    from kvsim.records.request import Request

#: vAttention's page groups, in bytes (its section 6.2).
PAGE_SIZES = {"64KiB": 2**16, "128KiB": 2**17, "256KiB": 2**18, "2MiB": 2**21}
PageSize: TypeAlias = Literal["64KiB", "128KiB", "256KiB", "2MiB"]


def tensor_kinds(layout: KVLayout) -> list[TensorKind]:
    """Group the K and V tensors of all layers by their bytes per token and window.

    Chunked-local layers keep all tokens, like full attention.
    """
    counts: dict[tuple[int, int], int] = {}
    for layer in layout.layers:
        window = (layer.window or 0) if layer.kind == "sliding" else 0
        key = (layer.bytes_per_token // layer.num_tensors, window)
        counts[key] = counts.get(key, 0) + layer.num_tensors
    return [TensorKind(count, *key) for key, count in counts.items()]


@ALLOCATORS.register("virtual")
class VirtualManager(RuleManager):
    """Contiguous virtual addresses over physical pages of 64KiB to 2MiB: vAttention.

    Pages out of the window are unmapped even if the allocation is then refused. vLLM frees blocks
    in the same way.
    """

    rules_of = VIRTUAL
    has_block_table = False
    can_swap = True
    ignores = KEEPS_NO_PREFIXES | {"block_size": "its blocks are pages; give +page-size"}

    def __init__(self, config: KVCacheConfig, *, page_size: PageSize = "2MiB") -> None:
        super().__init__(config)
        self.page_bytes = page_bytes = PAGE_SIZES[page_size]
        self.kinds = tensor_kinds(config.layout)
        self.num_pages = config.num_bytes // page_bytes
        self.total_bytes = self.num_pages * page_bytes
        self.block_size = max(page_bytes // max(kind.token_bytes for kind in self.kinds), 1)
        num_tensors = sum(kind.num_tensors for kind in self.kinds)
        self.num_gpu_blocks = self.num_pages // num_tensors
        self.piece_bytes = page_bytes * num_tensors

    # -- laying out ----------------------------------------------------------------------------

    def _set_up(self, kv: KV, memory: Memory) -> None:
        config, virtual = self.config, kv.virtual
        kv.manager = self.rules_of
        assign(kv, config)
        kv.enable_prefix_caching = False
        kv.has_windows = any(kind.window for kind in self.kinds)
        virtual.num_kinds = len(self.kinds)
        virtual.tensors = memory.records(TensorKind, len(self.kinds))
        for record, kind in zip(virtual.tensors, self.kinds, strict=True):
            assign(record, kind)
        virtual.num_tensors = sum(kind.num_tensors for kind in self.kinds)
        virtual.token_bytes = sum(kind.num_tensors * kind.token_bytes for kind in self.kinds)
        virtual.page_bytes, virtual.num_pages = self.page_bytes, self.num_pages
        virtual.max_in_flight_tokens = config.max_in_flight_tokens

    @cached_property
    def sizes(self) -> KV:
        """Settings without the memory itself, to check what fits into an empty memory."""
        kv = KV()
        self._set_up(kv, Objects())
        return kv

    def init_state(self, kv: KV, memory: Memory, num_request_blocks: int) -> None:
        self._set_up(kv, memory)
        virtual = kv.virtual
        virtual.num_free_pages = self.num_pages
        virtual.free_pages = memory.list_of(range(self.num_pages - 1, -1, -1))
        virtual.num_free_host_pages = self.config.swap_space_bytes // self.page_bytes
        virtual.num_spared = self.config.spared(self.num_pages)
        self.add_request_blocks(kv, memory, num_request_blocks)

    def fill_request_blocks(self, kv: KV, memory: Memory, first: int, stop: int) -> None:
        new = memory.records(VirtualRange, stop - first)
        rows = memory.share_out(new, "rows", MappedRows, len(self.kinds))
        for k, kind in enumerate(kv.virtual.tensors):
            longest = num_rows(kv.virtual, kind, self.config.max_model_len)
            memory.share_out(rows[k :: len(self.kinds)], "pages", int, longest * kind.num_tensors)
        kv.virtual.virtual_ranges = [*kv.virtual.virtual_ranges, *new] if first else new

    def room_for_map(self, kv: KV, memory: Memory) -> None:
        pages = max(self.num_pages, 1)
        kv.dead_ends, kv.live_ends = memory.floats(pages), memory.floats(pages)
        kv.last_ends, kv.unused = memory.floats(pages), memory.ints(pages)

    # -- the protocol --------------------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        tokens = num_slots(self.sizes, request, request.end)
        return num_needed_pages(self.sizes, tokens) <= self.num_pages

    def _pages(self, own_blocks: int) -> list[list[int]]:
        """Return the pages behind a request's tensors of each kind, row by row."""
        found = []
        for rows, kind in zip(
            self.kv.virtual.virtual_ranges[own_blocks].rows, self.kinds, strict=True
        ):
            mapped = head(rows.pages, rows.end * kind.num_tensors)
            found.append(mapped[rows.first * kind.num_tensors :])
        return found

    def check_integrity(self) -> None:
        virtual, held = self.kv.virtual, self.held_requests()
        pages = [page for _, h in held for kind in self._pages(h) for page in kind]
        free = head(virtual.free_pages, virtual.num_free_pages)
        if sorted([*pages, *free]) != list(range(self.num_pages)):
            raise RuntimeError(
                f"invariants 2 and 4: {len(pages)} pages mapped and {len(free)} free "
                f"of {self.num_pages}"
            )
        for request, h in held:
            for kind, rows in zip(self.kinds, virtual.virtual_ranges[h].rows, strict=True):
                if request.num_filled * kind.token_bytes > rows.end * self.page_bytes:
                    raise RuntimeError("a request has more tokens than slots")
        self.check_filled()
        self.usage.check(self.total_bytes)
