"""Kinds of attention of a KV-cache group; their rules are in :mod:`kvsim.rules`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from kvsim.budget.planner import KVGroup, KVPlan
from kvsim.records.paged import CHUNKED, FULL, MAMBA, MAMBA_ALIGN, RING, RSWA, SLIDING
from kvsim.rules.blocks import attention as rules

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class FullAttention:
    """Every token attends to all tokens before it; no block is freed while the request lives."""

    block_size: int
    kind: ClassVar[int] = FULL
    window: ClassVar[int] = 0


@dataclass(frozen=True)
class MLA(FullAttention):
    """Full attention over latents; prefix look-ups treat it as another kind of attention."""


@dataclass(frozen=True)
class SlidingWindow:
    """A token sees itself and the ``window - 1`` tokens before it.

    Parameters
    ----------
    extra_retained : tokens before the window that are kept as well (multi-module MTP)
    replay : no block of the window is cached; the window's tokens are recomputed after a hit
    """

    block_size: int
    window: int
    extra_retained: int = 0
    replay: bool = False
    kind: ClassVar[int] = SLIDING


@dataclass(frozen=True)
class MLASlidingWindow(SlidingWindow):
    """A sliding window over latents."""


@dataclass(frozen=True)
class ChunkedLocal:
    """A token sees only its own chunk of ``chunk`` tokens (Llama 4's local layers)."""

    block_size: int
    chunk: int
    kind: ClassVar[int] = CHUNKED

    @property
    def window(self) -> int:
        """Tokens of a chunk."""
        return self.chunk


@dataclass(frozen=True)
class ReferenceWindow:
    """A token sees the prompt and the ``window`` tokens before it (R-SWA)."""

    block_size: int
    window: int
    kind: ClassVar[int] = RSWA


@dataclass(frozen=True)
class Ring:
    """The ring buffer of a compressor: one block per request, never shared."""

    block_size: int
    kind: ClassVar[int] = RING
    window: ClassVar[int] = 0


@dataclass(frozen=True)
class Mamba:
    """A state that every token overwrites, as in Mamba and linear attention.

    Parameters
    ----------
    mode : ``none`` keeps only the newest state; ``align`` also caches states at block ends
    spec_blocks : additional blocks for the states of drafts
    checkpoint_blocks : number of states that can be cached inside a prompt chunk, 0 or 1
    checkpoint_alignment : such a state follows a multiple of this number of tokens of the chunk
    """

    block_size: int
    mode: Literal["none", "align"] = "align"
    spec_blocks: int = 0
    checkpoint_blocks: int = 0
    checkpoint_alignment: int = 1
    window: ClassVar[int] = 0

    @property
    def kind(self) -> int:
        return MAMBA if self.mode == "none" else MAMBA_ALIGN


AttentionSpec: TypeAlias = (
    FullAttention | SlidingWindow | ChunkedLocal | ReferenceWindow | Ring | Mamba
)


def is_cached(spec: AttentionSpec) -> bool:
    """Return True if blocks of this kind get keys and can be hit."""
    return not isinstance(spec, Ring) and not (isinstance(spec, SlidingWindow) and spec.replay)


def sees_all(spec: AttentionSpec) -> bool:
    """Return True if a hit needs all blocks of the prefix, as under full attention."""
    return rules.sees_all(spec.kind)


def num_pinned(spec: AttentionSpec) -> int:
    """Return the number of tokens in the window, ``extra_retained`` included."""
    return spec.window + (spec.extra_retained if isinstance(spec, SlidingWindow) else 0)


def reference_window(spec: AttentionSpec) -> int:
    """Return the number of output tokens that R-SWA keeps, 0 for other kinds."""
    return spec.window if isinstance(spec, ReferenceWindow) else 0


def replay_window(spec: AttentionSpec) -> int:
    """Return the number of tokens that are recomputed after a hit."""
    return spec.window if isinstance(spec, SlidingWindow) and spec.replay else 0


def most_states(spec: AttentionSpec, num_tokens: int) -> int:
    """Return the most state blocks that a request holds; 0 for a kind without states."""
    if isinstance(spec, Ring):
        return 1
    if not isinstance(spec, Mamba):
        return 0
    last = 1 if spec.mode == "none" else 2 + spec.checkpoint_blocks
    return min(last, -(-num_tokens // spec.block_size)) + spec.spec_blocks


def attention_spec(group: KVGroup) -> AttentionSpec:
    """Return the attention spec of a planner's group."""
    if group.kind == "ring":
        return Ring(group.block_size)
    if (state := group.state) is not None:
        spec_blocks, checkpoints = state.num_speculative_blocks, state.num_checkpoint_blocks
        return Mamba(group.block_size, state.mode, spec_blocks, checkpoints)
    if group.window is None:
        return FullAttention(group.block_size)
    if group.kind == "sliding":
        return SlidingWindow(group.block_size, group.window)
    return ChunkedLocal(group.block_size, group.window)


def group_of(spec: AttentionSpec, slot_bytes: int = 1) -> KVGroup:
    """Return the planner's group of one layer for a spec.

    Sliding windows and chunks keep their kind; every other kind becomes full attention.
    """
    if isinstance(spec, SlidingWindow):
        return KVGroup("sliding", spec.window, spec.block_size, 1, slot_bytes)
    if isinstance(spec, ChunkedLocal):
        return KVGroup("chunked", spec.chunk, spec.block_size, 1, slot_bytes)
    return KVGroup("full", None, spec.block_size, 1, slot_bytes)


def plan_of(specs: Sequence[AttentionSpec]) -> KVPlan:
    """Return a plan with one group for each spec, one byte per slot, and the largest block size."""
    return KVPlan(tuple(map(group_of, specs)), max(spec.block_size for spec in specs))
