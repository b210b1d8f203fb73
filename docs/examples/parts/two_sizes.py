"""An allocator with two block sizes in one memory: long prompts get large blocks.

Run it: kvsim run --allocator docs/examples/parts/two_sizes.py:TwoSizes+ratio=4
"""

from kvsim.plugins.allocation import (
    AllocatorRules,
    Links,
    Queue,
    Request,
    append,
    per_block,
    per_replica,
    per_request,
    remove,
)


class TwoSizes(AllocatorRules):
    """Large blocks; one is split into small blocks as long as any of these is in use."""

    ratio: int = 8  # small blocks in a large one
    long: int = 1024  # prompt tokens from which on a request gets large blocks
    num_large: int = per_replica()
    large: Queue = per_replica(Queue)  # free large blocks, by their first small block
    small: Queue = per_replica(Queue)  # free small blocks of split large blocks
    links: list[Links] = per_block(Links)
    used: list[int] = per_block()  # small blocks in use, by large block
    held: list[Queue] = per_request(Queue)  # the blocks of each request

    def allocate(self, request: Request, num_tokens: int) -> int:
        """Make room for a request's first ``num_tokens`` tokens; return its room in tokens."""
        while self.num_large < self.num_blocks // self.ratio:  # at the first call
            append(self.large, self.links, self.num_large * self.ratio)
            self.num_large += 1
        blocks, is_long = self.held[request.own_blocks], request.num_prompt_tokens >= self.long
        size = self.block_size * self.ratio if is_long else self.block_size
        more, free = (num_tokens + size - 1) // size - blocks.length, self.large.length
        if more > (free if is_long else self.small.length + free * self.ratio):
            return 0
        for _ in range(more):
            if is_long:
                self.move(self.large, blocks)
            else:
                self.open_small(blocks)
        return blocks.length * size

    def free(self, request: Request) -> None:
        """Free all blocks of a request."""
        blocks = self.held[request.own_blocks]
        while blocks.length > 0:
            if request.num_prompt_tokens >= self.long:
                self.move(blocks, self.large)
            else:
                self.close_small(blocks)

    def open_small(self, blocks: Queue) -> None:
        """Add a small block to those of a request; split a large one if there is none."""
        if self.small.length == 0:
            first = self.large.head
            remove(self.large, self.links, first)
            for block in range(first, first + self.ratio):
                append(self.small, self.links, block)
        self.used[self.move(self.small, blocks) // self.ratio] += 1

    def close_small(self, blocks: Queue) -> None:
        """Free a small block; merge its large block if no other part of it is in use."""
        whole = self.move(blocks, self.small) // self.ratio
        self.used[whole] -= 1
        if self.used[whole] == 0:
            for block in range(whole * self.ratio, (whole + 1) * self.ratio):
                remove(self.small, self.links, block)
            append(self.large, self.links, whole * self.ratio)

    def move(self, source: Queue, target: Queue) -> int:
        """Move the first block of a list to the end of another; return it."""
        block = source.head
        remove(source, self.links, block)
        append(target, self.links, block)
        return block
