"""A trace that grows request by request, in columns that double their capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.contents import Contents
from kvsim.fleet.admission.admissibility import blank_rows
from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.engine import RequestRow
from kvsim.records.memory import Flat, Views
from kvsim.records.record import NONE
from kvsim.records.request import Segment
from kvsim.sched.connector import more_rows
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.config import Config
    from kvsim.records.engine import Replica
    from kvsim.records.engine import Trace as TraceRecord
    from kvsim.records.memory import Memory

    #: Content, first token and number of tokens of a part of a prompt.
    Span = tuple[int, int, int]

#: Initial capacity, in requests and in segments.
FIRST_ROOM = 256
#: Integer columns of a trace that each request fills.
COLUMNS = (
    *("num_prompt_tokens", "num_output_tokens", "output_content_id", "priority", "cache_salt"),
    *("session_id", "num_samples", "lora_id", "max_tokens"),
)
#: Lists that a replica reads, with one entry per request.
LISTS = (
    *("num_prompt_tokens", "max_tokens", "asked_tokens", "segment_offsets", "output_content_id"),
    *("priority", "cache_salt", "id_rank", "lora"),
)


def doubled(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of double length, padded with zeros, in the same layout."""
    room = np.zeros(2 * len(array), array.dtype)
    room[: len(array)] = array
    return room


class GrowingTrace:
    """The requests added so far, in columns; :meth:`trace` makes a trace of them.

    Parameters
    ----------
    given : by column, a list of texts or numbers; the column holds indices into this list
    """

    def __init__(self, given: Mapping[str, Sequence[int | str]]) -> None:
        self._given = given
        self._columns = {name: np.zeros(FIRST_ROOM, np.int64) for name in COLUMNS}
        self._arrival_time = np.zeros(FIRST_ROOM)
        self._segments: list[Sequence[Span]] = []

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def last_arrival(self) -> float:
        """Arrival time of the request added last, seconds; 0 before the first."""
        return float(self._arrival_time[len(self) - 1]) if len(self) else 0.0

    def value(self, name: str, request: int) -> int:
        """Return the entry of a request in a column."""
        return int(self._columns[name][request])

    def given(self, name: str, request: int) -> int | str:
        """Return the salt or the adapter of a request as it was given, 0 for none."""
        return self._given[name][self.value(name, request)]

    def append(
        self, arrival_time: float, values: Mapping[str, int], segments: Sequence[Span]
    ) -> None:
        count = len(self)
        if count == len(self._arrival_time):
            self._arrival_time = doubled(self._arrival_time)
            self._columns = {name: doubled(one) for name, one in self._columns.items()}
        self._arrival_time[count] = arrival_time
        for name, value in values.items():
            self._columns[name][count] = value
        self._segments.append(segments)

    def line(self, request: int) -> dict[str, Any]:
        """Return a request as a line of a trace file."""
        found: dict[str, Any] = {"arrival_time": float(self._arrival_time[request])}
        found |= {name: int(values[request]) for name, values in self._columns.items()}
        found |= {name: self.given(name, request) for name in self._given}
        return found | {"segments": [list(span) for span in self._segments[request]]}

    def trace(self) -> Trace:
        """Return the trace of the requests added so far."""
        columns: dict[str, Any] = {
            name: values[: len(self)].copy() for name, values in self._columns.items()
        }
        arrival_time = self._arrival_time[: len(self)]
        return Trace.from_arrays(arrival_time, **columns, segments=self._segments)


class GrowingContents(Contents):
    """Requests by row, as one replica reads them, and their rows of the requests table.

    Parameters
    ----------
    names : lists that the replica reads
    room : requests for which there is room at first

    Attributes
    ----------
    table : the requests table, with room for more rows
    """

    def __init__(self, names: Sequence[str], room: int = FIRST_ROOM) -> None:
        lists = {name: np.zeros(room, np.int64) for name in names}
        super().__init__(lists, np.zeros(room, Segment.dtype()))
        self.table = blank_rows(room)
        self._count = self._num_segments = 0
        self._memory: Memory
        self._state: Replica

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        return len(self.table)

    def init_state(self, record: TraceRecord, memory: Memory) -> None:
        super().init_state(record, memory)
        self._memory = memory
        record.has_eos = record.has_ranks = False  # until a request needs them
        if not memory.compiled:
            record.segments = []

    def grow_for(self, state: Replica) -> None:
        """Grow a replica's lists together with these contents."""
        self._state = state

    def append(self, arrival_time: float, values: Mapping[str, int], spans: Sequence[Span]) -> None:
        row = self._count
        if row + 1 == len(self.table):
            self._grow()
        while self._num_segments + len(spans) > len(self._segments):
            self._grow_segments()
        for name in self.lists.keys() & values.keys():
            self.lists[name][row] = values[name]
        for span in spans:
            self._segments[self._num_segments] = span
            self._num_segments += 1
        self._record_kinds(values)
        if not self._memory.compiled:
            self._state.trace.segments += [Segment(*span) for span in spans]
        self._count = row + 1
        self.lists["segment_offsets"][row + 1] = self._num_segments
        self.table["request_id"][row] = row
        self.table["arrival_time"][row] = arrival_time
        self.table["num_prompt_tokens"][row] = values["num_prompt_tokens"]

    def _record_kinds(self, values: Mapping[str, int]) -> None:
        """Enable the features that no request before this one needed. Mutates."""
        trace, state = self._state.trace, self._state
        if values["asked_tokens"] > values["max_tokens"]:
            trace.has_eos = True
        if values["priority"] and "id_rank" in self.lists and not trace.has_ranks:
            trace.has_ranks = True
            for k in range(state.num_requests):
                if state.requests[k].request_id != NONE:
                    rank = self.lists["id_rank"][state.requests[k].request_id]
                    state.requests[k].id_rank = int(rank)

    def _grow(self) -> None:
        """Double the capacity of all lists and of the table. Mutates."""
        memory, trace = self._memory, self._state.trace
        for name, values in self.lists.items():
            self.lists[name] = doubled(values)
            memory.replace(trace, **{name: memory.list_of(self.lists[name])})
        used, self.table = self.table, blank_rows(2 * len(self.table))
        if self._state.connector.kind != NO_CONNECTOR:
            more_rows(self._state.connector, memory, len(used), len(self.table))
        self.table[: len(used)] = used
        memory.replace(self._state, rows=Views(self.table, RequestRow, Flat()))

    def _grow_segments(self) -> None:
        """Double the capacity of the prompts' segments. Mutates."""
        self._segments = doubled(self._segments)
        if not self._memory.compiled:
            return
        state: Any = self._state
        self._memory.replace(state.trace, segments=Views(self._segments, Segment, Flat()))
        # Records of requests also hold the address of the list.
        where = self._segments.ctypes.data, len(self._segments)
        state.requests.array["segments"][:] = where
        state.probe.segments = state.trace.segments


def list_names(config: Config) -> list[str]:
    """Return the names of the lists of requests that a replica reads."""
    absent = set()
    if config.scheduling_policy != "priority" and config.schedule_policy != "hrrn":
        absent.add("id_rank")
    if not config.enable_lora:
        absent.add("lora")
    return [name for name in LISTS if name not in absent]
