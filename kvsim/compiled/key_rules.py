"""The rules that make keys, compiled for replicas and for tables of keys."""

from __future__ import annotations

import numpy as np
from numba.extending import overload, register_jitable

from kvsim.compiled.passes import INNER
from kvsim.rules.blocks.keys import fold, mix, mix_span, times_plus

#: Rules of numbers alone, the same text for all kinds of replica.
KEY_RULES = (fold, mix, mix_span)


@overload(times_plus, inline="always")
def _times_plus(a, b, c):
    # Unsigned: compiled signed integers must never overflow.
    return lambda a, b, c: np.int64(np.uint64(a) * np.uint64(b) + np.uint64(c))


# Tables and replicas link in two ways (:mod:`kvsim.compiled.linking`); what both call in common
# calls nothing, so that either finds all symbols.
register_jitable(inline="always")(fold)
register_jitable(inline="always")(mix_span)
register_jitable(**INNER)(mix)
