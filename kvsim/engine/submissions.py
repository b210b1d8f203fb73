"""Requests submitted to a replica that have not arrived there yet, in order of arrival."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.engine.contents import Contents
    from kvsim.records.engine import Trace
    from kvsim.records.memory import Memory

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

#: Smallest capacity after the first growth, for requests that are added one by one.
LEAST_ROOM = 256


class Submissions:
    """Fills the list of arrivals that a replica's rules read.

    Parameters
    ----------
    trace : trace of the replica
    memory : memory of the list
    contents : the requests by row
    per_token : front-end time per prompt token, seconds
    """

    def __init__(self, trace: Trace, memory: Memory, contents: Contents, per_token: float) -> None:
        self._trace = trace
        self._memory = memory
        self._contents = contents
        self._per_token = per_token
        self._ids, self._times = np.zeros(0, np.int64), np.zeros(0)
        self._entries, self._free_time = np.zeros(0), -math.inf
        #: True if the front end delays requests on their way to the engine.
        self.sees_late = per_token > 0.0

    def add(self, request_ids: Ints, arrival_times: Floats) -> None:
        """Append requests, in the order of their arrival. Mutates."""
        trace, count = self._trace, len(request_ids)
        stop = trace.num_arrivals
        if stop + count > len(self._ids):
            stop = self._make_room(count)
        self._ids[stop : stop + count] = request_ids
        self._times[stop : stop + count] = arrival_times
        self._entries[stop : stop + count] = self._tokenised(request_ids, arrival_times)
        trace.num_arrivals = stop + count

    def hold(self, until: float) -> None:
        """Delay the requests that have not arrived yet until a time. Mutates."""
        unseen = slice(self._trace.seen, self._trace.num_arrivals)
        np.maximum(self._entries[unseen], until, out=self._entries[unseen])

    @property
    def room(self) -> int:
        """Capacity of the list; 0 if tokenisation delays requests, so that the host adds them."""
        return 0 if self._per_token else len(self._ids)

    def remove(self, request_id: int) -> bool:
        """Remove a request that has not arrived yet; False if it is not here. Mutates."""
        trace, stop = self._trace, self._trace.num_arrivals
        places = np.flatnonzero(self._ids[trace.seen : stop] == request_id)
        if not len(places):
            return False
        place = trace.seen + int(places[0])
        columns = [self._ids, self._times]
        if self._entries is not self._times:
            columns.append(self._entries)
        for column in columns:
            column[place : stop - 1] = column[place + 1 : stop]
        trace.num_arrivals = stop - 1
        return True

    def _make_room(self, count: int) -> int:
        """Drop requests that have arrived, make room for ``count`` more; return the number left."""
        trace = self._trace
        first, stop = trace.next, trace.num_arrivals
        room = max(2 * (stop - first + count), LEAST_ROOM) if stop else count
        ids, times = np.zeros(room, np.int64), np.zeros(room)
        # Without a front end, requests enter the engine when they arrive: one list for both times.
        entries = np.zeros(room) if self.sees_late else times
        ids[: stop - first] = self._ids[first:stop]
        times[: stop - first] = self._times[first:stop]
        entries[: stop - first] = self._entries[first:stop]
        self._ids, self._times, self._entries = ids, times, entries
        list_of = self._memory.list_of
        self._memory.replace(
            trace, ids=list_of(ids), arrival_time=list_of(times), entry_time=list_of(entries)
        )
        trace.next, trace.seen = 0, trace.seen - first
        return stop - first

    def _tokenised(self, request_ids: Ints, arrival_times: Floats) -> Floats:
        """Return the arrival times at the engine: prompts are tokenised one after another."""
        if self._per_token == 0:
            return arrival_times
        prompts = self._contents.lists["num_prompt_tokens"]
        entries = np.empty(len(request_ids))
        for place, row in enumerate(request_ids):
            begins = max(self._free_time, float(arrival_times[place]))
            self._free_time = entries[place] = begins + self._per_token * prompts[row]
        return entries
