"""The ring buffer of a compressor."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.attention.spec import ATTENTION, AttentionSpec


@ATTENTION.register("ring")
@dataclass(frozen=True)
class Ring(AttentionSpec):
    """One block per request, never shared: the state of a compressor."""

    block_size: int
    window = 0
    layer = "ring"
    event_names = ("ring", "ring")
    has_holes = True
    is_state = True
    holds_one = True

    @property
    def is_cached(self) -> bool:
        return False

    def most_states(self, num_tokens: int) -> int:
        return 1
