"""PyTorch's caching allocator: it splits segments of device memory, and keeps freed memory.

The rules are those of CUDACachingAllocator with its default settings (c10/cuda/
CUDACachingAllocator.cpp; "A guide to PyTorch's CUDA Caching Allocator", Z. DeVito, 2022). Sizes are
rounded up to 512 bytes. Requests of up to 1 MiB and larger requests have separate pools. The
smallest sufficient free block is used, on a tie the one with the lowest address; its remainder is
split off. A freed block merges with free neighbours in its segment and stays reserved. Free
segments are returned to the device only if it has no room for a new segment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 2**20
#: Names and values of CUDACachingAllocator.cpp, in bytes.
MIN_BLOCK_SIZE = 512  # kMinBlockSize
SMALL_SIZE = MIB  # kSmallSize: the largest request of the small pool
SMALL_BUFFER = 2 * MIB  # kSmallBuffer: segments of the small pool
LARGE_BUFFER = 20 * MIB  # kLargeBuffer: segments for requests below kMinLargeAlloc
MIN_LARGE_ALLOC = 10 * MIB  # kMinLargeAlloc
ROUND_LARGE = 2 * MIB  # kRoundLarge: granularity of larger segments


def round_size(num_bytes: int) -> int:
    """Round the size of a request up to a multiple of 512 bytes, at least 512."""
    return -(-num_bytes // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE or MIN_BLOCK_SIZE


def segment_size(size: int) -> int:
    """Return the bytes of the segment that is reserved for a rounded size."""
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    if size < MIN_LARGE_ALLOC:
        return LARGE_BUFFER
    return -(-size // ROUND_LARGE) * ROUND_LARGE


def should_split(size: int, remaining: int) -> bool:
    """Return True if the ``remaining`` bytes of a block for a rounded ``size`` are split off."""
    return remaining >= MIN_BLOCK_SIZE if size <= SMALL_SIZE else remaining > SMALL_SIZE


class Block:
    """A part of one segment, allocated or free; ``before`` and ``after`` are its neighbours."""

    __slots__ = ("address", "after", "allocated", "before", "size", "small")

    def __init__(
        self,
        address: int,
        size: int,
        small: bool,
        before: Block | None = None,
        after: Block | None = None,
    ) -> None:
        self.address = address
        self.size = size
        self.small = small  # it belongs to the small pool
        self.allocated = False
        self.before = before
        self.after = after


class CachingAllocator:
    """PyTorch's caching allocator over a device memory of ``capacity`` bytes.

    Segments get increasing virtual addresses, which are never reused: the driver maps any free
    memory to them, so the device's memory cannot be fragmented.

    Attributes
    ----------
    active : bytes of allocated blocks, rounding included
    reserved : bytes of all segments
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.active = 0
        self.reserved = 0
        self._end = 0  # next segment's address
        self._heads: dict[int, Block] = {}  # first block of each segment
        # Free blocks by (size, address), of the large and the small pool.
        self._free: tuple[list[tuple[int, int, Block]], ...] = ([], [])
        self._journal: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None

    @property
    def fragmentation(self) -> float:
        """1 - active / reserved, PyTorch's figure; 0 when nothing is reserved."""
        return 1.0 - self.active / self.reserved if self.reserved else 0.0

    def malloc(self, num_bytes: int) -> Block | None:
        """Allocate a block; return None for PyTorch's out-of-memory error. Mutates.

        Before that error, all wholly free segments are released, as in PyTorch.
        """
        size = round_size(num_bytes)
        small = size <= SMALL_SIZE
        free = self._free[small]
        at = bisect_left(free, (size,))
        is_new = at == len(free)
        block = self._reserve(size) if is_new else free.pop(at)[2]
        if block is None:
            return None
        remaining = block.size - size
        if should_split(size, remaining):
            after, address = block.after, block.address + size
            rest = Block(address, remaining, small, block, after)
            if after is not None:
                after.before = rest
            block.after, block.size = rest, size
            insort(free, (remaining, address, rest))
        block.allocated = True
        self.active += block.size
        if self._journal is not None:
            self._journal.append((self._undo_malloc, (block, remaining, is_new)))
        return block

    def free(self, block: Block) -> None:
        """Free a block and merge it with its free neighbours. Mutates."""
        free = self._free[block.small]
        address, size = block.address, block.size
        before, after = block.before, block.after
        self.active -= size
        block.allocated = False
        if before is not None and before.allocated:
            before = None
        if after is not None and after.allocated:
            after = None
        at, length = address, size
        if before is not None:
            at, length = before.address, before.size + length
            del free[bisect_left(free, (before.size, at))]
            block.address = at
            block.before = left = before.before
            if left is None:
                self._heads[at] = block
            else:
                left.after = block
        if after is not None:
            del free[bisect_left(free, (after.size, after.address))]
            length += after.size
            block.after = right = after.after
            if right is not None:
                right.before = block
        block.size = length
        insort(free, (length, at, block))
        if self._journal is not None:
            self._journal.append((self._undo_free, (block, address, size, before, after)))

    def empty_cache(self) -> None:
        """Return wholly free segments to the device (``torch.cuda.empty_cache``). Mutates."""
        for free in self._free:
            whole = [entry for entry in free if entry[2].before is None and entry[2].after is None]
            for entry in whole:
                del free[bisect_left(free, entry[:2])]
                del self._heads[entry[1]]
                self.reserved -= entry[0]
                if self._journal is not None:
                    self._journal.append((self._undo_release, (entry[2],)))

    def _reserve(self, size: int) -> Block | None:
        """Reserve a new segment for a rounded size; release free segments if necessary."""
        wanted = segment_size(size)
        if self.reserved + wanted > self.capacity:
            self.empty_cache()
            if self.reserved + wanted > self.capacity:
                return None
        block = Block(self._end, wanted, size <= SMALL_SIZE)
        self._heads[block.address] = block
        self._end += wanted
        self.reserved += wanted
        return block

    # -- transactions --------------------------------------------------------------------------

    def begin(self) -> None:
        """Start to record changes, so that :meth:`rollback` can undo them. Mutates."""
        self._journal = []

    def commit(self) -> None:
        """Keep the changes since :meth:`begin`, and stop recording. Mutates."""
        self._journal = None

    def rollback(self) -> None:
        """Undo all changes since :meth:`begin`, the last one first. Mutates."""
        journal, self._journal = self._journal, None
        for undo, arguments in reversed(journal or []):
            undo(*arguments)

    def _undo_malloc(self, block: Block, remaining: int, is_new: bool) -> None:
        free = self._free[block.small]
        self.active -= block.size
        block.allocated = False
        if should_split(block.size, remaining):
            rest = block.after
            assert rest is not None
            del free[bisect_left(free, (rest.size, rest.address))]
            block.size += rest.size
            block.after = rest.after
            if block.after is not None:
                block.after.before = block
        if is_new:
            del self._heads[block.address]
            self._end = block.address
            self.reserved -= block.size
        else:
            insort(free, (block.size, block.address, block))

    def _undo_free(
        self, block: Block, address: int, size: int, before: Block | None, after: Block | None
    ) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.address))]
        block.address, block.size, block.allocated = address, size, True
        self.active += size
        if before is not None:
            block.before = before
            if before.before is None:
                self._heads[before.address] = before
            else:
                before.before.after = before
            insort(free, (before.size, before.address, before))
        if after is not None:
            block.after = after
            if after.after is not None:
                after.after.before = after
            insort(free, (after.size, after.address, after))

    def _undo_release(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.address, block))
        self._heads[block.address] = block
        self.reserved += block.size

    # -- checking ------------------------------------------------------------------------------

    def segments(self) -> Iterator[list[Block]]:
        """Yield the blocks of each segment, both by address. Does not mutate."""
        for address in sorted(self._heads):
            block: Block | None = self._heads[address]
            blocks = []
            while block is not None:
                blocks.append(block)
                block = block.after
            yield blocks

    def check_integrity(self) -> None:
        """Recount blocks, lists and bytes. Does not mutate.

        Raises
        ------
        RuntimeError
            Naming the broken invariant.
        """
        blocks: list[Block] = []
        for segment in self.segments():
            _check_segment(segment)
            blocks += segment
        for small, free in enumerate(self._free):
            found = [b for b in blocks if not b.allocated and b.small == small]
            if [entry[:2] for entry in free] != sorted((b.size, b.address) for b in found):
                raise RuntimeError("the list of free blocks differs from the segments' free blocks")
        reserved = sum(block.size for block in blocks)
        active = sum(block.size for block in blocks if block.allocated)
        if (active, reserved) != (self.active, self.reserved) or reserved > self.capacity:
            raise RuntimeError(f"invariant 2: {active} of {reserved} bytes active, not as counted")


def _check_segment(blocks: list[Block]) -> None:
    """Check that a segment's blocks are adjacent, and that free neighbours are merged."""
    end, left = blocks[0].address, None
    for block in blocks:
        if block.address != end or block.before is not left:
            raise RuntimeError(f"invariant 4: a block at {block.address} follows {end}")
        if left and not (left.allocated or block.allocated):
            raise RuntimeError(f"free blocks at {left.address} have not been merged")
        end, left = end + block.size, block
