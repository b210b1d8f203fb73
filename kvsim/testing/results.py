"""Invariants of every finished run, and equality of two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.results.check import check_result

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["check_result", "equal_tables"]


def equal_tables(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return True if two structured arrays agree to the bit, field by field; NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    for name in a.dtype.names or ():
        x, y = a[name], b[name]
        same = x == y
        if np.issubdtype(x.dtype, np.floating):
            same |= np.isnan(x) & np.isnan(y)
        if not same.all():
            return False
    return True
