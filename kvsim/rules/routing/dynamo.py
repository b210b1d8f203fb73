"""Formulas of routers, for one replica or, given arrays, for all at once."""

from __future__ import annotations

from typing import Any


def dynamo_decode_cost(
    decode: Any, active: Any, cached: Any, size: int, credit: float, active_weight: float
) -> Any:
    """Return the cost of a request by Dynamo's formula with disaggregated prefill.

    In blocks; for the parameters see :func:`dynamo_cost`.
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
    prefilling : tokens of prompts on the replica without a first token yet, cached part left out
    decode : distinct blocks of the prompts on the replica
    active : requests on the replica
    cached : tokens of this prompt that are cached on the replica
    least : the minimum of ``prefilling`` over all replicas
    prompt : tokens
    size : tokens of a block
    beyond : tokens after these in the replica's other tiers, each by its own credit
    credit, prefill_weight, active_weight, decay : see :class:`kvsim.fleet.routers.dynamo.Dynamo`
    """
    ahead = (prefilling - least) / max(prompt, size)
    missing = prefilling + prompt - credit / (1 + decay * ahead) * cached - beyond
    missing = (missing + abs(missing)) / 2  # at least 0, of arrays, too
    return prefill_weight * (missing / size) + (decode + active_weight * active)
