"""A trace's requests in the form that rules read, shared by all replicas of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from kvsim.records.encoder import Item
from kvsim.records.memory import Flat, Views
from kvsim.records.request import Request, Segment
from kvsim.records.samples import EOS
from kvsim.trace import MAX_TOKENS
from kvsim.trace.family import names_of
from kvsim.trace.items import contents_of_items
from kvsim.trace.turns import turns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from kvsim.records.engine import Trace as TraceRecord
    from kvsim.records.memory import Memory
    from kvsim.trace import Trace
    from kvsim.trace.turns import Turns

_contents: WeakKeyDictionary[Trace, Contents] = WeakKeyDictionary()


#: Lists of times and rates, which are floats; all other lists hold integers.
FLOATS = ("ready_time", "grammar_time", "accept_rate", "input_time")


class Contents:
    """Requests by row: shared, read-only memory.

    Parameters
    ----------
    lists : one entry per request of num_prompt_tokens, max_tokens, output_content_id, priority and
        cache_salt, and one more of segment_offsets; optional are num_samples, id_rank (priorities),
        lora, tenant, ready_time and grammar_time (grammars), accepts (recorded acceptance of
        drafts), carried (output tokens of moved requests), asked_tokens (outputs that end by EOS)
    segments : the prompts' segments, shape (segments,)
    items : parts of prompts that an encoder computes, with item_offsets in the lists
    """

    def __init__(
        self,
        lists: dict[str, NDArray[np.int64]],
        segments: NDArray[Any],
        items: NDArray[Any] | None = None,
    ) -> None:
        self.lists = {
            name: np.ascontiguousarray(rows, np.float64 if name in FLOATS else np.int64)
            for name, rows in lists.items()
        }
        self._segments = segments
        self._items = items
        self.turns: Turns | None = None

    def __len__(self) -> int:
        return len(self.lists["num_prompt_tokens"])

    @property
    def room(self) -> int:
        """Number of requests that the lists can hold."""
        return len(self)

    @property
    def num_tenants(self) -> int:
        """Number of tenants; requests without one count as one tenant."""
        return int(self.lists["tenant"].max()) + 1 if "tenant" in self.lists else 1

    @classmethod
    def of(cls, trace: Trace) -> Contents:
        """Return the contents of a trace, which are made once and shared."""
        if trace not in _contents:
            lists = {
                "num_prompt_tokens": trace.num_prompt_tokens,
                "max_tokens": trace.num_output_tokens,
                "segment_offsets": trace.segment_offsets,
                "output_content_id": trace.output_content_id,
                "priority": trace.priority,
                "cache_salt": trace.cache_salt,
            }
            if (trace.num_samples > 1).any():
                lists["num_samples"] = trace.num_samples
            if trace.has("ends_by"):
                limits = np.where(trace.max_tokens > 0, trace.max_tokens, MAX_TOKENS)
                lists["asked_tokens"] = np.where(
                    trace.ends_by == EOS, limits, trace.num_output_tokens
                )
            if trace.priority.any():
                lists["id_rank"] = text_ranks(names_of(trace))
            lists |= _seldom(trace)
            columns = (trace.segment_content_id, trace.segment_start, trace.segment_num_tokens)
            items = None
            if trace.has("item_start"):
                items, lists["item_offsets"] = item_rows(trace), trace.item_offsets
            made = cls(lists, segment_rows(*columns), items)
            made.turns = turns_of(trace)
            _contents[trace] = made
        return _contents[trace]

    def with_own_lengths(self) -> Contents:
        """Return a copy for one run, which may change the outputs of requests.

        Requests may arrive with output tokens, or generate more or fewer than in the trace.
        """
        own = {"max_tokens": self.lists["max_tokens"].copy(), "carried": np.zeros(len(self), int)}
        own["asked_tokens"] = self.lists.get("asked_tokens", own["max_tokens"]).copy()
        lists: dict[str, Any] = {**self.lists, **own}
        made = Contents(lists, self._segments, self._items)
        made.turns = self.turns
        return made

    def asked_tokens(self, row: int) -> int:
        """Return max_tokens of a request; its output may be shorter."""
        return int(self.lists.get("asked_tokens", self.lists["max_tokens"])[row])

    def init_state(self, record: TraceRecord, memory: Memory) -> None:
        """Let a replica's trace record refer to these contents."""
        lists = self.lists
        for name, values in lists.items():
            setattr(record, name, memory.list_of(values))
        record.has_ranks, record.has_drafts = "id_rank" in lists, "drafts" in lists
        record.has_rates, record.has_accepts = "accept_rate" in lists, "accepts" in lists
        record.has_loras, record.has_tenants = "lora" in lists, "tenant" in lists
        record.has_stops, record.has_samples = "stop_at" in lists, "num_samples" in lists
        record.has_carried, record.has_eos = "carried" in lists, "asked_tokens" in lists
        record.has_skips = "skips_reading" in lists
        for name, numbers in (("next_accept", "accepts"), ("next_draft", "drafts")):
            if numbers in lists:  # each replica has its own counters
                setattr(record, name, memory.ints(len(self)))
        record.has_grammar_times = "grammar_time" in lists
        if record.has_grammar_times:
            record.ready_time = memory.list_of(np.full(len(self), -1.0))
        segments: Any = Views(self._segments, Segment, Flat())
        record.segments = segments if memory.compiled else list(map(_segment, self._segments))
        if self._items is not None:
            items: Any = Views(self._items, Item, Flat())
            record.items = items if memory.compiled else [Item(*map(int, i)) for i in self._items]

    def shorter_than(self, max_model_len: int) -> Iterator[Request]:
        """Yield the requests with prompts shorter than ``max_model_len`` tokens."""
        for row in np.flatnonzero(self.lists["num_prompt_tokens"] < max_model_len).tolist():
            yield self.request(row, 0.0, max_model_len)

    def request(self, index: int, arrival_time: float, max_model_len: int) -> Request:
        """Return one request; prompt and output have at most ``max_model_len`` tokens."""
        return request_of(self.lists, self._segments, index, arrival_time, max_model_len)


