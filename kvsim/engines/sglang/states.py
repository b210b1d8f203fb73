"""SGLang's pool of states, for models with Mamba or linear-attention layers.

States get a share of the KV pool's memory, as slots of one state each, and one further slot to
which padding writes. docs/sglang-rules.md describes the other rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from kvsim.budget.layout import KV_DTYPES
from kvsim.budget.weights import weight_dtype
from kvsim.catalog.state import StateLayer

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec
    from kvsim.config import Config

Strategy = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]

#: Slots of a request without its buffers: its current state, and two that the tree may cache.
OWN_SLOTS = 3
#: Bytes of memory for states per byte of the KV pool (mamba_full_memory_ratio).
STATE_RATIO = 0.9
#: Bytes of an element of the convolution part.
CONV_BYTES = 2
#: Forms of layers whose kernels also write states of earlier tokens.
TRACKED = ("gdn", "kda", "mamba2")


class StatePool(NamedTuple):
    """Numbers of state slots, in all and per running request; bytes of a state and of all slots."""

    slots: int
    per_request: int
    state_bytes: int
    num_bytes: int


def state_bytes(model: ModelSpec, dtype: str, tensor_parallel_size: int) -> int:
    """Return the bytes of a request's state on one GPU; 0 for a model without states.

    Parameters
    ----------
    dtype : mamba_ssm_dtype; auto is the model's dtype, or float32 if it names none
    """
    total = 0
    for layer in model.mixers:
        if isinstance(layer, StateLayer):
            kept = layer.dtype or "fp32" if dtype == "auto" else weight_dtype(dtype)
            size = KV_DTYPES[kept].bits // 8
            total += layer.num_bytes(size, CONV_BYTES, tensor_parallel_size=tensor_parallel_size)
    return total


def strategy_of(config: Config, model: ModelSpec, *, page_size: int) -> Strategy:
    """Return the mamba_radix_cache_strategy; refuse one that other options exclude."""
    tracks = all(m.form in TRACKED for m in model.mixers if isinstance(m, StateLayer))
    overlap, asked = not config.disable_overlap_schedule, config.mamba_radix_cache_strategy
    flag = f"mamba_radix_cache_strategy {asked}"
    if asked == "auto":
        return "extra_buffer" if tracks and (overlap or page_size > 1) else "no_buffer"
    if asked != "no_buffer" and not tracks:
        raise ValueError(f"{flag}: must be no_buffer for {model.name}, which keeps one state")
    if asked == "no_buffer" and page_size > 1:
        raise ValueError(f"{flag}: needs page_size 1, not {page_size}; or set extra_buffer")
    if asked == "extra_buffer_lazy" and not overlap:
        raise ValueError(f"{flag}: needs the overlap schedule; or set extra_buffer")
    return asked


def slots_per_request(strategy: Strategy, *, has_tree: bool, overlap: bool) -> int:
    """Return the slots of states that a running request may take."""
    if not has_tree:
        return 1
    if strategy == "no_buffer":
        return OWN_SLOTS
    return OWN_SLOTS + (2 if strategy == "extra_buffer" and overlap else 1)


def state_pool(
    num_bytes: int,
    size: int,
    per_request: int,
    *,
    ratio: float = STATE_RATIO,
    slots: int | None = None,
    max_running: int | None = None,
    num_drafts: int = 0,
) -> StatePool:
    """Size the pool of states out of the memory for KV.

    Parameters
    ----------
    num_bytes : memory for KV and states together
    size : bytes of a state
    per_request : slots that a running request may take; 1 without a radix cache
    ratio : mamba_full_memory_ratio
    slots : max_mamba_cache_size
    max_running : max_running_requests, None if not given
    num_drafts : draft tokens of a step; each needs a state to return to after a rejection
    """
    one_each = slots is None and per_request == 1 and max_running is not None
    if one_each:
        slots = max_running
    if slots is None:
        share = num_bytes * ratio / (1 + ratio)
        slots = int((share - size * (1 + num_drafts)) // (size * (1 + num_drafts / per_request)))
    slots = max(slots, 0)
    running = slots if one_each else min(max_running or slots, slots // per_request)
    drafts = size * (running + 1) * num_drafts
    return StatePool(slots, per_request, size, (slots + 1) * size + drafts)
