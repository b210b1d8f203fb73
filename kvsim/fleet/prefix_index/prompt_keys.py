"""Keys of prompts' blocks for routers, computed for many requests at once.

A key covers its block and all blocks before it, so each key of a prompt is computed from the
previous one. Keys at the same position of different prompts are computed together. The keys equal
those of :mod:`kvsim.rules.blocks.keys`; the arithmetic is unsigned and wraps around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.contents import Contents
from kvsim.engine.incoming import IncomingRequest
from kvsim.kv.block_hash import block_keys
from kvsim.rules.blocks.keys import FIRST_KEY, LENGTH_WORD, START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Words = NDArray[np.uint64]
    Ints = NDArray[np.int64]

#: Largest number of requests with keys computed together, and of tokens in their prompts.
TOGETHER, MOST_TOKENS = 512, 1 << 24
MULTIPLIERS = tuple(
    np.uint64(m) for m in (0x2545F4914F6CDD1D, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
SHIFTS = tuple(np.uint64(s) for s in (30, 27, 31, 1))


class PromptKeys:
    """Keys of a trace's prompts, computed as the requests arrive.

    Parameters
    ----------
    trace : the requests; their keys are read nearly in order
    compiled : compute the keys prompt by prompt, in compiled code
    """

    def __init__(self, trace: Trace, *, compiled: bool = False) -> None:
        self._trace = trace
        self._name_path: Any = None
        if compiled:
            from kvsim.compiled import key_table, loops

            self._name_path = loops.translated(key_table.name_path)
        self._salts = Contents.of(trace).lists["cache_salt"]  # they cover adapters
        self._ahead: dict[int, dict[int, Words]] = {}  # by block size and request
        if compiled and trace.has_segments:
            self._offsets = trace.segment_offsets
            columns = trace.segment_content_id, trace.segment_start, trace.segment_num_tokens
            self._columns = [np.ascontiguousarray(column, np.int64) for column in columns]

    def of(self, request_id: int, block_size: int) -> NDArray[np.int64]:
        """Return the keys of a prompt's full blocks."""
        if self._name_path:
            columns, salt = self._columns_of(request_id), int(self._salts[request_id])
            return self._named(columns, block_size, salt)
        known = self._ahead.setdefault(block_size, {})
        if request_id not in known:
            known.clear()
            rows = self._next_rows(request_id)
            known.update(zip(rows, keys_of(self._trace, rows, block_size), strict=True))
        return known[request_id].view(np.int64)

    def whole(self, request_id: int, num_tokens: int, block_size: int) -> NDArray[np.int64]:
        """Return the keys of the full blocks in the first ``num_tokens`` of prompt and output."""
        if not self._name_path:
            request = Contents.of(self._trace).request(request_id, 0.0, num_tokens + 1)
            return np.array(block_keys(request, num_tokens // block_size, block_size), np.int64)
        content, start, length = self._columns_of(request_id)
        output = num_tokens - int(length.sum())
        if output > 0:
            own = int(self._trace.output_content_id[request_id])
            content, start, length = (
                np.append(column, value)
                for column, value in ((content, own), (start, 0), (length, output))
            )
        salt = int(self._salts[request_id])
        return self._named((content, start, length), block_size, salt)

    def _named(self, columns: Sequence[Ints], block_size: int, salt: int) -> NDArray[np.int64]:
        """Return the keys of the full blocks of some spans, by compiled code."""
        found = np.empty(int(columns[2].sum()) // block_size, np.int64)
        self._name_path(*columns, block_size, FIRST_KEY, salt, found)
        return found

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return content, start and length of all segments, offsets and salts by request."""
        if self._trace.has_segments:
            return (*self._columns, np.ascontiguousarray(self._offsets, np.int64), self._salts)
        rows = np.arange(len(self._trace), dtype=np.int64)  # prompts share no content
        lengths = np.ascontiguousarray(self._trace.num_prompt_tokens, np.int64)
        return -2 * rows - 1, 0 * rows, lengths, np.arange(len(rows) + 1), self._salts

    def _columns_of(self, request_id: int) -> Sequence[NDArray[np.int64]]:
        """Return content, start and length of a prompt's segments."""
        trace = self._trace
        if not trace.has_segments:
            return list(np.array(trace.segments_of(request_id), np.int64).T.copy())
        first, stop = self._offsets[request_id : request_id + 2].tolist()
        return [column[first:stop] for column in self._columns]

    def _next_rows(self, first: int) -> range:
        """Return the next batch: at most TOGETHER requests and MOST_TOKENS tokens, or one request.

        The rows start at ``first``.
        """
        tokens = np.cumsum(self._trace.num_prompt_tokens[first : first + TOGETHER])
        return range(first, first + max(1, int(np.searchsorted(tokens, MOST_TOKENS, "right"))))


class RoutedRequest(IncomingRequest):
    """A request at a router; its keys were computed together with those of other requests."""

    __slots__ = ("_paths", "_prompt_keys")

    def __init__(
        self, trace: Trace, request_id: int, arrival_time: float, prompt_keys: PromptKeys
    ) -> None:
        super().__init__(trace, request_id, arrival_time)
        self._prompt_keys = prompt_keys
        self._paths: dict[int, NDArray[np.int64]] = {}

    def prefix_keys(self, block_size: int, lookahead: int = 0) -> Sequence[int]:
        if not lookahead and (block_size, 0) not in self._keys:
            self._keys[block_size, 0] = self.prefix_path(block_size).tolist()
        return super().prefix_keys(block_size, lookahead)

    def prefix_path(self, block_size: int, lookahead: int = 0) -> NDArray[np.int64]:
        if lookahead:
            return super().prefix_path(block_size, lookahead)
        if block_size not in self._paths:
            self._paths[block_size] = self._prompt_keys.of(self.request_id, block_size)
        return self._paths[block_size]


def keys_of(trace: Trace, rows: Sequence[int], block_size: int) -> list[Words]:
    """Return the keys of some prompts' full blocks.

    Parameters
    ----------
    trace : the requests
    rows : rows of the trace
    block_size : tokens per block
    """
    cuts = [cut(trace, row, block_size) for row in rows]
    lengths = np.array([len(pieces) for pieces, _ in cuts])
    order = np.argsort(-lengths, kind="stable")  # longest first: unfinished prompts are a slice
    steps = int(lengths.max(initial=0))
    words = np.zeros((steps, len(cuts)), np.uint64)
    for place, i in enumerate(order.tolist()):
        words[: lengths[i], place] = cuts[i][0]
    left = np.searchsorted(-lengths[order], -np.arange(steps), "left")
    keys = np.full(len(cuts), FIRST_KEY, np.uint64)
    salts = Contents.of(trace).lists["cache_salt"][list(rows)]  # they cover adapters
    fold_in(keys, salts.astype(np.uint64)[order])
    found = np.empty((steps, len(cuts)), np.uint64)
    for step, (pieces, number) in enumerate(zip(words, left.tolist(), strict=True)):
        fold_in(keys[:number], pieces[:number])
        found[step] = keys
    places = np.argsort(order, kind="stable").tolist()
    return [found[ends, place] for (_, ends), place in zip(cuts, places, strict=True)]


def cut(trace: Trace, row: int, block_size: int) -> tuple[Words, NDArray[np.intp]]:
    """Cut a prompt into spans, at the ends of its full blocks and where its content changes.

    Returns
    -------
    pieces : hash of each span, as :func:`kvsim.rules.blocks.keys.mix_span` computes it
    ends : indices of the spans that end a block
    """
    content, start, length = np.array(trace.segments_of(row), dtype=np.int64).T
    ends = np.cumsum(length)
    begins = ends - length
    # A segment that continues the previous one is merged with it.
    fresh = np.append(True, (content[1:] != content[:-1]) | (start[1:] != (start + length)[:-1]))
    content, start, begins = content[fresh], start[fresh], begins[fresh]
    blocks = block_size * np.arange(int(ends[-1]) // block_size + 1)
    inner = begins[(begins < blocks[-1]) & (begins % block_size > 0)]
    marks = np.insert(blocks, np.searchsorted(blocks, inner), inner)
    inside = np.searchsorted(begins, marks[:-1], "right") - 1
    pieces = content[inside].astype(np.uint64)
    fold_in(pieces, (start[inside] + marks[:-1] - begins[inside]).astype(np.uint64))
    pieces += np.diff(marks).astype(np.uint64) * np.uint64(LENGTH_WORD)
    return pieces, np.flatnonzero(marks[1:] % block_size == 0)


def fold_in(keys: Words, values: Words) -> None:
    """Mix values into keys, as :func:`kvsim.rules.blocks.keys.mix` does. Mutates the keys."""
    first, second, third = MULTIPLIERS
    a, b, c, half = SHIFTS
    keys *= first
    keys += values
    keys += np.uint64(START)
    keys ^= keys >> a
    keys *= second
    keys ^= keys >> b
    keys *= third
    keys ^= keys >> c
    keys >>= half
