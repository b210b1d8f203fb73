"""KV that grows by reallocation: Hugging Face ``generate`` without paging.

Each request has one tensor of keys and one of values per layer. Every new token replaces all of
them: `torch.cat` allocates a tensor that is one token longer, copies the old one and frees it
(transformers' `DynamicCache`; a sliding-window layer keeps its last window). So one tensor at a
time exists twice, and the holes left by old tensors are slightly too small for the new ones. The
copies take no time here.
"""

from __future__ import annotations

from functools import cached_property
from itertools import repeat
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pydantic import PositiveInt  # noqa: TC002 - the registry reads the annotation

from kvsim.kv.caching_allocator import MIN_LARGE_ALLOC, Block, CachingAllocator
from kvsim.kv.manager import (
    ALLOCATORS,
    KEEPS_NO_PREFIXES,
    NO_HIT,
    Hit,
    KVCacheConfig,
    KVCacheManager,
)
from kvsim.kv.usage import Cause, KVUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.budget.layer import LayerKV
    from kvsim.budget.layout import KVLayout
    from kvsim.records.request import Request

#: Least memory in bytes for a sample of the layers, if the KV memory is that large. A smaller heap
#: has fewer holes, so its best fit is worse (D42). For a saturated OPT-13B, 4 of 11.4 GiB give the
#: throughput and requests in flight of all layers within 1 %, and fragmentation within 3 percentage
#: points; on an A10G, half of the 5 GiB give 5 % less throughput.
SAMPLE_BYTES = 2**32


class TensorShape(NamedTuple):
    """One K or V tensor: bytes per token, and the most tokens that it keeps (None: all)."""

    token_bytes: int
    window: int | None

    def num_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the tensor for a sequence of ``num_tokens`` tokens."""
        kept = num_tokens if self.window is None else min(num_tokens, self.window)
        return kept * self.token_bytes


def sample_layers(
    layout: KVLayout, num_bytes: int, layers: int | None
) -> tuple[list[LayerKV], int]:
    """Choose the layers to simulate, with each kind of layer in proportion.

    Layers of a kind have tensors of the same sizes at all times. So a few layers in their share of
    the memory are as fragmented as all layers in the whole memory, except for random variation.

    Parameters
    ----------
    num_bytes : KV memory of all layers
    layers : number of layers to simulate; by default the fewest whose share of the memory is at
        least :data:`SAMPLE_BYTES`, or else all layers

    Returns
    -------
    The chosen layers, and the number of all layers.

    Raises
    ------
    ValueError
        If this number of layers cannot contain every kind in proportion.
    """
    kinds: dict[LayerKV, list[int]] = {}
    for index, layer in enumerate(layout.layers):
        kinds.setdefault(layer, []).append(index)
    whole = len(layout.layers)
    parts = gcd(*(len(indices) for indices in kinds.values()))
    fewest = whole // parts
    if layers is None:
        layers = min(-(-SAMPLE_BYTES * parts // max(num_bytes, 1)), parts) * fewest
    if layers % fewest or layers > whole:
        raise ValueError(
            f"dynamic: layers={layers}: of these {whole} layers, simulate a multiple of {fewest}"
        )
    chosen = [i for indices in kinds.values() for i in indices[: len(indices) * layers // whole]]
    return [layout.layers[i] for i in sorted(chosen)], whole


class _Tensors:
    """A request's tensors, their capacity (``room``) and the written tokens (``filled``)."""

    __slots__ = ("blocks", "filled", "request", "retired", "room")

    def __init__(self, request: Request, blocks: list[Block], room: int) -> None:
        self.request = request
        self.blocks = blocks
        self.room = room
        self.filled = 0
        self.retired = False


