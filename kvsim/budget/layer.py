"""KV of one layer on one rank."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.attention.spec import kind_of_layer

#: Elements per FP32 scale of an indexer's key, and of a latent in FP8 KV, whose rotary part stays
#: in 16 bits (DeepSeek-V3.2).
SCALED = 128


class LayerKV(NamedTuple):
    """One layer's KV on one rank: its kind, window or chunk in tokens, bytes per token.

    ``kind`` is ``layer`` of a class in :mod:`kvsim.attention`.

    ``num_tensors`` is 2 for keys and values, 1 for MLA's latent and for an indexer's keys, which
    count as a separate layer (``is_index``). ``state_bytes`` is the size of a state per request.
    ``is_draft`` marks a drafter's layer; with ``is_copied``, context parallelism copies its KV to
    every rank. A compressed layer stores one slot of ``bytes_per_token`` per ``tokens_per_slot``;
    ``block_size`` is its own tokens per block (0: those of the others), and its pages are padded
    to ``alignment``.
    """

    kind: str
    window: int | None
    bytes_per_token: int
    num_tensors: int = 2
    state_bytes: int = 0
    is_index: bool = False
    is_draft: bool = False
    is_copied: bool = False
    tokens_per_slot: int = 1
    block_size: int = 0
    alignment: int = 1

    @property
    def is_state(self) -> bool:
        """True if the layer keeps a state per request and nothing per token."""
        return kind_of_layer(self.kind).is_state
