"""Routed experts in host memory: the number that a step copies to the GPU per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cost.experts import FEW_EXPERTS, ROUTING_SKEW, choice_probabilities, touched_by_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvsim.cost.model import CostConfig

#: Halvings of the interval that contains an expert's steps in the cache, and its upper end.
NUM_HALVINGS, MOST_STEPS = 60, 1e6


def fetched_by_tokens(config: CostConfig) -> list[float]:
    """Return the experts of a layer that a step of m tokens copies, for m = 0, 1, ...

    The GPU keeps ``config.host_weights.num_resident`` experts of each layer, the ones used last.
    """
    model, resident = config.model, config.host_weights.num_resident
    num_steps = len(touched_by_tokens(config))
    if not resident:
        return [0.0] * num_steps
    skew = ROUTING_SKEW if model.num_experts > FEW_EXPERTS else 0.0
    chances = choice_probabilities(model.num_experts, model.num_experts_per_token, skew)
    return [fetched(1.0 - (1.0 - chances) ** m, resident) for m in range(num_steps)]


def fetched(used: NDArray[np.float64], num_resident: int) -> float:
    """Return the mean number of experts that a step uses and does not find on the GPU.

    Every expert leaves an LRU cache after about the same number of steps without a use: the steps
    in which ``num_resident`` different experts are used (Che, Tung and Wang, IEEE JSAC 2002). A
    step that uses more experts than fit computes them in waves; each expert is then on the GPU with
    the same probability.

    Parameters
    ----------
    used : probability that a step uses each expert, equal in all steps
    """
    num_experts = len(used)
    if num_resident >= num_experts:
        return 0.0
    if used.sum() > num_resident:
        return float(used.sum() * (1.0 - num_resident / num_experts))
    low, high = 0.0, MOST_STEPS
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        fits = (1.0 - (1.0 - used) ** middle).sum() < num_resident
        low, high = (middle, high) if fits else (low, middle)
    return float((used * (1.0 - used) ** low).sum())
