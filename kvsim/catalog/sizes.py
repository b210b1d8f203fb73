"""Bounds of a model's sizes, and the check of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec

#: Sizes that must be above 0.
POSITIVE_FIELDS = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


#: Bounds far beyond any model: a larger value is a mistake, and loops over layers would not end.
MAX_LAYERS, MAX_SIZE = 10_000, 2**40


def check_sizes(model: ModelSpec) -> None:
    """Raise ValueError for an impossible size, or heads that KV heads do not divide."""
    for name in POSITIVE_FIELDS:
        if getattr(model, name) <= 0:
            raise ValueError(
                f"model {model.name!r}: {name} must be positive, not {getattr(model, name)}"
            )
    for name, value in vars(model).items():
        most = MAX_LAYERS if name == "num_layers" else MAX_SIZE
        if isinstance(value, int) and value > most:
            raise ValueError(
                f"model {model.name!r}: {name} must be at most {most:,}, not {value:,}"
            )
    if model.num_heads % model.num_kv_heads:
        raise ValueError(
            f"model {model.name!r}: num_kv_heads ({model.num_kv_heads}) must divide "
            f"num_heads ({model.num_heads})"
        )
