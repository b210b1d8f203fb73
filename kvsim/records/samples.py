"""Samples of a request: their largest number, and the ends of their outputs."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

#: Most sequences of one request.
MAX_SAMPLES = 64

#: By its number of tokens, which the engine knows, or by EOS (or a stop token), which it does not.
EndsBy: TypeAlias = Literal["length", "eos"]
#: Meanings of the numbers in ``Trace.ends_by``: 0 is length, 1 is eos.
ENDINGS: tuple[EndsBy, ...] = get_args(EndsBy)
LENGTH, EOS = range(len(ENDINGS))
