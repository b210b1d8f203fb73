"""Samples of a request as vLLM V1 serves them: ordinary requests, children of one parent.

The front end creates the children in order, at one arrival time, with the parent's prompt,
priority, salt and adapter. They share the prompt's blocks only through the prefix cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from kvsim.trace.columns import everywhere
from kvsim.trace.rows import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Family:
    """The requests of a trace, and their samples as requests of another trace.

    Attributes
    ----------
    parents, children : a request with one sample is its own only child
    parent_of : row of the parent of each child
    first : row of the first child of each parent
    """

    parents: Trace
    children: Trace
    parent_of: Ints
    first: Ints


#: By trace of children: the number of samples of each parent.
_num_siblings: WeakKeyDictionary[Trace, Ints] = WeakKeyDictionary()


def family_of(trace: Trace) -> Family:
    """Make every sample of a trace's requests a separate request.

    The first child's output has the parent's content, so that a later prompt can contain it.
    """
    parent_of = np.repeat(np.arange(len(trace)), trace.num_samples)
    first = np.cumsum(trace.num_samples) - trace.num_samples
    n = len(parent_of)
    columns = columns_of(trace, parent_of) | {
        "num_samples": everywhere(1, n),
        "sample_offsets": everywhere(0, n + 1),
        "sample_output_tokens": np.zeros(0, np.int64),
        "after_offsets": everywhere(0, n + 1),
        "after": np.zeros(0, np.int64),  # the parents wait
        "num_output_tokens": _lengths(trace, parent_of, first),
        **_contents(trace, parent_of, first),
    }
    for column in columns.values():
        column.flags.writeable = False
    children = replace(trace, **columns)
    _num_siblings[children] = trace.num_samples
    return Family(trace, children, parent_of, first)


def names_of(trace: Trace) -> Iterator[str]:
    """Return the request ids of a trace as in vLLM: ``1_7`` is request 7's second sample."""
    if trace not in _num_siblings:
        yield from map(str, range(len(trace)))
        return
    for parent, several in enumerate(_num_siblings[trace].tolist()):
        if several == 1:
            yield str(parent)
        else:
            yield from (f"{number}_{parent}" for number in range(several))


def num_answer_tokens(trace: Trace) -> Ints:
    """Return the output tokens of each request, all samples together."""
    family_lengths = trace.num_output_tokens * trace.num_samples
    if not trace.has("sample_output_tokens"):
        return family_lengths
    counts = np.diff(trace.sample_offsets)
    total = np.concatenate(([0], np.cumsum(trace.sample_output_tokens)))
    sums = total[trace.sample_offsets[1:]] - total[trace.sample_offsets[:-1]]
    return np.where(counts > 0, sums, family_lengths)


def _lengths(trace: Trace, parent_of: Ints, first: Ints) -> Ints:
    lengths = trace.num_output_tokens[parent_of]
    if trace.has("sample_output_tokens"):
        has = np.diff(trace.sample_offsets)[parent_of] > 0
        places = trace.sample_offsets[parent_of] + np.arange(len(parent_of)) - first[parent_of]
        lengths[has] = trace.sample_output_tokens[places[has]]
    return lengths


def _contents(trace: Trace, parent_of: Ints, first: Ints) -> dict[str, Ints]:
    """Return the contents of the children's outputs, and of prompts without segments."""
    outputs, n = trace.output_content_id, len(parent_of)
    fresh = 1 + max(0, int(outputs.max()), int(trace.segment_content_id.max(initial=0)))
    columns: dict[str, Ints] = {}
    if not trace.has_segments:  # every prompt is unique among requests
        columns = {
            "segment_offsets": np.arange(n + 1),
            "segment_content_id": fresh + parent_of,
            "segment_start": np.zeros(n, np.int64),
            "segment_num_tokens": trace.num_prompt_tokens[parent_of],
        }
        fresh += len(trace)
    own = -2 * np.arange(n) - 2
    if (outputs >= 0).all():
        own = fresh + np.arange(n)
        own[first] = outputs
    return {"output_content_id": own, **columns}
