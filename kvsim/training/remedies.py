"""Changes that make a training job fit, cheapest first, each in addition to those before.

The order is: BF16; activation checkpointing; ZeRO-1 and 2, or with one replica an 8-bit optimizer;
ZeRO-3; CPU or NVMe offload.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.budget.budget import GIB
from kvsim.training.config import OFFLOADED_PARTS, TrainingConfig
from kvsim.training.memory import TrainingMemory, training_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

TIERS = {"cpu": "the CPU", "nvme": "NVMe"}


class Remedy(NamedTuple):
    """One change, made on top of those before it.

    Attributes
    ----------
    change : the remedy, in words
    options : the options to set
    total_bytes, fits : memory on one GPU after the change
    saved_bytes : bytes that this change saves
    extra_compute : added FLOPs, as a share of a step's
    communication_bytes : bytes to peers that the change adds per step
    transfer_seconds : seconds of transfers to host or drive that the change adds per step
    """

    change: str
    options: dict[str, Any]
    total_bytes: int
    saved_bytes: int
    fits: bool
    extra_compute: float
    communication_bytes: int
    transfer_seconds: float


def train_memory(**options: Any) -> TrainingMemory:
    """Compute the memory of training a dense transformer, and changes that make it fit.

    Parameters
    ----------
    **options : fields of :class:`kvsim.training.config.TrainingConfig`: model, or params,
        num_layers, hidden_size and num_heads; gpu, batch_size, seq_len, zero_stage, num_gpus, ...

    Returns
    -------
    TrainingMemory
        Bytes of one GPU by component, and remedies if they do not fit.

    Raises
    ------
    ValueError
        For unknown names, wrong values, and sizes that the parallelism cannot split evenly.

    Examples
    --------
    >>> found = train_memory(params=7e9, num_layers=32, hidden_size=4096, num_heads=32,
    ...                      batch_size=4, seq_len=2048, zero_stage=3, num_gpus=8)
    >>> found.states_bytes
    14000000000
    """
    config = TrainingConfig.build(**options)
    found = training_memory(config)
    return found if found.fits else replace(found, remedies=remedies(config, found))


def remedies(config: TrainingConfig, found: TrainingMemory) -> tuple[Remedy, ...]:
    """Return the changes that make the job fit, in order; changes that save nothing are skipped."""
    made: list[Remedy] = []
    while not found.fits:
        step = _step(config, found)
        if step is None:
            break
        remedy, config, found = step
        made.append(remedy)
    return tuple(made)


def _step(
    config: TrainingConfig, found: TrainingMemory
) -> tuple[Remedy, TrainingConfig, TrainingMemory] | None:
    """Return the first change that saves memory, and the job with it; None if no change does."""
    for change, options in _next_changes(config, found):
        changed = config.model_copy(update=options)
        after = training_memory(changed)
        saved = found.total_bytes - after.total_bytes
        if saved > 0 or after.fits:
            remedy = Remedy(
                change,
                options,
                after.total_bytes,
                saved,
                after.fits,
                after.extra_compute - found.extra_compute,
                after.communication_bytes - found.communication_bytes,
                after.transfer_seconds - found.transfer_seconds,
            )
            return remedy, changed, after
    return None


def _next_changes(
    config: TrainingConfig, found: TrainingMemory
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the changes that are not made yet, in order: description and options."""
    if found.total_bytes <= found.gpu_memory_bytes:  # the space to offload to is too small
        space = float(-(-sum(found.offloaded_bytes.values()) // GIB))
        yield f"{space:,.0f} GiB of NVMe", {"offload": "nvme", "offload_space": space}
        return
    if config.precision == "fp32":
        yield "BF16", {"precision": "bf16"}
    for rule in ("selective", "full"):
        if config.activation_checkpointing not in (rule, "full"):
            yield f"{rule} activation checkpointing", {"activation_checkpointing": rule}
    if config.data_parallel_size == 1 and config.optimizer == "adamw":
        yield "8-bit optimizer", {"optimizer": "adamw-8bit"}
    if config.data_parallel_size > 1:
        for stage in range(config.zero_stage + 1, 4):
            yield f"ZeRO-{stage}", {"zero_stage": stage}
    parts = config.parts if config.offload in ("cpu", "nvme") else ()
    tier = "nvme" if config.offload == "nvme" else "cpu"
    for part in OFFLOADED_PARTS:
        if part not in parts:
            wanted = {"offload": tier, "offload_parts": ",".join((*parts, part))}
            yield f"{part} to {TIERS[tier]}", wanted
