"""Constants of a card by dotted names, ``gemms.fp8.weights`` for one of a table in its table."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import tomli_w

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Card = dict[str, Any]


def value_of(card: Card, name: str) -> float:
    found: Any = card
    for key in name.split("."):
        found = found[key]
    return float(found)


def with_values(card: Card, values: Mapping[str, float]) -> Card:
    """Return a card's constants with some replaced, rounded to three digits."""
    new = deepcopy(card)
    for name, value in values.items():
        *tables, last = name.split(".")
        place = new
        for key in tables:
            place = place.setdefault(key, {})
        place[last] = float(f"{max(value, 1e-12):.3g}")
    return new


def ordered(card: Card) -> Card:
    """Put the tables of a card behind its numbers, as TOML wants them."""
    numbers = {name: value for name, value in card.items() if not isinstance(value, dict)}
    return numbers | {name: value for name, value in card.items() if isinstance(value, dict)}


@contextmanager
def cost_model(table: Mapping[str, Card]) -> Iterator[str]:
    """Write constants into a scratch file; yield the cost model that takes them."""
    with tempfile.NamedTemporaryFile("wb", suffix=".toml") as file:
        tomli_w.dump({name: ordered(without_zeros(card)) for name, card in table.items()}, file)
        file.flush()
        yield f"roofline+constants={file.name}"


def without_zeros(card: Card) -> Card:
    """Return a card's constants without those that are 0, which a user's file may not hold."""
    return {name: value for name, value in card.items() if value != 0.0}
