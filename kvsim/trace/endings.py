"""Ends of outputs, and lengths of a request's samples: columns of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.records.samples import ENDINGS, LENGTH, EndsBy
from kvsim.trace.columns import RowError, check_length, check_rows, everywhere

__all__ = ["ENDINGS", "EndsBy", "check_limits", "read_endings", "read_lengths"]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def read_endings(given: Sequence[str | None] | NDArray[Any] | str | None, n: int) -> Ints:
    """Return the code of each of ``n`` requests' endings; a single text holds for all requests.

    Raises
    ------
    RowError
        For a value outside :data:`ENDINGS`; None and "" mean length.
    """
    if given is None:
        return everywhere(LENGTH, n)
    if isinstance(given, str):
        given = [given] * n
    check_length("ends_by", given, n, "entry")
    codes = []
    for row, one in enumerate(given):
        if one not in (*ENDINGS, None, ""):
            raise RowError(row, "ends_by", f"is {one!r}, must be {' or '.join(ENDINGS)}")
        codes.append(ENDINGS.index(one) if one else LENGTH)
    return np.array(codes, np.int64)


def check_limits(max_tokens: Ints, num_output_tokens: Ints, most: int) -> None:
    """Raise RowError for a limit below the output's length or above ``most``; 0 is no limit."""
    fits = (max_tokens >= num_output_tokens) & (max_tokens <= most)
    allowed = f"num_output_tokens to {most:,}, or 0 for none"
    check_rows("max_tokens", max_tokens, (max_tokens == 0) | fits, allowed)


def read_lengths(
    given: Sequence[Sequence[int]] | None, num_samples: Ints, num_output_tokens: Ints
) -> tuple[Ints, Ints]:
    """Return offsets by request, and the lengths of samples; a request may have an empty list.

    Raises
    ------
    RowError
        For a list that does not fit the request's samples or is longer than its output.
    """
    n = len(num_samples)
    if given is None:
        return everywhere(0, n + 1), np.zeros(0, np.int64)
    check_length("sample_output_tokens", given, n, "list")
    for row, lengths in enumerate(given):
        samples, most = int(num_samples[row]), int(num_output_tokens[row])
        whole = isinstance(lengths, list | tuple) and all(type(one) is int for one in lengths)
        if not whole or (lengths and not all(1 <= one <= most for one in lengths)):
            allowed = f"whole numbers of 1 to num_output_tokens ({most})"
            raise RowError(row, "sample_output_tokens", f"must be a list of {allowed}")
        if lengths and len(lengths) != samples:
            allowed = f"has {len(lengths)} lengths, must have one per sample ({samples})"
            raise RowError(row, "sample_output_tokens", allowed)
    offsets = np.zeros(n + 1, np.int64)
    offsets[1:] = np.cumsum([len(lengths) for lengths in given])
    return offsets, np.array([one for lengths in given for one in lengths], np.int64)
