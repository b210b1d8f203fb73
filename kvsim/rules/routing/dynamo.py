"""Dynamo's router and its formulas, which take numbers of one replica or arrays over replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.rules.routing.pick import any_least_cost

if TYPE_CHECKING:
    from kvsim.records.routing import CostWeights, Placement


def dynamo_decode_cost(
    decode: Any, active: Any, cached: Any, size: int, credit: float, active_weight: float
) -> Any:
    """Return the cost, in blocks, of a request by Dynamo's formula for decode workers.

    The parameters are those of :func:`dynamo_cost`.
    """
    left = decode - credit * (cached / size)
    return (left + abs(left)) / 2 + active_weight * active


def dynamo_cost(
    prefilling: Any,
    decode: Any,
    active: Any,
    cached: Any,
    least: float,
    prompt: int,
    size: int,
    credit: float,
    prefill_weight: float,
    active_weight: float,
    decay: float,
    beyond: Any,
) -> Any:
    """Return the cost of a prompt by Dynamo's formula, in blocks.

    Parameters
    ----------
    prefilling : uncached prompt tokens of the replica's requests without a first token
    decode : distinct blocks of the prompts on the replica
    active : requests on the replica
    cached : tokens of this prompt that are cached on the replica
    least : the minimum of ``prefilling`` over all replicas
    prompt : tokens of this prompt
    size : tokens of a block
    beyond : tokens after the ``cached`` ones in the replica's other tiers, times each tier's credit
    credit, prefill_weight, active_weight, decay : see :class:`kvsim.fleet.routers.dynamo.Dynamo`
    """
    ahead = (prefilling - least) / max(prompt, size)
    missing = prefilling + prompt - credit / (1 + decay * ahead) * cached - beyond
    missing = (missing + abs(missing)) / 2  # max(missing, 0), for arrays as well
    return prefill_weight * (missing / size) + (decode + active_weight * active)


def choose_dynamo(weights: CostWeights, placement: Placement) -> int:
    """Return the candidate with the smallest cost, at random among equals."""
    candidates, number = placement.candidates, placement.num_candidates
    least = candidates[0].num_uncached_tokens
    for k in range(1, number):
        least = min(least, candidates[k].num_uncached_tokens)
    for k in range(number):
        one = candidates[k]
        placement.costs[k] = dynamo_cost(
            one.num_uncached_tokens,
            one.num_blocks,
            one.num_outstanding,
            one.cached_tokens,
            least,
            placement.num_prompt_tokens,
            placement.entry_tokens,
            weights.credit,
            weights.prefill,
            weights.active,
            weights.decay,
            0.0,
        )
    return any_least_cost(placement.costs, number, placement.draws)
