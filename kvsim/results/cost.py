"""Dollars of a run at prices per GPU-hour, which the user gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from kvsim.catalog import get_gpu

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from kvsim.config import Config
    from kvsim.results.result import Result

    #: ``{"h100-sxm": 2.5}``, or texts such as ``h100-sxm=2.5,a100-80gb=1.2``.
    Prices = Mapping[str, float] | Sequence[str] | str

#: Note that every output of these figures contains.
RULE = (
    "each figure divides all dollars by the tokens or sessions of its kind, of completed requests; "
    "these are not shares, so they do not add up"
)


def read_prices(given: Prices, cards: Collection[str] = ()) -> dict[str, float]:
    """Read dollars per GPU-hour by GPU; ``cards`` are names allowed in addition to the catalogue's.

    Raises
    ------
    ValueError
        If a text is not ``GPU=DOLLARS``, a GPU is unknown or priced twice.

    Examples
    --------
    >>> read_prices(["h100-sxm=2.50,a100-80gb=1.2"])
    {'h100-sxm': 2.5, 'a100-80gb': 1.2}
    """
    if isinstance(given, Mapping):
        texts = [f"{name}={dollars}" for name, dollars in given.items()]
    else:
        lists = given if isinstance(given, list | tuple) else [given]
        texts = [one.strip() for text in lists for one in str(text).split(",")]
    prices: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not equals or not 0 < price < math.inf:
            raise ValueError(f"--price {text}: must be GPU=DOLLARS, per GPU-hour and above 0")
        card = name if name in cards else get_gpu(name).name
        if card in prices:
            raise ValueError(f"--price {text}: {card} has a price already")
        prices[card] = price
    return prices


def prices_of(given: Prices | None, configs: Iterable[Config]) -> dict[str, float]:
    """Read prices, and check that every GPU of the configurations has one; empty without prices.

    Raises
    ------
    ValueError
        As :func:`read_prices`, and for a GPU without a price.
    """
    if given in (None, ()):
        return {}
    cards = list(chain.from_iterable(_cards(one).values() for one in configs))
    prices = read_prices(given, cards)
    check_priced(cards, prices)
    return prices


def check_priced(cards: Iterable[str], prices: Mapping[str, float]) -> None:
    """Raise ValueError for the first GPU without a price."""
    for card in cards:
        if card not in prices:
            raise ValueError(f"no price of {card}: give --price {card}=DOLLARS, per GPU-hour")


def _cards(config: Config) -> dict[str, str]:
    """Return the GPU's name of each ``[[pool]]``; if there are no pools, its key is empty."""
    own = {pool.name: dict(pool.options).get("gpu", config.gpu) for pool in config.pool or ()}
    return {pool: get_gpu(card).name for pool, card in (own or {"": config.gpu}).items()}


def add_cost(result: Result, prices: Mapping[str, float]) -> Result:
    """Add ``cost`` to the summary of a run, if there are prices. Mutates it."""
    if prices:
        cached = num_cached_tokens(result.requests)
        result.summary["cost"] = cost_of(result.summary, cached, result.config, prices)
    return result


def num_cached_tokens(requests: NDArray[Any]) -> int:
    """Return the prompt tokens of completed requests that were found in a cache."""
    from kvsim.results.tables import FinishReason  # loads NumPy, which a help text does without

    done = requests["finish_reason"] == FinishReason.FINISHED
    return int(requests["num_cached_tokens"][done].sum())


def cost_of(
    summary: Mapping[str, Any], num_cached: int, config: Config, prices: Mapping[str, float]
) -> dict[str, Any]:
    """Return the dollars of a run by :data:`RULE`; dollars per item are None if no item completed.

    All GPU-hours count, including idle GPUs, cold starts and failed requests.

    Parameters
    ----------
    summary, config : summary and configuration of the run
    num_cached : see :func:`num_cached_tokens`
    prices : dollars per GPU-hour of each GPU type
    """
    cards = _cards(config)
    only = next(iter(cards.values()))
    pools = summary["pools"] or [{"name": "", "gpu_hours": summary["gpu_hours"]}]
    dollars = sum(prices[cards.get(pool["name"], only)] * pool["gpu_hours"] for pool in pools)
    tokens = {
        "input": summary["total_input_tokens"],
        "cached": num_cached,
        "output": summary["total_output_tokens"],
    }
    tokens[""] = tokens["input"] + tokens["output"]
    sessions = summary["sessions"]
    return {
        "dollars": dollars,
        "dollars_per_gpu_hour": {card: prices[card] for card in cards.values()},
        **{
            "_".join(filter(None, ("dollars_per_million", kind, "tokens"))): (
                dollars * 1e6 / number if number else None
            )
            for kind, number in tokens.items()
        },
        "dollars_per_session": (
            dollars / sessions["completed"] if sessions and sessions["completed"] else None
        ),
    }
