"""Traces made from a trace: the columns of a slice, and the identity of the contents."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.trace.columns import read_tenants
from kvsim.trace.waits import waits_within

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace

#: Prefixes of the columns that do not have one entry per request, and of their offsets.
RAGGED = ("segment_", "accept_off", "accepted", "item_", "sample_", "after")


def columns_within(trace: Trace, start: int, stop: int) -> dict[str, NDArray[Any]]:
    """Return the columns of the requests from ``start`` to ``stop``."""
    changed: dict[str, NDArray[Any]] = {}
    for f in fields(trace):
        if not f.name.startswith((*RAGGED, "tenant_")):
            changed[f.name] = getattr(trace, f.name)[start:stop].copy()
    fresh = changed["output_content_id"] < 0
    changed["output_content_id"][fresh] += 2 * start
    changed["segment_offsets"] = np.zeros(stop - start + 1, dtype=np.int64)
    if trace.has_segments:
        first, last = trace.segment_offsets[start], trace.segment_offsets[stop]
        changed["segment_offsets"] = trace.segment_offsets[start : stop + 1] - first
        for name in ("segment_content_id", "segment_start", "segment_num_tokens"):
            changed[name] = getattr(trace, name)[first:last].copy()
    for offsets, *names in (
        ("accept_offsets", "accepted_drafts"),
        ("item_offsets", "item_start", "item_num_tokens"),
        ("sample_offsets", "sample_output_tokens"),
    ):
        first, last = getattr(trace, offsets)[[start, stop]]
        changed[offsets] = getattr(trace, offsets)[start : stop + 1] - first
        for name in names:
            changed[name] = getattr(trace, name)[first:last].copy()
    changed["after_offsets"], changed["after"] = waits_within(trace, start, stop)
    if trace.has("tenant_names"):  # number the slice's tenants anew, as if read from a file
        rest = [trace.tenant_of(row) for row in range(start, stop)]
        changed["tenant"], changed["tenant_names"] = read_tenants(rest, stop - start)
    return changed


def with_columns(trace: Trace, **columns: NDArray[Any]) -> Trace:
    """Return the trace with other columns, which number the same contents."""
    changed = replace(trace, **columns)._freeze()
    changed.__dict__["_whole"] = trace.__dict__.get("_whole", trace)
    return changed


def content_digest(trace: Trace) -> str:
    """Return sixteen hex digits that identify the numbers of a trace's contents.

    A slice of a trace, or a trace at another rate, has the digest of the whole trace.
    """
    whole = trace.__dict__.get("_whole", trace)
    columns = (
        *(whole.segment_offsets, whole.segment_content_id, whole.segment_start),
        *(whole.segment_num_tokens, whole.output_content_id),
    )
    h = hashlib.sha256()
    for values in columns:
        h.update(values.tobytes())
    return h.hexdigest()[:16]
