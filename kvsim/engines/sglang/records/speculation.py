"""Records of SGLang's speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.records.record import Record


@dataclass(slots=True)
class Speculation(Record):
    """The tokens that a step verifies, and the slots that rows have beyond their tokens."""

    is_on: bool = False
    num_verified: int = 1  # draft tokens of a request, the target's own included
    depth: int = 0  # most drafts that a step accepts
    reserve: int = 0  # slots beyond the committed tokens, for two steps
