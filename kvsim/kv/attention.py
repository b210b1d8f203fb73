"""What each kind of attention lets the KV cache drop, keep and find again.

One class per kind, all with the same four questions: which leading tokens no later token can see,
how many blocks admission must count at most, which full blocks are worth a key, and how long a
prefix can be reused. The rules are vLLM 0.33's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kvsim.kv.block_pool import NULL_BLOCK
from kvsim.memory.planner import KVGroup, KVPlan, admission_cap

if TYPE_CHECKING:
    from kvsim.request import Request

#: Blocks per KV-cache group; groups of equal spec are looked up together.
BlocksPerGroup: TypeAlias = list[list[int]]
#: Blocks of one content in every group looked up together, or None if one of them lacks it.
Lookup: TypeAlias = Callable[[int], Sequence[int] | None]


def cdiv(a: int, b: int) -> int:
    """Divide, rounding up."""
    return -(-a // b)


@dataclass(frozen=True)
class FullAttention:
    """Every token sees all before it: nothing is dropped while the request lives."""

    block_size: int

    def num_skipped(self, num_tokens: int) -> int:
        """Leading tokens that token ``num_tokens`` and all later ones cannot see."""
        del num_tokens
        return 0

    def admission_cap(self, max_in_flight_tokens: int, max_model_len: int) -> int | None:
        """Most blocks a request ever holds at once, None if only its length limits it."""
        del max_in_flight_tokens, max_model_len
        return None

    def worth_caching(
        self, request: Request, block: int, alignment: int, retention: int | None
    ) -> bool:
        """Whether a later hit could end such that it needs the ``block``-th full block."""
        del request, block, alignment, retention
        return True

    def find_hit(
        self, keys: Sequence[int], limit: int, lookup: Lookup, num_groups: int, alignment: int
    ) -> BlocksPerGroup:
        """Find the longest reusable prefix of at most ``limit`` tokens. Does not mutate.

        Returns one list of blocks per group looked up; null blocks count as hit.
        """
        hit: BlocksPerGroup = [[] for _ in range(num_groups)]
        for key in keys[: limit // self.block_size]:
            blocks = lookup(key)
            if blocks is None:
                break
            for found, block in zip(hit, blocks, strict=True):
                found.append(block)
        return _align(hit, self.block_size, alignment)


@dataclass(frozen=True)
class SlidingWindow:
    """A token sees itself and the ``window - 1`` tokens before it."""

    block_size: int
    window: int

    def num_skipped(self, num_tokens: int) -> int:  # noqa: D102 - see FullAttention
        return max(0, num_tokens - self.window + 1)

    def admission_cap(self, max_in_flight_tokens: int, max_model_len: int) -> int | None:  # noqa: D102
        return admission_cap(
            "sliding", self.window, self.block_size, max_in_flight_tokens, max_model_len
        )

    @property
    def _run(self) -> int:
        """Cached blocks in a row that the first token after a hit needs."""
        return cdiv(self.window - 1, self.block_size)

    def worth_caching(  # noqa: D102
        self, request: Request, block: int, alignment: int, retention: int | None
    ) -> bool:
        size, run = self.block_size, self._run
        if alignment % size:
            return True
        # With retention 0 only the window before the last aligned boundary is kept.
        segment = alignment if retention is None else retention
        if segment:
            per_segment = segment // size
            if run >= per_segment or block % per_segment >= per_segment - run:
                return True
        if retention is None:
            return False
        for boundary in (request.num_prompt_tokens - 1, request.shared_prefix_boundary):
            end = boundary // alignment * alignment // size
            if end - run <= block < end:
                return True
        return False

    def find_hit(  # noqa: D102
        self, keys: Sequence[int], limit: int, lookup: Lookup, num_groups: int, alignment: int
    ) -> BlocksPerGroup:
        size, needed = self.block_size, self._run
        length = limit // size
        hit: BlocksPerGroup = [[NULL_BLOCK] * length for _ in range(num_groups)]
        run = 0
        for i in range(length - 1, -1, -1):
            blocks = lookup(keys[i])
            if blocks is None:
                run = 0
                continue
            if run == 0 and (i + 1) * size % alignment:
                continue  # a hit must end on an aligned boundary
            for found, block in zip(hit, blocks, strict=True):
                found[i] = block
            run += 1
            if run >= needed:
                return [found[: i + run] for found in hit]
        return _align([found[:run] for found in hit], size, alignment)


@dataclass(frozen=True)
class ChunkedLocal:
    """A token sees only its own chunk of ``chunk`` tokens (Llama 4's local layers)."""

    block_size: int
    chunk: int

    def num_skipped(self, num_tokens: int) -> int:  # noqa: D102
        return num_tokens // self.chunk * self.chunk

    def admission_cap(self, max_in_flight_tokens: int, max_model_len: int) -> int | None:  # noqa: D102
        return admission_cap(
            "chunked", self.chunk, self.block_size, max_in_flight_tokens, max_model_len
        )

    def worth_caching(  # noqa: D102
        self, request: Request, block: int, alignment: int, retention: int | None
    ) -> bool:
        del request, block, alignment, retention
        return True

    def find_hit(  # noqa: D102
        self, keys: Sequence[int], limit: int, lookup: Lookup, num_groups: int, alignment: int
    ) -> BlocksPerGroup:
        num_unseen = self.num_skipped(limit) // self.block_size
        hit: BlocksPerGroup = [[NULL_BLOCK] * num_unseen for _ in range(num_groups)]
        for key in keys[num_unseen : limit // self.block_size]:
            blocks = lookup(key)
            if blocks is None:
                break
            for found, block in zip(hit, blocks, strict=True):
                found.append(block)
        return _align(hit, self.block_size, alignment)


AttentionSpec: TypeAlias = FullAttention | SlidingWindow | ChunkedLocal


def attention_spec(group: KVGroup) -> AttentionSpec:
    """Return the rules for a group of the planner."""
    if group.window is None:
        return FullAttention(group.block_size)
    if group.kind == "sliding":
        return SlidingWindow(group.block_size, group.window)
    return ChunkedLocal(group.block_size, group.window)


def group_of(spec: AttentionSpec, slot_bytes: int = 1) -> KVGroup:
    """Return a planner's group that has these rules."""
    if isinstance(spec, SlidingWindow):
        return KVGroup("sliding", spec.window, spec.block_size, 1, slot_bytes)
    if isinstance(spec, ChunkedLocal):
        return KVGroup("chunked", spec.chunk, spec.block_size, 1, slot_bytes)
    return KVGroup("full", None, spec.block_size, 1, slot_bytes)


def plan_of(specs: Sequence[AttentionSpec]) -> KVPlan:
    """Return the plan of given groups, a byte per slot; the largest block sets the block's size."""
    return KVPlan(tuple(map(group_of, specs)), max(spec.block_size for spec in specs))


def _align(hit: BlocksPerGroup, block_size: int, alignment: int) -> BlocksPerGroup:
    """Cut a hit to whole multiples of the alignment."""
    length = len(hit[0]) * block_size // alignment * alignment // block_size
    return [found[:length] for found in hit]
