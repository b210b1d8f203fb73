"""Parameters of attention over compressed tokens (DeepSeek-V4), from ``inference/model.py``.

Every layer attends to a window. Most layers attend to compressed tokens, too: one per 4 tokens,
chosen by an indexer, or one per 128 tokens, all of them. Tensor by tensor, the counts are those of
the published checkpoint (a public list of its shapes, copy 62968290951).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec

#: Compressed tokens with an indexer, whose groups overlap by one: twice as wide states.
INDEXED, HEAVY = 4, 128


def num_overlaps(ratio: int) -> int:
    """Return how many compressed tokens one token contributes to."""
    return 2 if ratio == INDEXED else 1


def attention_params(model: ModelSpec) -> int:
    """Return one layer's parameters: low-rank queries, one key that is also the value, sinks."""
    h, dim, rank = model.hidden_size, model.head_dim, model.q_lora_rank
    queries = h * rank + rank + rank * model.num_heads * dim
    return queries + h * dim + dim + model.num_heads + output_params(model)


def output_params(model: ModelSpec) -> int:
    """Return the parameters of one layer's output projection, in groups and of low rank."""
    width = model.num_heads * model.head_dim
    return model.output_lora_rank * (width + model.output_groups * model.hidden_size)


def compressor_params(model: ModelSpec, ratio: int, dim: int) -> int:
    """Return the parameters that make compressed tokens of ``dim`` elements."""
    width = num_overlaps(ratio) * dim
    return 2 * width * model.hidden_size + ratio * width + dim


def indexer_params(model: ModelSpec) -> int:
    """Return the parameters of one indexer: queries, weights of heads, its own compressor."""
    heads, dim = model.index_num_heads, model.index_head_dim
    queries = model.q_lora_rank * heads * dim + model.hidden_size * heads
    return queries + compressor_params(model, INDEXED, dim)


def shared_params(model: ModelSpec) -> int:
    """Return the compressors of all layers, and the mixing of parallel residual streams.

    Less the biases of routers: layers that route by a table of token ids have none.
    """
    found = sum(compressor_params(model, r, model.head_dim) for r in model.compress_ratios if r)
    streams = model.residual_streams
    mixed, width = (2 + streams) * streams, streams * model.hidden_size
    found -= model.num_hash_layers * model.num_experts
    found += model.num_layers * 2 * (mixed * width + mixed + 3)
    return found + streams * width + streams + 1


def replicated_params(model: ModelSpec) -> tuple[int, int]:
    """Return the parameters that every rank holds: projections of queries and keys, the rest."""
    projections = len(model.layers) * model.hidden_size * (model.q_lora_rank + model.head_dim)
    return projections, shared_params(model) + model.num_index_layers * indexer_params(model)
