"""The blocks of a trace's prompts, numbered for a cache that serves one request at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.hits.rules.naming import Naming, Node, name_blocks
from kvsim.hits.rules.requests import Requests
from kvsim.trace.spans import Spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.hits.backend import Backend
    from kvsim.trace import Trace

    Ints = NDArray[np.int64]

#: Least size of the hash table of nodes.
FIRST_BUCKETS = 1 << 12


@dataclass(frozen=True, eq=False)
class Paths:
    """Requests as paths of numbered blocks.

    Attributes
    ----------
    requests : the requests in the form that the rules read
    num_blocks : number of different blocks
    num_references : number of blocks of all requests
    measured_tokens : prompt tokens of the measured requests
    """

    requests: Requests
    num_blocks: int
    num_references: int
    measured_tokens: int


def paths_of(
    trace: Trace, block_size: int, measure_from: int, backend: Backend, *, as_engine: bool
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
    if as_engine:
        num_used = (prompts + trace.num_output_tokens - 1) // block_size
        num_lookups = (prompts - 1) // block_size
    else:
        num_used = num_lookups = -(-prompts // block_size)
    starts = np.append(0, np.cumsum(num_used))
    paths = np.empty(int(starts[-1]), np.int32)
    num_nodes = _name_blocks(trace, block_size, paths, backend, as_engine=as_engine)
    is_block = np.zeros(num_nodes, bool)
    is_block[paths] = True
    memory = backend.memory()
    requests = memory.one(Requests)
    requests.paths, requests.offsets = memory.list_of(paths), memory.list_of(starts)
    requests.num_lookups = memory.list_of(num_lookups)
    requests.num_tokens, requests.number = memory.list_of(prompts), len(prompts)
    requests.block_size, requests.num_nodes = block_size, num_nodes
    requests.first_measured = measure_from
    measured_tokens = int(prompts[measure_from:].sum())
    return Paths(requests, int(is_block.sum()), len(paths), measured_tokens)


def _name_blocks(
    trace: Trace, block_size: int, paths: NDArray[np.int32], backend: Backend, *, as_engine: bool
) -> int:
    """Fill ``paths`` with the numbers of all blocks; return the number of nodes."""
    memory = backend.memory()
    naming = memory.one(Naming)
    spans = _spans(trace, with_outputs=as_engine)
    naming.contents, naming.starts, naming.lengths, naming.offsets = map(memory.list_of, spans)
    kept_apart = np.stack([trace.cache_salt, trace.lora_id], axis=1)
    roots = np.unique(kept_apart, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    naming.roots, naming.paths = memory.list_of(roots), memory.list_of(paths)
    naming.num_roots = naming.num_nodes = int(roots.max()) + 1
    naming.nodes = memory.room(Node, naming.num_roots + len(paths) + len(spans[0]) + 1)
    naming.block_size, naming.with_short, naming.number = block_size, not as_engine, len(roots)
    name, needed = backend.rule(name_blocks), FIRST_BUCKETS
    while needed:
        naming.num_buckets = 1 << (needed - 1).bit_length()
        memory.replace(naming, buckets=memory.shorts(naming.num_buckets))
        needed = name(naming)
    return int(naming.num_nodes)


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
