"""Cards with timings of simple tests only: their ratios to the H100's scale its constants."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.cost.efficiency import Efficiency

TABLE = Path(__file__).with_name("relative.toml")
#: Cards without tests: the tested card of the same maker. The mi325x has the chips of the mi300x.
TESTED = dict.fromkeys(("mi325x", "mi355x", "mi250x", "mi210"), "mi300x")
#: Change in percent of TPOT and TTFT of measured cards if another card's fractions are used: median
#: and ninth decile of 68 closed loops, with each card left out in turn
#: (``experiments.validation.relatives``).
SPREAD = {"TPOT": (4, 22), "TTFT": (5, 23)}
#: Constants of a card and of its weight formats that each test scales.
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


def tested(card: str) -> str:
    """Return the card that provides the tests of a card: usually itself."""
    return TESTED.get(card, card)


@cache
def ratios_of(card: str) -> dict[str, float] | None:
    """Return a card's ratios by test, None without tests."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return table.get(tested(card))


def spread() -> str:
    """Return a text on the error that another card's fractions cause."""
    (half, most), (half_first, most_first) = SPREAD["TPOT"], SPREAD["TTFT"]
    return (
        f"on NVIDIA cards with tables such fractions move TPOT by {half} % at the median and "
        f"{most} % in one of ten loops, TTFT by {half_first} and {most_first} %"
    )


def scaled(rate: Efficiency, ratios: dict[str, float]) -> Efficiency:
    """Return the constants, each multiplied by the ratio of its test."""
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
