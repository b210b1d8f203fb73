"""Samples of a request: their largest number, and the ways in which an output ends."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

#: Most sequences of one request.
MAX_SAMPLES = 64

#: An output ends at a length that the engine knows, or by EOS or a stop token that it does not.
EndsBy: TypeAlias = Literal["length", "eos"]
#: Names of the numbers in ``Trace.ends_by``.
ENDINGS: tuple[EndsBy, ...] = get_args(EndsBy)
LENGTH, EOS = range(len(ENDINGS))
