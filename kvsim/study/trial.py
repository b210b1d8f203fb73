"""Runs of one configuration at several rates, each checked against the targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.fleet.result_assembly import is_hopeless
from kvsim.fleet.simulate import requests_asked, run
from kvsim.results.cost import num_cached_tokens
from kvsim.results.metrics import Pool, summarize
from kvsim.results.notes import notes_of
from kvsim.results.tables import FinishReason
from kvsim.results.totals import Totals
from kvsim.study.backlog import backlog_of, spread_of
from kvsim.study.early_stop import is_infeasible
from kvsim.study.slo import LONG, REACHED, SERVED, STABLE
from kvsim.trace.family import num_answer_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from kvsim.config import Config
    from kvsim.study.backlog import Backlog, Spread
    from kvsim.study.slo import Slo
    from kvsim.trace import Trace

    #: Returns the requests for a rate and a seed; the search itself uses seed 0.
    Requests = Callable[[float, int], Trace]

#: If a rate exceeds the highest passed rate by this factor, only half of its run is tried at first.
FAR = 1.25


class Trial(NamedTuple):
    """A run at a rate.

    Attributes
    ----------
    request_rate : requests per second
    missed : names of the missed targets, those that every search adds included; empty if it passed
    margins : by bound, the distance to it as a share of the bound
    values : values of the bounded metrics
    summary : summary of the whole run; None if its first half already failed
    backlog : waiting requests at half time and at the end
    targets : goodput targets, ms by metric
    spread : rate at which the requests of sessions were sent
    notes : notes on the run
    num_cached_tokens : cached tokens of the completed requests
    """

    request_rate: float
    missed: tuple[str, ...]
    margins: Mapping[str, float]
    values: Mapping[str, float | None]
    summary: Mapping[str, Any] | None
    backlog: Backlog | None
    targets: tuple[tuple[str, float], ...] = ()
    spread: Spread | None = None
    notes: tuple[str, ...] = ()
    num_cached_tokens: int = 0

    @property
    def met(self) -> bool:
        return not self.missed


class Trials:
    """Runs of one configuration at several rates, which meet the targets or miss them.

    The object changes itself: it keeps every run.

    Parameters
    ----------
    config : the deployment; its ``goodput`` holds the targets of requests
    requests : function from rate and seed to requests; only their arrival times depend on the rate
    slo : the targets
    """

    def __init__(self, config: Config, requests: Requests, slo: Slo) -> None:
        if slo.goodput:
            config = config.model_copy(update={"goodput": dict(slo.goodput)})
        self.config = config
        self.slo = slo
        self.runs: dict[tuple[float, int], Trial] = {}
        self._requests = requests
        self._best = 0.0
        self._may_cut = config.autoscaler is None and config.failures is None and not slo.trim

    def passes(self, rate: float, seed: int = 0) -> bool:
        """Return True if a rate meets all targets; a rate may be rejected after half its run."""
        if (rate, seed) not in self.runs:
            far = seed == 0 and 0 < FAR * self._best < rate
            self.runs[rate, seed] = self._run(rate, seed, may_cut=far and self._may_cut)
        met = self.runs[rate, seed].met
        if met and seed == 0:
            self._best = max(self._best, rate)
        return met

    def whole(self, rate: float) -> Trial:
        """Return the complete run at a rate."""
        kept = self.runs.get((rate, 0))
        if kept is None or kept.summary is None:
            self.runs[rate, 0] = kept = self._run(rate, 0, may_cut=False)
        return kept

    def _run(self, rate: float, seed: int, *, may_cut: bool) -> Trial:
        trace = self._requests(rate, seed)
        # Turns of sessions that are unsent at half time have no waiting time, so no lower bound.
        in_order = not (trace.session_id >= 0).any()
        if may_cut and in_order and self._fails_by_half(trace):
            return Trial(rate, ("first half",), {}, {}, None, None)
        result = run(self.config, trace)
        summary = result.summary
        if self.slo.trim:
            front_end, goodput = self.config.front_end_latency, self.config.goodput
            summary = trimmed(summary, result.requests, self.slo.trim, goodput, front_end)
            summary["num_counted"] = len(counted(result.requests, self.slo.trim))
        margins = self.slo.margins(summary)
        missed = [name for name, left in margins.items() if left < 0]
        backlog = backlog_of(result.requests)
        if backlog.grows:
            missed.append(STABLE)
        if not backlog.is_long:
            missed.append(LONG)
        if self.slo.predicates and len(trace) > summary["completed"] + num_hopeless(summary):
            missed.append(SERVED)
        spread = spread_of(result.requests, trace.session_id, rate)
        if spread is not None and not spread.reaches:
            missed.append(REACHED)
        seen = margins, self.slo.values(summary), summary, backlog
        notes = tuple(notes_of(result.provenance))
        cached = num_cached_tokens(result.requests)
        return Trial(rate, tuple(missed), *seen, self.slo.goodput, spread, notes, cached)

    def _fails_by_half(self, trace: Trace) -> bool:
        half = (float(trace.arrival_time[-1]) - float(trace.arrival_time[0])) / 2
        if half <= 0:
            return False
        table = run(self.config.model_copy(update={"horizon": half}), trace).requests
        now = float(trace.arrival_time[0]) + half
        latency = self.config.front_end_latency
        most = num_answer_tokens(requests_asked(self.config, trace))
        return is_infeasible(self.slo, table, most, now, latency)


def num_hopeless(summary: Mapping[str, Any]) -> int:
    """Return the number of requests that not even an idle replica can serve."""
    reasons = summary["rejections"].items()
    return sum(count for reason, count in reasons if is_hopeless(reason))


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
