"""Requests that continue on another replica with the tokens that their clients have received."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.fleet.admission.admissibility import reset_requests
from kvsim.fleet.feature import Feature
from kvsim.results.totals import gap_bin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.fleet.member import Member
    from kvsim.results.totals import Totals


class Attempts(NamedTuple):
    """Results of a request on the replicas that it has left.

    Attributes
    ----------
    first_scheduled_time, first_token_time : seconds, NaN for not yet
    num_cached_tokens : hit at the first admission
    num_preemptions : number of preemptions in all attempts
    last_token_time : time at which the client received the last token, NaN for none
    """

    first_scheduled_time: float = math.nan
    first_token_time: float = math.nan
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    last_token_time: float = math.nan


class ResumedRequests(Feature):
    """Keeps the progress of requests that move to another replica.

    A request is sent again with its prompt and its output so far as the new prompt, and generates
    the remaining tokens. The other replica computes the new prompt, or hits its cache. The client
    receives no token twice.

    Source: Dynamo's request migration (ai-dynamo/dynamo, ``--migration-limit``, by default 0, and
    ``--migration-max-seq-len``).

    Parameters
    ----------
    table : the requests table of the pool
    """

    def __init__(self, table: NDArray[Any]) -> None:
        self._table = table
        self._left: dict[int, Attempts] = {}
        self._last_token: dict[int, float] = {}
        self._gaps: list[tuple[int, float]] = []
        self._counts: Counter[int] = Counter()

    @property
    def number(self) -> int:
        """Number of resumptions after failures so far."""
        return self._counts.total()

    def see(self, rows: Sequence[int], last_tokens: Mapping[int, float]) -> None:
        """Record the times of the last tokens of requests that leave a replica. Mutates."""
        self._last_token |= {row: last_tokens[row] for row in rows if row in last_tokens}

    def split(
        self, rows: Sequence[int], limit: int, max_seq_len: float
    ) -> tuple[list[int], list[int]]:
        """Return the requests that may resume, and those beyond ``limit`` or ``max_seq_len``."""
        prompts, outputs = (self._table[f"num_{name}_tokens"] for name in ("prompt", "output"))
        again = [
            row
            for row in rows
            if self._counts[row] < limit and prompts[row] + outputs[row] <= max_seq_len
        ]
        kept = set(again)
        return again, [row for row in rows if row not in kept]

    def leave(self, rows: Sequence[int], *, is_lost: bool = True) -> None:
        """Keep the progress of requests that leave a replica, lost or alive. Mutates."""
        for row in rows:
            self._counts[row] += is_lost
            self._left[row] = self._joined(row)
        reset_requests(self._table, rows)

    def on_submit(self, member: Member, row: int, now: float) -> None:
        """Set the output tokens that a resumed request brings to its new replica."""
        del now
        if row in self._left:
            member.replica.carry(row, self.carried(row))
            if member.role == "prefill":
                member.replica.limit(row, self.carried(row) + 1)

    def on_turned_away(self, row: int) -> None:
        """Drop the progress of a request. Mutates."""
        self._left.pop(row, None)

    def carried(self, row: int) -> int:
        """Return the number of output tokens that a request has carried over."""
        return int(self._table["num_output_tokens"][row]) if row in self._left else 0

    def settle(self, totals: Mapping[int, Totals]) -> None:
        """Write the results of requests from all their replicas into the table. Mutates.

        Parameters
        ----------
        totals : totals by replica number; the gap between a request's last token on one replica
            and its first on the next counts for the next replica
        """
        for row in self._left:
            whole, one = self._joined(row), self._table[row]
            for name in Attempts._fields[:-1]:
                one[name] = getattr(whole, name)
        for number, seconds in self._gaps:
            gaps, key = totals[number].token_gaps, gap_bin(seconds)
            gaps[key] = gaps.get(key, 0) + 1
            totals[number].peak_token_gap = max(totals[number].peak_token_gap, seconds)

    def _joined(self, row: int) -> Attempts:
        """Merge the attempt in the table with the request's earlier attempts. Mutates."""
        one, before = self._table[row], self._left.get(row, Attempts())
        first_token = float(one["first_token_time"])
        gap = first_token - before.last_token_time
        if not math.isnan(gap):
            self._gaps.append((int(one["replica"]), gap))
        is_first = math.isnan(before.first_scheduled_time)
        return Attempts(
            float(one["first_scheduled_time"]) if is_first else before.first_scheduled_time,
            first_token if math.isnan(before.first_token_time) else before.first_token_time,
            int(one["num_cached_tokens"]) if is_first else before.num_cached_tokens,
            before.num_preemptions + int(one["num_preemptions"]),
            self._last_token.pop(row, before.last_token_time),
        )
