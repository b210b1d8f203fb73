"""Weights, gradients and optimizer states of training: bytes on one GPU.

Mixed precision keeps 16 bytes per parameter under Adam: weights 2, gradients 2, and an FP32 copy
of the weights and two moments, 12 (Micikevicius et al., arXiv 1710.03740; the K = 12 of ZeRO,
arXiv 1910.02054, section 3.1). ZeRO shards them over N data-parallel GPUs (section 5):

    stage 0: 16 P      stage 1: 4 P + 12 P / N      stage 2: 2 P + 14 P / N      stage 3: 16 P / N

As in this paper, gradients have 16 bits; frameworks that sum them in FP32 need 2 bytes more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvsim.training.config import TrainingConfig

#: Bytes of a weight and of its gradient. ``fp8`` is Transformer Engine's ``fp8_model_init``: FP8
#: weights, BF16 gradients.
WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
GRADIENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}

MASTER_BYTES = 4

#: States per parameter and bytes of each. PyTorch's SGD without momentum has none.
OPTIMIZERS = {"adamw": (2, 4), "adamw-8bit": (2, 1), "sgd": (0, 0), "sgd-momentum": (1, 4)}
#: Values per FP32 scale of an 8-bit state since bitsandbytes 0.44 (2,048 in the paper, Dettmers et
#: al., arXiv 2110.02861).
STATE_BLOCK = 256

#: Bits of a frozen weight: NF4 with double quantisation, 4 + 8/64 + 32/(64 x 256) (QLoRA, arXiv
#: 2305.14314, section 3); int8, without its negligible FP16 scale per row.
BASE_BITS = {"nf4": 4 + 8 / 64 + 32 / (64 * 256), "int8": 8.0}


class States(NamedTuple):
    """Bytes of the states of training on one GPU."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Bytes of weights, gradients and optimizer states."""
        return self.weights + self.gradients + self.optimizer


def share(count: int, ranks: int) -> int:
    """Return the largest rank's share of a count: the quotient, rounded up."""
    return -(-count // ranks)


def trained_bytes(config: TrainingConfig) -> tuple[int, int]:
    """Return the bytes of a trained parameter's weight and gradient."""
    return WEIGHT_BYTES[config.precision], GRADIENT_BYTES[config.precision]


def optimizer_bytes(num_params: int, config: TrainingConfig) -> int:
    """Return the bytes of optimizer states and master weights of ``num_params`` parameters."""
    states, size = OPTIMIZERS[config.optimizer]
    total = states * size * num_params
    if config.optimizer == "adamw-8bit":
        total += states * 4 * share(num_params, STATE_BLOCK)
    if config.master_weights and config.precision != "fp32":  # FP32 weights need no copy
        total += MASTER_BYTES * num_params
    return total


def frozen_bytes(num_params: int, num_plain_params: int, config: TrainingConfig) -> int:
    """Return the bytes of frozen weights; ``num_plain_params`` of them stay in ``precision``."""
    plain = WEIGHT_BYTES[config.precision]
    if config.base_precision is None:
        return num_params * plain
    quantised = (num_params - num_plain_params) * BASE_BITS[config.base_precision] / 8
    return num_plain_params * plain + int(-(-quantised // 1))


def training_states(
    num_trained: int, num_frozen: int, num_frozen_plain: int, config: TrainingConfig
) -> States:
    """Return one GPU's share of the training states of its model-parallel rank.

    Parameters
    ----------
    num_trained, num_frozen : trained and frozen parameters of this rank
    num_frozen_plain : frozen parameters in ``precision``: embeddings and LM head

    Returns
    -------
    States
        Bytes, sharded as ``zero_stage`` says over ``data_parallel_size`` GPUs.
    """
    n, stage = config.data_parallel_size, config.zero_stage
    weight, gradient = trained_bytes(config)
    weights = num_trained * weight + frozen_bytes(num_frozen, num_frozen_plain, config)
    return States(
        weights=share(weights, n) if stage >= 3 else weights,
        gradients=gradient * (share(num_trained, n) if stage >= 2 else num_trained),
        optimizer=optimizer_bytes(share(num_trained, n) if stage >= 1 else num_trained, config),
    )


def communication_bytes(
    weights: int, gradients: int, config: TrainingConfig, *, num_trained_bytes: int
) -> int:
    """Return the bytes that one GPU sends to its data-parallel peers per step.

    By section 7 of ZeRO, an all-reduce, or a reduce-scatter of gradients with an all-gather of
    weights, sends twice the parameters; stage 3 gathers them once more, for the backward pass.
    Stages 2 and 3 reduce in every micro-batch; stage 3 also gathers in each. A ring sends (N - 1) /
    N of each amount.

    Parameters
    ----------
    weights, gradients : bytes of this rank's weights and gradients, before sharding
    num_trained_bytes : bytes of the weights that a step changes
    """
    n, micro, stage = config.data_parallel_size, config.num_micro_batches, config.zero_stage
    reduced = gradients * (micro if stage >= 2 else 1)
    # Without ZeRO, an all-reduce gathers the reduced gradients.
    gathered = (gradients, num_trained_bytes, num_trained_bytes, 2 * weights * micro)
    return (reduced + gathered[stage]) * (n - 1) // n
