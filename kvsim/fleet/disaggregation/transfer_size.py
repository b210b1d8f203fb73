"""The size of a KV transfer: its bytes and its descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.engine.setup import Setup


def transfer_bytes(setup: Setup, num_tokens: int) -> int:
    """Return the bytes of KV that all GPUs of a replica read for ``num_tokens`` tokens.

    KV heads that are replicated (more ranks than heads) are read once per copy; a latent, which
    every rank has, is read once. Under context parallelism, each rank has some of the tokens.
    """
    config, total = setup.config, 0.0
    copies = config.tensor_parallel_size / config.decode_context_parallel_size
    for layer in setup.kv_config.layout.layers:
        ranks = 1.0 if layer.num_tensors == 1 else copies
        tokens = num_tokens if layer.window is None else min(num_tokens, layer.window)
        total += ranks * (layer.bytes_per_token * tokens + layer.state_bytes)
    return round(total * _stages(setup))


def _stages(setup: Setup) -> float:
    """Return the number of the model's layers divided by that of the largest pipeline stage."""
    num_layers = setup.memory.model.num_layers
    return num_layers / -(-num_layers // setup.config.pipeline_parallel_size)


def num_descriptors(setup: Setup, num_tokens: int) -> int:
    """Return the descriptors of a transfer: one per block and KV tensor of a layer."""
    blocks = -(-num_tokens // setup.kv.block_size)
    pieces = sum(layer.num_tensors for layer in setup.kv_config.layout.layers)
    return round(blocks * pieces * _stages(setup))
