"""Traces with other columns, and the identity of their contents."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace


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
