"""The memory overhead of a server: the logged memory other than weights and KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.budget.budget import GIB
from kvsim.budget.capacity import resolve_memory
from kvsim.config import RunConfig

if TYPE_CHECKING:
    from kvsim.calibration.server import Server

#: Half a unit of the last digit that a log prints, GiB.
ROUNDING = 0.005
#: Parts of the budget that ``--logged`` pins; the KV cache gets the rest.
PINNED = ("memory", "weights", "activations", "non_torch", "cuda_graphs")


class Overhead(NamedTuple):
    """Memory of one GPU other than weights and KV, GiB: activations, context, CUDA graphs.

    Attributes
    ----------
    gib, half_width : value from the log, and half the width of its interval due to rounding
    estimated : kvsim's estimate without the log
    parts : parts of the memory budget for ``--logged``, GiB
    """

    gib: float
    half_width: float
    estimated: float
    parts: dict[str, float]


def overhead_of(server: Server) -> Overhead | None:
    """Return the overhead; None if the log has neither KV memory nor blocks.

    Memory that the log does not assign to a part counts as ``non_torch``, so that the remaining
    memory is the KV cache of the server.
    """
    free: dict[str, Any] = {
        k: v for k, v in server.options.items() if k not in ("num_gpu_blocks_override", "logged")
    }
    memory = resolve_memory(RunConfig.build(**free, num_gpu_blocks_override=1000))
    estimate, logged = memory.budget, server.logged
    blocks = server.options.get("num_gpu_blocks_override")
    if "kv_cache" in logged:
        kv = logged["kv_cache"]
    elif blocks is not None:
        kv = int(blocks) * memory.plan.bytes_per_block / GIB
    else:
        return None
    utilization = memory.limits.gpu_memory_utilization
    total = logged.get("memory", memory.gpu.memory_bytes / GIB)
    weights = logged.get("weights", (estimate.weights + estimate.adapters) / GIB)
    gib = total * utilization - weights - kv
    known = {k: logged.get(k, getattr(estimate, k) / GIB) for k in ("activations", "cuda_graphs")}
    rest = gib - sum(known.values())
    if rest < 0:  # estimated activations are too large: reduce them
        known["activations"] = max(known["activations"] + rest, 0.0)
        rest = max(gib - sum(known.values()), 0.0)
    parts = {k: logged[k] for k in PINNED if k in logged}
    parts |= {"weights": weights, **known, "non_torch": rest}
    told = sum(k in logged for k in ("kv_cache", "weights")) + ("memory" in logged) * utilization
    block = memory.plan.bytes_per_block / GIB
    beside = estimate.activations + estimate.non_torch + estimate.cuda_graphs
    return Overhead(
        gib,
        ROUNDING * told + block / 2,
        (beside + estimate.encoder_cache) / GIB,
        {k: round(v, 4) for k, v in parts.items() if v >= 0},
    )
