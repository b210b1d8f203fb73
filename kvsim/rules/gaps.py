"""The bin of a gap between tokens: the exponent and the top 10 mantissa bits of its seconds."""

from __future__ import annotations

import math


def gap_bin(seconds: float) -> int:
    mantissa, exponent = math.frexp(seconds)
    return (exponent + 1021) * 1024 + int(mantissa * 2048.0) if seconds > 0.0 else 0