def _seldom(trace: Trace) -> dict[str, Any]:
    """Return the lists of optional columns that few traces have."""
    lists: dict[str, Any] = {}
    if trace.has("lora_id"):
        lists["lora"] = trace.lora_id
        kept_apart = np.stack([trace.cache_salt, trace.lora_id], axis=1)
        numbers = np.unique(kept_apart, axis=0, return_inverse=True)[1].reshape(-1) + 1
        lists["cache_salt"] = np.where(trace.lora_id > 0, -numbers, trace.cache_salt)
    if trace.has("tenant"):
        lists["tenant"] = np.unique(trace.tenant, return_inverse=True)[1].reshape(-1)
    if trace.has("grammar_time"):
        lists["grammar_time"] = trace.grammar_time
    if trace.has("acceptance_rate"):
        lists["accept_rate"] = trace.acceptance_rate
    if trace.has("accepted_drafts"):
        lists["accepts"], lists["accept_offsets"] = trace.accepted_drafts, trace.accept_offsets
    return lists


def text_ranks(ids: Iterable[str]) -> NDArray[np.int64]:
    """Return the rank of each id in alphabetical order: 10 before 9."""
    order = np.argsort(np.array(list(ids)), kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def segment_rows(content_id: Any, start: Any, num_tokens: Any) -> NDArray[Any]:
    """Return segments as rows, from their columns."""
    rows = np.zeros(len(content_id), dtype=Segment.dtype())
    rows["content_id"], rows["start"], rows["num_tokens"] = content_id, start, num_tokens
    return rows


def item_rows(trace: Trace) -> NDArray[Any]:
    """Return the parts of prompts that an encoder computes, as rows."""
    rows = np.zeros(len(trace.item_start), dtype=Item.dtype())
    rows["content"] = contents_of_items(trace)
    rows["offset"], rows["num_tokens"] = trace.item_start, trace.item_num_tokens
    return rows


def _segment(row: Any) -> Segment:
    return Segment(*map(int, row))


def request_of(
    lists: dict[str, NDArray[Any]],
    segments: NDArray[Any],
    index: int,
    arrival_time: float,
    max_model_len: int,
) -> Request:
    """Return the request at an index of the lists, as a record."""
    prompt = int(lists["num_prompt_tokens"][index])
    first, stop = (int(lists["segment_offsets"][index + k]) for k in (0, 1))
    return Request(
        index,
        arrival_time,
        prompt,
        min(int(lists["max_tokens"][index]), max_model_len - prompt),
        [_segment(row) for row in segments[first:stop]],
        int(lists["output_content_id"][index]),
        int(lists["priority"][index]),
        int(lists["cache_salt"][index]),
        int(lists["num_samples"][index]) if "num_samples" in lists else 1,
    )
