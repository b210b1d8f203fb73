"""A summary as one row of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Parts of a summary that are lists or dicts, or None as a whole; a table of scalars has no column
#: for such a part, only for the scalars in it.
STRUCTURES = {
    *("replicas", "tenants", "pools", "routing", "kv_transfers", "kv_store", "flow_control"),
    *("scaling", "migration", "rejections", "branches", "sessions"),
}


def flat(summary: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Return the scalars of a summary, those of its parts as ``part.key``.

    Examples
    --------
    >>> flat({"completed": 8, "kv_cache": {"mean_usage": 0.5}, "replicas": [{}]})
    {'completed': 8, 'kv_cache.mean_usage': 0.5}
    """
    row: dict[str, Any] = {}
    for key, value in summary.items():
        if isinstance(value, dict) and key not in ("rejections", "branches"):
            row |= flat(value, f"{inside}{key}.")
        elif not isinstance(value, list | dict) and (value is not None or key not in STRUCTURES):
            row[inside + key] = value
    return row


def squared(rows: Sequence[dict[str, Any]], last: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows with the keys of all rows, by first appearance; ``last`` is at the end.

    A missing value becomes None.
    """
    names = list(dict.fromkeys(name for row in rows for name in row if name not in last))
    return [{name: row.get(name) for name in (*names, *last)} for row in rows]
