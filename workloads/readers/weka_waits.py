"""Waits of recorded coding sessions: turns for answers, sub-agents for turns, turns for sub-agents.

A sub-agent's ``t`` is its end if it has a ``duration_ms``, else its start; times inside it count
from its start. It waits for the last request of its parent that ended before its start, and the
parent's next request waits for its last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.trace.waits import START

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Seconds by which recorded times of a parent and a sub-agent may disagree.
SPAWN_SLACK, JOIN_SLACK = 1.5, 1.0


@dataclass
class Turn:
    """A request of a session, with the rows that it waits for.

    ``agent`` is the number of the conversation within the session, 0 for the main one.
    """

    entry: Mapping[str, Any]
    t: float
    agent: int
    after: list[Any] = field(default_factory=list)
    think_time: float = 0.0

    @property
    def end(self) -> float:
        """The end of its answer, as far as that was recorded."""
        return self.t + float(self.entry.get("api_time") or 0)


@dataclass
class Session:
    """The requests of a session in the order of the file."""

    turns: list[Turn] = field(default_factory=list)
    num_agents: int = 0

    def add(self, entries: Sequence[Mapping[str, Any]], origin: float, waits: list[Any]) -> int:
        """Add a conversation that starts at a time; return the row of its last request.

        ``waits`` are those of its first request. The row is -1 if there is no request.
        """
        agent, own, ended = self.num_agents, list[int](), list[tuple[float, int]]()
        self.num_agents += 1
        for entry in entries:
            if "requests" in entry:
                ended += self._spawn(entry, origin, own)
                continue
            turn = Turn(entry, origin + float(entry["t"]), agent)
            if own:
                joined = [one for one in ended if turn.t >= one[0] - JOIN_SLACK]
                ended = [one for one in ended if one not in joined]
                self._chain(turn, own[-1], joined)
            else:
                turn.after, turn.think_time = waits, self._pause(turn, waits)
            own.append(len(self.turns))
            self.turns.append(turn)
        return own[-1] if own else -1

    def _spawn(
        self, entry: Mapping[str, Any], origin: float, own: list[int]
    ) -> list[tuple[float, int]]:
        """Add a sub-agent; return its end and its last row if its parent waits for it."""
        t, duration = origin + float(entry["t"]), float(entry.get("duration_ms") or 0) / 1e3
        start = t - duration
        waits: list[Any] = []
        if duration:
            waits = [row for row in own if self.turns[row].end <= start + SPAWN_SLACK][-1:]
        elif sent := [row for row in own if self.turns[row].t <= start]:
            waits = [[sent[-1], START]]
        last = self.add(entry["requests"], start, waits)
        return [(t, last)] if duration and last >= 0 else []

    def _chain(self, turn: Turn, before: int, joined: list[tuple[float, int]]) -> None:
        """Let a request wait for the answer before, and for sub-agents. Mutates the request."""
        turn.after = [before, *(row for _, row in joined)]
        recorded = turn.entry.get("think_time")
        if recorded is None or joined:
            latest = max([self.turns[before].end, *(end for end, _ in joined)])
            turn.think_time = max(turn.t - latest, 0.0)
        else:
            turn.think_time = max(float(recorded), 0.0)

    def _pause(self, turn: Turn, waits: list[Any]) -> float:
        """Return the seconds from what a sub-agent waits for to its first request."""
        if not waits:
            return 0.0
        return max(turn.t - _since(self.turns, waits[0]), 0.0)


def in_one_list(sessions: Sequence[Session]) -> list[Turn]:
    """Return the requests of all sessions; ``after`` has the rows in this list. Mutates."""
    turns: list[Turn] = []
    for session in sessions:
        first = len(turns)
        for turn in session.turns:
            turn.after = [
                [one[0] + first, START] if isinstance(one, list) else one + first
                for one in turn.after
            ]
        turns += session.turns
    return turns


def session_ids(turns: Sequence[Turn], number: Sequence[int]) -> list[int]:
    """Return a number per conversation: those of main ones first, which are their files' lines."""
    found = {(one, 0): one for one in range(max(number) + 1)}
    pairs = [(one, turn.agent) for one, turn in zip(number, turns, strict=True)]
    return [found.setdefault(pair, len(found)) for pair in pairs]


def without_rows(turns: Sequence[Turn], is_kept: Sequence[bool]) -> list[Turn]:
    """Leave out requests; what waited for one of them waits for what that waited for."""
    places, kept = dict[int, int](), list[Turn]()
    for row, turn in enumerate(turns):
        after = [item for one in turn.after for item in _kept(turns, is_kept, one)]
        if after != turn.after and after:
            ends = [
                turns[_row(one)].t if isinstance(one, list) else turns[one].end for one in after
            ]
            turn.think_time = max(turn.t - max(ends), 0.0)
        turn.after = list({_row(one): one for one in after}.values())
        if is_kept[row]:
            places[row] = len(kept)
            kept.append(turn)
    for turn in kept:
        turn.after = [
            [places[one[0]], START] if isinstance(one, list) else places[one] for one in turn.after
        ]
        turn.think_time *= bool(turn.after)
        turn.t = max([turn.t, *(kept[_row(one)].t for one in turn.after)])
    return kept


def _since(turns: Sequence[Turn], item: Any) -> float:
    """Return the recorded time of what an entry of ``after`` waits for."""
    return turns[item[0]].t if isinstance(item, list) else turns[item].end


def _row(item: Any) -> int:
    """Return the row that an entry of ``after`` names."""
    row: int = item[0] if isinstance(item, list) else item
    return row


def _kept(turns: Sequence[Turn], is_kept: Sequence[bool], item: Any) -> list[Any]:
    """Return an entry of ``after`` if its request is kept, else those of its request."""
    return [item] if is_kept[_row(item)] else turns[_row(item)].after
