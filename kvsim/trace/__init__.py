"""A trace: requests as parallel arrays; segments identify the content of prompts."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.records.samples import EOS, LENGTH, MAX_SAMPLES
from kvsim.trace.columns import (
    NO_HINT,
    NO_TENANT,
    NOT_GIVEN,
    check_rows,
    check_segments,
    everywhere,
    read_accepted,
    read_codes,
    read_floats,
    read_hints,
    read_ints,
    read_segments,
    read_shares,
    read_tenants,
)
from kvsim.trace.columns import RowError as RowError
from kvsim.trace.cuts import with_columns
from kvsim.trace.endings import check_limits, read_endings, read_lengths
from kvsim.trace.items import check_items, read_items
from kvsim.trace.rows import columns_within
from kvsim.trace.waits import read_waits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

#: Longest prompt or output of a trace, in tokens; today's longest contexts are 10 million tokens.
MAX_TOKENS = 2**24
#: Shortest trace that can be scaled to another rate, seconds; shorter ones lose digits of times.
MIN_DURATION = 1e-9
#: Range of rates at which arrival times keep their digits, requests per second; or infinite.
MIN_RATE, MAX_RATE = 1e-9, 1e12
#: Number of rows that are hashed at once; it limits the memory for copies of constant columns.
HASHED_AT_ONCE = 1 << 16
#: Columns that enter the digest only if some request has a value in them.
SELDOM = (
    *("lora_id", "grammar_time", "acceptance_rate", "accept_offsets", "accepted_drafts"),
    *("item_offsets", "item_start", "item_num_tokens", "tenant", "tenant_names"),
    *("ends_by", "max_tokens", "sample_offsets", "sample_output_tokens"),
    *("after_offsets", "after", "think_time", "hint_ttl", "hint_priority"),
)
#: Columns that are empty if no request has a value in them.
LISTED = (
    *("accepted_drafts", "item_start", "item_num_tokens", "tenant_names"),
    *("sample_output_tokens", "after"),
)
#: Value of a column for a request without one; in other columns 0, or NOT_GIVEN for floats.
NOTHING: dict[str, float] = {"tenant": NO_TENANT, "think_time": 0.0, "hint_priority": NO_HINT}


class Segment(NamedTuple):
    """A part of a prompt: ``num_tokens`` tokens of a content, from its token ``start`` on.

    Token j of a content is the same token in every prompt, so two prompts that begin with the
    same segments share the KV of these tokens.
    """

    content_id: int
    start: int
    num_tokens: int


def check_rate(request_rate: float) -> None:
    """Refuse a rate that is not above 0, or that arrival times cannot represent.

    Raises
    ------
    ValueError
        The message has the rate and what is allowed.
    """
    if not request_rate > 0:
        raise ValueError(f"request_rate must be above 0, got {request_rate}")
    if not (MIN_RATE <= request_rate <= MAX_RATE or math.isinf(request_rate)):
        raise ValueError(
            f"request_rate must be from {MIN_RATE:g} to {MAX_RATE:g} per second, or inf; "
            f"got {request_rate:g}"
        )


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival; ``request_id`` is the row index.

    Traces are made from arrays by :meth:`from_arrays`, which checks everything, from files by
    ``workloads.load``, and at random by the generators of ``workloads``. All arrays have one entry
    per request unless noted otherwise.

    Attributes
    ----------
    arrival_time : float64, seconds, ascending, finite, at least 0
    num_prompt_tokens, num_output_tokens : int64, at least 1
    segment_offsets : int64, len(trace) + 1
        The segments of request i are rows ``segment_offsets[i]:segment_offsets[i + 1]`` of the
        three segment arrays, which are empty if every prompt is unique.
    segment_content_id, segment_start, segment_num_tokens : int64
    output_content_id : int64
        Content of the output, so that a later prompt can contain it; by default new, below 0.
    priority : int64
        Lower values are served first under ``scheduling_policy="priority"``.
    cache_salt : int64
        Requests share prefix blocks only with equal salts; 0 is none.
    session_id : int64
        Conversation the request belongs to; -1 is none.
    num_samples : int64
        Parallel samples of one prompt.
    lora_id : int64
        LoRA adapter; 0 is none.
    grammar_time : float64, seconds
        From arrival until the grammar of a structured output is compiled; -1: no grammar.
    acceptance_rate : float64
        Mean share of drafts accepted under speculative decoding; -1: that of the configuration.
    accept_offsets : int64, len(trace) + 1
        Rows of ``accepted_drafts`` that belong to each request.
    accepted_drafts : int64
        Accepted drafts of each verification; at the end the list repeats. It overrides the rate.
    item_offsets : int64, len(trace) + 1
        Rows of the two item arrays that belong to each request.
    item_start, item_num_tokens : int64
        Parts of prompts that an encoder computes, such as images, by first token and length. Each
        item lies within one segment, its content; equal contents are encoded once.
    tenant : int64
        Tenant of the request, for fair schedulers; -1 is none. If tenants have names, an index into
        ``tenant_names``.
    tenant_names : text, one per tenant, in order of first appearance; empty if ids are numbers
    ends_by : int64
        How the output ends: 0: by its length, which the engine knows as max_tokens; 1: by EOS or a
        stop token before max_tokens, at a length that the engine does not know.
    max_tokens : int64
        Largest number of output tokens, which the engine knows; 0: ``num_output_tokens``, or no
        limit for an output that ends by EOS.
    sample_offsets : int64, len(trace) + 1
        Rows of ``sample_output_tokens`` that belong to each request.
    sample_output_tokens : int64
        Output tokens of each sample; if empty, every sample has ``num_output_tokens``.
    after_offsets : int64, len(trace) + 1
        Rows of ``after`` that belong to each request.
    after : int64
        Requests that must have ended, served or not, before this request is sent; its
        ``arrival_time`` is then not used. ``-k - 1`` stands for the sending of request k.
    think_time : float64, seconds
        Time from the last event that the request waits for until it is sent.
    hint_ttl, hint_priority : float64, seconds, and int64, 0 to 100
        Time for which the client requests that blocks stay cached, and their priority; -1 is none.
    """

    arrival_time: Floats
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    segment_offsets: Ints
    segment_content_id: Ints
    segment_start: Ints
    segment_num_tokens: Ints
    output_content_id: Ints
    priority: Ints
    cache_salt: Ints
    session_id: Ints
    num_samples: Ints
    lora_id: Ints
    grammar_time: Floats
    acceptance_rate: Floats
    accept_offsets: Ints
    accepted_drafts: Ints
    item_offsets: Ints
    item_start: Ints
    item_num_tokens: Ints
    tenant: Ints
    tenant_names: NDArray[np.str_]
    ends_by: Ints
    max_tokens: Ints
    sample_offsets: Ints
    sample_output_tokens: Ints
    after_offsets: Ints
    after: Ints
    think_time: Floats
    hint_ttl: Floats
    hint_priority: Ints

    # -- building -------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        arrival_time: ArrayLike,
        num_prompt_tokens: ArrayLike,
        num_output_tokens: ArrayLike,
        *,
        segments: Sequence[Iterable[tuple[int, int, int]]] | None = None,
        output_content_id: ArrayLike | None = None,
        priority: ArrayLike | None = None,
        cache_salt: Sequence[int | str | None] | NDArray[Any] | None = None,
        session_id: ArrayLike | None = None,
        num_samples: ArrayLike | None = None,
        lora_id: Sequence[int | str | None] | NDArray[Any] | None = None,
        grammar_time: ArrayLike | None = None,
        acceptance_rate: ArrayLike | None = None,
        accepted_drafts: Sequence[Sequence[int]] | None = None,
        encoder_items: Sequence[Iterable[tuple[int, int]]] | None = None,
        tenant: Sequence[int | str | None] | NDArray[Any] | None = None,
        ends_by: Sequence[str | None] | NDArray[Any] | str | None = None,
        max_tokens: ArrayLike | None = None,
        sample_output_tokens: Sequence[Sequence[int]] | None = None,
        after: Sequence[Sequence[Any]] | None = None,
        think_time: ArrayLike | None = None,
        hint_ttl: ArrayLike | None = None,
        hint_priority: ArrayLike | None = None,
    ) -> Trace:
        """Return a trace of these arrays, checked and read-only.

        Parameters
        ----------
        arrival_time : seconds, shape (n,), ascending
        num_prompt_tokens, num_output_tokens : shape (n,), 1 to ``MAX_TOKENS``
        segments : n lists of (content_id, start, num_tokens), optional
            The lengths of a list sum to the prompt's length; contents are at least 0. By default
            every prompt is unique.
        output_content_id, priority, cache_salt, session_id, num_samples : shape (n,), optional
            A salt is an integer from 1 on, or a text; None, 0 and "" mean no salt.
        lora_id : shape (n,), optional
            An integer from 1 on, or a text; 0, None and "" mean no adapter.
        grammar_time, acceptance_rate : shape (n,), optional
            At least 0, the rate at most 1; -1 means none.
        accepted_drafts : n lists of whole numbers, optional
            Empty for a request without a record.
        encoder_items : n lists of (start, num_tokens), optional
            In order, without overlap; empty if a prompt is all text.
        tenant : shape (n,), optional
            Integers from 0 on, or texts; None, -1 and "" mean no tenant.
        ends_by : ``"length"`` or ``"eos"``, for all requests or each of them, optional
            How outputs end. EOS comes before max_tokens, at a length that the engine does not know.
        max_tokens : shape (n,), optional
            At least ``num_output_tokens``, or 0; if it is larger, the output ends by EOS.
        sample_output_tokens : n lists of ``num_samples`` lengths, optional
            Each 1 to ``num_output_tokens``; empty if all samples have ``num_output_tokens``.
        after : n lists of earlier rows, optional
            Rows that must have ended first; ``[k, "start"]`` waits for the sending of row k.
        think_time : seconds, at least 0, shape (n,), optional
        hint_ttl, hint_priority : shape (n,), optional
            At least 0, the priority at most 100; -1 means none.

        Raises
        ------
        ValueError
            The message names the first offending row and what is allowed.
        """
        arrival = read_floats("arrival_time", arrival_time)
        n = len(arrival)
        if n == 0:
            raise ValueError("a trace needs at least one request")

        def column(name: str, values: ArrayLike | None, default: int) -> Ints:
            if values is None:
                return everywhere(default, n)
            return read_ints(name, values, n)

        prompt = column("num_prompt_tokens", num_prompt_tokens, 0)
        offsets, content, start, length = read_segments(segments, n)
        output_content = -2 * np.arange(n, dtype=np.int64) - 2
        if output_content_id is not None:
            output_content = column("output_content_id", output_content_id, 0)
            check_rows("output_content_id", output_content, output_content >= 0, "at least 0")
        accept_offsets, accepted = read_accepted(accepted_drafts, n)
        item_offsets, item_start, item_length = read_items(encoder_items, n)
        tenants, tenant_names = read_tenants(tenant, n)
        output = column("num_output_tokens", num_output_tokens, 0)
        samples = column("num_samples", num_samples, 1)
        asked = column("max_tokens", max_tokens, 0)
        sample_offsets, sample_output = read_lengths(sample_output_tokens, samples, output)
        after_offsets, awaited, think_times = read_waits(after, think_time, n)
        hint_ttls, levels = read_hints(hint_ttl, hint_priority, n)
        trace = cls(
            arrival_time=arrival,
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            segment_offsets=offsets,
            segment_content_id=content,
            segment_start=start,
            segment_num_tokens=length,
            output_content_id=output_content,
            priority=column("priority", priority, 0),
            cache_salt=read_codes("cache_salt", cache_salt, n),
            session_id=column("session_id", session_id, -1),
            num_samples=samples,
            lora_id=read_codes("lora_id", lora_id, n),
            grammar_time=read_shares("grammar_time", grammar_time, n),
            acceptance_rate=read_shares("acceptance_rate", acceptance_rate, n),
            accept_offsets=accept_offsets,
            accepted_drafts=accepted,
            item_offsets=item_offsets,
            item_start=item_start,
            item_num_tokens=item_length,
            tenant=tenants,
            tenant_names=tenant_names,
            ends_by=np.where(asked > output, EOS, read_endings(ends_by, n)),
            max_tokens=asked,
            sample_offsets=sample_offsets,
            sample_output_tokens=sample_output,
            after_offsets=after_offsets,
            after=awaited,
            think_time=think_times,
            hint_ttl=hint_ttls,
            hint_priority=levels,
        )
        trace._validate()
        return trace._freeze()

    def _validate(self) -> None:
        time = self.arrival_time
        check_rows("arrival_time", time, np.isfinite(time) & (time >= 0), "finite and at least 0")
        later = np.concatenate(([True], time[1:] >= time[:-1]))
        check_rows("arrival_time", time, later, "no earlier than the row before (sort the trace)")
        for name in ("num_prompt_tokens", "num_output_tokens"):
            tokens = getattr(self, name)
            ok = (tokens >= 1) & (tokens <= MAX_TOKENS)
            check_rows(name, tokens, ok, f"1 to {MAX_TOKENS:,}")
        samples = self.num_samples
        ok = (samples >= 1) & (samples <= MAX_SAMPLES)
        check_rows("num_samples", samples, ok, f"1 to {MAX_SAMPLES}")
        check_limits(self.max_tokens, self.num_output_tokens, MAX_TOKENS)
        check_rows("session_id", self.session_id, self.session_id >= -1, "at least -1")
        for name, most in (("grammar_time", math.inf), ("acceptance_rate", 1)):
            values = getattr(self, name)
            ok = (values == NOT_GIVEN) | ((values >= 0) & (values <= most) & np.isfinite(values))
            allowed = "at least 0" if most > 1 else "0 to 1"
            check_rows(name, values, ok, f"{allowed}, or -1 for none")
        check_items(self)
        if not self.has_segments:
            return
        columns = (self.segment_content_id, self.segment_start, self.segment_num_tokens)
        check_segments(columns, self.segment_offsets, self.num_prompt_tokens, MAX_TOKENS)

    def _freeze(self) -> Trace:
        for f in fields(self):
            getattr(self, f.name).flags.writeable = False
        return self

    # -- reading --------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.arrival_time)

    def __repr__(self) -> str:
        return (
            f"<Trace of {len(self):,} requests over {self.duration:,.1f} s, mean prompt "
            f"{self.num_prompt_tokens.mean():.0f}, mean output {self.num_output_tokens.mean():.0f}>"
        )

    @property
    def has_segments(self) -> bool:
        """Return True if prompts have segments, which they may share; else all are unique."""
        return len(self.segment_content_id) > 0

    def has(self, name: str) -> bool:
        """Return True if any request has a value in a rarely used column."""
        values = getattr(self, name)
        if name in LISTED:
            return len(values) > 0
        none = NOT_GIVEN if values.dtype.kind == "f" else 0
        return bool((values != NOTHING.get(name, none)).any())

    def tenant_of(self, request_id: int) -> int | str | None:
        """Return the tenant of a request, by name or number; None if it has none."""
        tenant = int(self.tenant[request_id])
        if tenant == NO_TENANT:
            return None
        return str(self.tenant_names[tenant]) if self.has("tenant_names") else tenant

    def segments_of(self, request_id: int) -> list[Segment]:
        """Return the segments of one prompt, from its first token to its last."""
        if not self.has_segments:
            return [Segment(-2 * request_id - 1, 0, int(self.num_prompt_tokens[request_id]))]
        rows = range(self.segment_offsets[request_id], self.segment_offsets[request_id + 1])
        return [
            Segment(
                int(self.segment_content_id[i]),
                int(self.segment_start[i]),
                int(self.segment_num_tokens[i]),
            )
            for i in rows
        ]

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_time[-1] - self.arrival_time[0])

    @property
    def request_rate(self) -> float:
        """Mean arrivals per second, ``inf`` when all arrive at once."""
        return (len(self) - 1) / self.duration if self.duration > 0 else math.inf

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits of a sha256 over every array, which identify the content."""
        h = hashlib.sha256()
        for f in fields(self):
            if f.name in SELDOM and not self.has(f.name):
                continue
            h.update(f.name.encode())
            values = getattr(self, f.name)
            for first in range(0, len(values), HASHED_AT_ONCE):
                h.update(values[first : first + HASHED_AT_ONCE].tobytes())
        return h.hexdigest()[:16]

    # -- changing: each returns a new trace --------------------------------------------------

    def __getitem__(self, rows: slice) -> Trace:
        """Return the requests of a slice, with unchanged arrival times."""
        if not isinstance(rows, slice):
            raise TypeError("a trace takes slices, e.g. trace[:100]")
        start, stop, step = rows.indices(len(self))
        if step != 1 or stop <= start:
            raise ValueError(f"a slice of a trace needs step 1 and at least one row, got {rows}")
        return with_columns(self, **columns_within(self, start, stop))

    def with_num_samples(self, num_samples: int) -> Trace:
        """Return the trace with a number of sequences per request.

        Raises
        ------
        ValueError If the trace gives output lengths per sample, for a different number of samples.
        """
        samples = everywhere(num_samples, len(self))
        check_rows("num_samples", samples, (samples >= 1) & (samples <= MAX_SAMPLES), "1 to 64")
        if self.has("sample_output_tokens") and (samples != self.num_samples).any():
            raise ValueError(
                f"num_samples {num_samples}: the trace has its own sample lengths "
                "(sample_output_tokens); omit num_samples"
            )
        return with_columns(self, num_samples=samples)

    def with_ends_by(self, ends_by: str) -> Trace:
        """Return the trace with all outputs ending by ``"length"``, or all by ``"eos"``."""
        n = len(self)
        asked = self.max_tokens if ends_by == "eos" else everywhere(0, n)
        return with_columns(self, ends_by=read_endings(ends_by, n), max_tokens=asked)

    def with_single_outputs(self) -> Trace:
        """Return the trace with one output token per request."""
        return with_columns(
            self,
            num_output_tokens=everywhere(1, len(self)),
            ends_by=everywhere(LENGTH, len(self)),
            max_tokens=everywhere(0, len(self)),
        )

    def with_request_rate(self, request_rate: float) -> Trace:
        """Return the trace scaled to a mean rate, starting at 0.

        Parameters
        ----------
        request_rate : requests per second; ``inf`` sends everything at once

        Raises
        ------
        ValueError
            If the rate is not above 0, or the trace has no duration to scale.
        """
        check_rate(request_rate)
        if 0 < self.duration < MIN_DURATION:
            raise ValueError(
                f"request_rate: the trace lasts {self.duration} s, too short to be scaled"
            )
        shifted = self.arrival_time - self.arrival_time[0]
        if math.isinf(request_rate):
            return with_columns(self, arrival_time=np.zeros(len(self)))
        if self.duration == 0:
            if len(self) == 1:
                return with_columns(self, arrival_time=shifted)
            raise ValueError("request_rate: all requests of this trace arrive at one instant")
        return with_columns(self, arrival_time=shifted * (self.request_rate / request_rate))

    def save(self, path: str | Path) -> None:
        """Write the trace in the format of the suffix: .csv, .jsonl (each also .gz) or .parquet."""
        from kvsim.trace.files import write_trace

        write_trace(self, path)
