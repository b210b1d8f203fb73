"""The objective of a search, and the deployments that it can rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.results.cost import check_priced, read_prices
from kvsim.study.objective import Wish, read_objective
from kvsim.study.space import COUNTED, combinations, gpus_by_card, with_pools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.config import RunConfig
    from kvsim.results.cost import Prices

    Space = Mapping[str, Sequence[str]]


def wish_of(
    config: RunConfig, given: Mapping[str, Any], space: Space, objective: str, price: Prices
) -> Wish:
    """Return the objective of a search.

    Parameters
    ----------
    config, given : the options that all configurations share
    space : values of the varied options
    objective : name of the objective
    price : dollars per GPU-hour by GPU

    Raises
    ------
    ValueError
        For an unknown objective or price, a deployment that has no highest rate, or a missing input
        of the objective.
    """
    wish = Wish(read_objective(objective), config.request_rate, read_prices(price))
    counted = {"data_parallel_size", *COUNTED} & (space.keys() | config.model_fields_set)
    own = not (config.pool or counted or any("." in name for name in space))
    carries = wish.objective == "gpus" or (wish.objective == "cost" and wish.asked_rate is not None)
    wish = wish._replace(counts_replicas=carries and own)
    _check(config, given, space, wish)
    return wish


def _check(config: RunConfig, given: Mapping[str, Any], space: Space, wish: Wish) -> None:
    """Refuse deployments without a highest rate, or without the inputs of an objective."""
    scales = config.autoscaler, *(pool.autoscaler for pool in config.pool or ())
    refused = {
        "max_concurrency: a closed loop sets its own rate; search varies the rate; omit it": (
            config.max_concurrency is not None
        ),
        "lanes: a closed loop sets its own rate; search varies the rate; omit it": (
            config.lanes is not None
        ),
        "autoscaler: search needs a fleet of constant size; omit it": (
            any(scales) or any("autoscaler" in name for name in space)
        ),
        "horizon: search serves whole traces; omit it": math.isfinite(config.horizon),
        "request_rate: inf: must be finite for a search": math.isinf(config.request_rate or 0.0),
    }
    if wish.objective == "gpus":
        refused |= {
            "--objective gpus: needs --request-rate, the rate to serve": config.request_rate
            is None,
            "--objective gpus: it searches the number of replicas; omit "
            "--data-parallel-size and the like": (not wish.counts_replicas),
        }
    for reason, holds in refused.items():
        if holds:
            raise ValueError(reason)
    if wish.objective == "cost" or wish.prices:
        _check_prices(config, given, space, wish)


def _check_prices(config: RunConfig, given: Mapping[str, Any], space: Space, wish: Wish) -> None:
    for options in combinations({k: values for k, values in space.items() if k.endswith("gpu")}):
        made = config.model_copy(update={k: v for k, v in options.items() if "." not in k})
        if any("." in name for name in options):
            made = type(config).build(**with_pools({**given, **options}))
        check_priced(gpus_by_card(made), wish.prices)
