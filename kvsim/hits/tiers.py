"""The user's caches in blocks: GPU pools, and then host memory and a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.engine.capacity import capacity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.budget.capacity import Capacity
    from kvsim.config import Config

GIB = 2**30
#: Numbers of GPUs for which the pool is computed if the user gives none.
NUM_GPUS = (1, 2, 4)
#: Options that fix the pool of one deployment.
FIXED = ("tensor_parallel_size", "kv_cache_memory_bytes", "num_gpu_blocks_override", "logged")


class Tier(NamedTuple):
    """A cache of the user; ``num_blocks`` includes the blocks of all faster caches."""

    name: str
    num_blocks: int


class Deployment(NamedTuple):
    """A model's block, and the caches of a user.

    ``block_bytes`` is the KV of ``block_size`` tokens on all GPUs together.
    """

    name: str
    block_size: int
    block_bytes: int
    tiers: tuple[Tier, ...]
    notes: tuple[str, ...]


def deployment_of(
    options: Mapping[str, Any], config: Config, disk_size: float | None
) -> Deployment:
    """Size the caches of a model on a GPU; host memory and disk extend the smallest pool.

    Parameters
    ----------
    options : options of :func:`kvsim.capacity`
    config : the validated options; ``kv_offloading_size`` is the host memory, GiB
    disk_size : size of the disk, GiB
    """
    pools = _pools({**options, "block_size": config.block_size})
    first = pools[0]
    block_bytes = first.bytes_per_token * _num_gpus(first) * first.block_size
    tiers = [Tier(_name(pool), _num_tokens(pool) // first.block_size) for pool in pools]
    size, name = tiers[0].num_blocks, tiers[0].name
    for kind, gib in (("host memory", config.kv_offloading_size), ("disk", disk_size)):
        if gib is not None:
            size, name = size + int(gib * GIB) // block_bytes, f"{name} + {kind}"
            tiers.append(Tier(name, size))
    notes = []
    if first.bytes_per_block != first.bytes_per_token * first.block_size:
        notes.append(
            f"{first.model} has layers with windows or states, which keep other blocks than full "
            "attention does: the curve is an estimate"
        )
    return Deployment(
        f"{first.model} on {first.gpu}", first.block_size, block_bytes, tuple(tiers), tuple(notes)
    )


def _pools(options: Mapping[str, Any]) -> list[Capacity]:
    """Return the capacity of the deployment, or the capacities on 1, 2 and 4 GPUs that fit."""
    if any(options.get(name) is not None for name in FIXED):
        return [capacity(**options)]
    found, refused = [], None
    for number in NUM_GPUS:
        try:
            found.append(capacity(**options, tensor_parallel_size=number))
        except ValueError as error:
            refused = error
    if not found and refused is not None:
        raise refused
    return found


def _num_gpus(pool: Capacity) -> int:
    return pool.tensor_parallel_size * pool.pipeline_parallel_size


def _num_tokens(pool: Capacity) -> int:
    """Return the number of tokens whose KV fits into a pool; the null block holds none."""
    unused = 1 if pool.engine == "vllm" else 0
    return (pool.num_gpu_blocks - unused) * pool.bytes_per_block // pool.bytes_per_token


def _name(pool: Capacity) -> str:
    number = _num_gpus(pool)
    return f"{number} GPU{'s' if number > 1 else ''}"
