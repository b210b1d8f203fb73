"""The blocks of a trace's prompts, numbered for a cache that serves one request at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.hits.rules.naming import name_blocks
from kvsim.trace.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvsim.hits.rules.requests import Requests
    from kvsim.trace import Trace

    Ints = NDArray[np.int64]
    Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, eq=False)
class Paths:
    """Requests as paths of numbered blocks.

    Attributes
    ----------
    requests : the requests in the form that the rules read
    num_blocks : number of different blocks
    """

    requests: Requests
    num_blocks: int

    @property
    def num_references(self) -> int:
        """Number of blocks of all requests."""
        return len(self.requests[0])

    @property
    def measured_tokens(self) -> int:
        """Prompt tokens of the measured requests."""
        return int(self.requests[3][self.requests[4][2] :].sum())


def paths_of(
    trace: Trace, block_size: int, measure_from: int, compile_: Compile, *, as_engine: bool
) -> Paths:
    """Number the blocks of all requests.

    Parameters
    ----------
    block_size : tokens
    measure_from : first request that is measured
    as_engine : if True, only full blocks of prompts and outputs count, and a hit leaves at least
        one prompt token to compute; if False, all blocks of prompts count, a partial last one too
    """
    prompts = np.asarray(trace.num_prompt_tokens, np.int64)
    content, start, length, offsets = _spans(trace, with_outputs=as_engine)
    if as_engine:
        num_used = (prompts + trace.num_output_tokens - 1) // block_size
        num_lookups = (prompts - 1) // block_size
    else:
        num_used = num_lookups = -(-prompts // block_size)
    starts = np.append(0, np.cumsum(num_used))
    kept_apart = np.stack([trace.cache_salt, trace.lora_id], axis=1)
    roots = np.unique(kept_apart, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    num_roots = int(roots.max()) + 1
    nodes = np.empty((num_roots + int(starts[-1]) + len(content) + 1, 4), np.int64)
    nodes[:num_roots] = -1
    paths = np.empty(int(starts[-1]), np.int32)
    num_nodes = compile_(name_blocks)(
        (content, start, length), offsets, roots, block_size, not as_engine, nodes, paths
    )
    is_block = np.zeros(num_nodes, bool)
    is_block[paths] = True
    settings = (block_size, int(num_nodes), measure_from)
    return Paths((paths, starts, num_lookups, prompts, settings), int(is_block.sum()))


def _spans(trace: Trace, *, with_outputs: bool) -> tuple[Ints, Ints, Ints, Ints]:
    """Return content, start and length of all spans, and the first span of each request."""
    if trace.has_segments:
        spans = Spans.of(trace)
        content, start = spans.content.view(np.int64), spans.start.view(np.int64)
        length, offsets = spans.length, np.append(spans.first, len(content)).astype(np.int64)
    else:  # no two prompts share content
        content = -2 * np.arange(len(trace), dtype=np.int64) - 1
        start, length = np.zeros_like(content), np.asarray(trace.num_prompt_tokens, np.int64)
        offsets = np.arange(len(trace) + 1, dtype=np.int64)
    if with_outputs:
        after = offsets[1:]
        content = np.insert(content, after, trace.output_content_id)
        start = np.insert(start, after, 0)
        length = np.insert(length, after, trace.num_output_tokens - 1)
        offsets = offsets + np.arange(len(offsets))
    return content, start, length, offsets
