"""KV of one layer on one rank."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvsim.catalog.spec import AttentionKind

#: Elements per FP32 scale of an indexer's key, and of a latent in FP8 KV, whose rotary part stays
#: in 16 bits (DeepSeek-V3.2).
SCALED = 128

#: Kinds of layers: KV of all tokens, of a window or of a chunk; or a state per request, of a Mamba
#: or linear-attention layer ("mamba") or in the ring buffer of a compressor ("ring").
LayerKind = AttentionKind | Literal["mamba", "ring"]


class LayerKV(NamedTuple):
    """One layer's KV on one rank: its kind, window or chunk in tokens, bytes per token.

    ``num_tensors`` is 2 for keys and values, 1 for MLA's latent and for an indexer's keys, which
    count as a separate layer (``is_index``). ``state_bytes`` is the size of a state per request.
    ``is_draft`` marks a drafter's layer; with ``is_copied``, context parallelism copies its KV to
    every rank. A compressed layer stores one slot of ``bytes_per_token`` per ``tokens_per_slot``;
    ``block_size`` is its own tokens per block (0: those of the others), and its pages are padded
    to ``alignment``.
    """

    kind: LayerKind
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
