"""Columns of a trace, one entry per request: read and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.trace.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike, NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

#: Value of a rate or a time that a request does not have.
NOT_GIVEN = -1.0
#: The tenant of a request without a tenant.
NO_TENANT = -1
#: The retention priority of a request without one, and the highest priority.
NO_HINT, MAX_PRIORITY = -1, 100


class RowError(ValueError):
    """An error in one request of a trace. Readers turn ``row`` into a line of their file.

    Parameters
    ----------
    row : index of the request
    name : name of the array
    reason : the mistake, and the allowed values
    """

    def __init__(self, row: int, name: str, reason: str) -> None:
        super().__init__(row, name, reason)  # all three, so that the error survives pickling
        self.row, self.name, self.reason = row, name, reason

    def __str__(self) -> str:
        return f"row {self.row}: {self.name} {self.reason}"


def everywhere(value: float, n: int) -> NDArray[Any]:
    """Return a column with one value for all ``n`` requests, which takes no memory per request.

    A column of zeros is an ordinary array, which compiled code can read; its pages take memory only
    when they are written.
    """
    return np.broadcast_to(np.asarray(value), n) if value else np.zeros(n, np.int64)


def read_floats(name: str, values: ArrayLike) -> Floats:
    """Return numbers as a float64 array of one dimension; raise ValueError for other values."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers") from None
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {array.shape}")
    return array


def read_ints(name: str, values: ArrayLike, n: int) -> Ints:
    """Return whole numbers, one for each of ``n`` requests.

    Raises
    ------
    ValueError
        If there are not ``n`` numbers; RowError for a number that is not whole.
    """
    array = np.asarray(values)
    if array.dtype == np.bool_:
        raise ValueError(f"{name} must be numbers")
    if not np.issubdtype(array.dtype, np.integer):
        numbers = read_floats(name, values)
        whole = np.isfinite(numbers) & (numbers == np.floor(numbers)) & (abs(numbers) < 2**53)
        check_rows(name, numbers, whole, "a whole number")
        array = numbers
    if array.shape != (n,):
        raise ValueError(f"{name} must have one entry per request ({n}), got shape {array.shape}")
    if array.dtype == np.uint64:
        check_rows(name, array, array < 2**63, "below 2**63")
    return array.astype(np.int64)


def check_rows(name: str, values: NDArray[Any], ok: NDArray[np.bool_], allowed: str) -> None:
    """Raise RowError for the first value where ``ok`` is false; ``allowed`` ends the message."""
    if not ok.all():
        row = int(np.argmin(ok))
        value = values[row].item()
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        raise RowError(row, name, f"is {shown}, must be {allowed}")


def check_length(name: str, values: object, n: int, what: str) -> None:
    """Raise ValueError unless a value is a list with one ``what`` for each of ``n`` requests."""
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise ValueError(f"{name} must be a list, not {type(values).__name__}")
    if len(values) != n:
        raise ValueError(f"{name} must have one {what} per request ({n}), got {len(values)}")


def read_codes(name: str, given: Sequence[int | str | None] | NDArray[Any] | None, n: int) -> Ints:
    """Return integers unchanged, and texts as small integers in order of first appearance."""
    if given is None:
        return everywhere(0, n)
    check_length(name, given, n, "entry")
    if any(isinstance(s, str) for s in given):
        codes: dict[str, int] = {}
        texts = [str(s) if s else "" for s in given]
        return np.array([codes.setdefault(s, len(codes) + 1) if s else 0 for s in texts], np.int64)
    array = read_ints(name, [s or 0 for s in given], n)
    check_rows(name, array, array >= 0, "at least 0")
    return array


def check_segments(
    columns: tuple[Ints, Ints, Ints], offsets: Ints, num_prompt_tokens: Ints, most: int
) -> None:
    """Raise RowError for a segment out of range, or a sum of lengths that is not the prompt's."""
    content, start, length = columns
    # The upper bound keeps the sums below from overflowing.
    ok = (content >= 0) & (start >= 0) & (length >= 1) & (length <= most)
    if not ok.all():
        i = int(np.argmin(ok))
        row = int(np.searchsorted(offsets, i, side="right")) - 1
        piece = (int(content[i]), int(start[i]), int(length[i]))
        allowed = f"content_id and start of at least 0 and num_tokens of 1 to {most:,}"
        raise RowError(row, f"segment {piece}", f"must have {allowed}")
    total = np.concatenate(([0], np.cumsum(length)))
    agrees = total[offsets[1:]] - total[offsets[:-1]] == num_prompt_tokens
    check_rows("the sum of segments", np.diff(total[offsets]), agrees, "num_prompt_tokens")


