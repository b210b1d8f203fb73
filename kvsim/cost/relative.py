"""Cards with simple tests only: an H100's constants, scaled by the ratios of these tests."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.cost.efficiency import Efficiency

TABLE = Path(__file__).with_name("relative.toml")
#: Cards with the same chips as one of the table.
SAME_CHIPS = {"mi325x": "mi300x"}
#: Constants that each test scales, of a card and of a format of weights.
TESTS: dict[str, tuple[str, ...]] = {
    "gemm": ("gemm", "latent_prefill"),
    "memory": (
        *("weights", "decode_attention", "decode_attention_8bit", "prefill_io", "prefill_io_8bit"),
        *("elementwise", "latent_attention", "state_traffic", "quantization", "activations"),
    ),
    "attention": ("prefill_attention", "prefill_attention_8bit"),
    "link": ("link", "link_ring"),
    "all_reduce": ("all_reduce", "all_reduce_exchange"),
}


@cache
def ratios_of(card: str) -> dict[str, float] | None:
    """Return a card's ratios by test, None if it has none."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return table.get(SAME_CHIPS.get(card, card))


def scaled(rate: Efficiency, ratios: dict[str, float]) -> Efficiency:
    """Return constants, each multiplied by the ratio of its test."""
    gemms = {key: replace(one, **_of(one, ratios)) for key, one in rate.gemms.items()}
    experts = {key: replace(one, **_of(one, ratios)) for key, one in rate.experts.items()}
    return replace(rate, **_of(rate, ratios), gemms=gemms, experts=experts)


def _of(shares: Any, ratios: dict[str, float]) -> dict[str, Any]:
    return {
        name: ratio * getattr(shares, name)
        for test, ratio in ratios.items()
        for name in TESTS[test]
        if hasattr(shares, name)
    }
