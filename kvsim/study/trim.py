"""Metrics without the requests that arrive in the first and last seconds of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.results.metrics import Pool, summarize
from kvsim.results.tables import FinishReason
from kvsim.results.totals import Totals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: Endings of the names of metrics over requests, as opposed to those of the whole run.
OF_REQUESTS = ("_ttft_ms", "_tpot_ms", "_e2el_ms", "_normalized_latency_ms", "goodput_attainment")


def counted(table: NDArray[Any], seconds: float) -> NDArray[Any]:
    """Return the rows that arrived neither in the first nor in the last ``seconds`` seconds."""
    sent: NDArray[Any] = table[table["finish_reason"] != FinishReason.UNSENT]
    arrivals = sent["arrival_time"]
    if not len(sent):
        return sent
    inside = (arrivals >= arrivals.min() + seconds) & (arrivals <= arrivals.max() - seconds)
    kept: NDArray[Any] = sent[inside]
    return kept


def trimmed(
    summary: Mapping[str, Any],
    table: NDArray[Any],
    seconds: float,
    goodput: Mapping[str, float] | None,
    front_end_latency: float,
) -> dict[str, Any]:
    """Return a summary with the latencies of the counted requests, None if no request counts."""
    rows = counted(table, seconds)
    names = [name for name in summary if name.endswith(OF_REQUESTS)]
    if not len(rows):
        return {**summary, **dict.fromkeys(names)}
    own = summarize(
        rows,
        [Totals()],
        Pool(1, 1, 1, 1),
        end_time=float(rows["arrival_time"].max()) + 1.0,
        goodput=goodput,
        front_end_latency=front_end_latency,
    )
    return {**summary, **{name: own[name] for name in names}}