def read_hints(ttl: ArrayLike | None, priority: ArrayLike | None, n: int) -> tuple[Floats, Ints]:
    """Return the retention times in seconds and the priorities; -1 for a request without one."""
    times = read_shares("hint_ttl", ttl, n)
    ok = (times == NOT_GIVEN) | ((times >= 0) & np.isfinite(times))
    check_rows("hint_ttl", times, ok, "at least 0, or -1 for none")
    levels = everywhere(NO_HINT, n)
    if priority is not None:
        levels = read_ints("hint_priority", priority, n)
    ok = (levels >= NO_HINT) & (levels <= MAX_PRIORITY)
    check_rows("hint_priority", levels, ok, "0 to 100, or -1 for none")
    return times, levels


def read_tenants(
    given: Sequence[int | str | None] | NDArray[Any] | None, n: int
) -> tuple[Ints, NDArray[np.str_]]:
    """Return tenants as integers, and their names in order of first appearance.

    If all texts are numbers, they are read as numbers, since a CSV file does not distinguish the
    two; the list of names is then empty.
    """
    nobody = np.array([], dtype=np.str_)
    if given is None:
        return everywhere(NO_TENANT, n), nobody
    check_length("tenant", given, n, "entry")
    if isinstance(given, np.ndarray):
        given = given.tolist()
    cells = [NO_TENANT if one is None or one in ("", str(NO_TENANT)) else one for one in given]
    texts = [one for one in cells if isinstance(one, str)]
    if not all(one.isdecimal() and str(int(one)) == one for one in texts):
        names: dict[str, int] = {}
        places = [
            one if one == NO_TENANT else names.setdefault(str(one), len(names)) for one in cells
        ]
        return np.array(places, np.int64), np.array(list(names), dtype=np.str_)
    array = read_ints("tenant", [int(one) if isinstance(one, str) else one for one in cells], n)
    check_rows("tenant", array, array >= NO_TENANT, "at least 0, or -1 for none")
    return array, nobody


def read_shares(name: str, given: ArrayLike | None, n: int) -> Floats:
    """Return an optional column of ``n`` numbers; ``NOT_GIVEN`` everywhere if it is None."""
    if given is None:
        return everywhere(NOT_GIVEN, n)
    array = read_floats(name, given)
    if len(array) != n:
        raise ValueError(f"{name} must have one entry per request ({n}), got {len(array)}")
    return array


def read_accepted(given: Sequence[Sequence[int]] | None, n: int) -> tuple[Ints, Ints]:
    """Return the offsets by request, and the accepted drafts of each verification."""
    if given is None:
        return everywhere(0, n + 1), np.zeros(0, dtype=np.int64)
    offsets = np.zeros(n + 1, dtype=np.int64)
    check_length("accepted_drafts", given, n, "list")
    for row, counts in enumerate(given):
        whole = isinstance(counts, list | tuple) and all(type(c) is int and c >= 0 for c in counts)
        if not whole:
            raise RowError(row, "accepted_drafts", "must be a list of whole numbers of at least 0")
    offsets[1:] = np.cumsum([len(counts) for counts in given])
    return offsets, np.array([c for counts in given for c in counts], dtype=np.int64)


def read_segments(
    segments: Sequence[Iterable[tuple[int, int, int]]] | None, n: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return offsets by request, and content, start and length of every segment.

    Raises
    ------
    ValueError
        For values that are not triples of integers; RowError for a request without a triple.
    """
    offsets = np.zeros(n + 1, dtype=np.int64)
    if segments is None:
        empty = np.zeros(0, dtype=np.int64)
        return offsets, empty, empty.copy(), empty.copy()
    check_length("segments", segments, n, "list")
    if isinstance(segments, Slices):
        empty_rows = np.flatnonzero(segments.end <= segments.first)
        if len(empty_rows):
            raise RowError(int(empty_rows[0]), "segments", "must not be empty")
        return segments.flat()
    pieces: list[tuple[int, int, int]] = []
    for i, request in enumerate(segments):
        if isinstance(request, str) or not hasattr(request, "__iter__"):
            raise RowError(i, "segments", f"is {request!r}, must be a list of triples")
        pieces.extend(request)
        offsets[i + 1] = len(pieces)
        if offsets[i + 1] == offsets[i]:
            raise RowError(i, "segments", "must not be empty")
    try:
        table = np.array(pieces)  # no dtype: int64 here would cut 1.5 to 1 in silence
    except ValueError:
        table = np.zeros(0)
    if table.ndim != 2 or table.shape[1] != 3 or table.dtype.kind != "i":
        raise ValueError("segments must be triples (content_id, start, num_tokens) of integers")
    content, start, length = table.T.astype(np.int64)
    return offsets, content.copy(), start.copy(), length.copy()
