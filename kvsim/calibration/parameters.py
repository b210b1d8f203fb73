"""The few quantities that benchmarks can determine, and the GPU's constants that they change."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.cost.efficiency import efficiency_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.cost.efficiency import Efficiency


class Parameter(NamedTuple):
    """A quantity that is fitted.

    Attributes
    ----------
    name, what : name and description in tables
    default : first value of the fit: 1 for a factor of the GPU's constants, else seconds
    is_share : True for such a factor, whose logarithm is fitted; False for seconds
    unit : one unit of the fit: 1 for a natural logarithm, or seconds
    least, most : range of the value, in units
    precise : half the width of a 95 % interval above which the data do not determine it, in units
    likely : standard deviation between servers, in units, by which an undetermined quantity widens
        the intervals of the others; set by judgement
    """

    name: str
    what: str
    default: float
    is_share: bool
    unit: float
    least: float
    most: float
    precise: float
    likely: float


KNOBS = (
    Parameter("bandwidth", "shares of memory bandwidth", 1.0, True, 1.0, -1.5, 0.3, 0.25, 0.15),
    Parameter("arithmetic", "shares of peak FLOP/s", 1.0, True, 1.0, -1.5, 0.3, 0.25, 0.15),
    Parameter("step", "host seconds per step", 1e-4, False, 1e-3, 0.0, 50.0, 1.0, 1.0),
    Parameter(
        "front_end_latency",
        "seconds of HTTP and tokenisation",
        0.0,
        False,
        1e-2,
        0.0,
        50.0,
        1.0,
        1.0,
    ),
    Parameter(
        "request", "host seconds per request and step", 5e-6, False, 1e-5, 0.0, 50.0, 1.0, 1.0
    ),
)
#: Constants that each factor multiplies, also in the tables by weight format.
FACTORS = {
    "bandwidth": (
        *("weights", "decode_attention", "decode_attention_8bit", "latent_attention"),
        *("state_traffic", "elementwise", "prefill_io", "prefill_io_8bit"),
    ),
    "arithmetic": ("gemm", "prefill_attention", "prefill_attention_8bit", "latent_prefill", "scan"),
}
#: Least host time, seconds: constants in a file must be above 0.
LEAST = 1e-7


def constants(card: str, values: Mapping[str, float]) -> dict[str, Any]:
    """Return the constants of a GPU that the parameter values change, with their new values."""
    rate = efficiency_of(card)
    found: dict[str, Any] = {}
    for parameter, names in FACTORS.items():
        factor = values.get(parameter, 1.0)
        if factor != 1.0:
            found |= {name: getattr(rate, name) * factor for name in names}
    for parameter in ("step", "request"):
        if parameter in values:
            found[parameter] = max(values[parameter], LEAST)
    for table in ("gemms", "experts"):
        nested = _nested(rate, table, values)
        if nested:
            found[table] = nested
    return found


def _nested(rate: Efficiency, table: str, values: Mapping[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, shares in getattr(rate, table).items():
        assert is_dataclass(shares)
        own: dict[str, float] = {}
        for parameter, names in FACTORS.items():
            factor = values.get(parameter, 1.0)
            if factor != 1.0:
                own |= {
                    f.name: getattr(shares, f.name) * factor
                    for f in fields(shares)
                    if f.name in names
                }
        if own:
            found[key] = own
    return found


def default_of(parameter: Parameter, card: str) -> float:
    """Return the value of a parameter without calibration."""
    return float(getattr(efficiency_of(card), parameter.name, parameter.default))