@ALLOCATORS.register("dynamic")
class DynamicManager(KVCacheManager):
    """Grow every tensor by concatenation in PyTorch's caching allocator, as in Hugging Face.

    Parameters
    ----------
    config : the memory and the settings
    layers : number of layers to simulate (see :func:`sample_layers`); results are scaled up to all
    """

    default_scheduler = "orca"
    has_block_table = False
    can_swap = True
    ignores = KEEPS_NO_PREFIXES

    def __init__(self, config: KVCacheConfig, *, layers: PositiveInt | None = None) -> None:
        sample, self._num_layers = sample_layers(config.layout, config.num_bytes, layers)
        self._num_sampled = len(sample)
        self.shapes = [
            TensorShape(layer.bytes_per_token // layer.num_tensors, layer.window)
            for layer in sample
            for _ in range(layer.num_tensors)
        ]
        self._plain_bytes = None  # per token of all tensors, if none has a window
        if all(shape.window is None for shape in self.shapes):
            self._plain_bytes = sum(shape.token_bytes for shape in self.shapes)
        self.total_bytes = config.num_bytes
        self.block_size = config.block_size
        slots = config.num_bytes // config.layout.bytes_per_token
        self.num_gpu_blocks = slots // config.block_size
        self.heap = CachingAllocator(config.num_bytes * self._num_sampled // self._num_layers)
        self._spared = config.spared(self.heap.capacity)
        self._max_model_len = config.max_model_len
        self._tensors: dict[int, _Tensors] = {}
        self._swapped: dict[int, _Tensors] = {}
        self._num_cpu_free = config.swap_space_bytes
        # Bytes of the sampled layers, summed over the requests, for usage and reports.
        self._num_asked = 0
        self._num_live_asked = 0
        self._num_filled = 0

    def _num_bytes(self, num_tokens: int) -> int:
        """Return the bytes of all sampled tensors for a sequence of ``num_tokens`` tokens."""
        if self._plain_bytes is not None:
            return num_tokens * self._plain_bytes
        return sum(shape.num_bytes(num_tokens) for shape in self.shapes)

    # -- the protocol ------------------------------------------------------------------------

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        """Allocate tensors for all known tokens at first, then replace each by a longer one."""
        state = self._tensors.get(request.request_id)
        end = request.num_computed_tokens + num_new_tokens
        if state is None:
            state = self._make(request, max(end, request.num_tokens))
            if state is None:
                return False
        elif end > state.room and not self._lengthen(state, end):
            return False
        self._num_filled += self._num_bytes(end) - self._num_bytes(state.filled)
        state.filled = end
        return True

    def _make(self, request: Request, room: int) -> _Tensors | None:
        """Allocate a request's tensors, all or none."""
        heap, asked = self.heap, self._num_bytes(room)
        spared = self._spared if self._tensors else 0
        if asked > heap.capacity - heap.active - spared:
            return None
        blocks = self._allocate(room)
        if blocks is None and not self._tensors:
            # No request holds memory: an empty cache serves whatever fits() has accepted.
            blocks = self._allocate(room, empty_cache=True)
        if blocks is None:
            return None
        state = _Tensors(request, blocks, room)
        self._tensors[request.request_id] = state
        self._num_asked += asked
        self._num_live_asked += asked
        return state

    def _allocate(
        self, room: int, replaced: Sequence[Block] = (), *, empty_cache: bool = False
    ) -> list[Block] | None:
        """Allocate all tensors or none, one after another; each frees the one that it replaces."""
        heap = self.heap
        heap.begin()
        if empty_cache:
            heap.empty_cache()
        blocks = []
        for shape, old in zip(self.shapes, replaced or repeat(None), strict=False):
            block = heap.malloc(shape.num_bytes(room))
            if block is None:
                heap.rollback()
                return None
            if old is not None:
                heap.free(old)
            blocks.append(block)
        heap.commit()
        return blocks

    def _lengthen(self, state: _Tensors, room: int) -> bool:
        blocks = self._allocate(room, state.blocks)
        if blocks is None:
            return False
        more = self._num_bytes(room) - self._num_bytes(state.room)
        self._num_asked += more
        self._num_live_asked += more
        state.blocks, state.room = blocks, room
        return True

    def free(self, request: Request) -> None:
        state = self._tensors[request.request_id]
        if not state.retired:
            self.retire(request)
        del self._tensors[request.request_id]
        self._num_asked -= self._num_bytes(state.room)
        for block in state.blocks:
            self.heap.free(block)

    def retire(self, request: Request) -> None:
        state = self._tensors[request.request_id]
        state.retired = True
        self._num_live_asked -= self._num_bytes(state.room)
        self._num_filled -= self._num_bytes(state.filled)

    def swap_out(self, request: Request) -> int:
        state = self._tensors[request.request_id]
        num_bytes = self._scaled(self._num_bytes(state.filled))
        if num_bytes > self._num_cpu_free:
            return 0
        self.free(request)
        self._num_cpu_free -= num_bytes
        self._swapped[request.request_id] = state
        return num_bytes

    def swap_in(self, request: Request) -> int:
        filled = self._swapped[request.request_id].filled
        # With room for the next token, so that a request that runs alone makes progress.
        state = self._make(request, max(filled, request.num_tokens))
        if state is None:
            return 0
        del self._swapped[request.request_id]
        state.filled = filled
        self._num_filled += self._num_bytes(filled)
        num_bytes = self._scaled(self._num_bytes(filled))
        self._num_cpu_free += num_bytes
        return num_bytes

    def fits(self, request: Request) -> bool:
        """Return True if a request at its greatest length fits while one tensor is copied."""
        tokens = min(request.num_prompt_tokens + request.max_tokens, self._max_model_len)
        return tokens <= self._longest

    @cached_property
    def _longest(self) -> int:
        """The largest length in tokens up to which a sequence and a copy of one tensor fit.

        A longer sequence needs more memory, except where tensors reach 10 MiB: from there on, each
        tensor gets a segment of its own size.
        """
        lengths = {(MIN_LARGE_ALLOC - 1) // shape.token_bytes for shape in self.shapes}
        longest = 0
        for last in sorted({*(n for n in lengths if n < self._max_model_len), self._max_model_len}):
            if self._holds(last):
                longest = last
                continue
            shortest = last  # shortest length known not to fit
            while shortest - longest > 1:
                middle = (longest + shortest) // 2
                if self._holds(middle):
                    longest = middle
                else:
                    shortest = middle
            break
        return longest

    def _holds(self, num_tokens: int) -> bool:
        heap = CachingAllocator(self.heap.capacity)
        sizes = [shape.num_bytes(num_tokens) for shape in self.shapes]
        return all(heap.malloc(size) is not None for size in (*sizes, max(sizes)))

    # -- accounting --------------------------------------------------------------------------

    def _scaled(self, num_bytes: int) -> int:
        """Scale bytes of the sampled layers to all layers."""
        return num_bytes * self._num_layers // self._num_sampled

    @property
    def heap_bytes(self) -> tuple[int, int]:
        return self._scaled(self.heap.active), self._scaled(self.heap.reserved)

    @property
    def kv_usage(self) -> float:
        return self.heap.active / self.heap.capacity if self.heap.capacity else 0.0

    @property
    def usage(self) -> KVUsage:
        tokens = self._scaled(self._num_filled)
        reserved = self._scaled(self._num_live_asked) - tokens
        ended = self._scaled(self._num_asked - self._num_live_asked)
        rounding = self._scaled(self.heap.active - self._num_asked)
        unallocated = self.total_bytes - tokens - reserved - ended - rounding
        return KVUsage(tokens, reserved, ended, rounding, unallocated, 0)

    def memory_map(self, num_bins: int) -> NDArray[np.uint8]:
        """Paint the segments in order, with unreserved memory at the end; see the base class."""
        causes = {}  # by address of an allocated block: bytes written and requested, retired
        for state in self._tensors.values():
            for shape, block in zip(self.shapes, state.blocks, strict=True):
                filled = 0 if state.retired else shape.num_bytes(state.filled)
                causes[block.address] = (filled, shape.num_bytes(state.room), state.retired)
        ends, codes, address = [], [], 0
        for blocks in self.heap.segments():
            for block in blocks:
                if block.allocated:
                    filled, asked, retired = causes[block.address]
                    ends += [address + filled, address + asked, address + block.size]
                    unfilled = Cause.INTERNAL if retired else Cause.RESERVATION
                    codes += [Cause.TOKEN_STATES, unfilled, Cause.EXTERNAL]
                else:
                    ends.append(address + block.size)
                    codes.append(Cause.FREE)
                address += block.size
        middles = (np.arange(num_bins) + 0.5) * (self.heap.capacity / num_bins)
        found = np.searchsorted(np.array(ends, dtype=np.int64), middles, side="right")
        return np.array([*codes, Cause.FREE], dtype=np.uint8)[found]

    def check_integrity(self) -> None:
        self.heap.check_integrity()
        states = list(self._tensors.values())
        held = sorted(block.address for state in states for block in state.blocks)
        found = [b.address for blocks in self.heap.segments() for b in blocks if b.allocated]
        if held != found:
            raise RuntimeError(f"invariant 4: {len(held)} tensors, {len(found)} blocks allocated")
        for state in states:
            for shape, block in zip(self.shapes, state.blocks, strict=True):
                if shape.num_bytes(state.room) > block.size or state.filled > state.room:
                    raise RuntimeError("a tensor is longer than its block")
        live = [state for state in states if not state.retired]
        counted = (self._num_asked, self._num_live_asked, self._num_filled)
        recount = (
            sum(self._num_bytes(state.room) for state in states),
            sum(self._num_bytes(state.room) for state in live),
            sum(self._num_bytes(state.filled) for state in live),
        )
        if counted != recount:
            raise RuntimeError(f"bytes requested and filled: {counted} counted, {recount} found")
        self.usage.check(self.total_bytes)
