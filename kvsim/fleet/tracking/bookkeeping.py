"""Routing statistics: predicted, available and actual prefix hits, and load per replica."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.results.metrics import rows_where
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.fleet.routing.router import Router
    from kvsim.pool_config import Role
    from kvsim.results.totals import Totals

#: Largest number of look-ups for the best prefix in a run; beyond it, only every k-th decision is
#: compared.
MOST_LOOKUPS = 1 << 18


class Decisions:
    """Records the routing decisions of one run.

    Parameters
    ----------
    num_requests : requests that are routed, 0 with a single replica
    num_replicas : number of replicas of the run
    compares : also record the longest prefix that any replica holds
    """

    def __init__(self, num_requests: int, num_replicas: int, *, compares: bool) -> None:
        self.num_noted = 0
        self._names: dict[str, int] = {}
        self._branches = np.full(num_requests, -1, dtype=np.int16)  # by request: value in _names
        self.predicted = np.full(num_requests, -1, dtype=np.int64)
        self.best = np.full(num_requests, -1, dtype=np.int64)
        self._stride = -(-num_requests * num_replicas // MOST_LOOKUPS)
        self._compares = compares

    @property
    def is_compared(self) -> bool:
        """Return True if the next decision is compared with the longest cached prefix."""
        return self._compares and self.num_noted % self._stride == 0

    def note(self, request_id: int, router: Router) -> None:
        """Record a router's decision on a request. Mutates."""
        self.num_noted += 1
        self._branches[request_id] = self._names.setdefault(router.branch, len(self._names))
        if router.predicted_tokens is not None:
            self.predicted[request_id] = router.predicted_tokens

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Return predicted and best tokens by request, and the stride of comparisons: 0 for none.

        A caller that writes these columns calls :meth:`record_branches` afterwards.
        """
        return self.predicted, self.best, self._stride if self._compares else 0

    def record_branches(
        self, rows: NDArray[np.int64], numbers: NDArray[np.int64], names: Sequence[str]
    ) -> None:
        """Record the branches of a router's decisions for some requests. Mutates."""
        self.num_noted += len(rows)
        known = np.array([self._names.setdefault(name, len(self._names)) for name in names])
        self._branches[rows] = known[numbers[rows]]

    def branches(self, rows: NDArray[np.bool_]) -> Counter[str]:
        """Count the branches by which some requests were routed."""
        counts = np.bincount(self._branches[rows & (self._branches >= 0)])
        names = dict(enumerate(self._names))
        return Counter({names[code]: int(count) for code, count in enumerate(counts) if count})


def describe_routing(
    decisions: Decisions, table: NDArray[Any], totals: Mapping[int, Totals], lives: Sequence[float]
) -> dict[str, Any]:
    """Summarize a run's decisions; hit rates are shares of the counted requests' prompt tokens.

    A request that was not sent before the horizon does not count, though its replica may have been
    chosen. Imbalance compares the replicas' work per second of their lifetimes.
    """
    branches = decisions.branches(table["finish_reason"] != FinishReason.UNSENT)
    number = branches.total()
    served = ~np.isnan(table["first_scheduled_time"])
    guessed, compared = served & (decisions.predicted >= 0), served & (decisions.best >= 0)
    cached, prompts = table["num_cached_tokens"], table["num_prompt_tokens"]
    return {
        "num_decisions": number,
        "branches": {name: count / number for name, count in sorted(branches.items()) if name},
        "predicted_hit_rate": _share(decisions.predicted, prompts, guessed),
        "actual_hit_rate": _share(cached, prompts, served),
        "num_compared": int(compared.sum()),
        "best_hit_rate": _share(decisions.best, prompts, compared),
        "compared_hit_rate": _share(cached, prompts, compared),
        "imbalance": _imbalance([one.busy_seconds for one in totals.values()], lives),
        "request_imbalance": _imbalance(_num_requests(table, totals), lives),
        "unique_prompt_tokens": None,
    }


def describe_replicas(
    table: NDArray[Any],
    totals: Mapping[int, Totals],
    lives: Sequence[float],
    starts: Sequence[float],
    role: Role,
) -> list[Any]:
    """Return each replica's statistics over its lifetime, in the order of numbers."""
    rows = []
    for (index, one), duration, start in zip(totals.items(), lives, starts, strict=True):
        mine = rows_where(table, (table["replica"] == index) & _was_sent(table))
        admitted = rows_where(mine, ~np.isnan(mine["first_scheduled_time"]))
        prompts = int(admitted["num_prompt_tokens"].sum())
        rows.append(
            {
                "replica": index,
                "role": role,
                "start": start,
                "lifetime": duration,
                "num_requests": len(mine),
                "completed": int((mine["finish_reason"] == FinishReason.FINISHED).sum()),
                "busy": one.busy_seconds / duration if duration else None,
                "mean_running": one.running_seconds / duration if duration else None,
                "mean_waiting": one.waiting_seconds / duration if duration else None,
                "peak_running": one.peak_running,
                "mean_kv_usage": one.usage_seconds / duration if duration else None,
                "peak_kv_usage": one.peak_usage,
                "num_preemptions": one.num_preemptions,
                "prefix_cache_hit_rate": (
                    int(admitted["num_cached_tokens"].sum()) / prompts if prompts else None
                ),
            }
        )
    return rows


def _was_sent(table: NDArray[Any]) -> NDArray[np.bool_]:
    reason = np.ascontiguousarray(table["finish_reason"])
    sent: NDArray[np.bool_] = (reason != FinishReason.REJECTED) & (reason != FinishReason.UNSENT)
    return sent


def _num_requests(table: NDArray[Any], numbers: Iterable[int]) -> list[float]:
    known = list(numbers)
    counts = np.bincount(table["replica"][_was_sent(table)], minlength=max(known) + 1)
    return [float(counts[number]) for number in known]


def _share(tokens: NDArray[Any], prompts: NDArray[Any], rows: NDArray[np.bool_]) -> float | None:
    total = int(prompts[rows].sum())
    return int(tokens[rows].sum()) / total if total else None


def _imbalance(values: Sequence[float], lives: Sequence[float]) -> float | None:
    """Return the largest value per second of a replica's lifetime over the mean; 1 is even.

    A replica with at most a tenth of the longest lifetime does not count.
    """
    if min(lives) == max(lives):
        lives = [1.0] * len(lives)
    known = [(v, life) for v, life in zip(values, lives, strict=True) if life > max(lives) / 10]
    mean = sum(v for v, _ in known) / sum(life for _, life in known)
    return max(v / life for v, life in known) / mean if mean else None
