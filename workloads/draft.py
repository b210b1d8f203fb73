"""Requests before they become a Trace: columns may lack times or be out of order."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.trace import Trace
from kvsim.trace.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: (content_id, start, num_tokens), as in ``kvsim.trace.Segment``.
Piece = tuple[int, int, int]


def first_tokens(pieces: Sequence[Piece], num_tokens: int) -> list[Piece]:
    """Return the segments of the first ``num_tokens`` tokens."""
    front: list[Piece] = []
    for content, start, length in pieces:
        if num_tokens <= 0:
            break
        front.append((content, start, min(length, num_tokens)))
        num_tokens -= length
    return front


def _moved(items: Sequence[Any], place: Mapping[int, int]) -> list[Any]:
    """Return the new rows of the requests in ``items``; ``place`` maps old rows to new ones."""
    return [(place[k[0]], *k[1:]) if isinstance(k, list | tuple) else place[k] for k in items]


@dataclass(frozen=True)
class Pace:
    """Pace of the turns of a session, for traces without arrival times.

    Turn k + 1 is planned ``num_output_tokens * time_per_output_token + think_time`` seconds after
    turn k: when the user has received and read the answer.

    Attributes
    ----------
    think_time : mean seconds from an answer to the next question, exponential; an assumption
    time_per_output_token : seconds
        0.045 is that of OPT-13B in the PagedAttention paper, Fig. 13, with 30.42 running requests
        of 338 output tokens at 2 requests/s.
    """

    think_time: float = 10.0
    time_per_output_token: float = 0.045

    def __post_init__(self) -> None:
        for name in ("think_time", "time_per_output_token"):
            if not 0 <= getattr(self, name) < np.inf:
                value = getattr(self, name)
                raise ValueError(f"{name} must be finite and at least 0, got {value}")


@dataclass(frozen=True)
class Draft:
    """Columns of a future trace, with the names of its arrays; None is a column's default.

    Attributes
    ----------
    arrival_time : seconds; None if the file has no times
    session_id : session of each request; its requests are adjacent, in order of their turns
    places : line, entry or row of the file of each request; None if equal to the row of the draft
    pace : pace of the turns, for drawing times
    notes : remarks for the user on the reading of the file
    """

    num_prompt_tokens: Sequence[int]
    num_output_tokens: Sequence[int]
    arrival_time: Sequence[float] | None = None
    segments: Sequence[Sequence[Piece]] | None = None
    output_content_id: Sequence[int] | None = None
    priority: Sequence[int] | None = None
    cache_salt: Sequence[int | str | None] | None = None
    session_id: Sequence[int] | None = None
    num_samples: Sequence[int] | None = None
    lora_id: Sequence[int | str | None] | None = None
    grammar_time: Sequence[float] | None = None
    acceptance_rate: Sequence[float] | None = None
    accepted_drafts: Sequence[Sequence[int]] | None = None
    encoder_items: Sequence[Sequence[tuple[int, int]]] | None = None
    tenant: Sequence[int | str | None] | None = None
    ends_by: Sequence[str | None] | str | None = None
    max_tokens: Sequence[int] | None = None
    sample_output_tokens: Sequence[Sequence[int]] | None = None
    after: Sequence[Sequence[Any]] | None = None
    think_time: Sequence[float] | None = None
    hint_ttl: Sequence[float] | None = None
    hint_priority: Sequence[int] | None = None
    places: Sequence[int] | None = None
    pace: Pace = field(default_factory=Pace)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.num_prompt_tokens)

    def columns(self) -> dict[str, Any]:
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v for k, v in named.items() if v is not None and k not in ("pace", "notes")}

    def in_order_of_arrival(self) -> Draft:
        """Return the requests sorted by arrival time; equal times keep their order."""
        assert self.arrival_time is not None
        return self._in_order(np.argsort(np.asarray(self.arrival_time), kind="stable").tolist())

    def session_by_session(self) -> Draft:
        """Return the requests sorted by session; sessions keep the order of their first request."""
        first: dict[int, int] = {}
        sessions = self.session_id or ()
        begins = [first.setdefault(s, row) if s >= 0 else row for row, s in enumerate(sessions)]
        return self._in_order(sorted(range(len(begins)), key=begins.__getitem__))

    def _in_order(self, order: list[int]) -> Draft:
        moved = {
            name: column.take(order) if isinstance(column, Slices) else [column[i] for i in order]
            for name, column in self.columns().items()
            if not isinstance(column, str)  # one text is the value of all rows
        }
        if self.after is not None:
            place = {row: i for i, row in enumerate(order)}
            moved["after"] = [_moved(items, place) for items in moved["after"]]
        return replace(self, **moved)  # type: ignore[arg-type]  # by name, as columns() gave them

    def build(self) -> Trace:
        """Return the trace; without times all requests arrive at time 0.

        Raises
        ------
        kvsim.trace.RowError
            If a request is invalid; the message names the first one.
        """
        columns = {"arrival_time": np.zeros(len(self)), **self.columns()}
        columns.pop("places", None)
        return Trace.from_arrays(**columns)
