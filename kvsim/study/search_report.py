"""The result of a search as JSON types."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.fleet.pool_setups import resolve_fleet
from kvsim.results.cost import cost_of
from kvsim.results.notes import merged, shared
from kvsim.study.binding import REMEDIES, what_binds
from kvsim.study.command import vllm_line
from kvsim.study.objective import dominated
from kvsim.study.search import interval
from kvsim.study.slo import ENOUGH_FOR_P99, LONG, REACHED, SERVED, STABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.study.objective import Outcome, Wish
    from kvsim.study.slo import Slo
    from kvsim.study.space import Candidate
    from kvsim.study.trial import Trial


def answer_of(
    candidates: Sequence[Candidate],
    outcomes: Sequence[Outcome],
    slo: Slo,
    wish: Wish,
    *,
    num_requests: int,
    seeds: int,
) -> dict[str, Any]:
    """Return the result of a search; ``request_rate`` is 0 if no configuration meets the targets.

    Parameters
    ----------
    candidates : every configuration, with the reason if it cannot run
    outcomes : results of the configurations that served the whole trace, best first
    slo, wish : targets and objective
    num_requests : number of requests of the trace
    seeds : number of seeds for the interval; with 1, the interval is the bracket
    """
    answer: dict[str, Any] = {"objective": wish.objective, "slo": str(slo)}
    answer |= {"num_requests": num_requests, "asked_rate": wish.asked_rate}
    met = [one for one in outcomes if wish.score(one) > -math.inf]
    answer |= _best(met[0], slo, seeds) if met else _nothing(outcomes, wish)
    if met:
        answer |= _costs(met[0], wish)
    answer["notes"] += shared({one.candidate.title or "as given": _notes(one) for one in outcomes})
    answer |= {"runner_up": None, "lead": None}
    if len(met) > 1:
        answer["runner_up"] = _entry(met[1], wish)
        answer["lead"] = _lead(met[0], met[1], wish)
    if slo.needs_many and num_requests < ENOUGH_FOR_P99:
        answer["notes"].append(
            f"a 99th percentile of {num_requests:,} requests depends on "
            f"{max(num_requests // 100, 1)} of them; use --num-requests {ENOUGH_FOR_P99} "
            "or more"
        )
    front = [point for one in met for point in one.points]
    whole = {id(one.candidate): one for one in outcomes}

    def row_of(candidate: Candidate) -> dict[str, Any]:
        outcome = whole.get(id(candidate))
        if outcome is not None:
            return _entry(outcome, wish) | _runs(outcome, front)
        reason = candidate.reason or "not among the best with a short trace"
        return {"options": candidate.options, "reason": reason}

    return answer | {"evaluated": [row_of(candidate) for candidate in candidates]}


def _best(best: Outcome, slo: Slo, seeds: int) -> dict[str, Any]:
    trials, bracket = best.trials, best.bracket
    config = trials.config
    low = trials.whole(bracket.low)
    line = vllm_line(config)
    notes = list(line.notes)
    found = interval(trials.passes, bracket, seeds)
    answer: dict[str, Any] = {
        "request_rate": bracket.low,
        "num_gpus": best.num_gpus,
        "options": best.candidate.options,
        "interval": {
            "low": found.low,
            "high": _finite(found.high),
            "bracket": [bracket.low, _finite(bracket.high)],
            "replications": seeds,
        },
        "command": line.command,
        "binding": None,
        "evidence": "no tried rate fails: the trace cannot overload this deployment",
        "change": "more requests (--num-requests), or a tighter target",
    }
    nearest = min(low.margins, key=lambda name: low.margins[name])
    answer["nearest"] = {"target": nearest, "margin_percent": _percent(low.margins[nearest])}
    answer["values"] = dict(low.values)
    if slo.trim and low.summary is not None:
        answer["num_counted"] = low.summary["num_counted"]
        notes.append(
            f"{answer['num_counted']:,} requests count; those of the first and last "
            f"{slo.trim:g} s are served, but not counted"
        )
    if bracket.high != math.inf:
        high = trials.whole(bracket.high)
        if REACHED in high.missed:
            assert high.spread is not None
            answer["evidence"] = (
                f"at {bracket.high:.3g}/s sessions come at {high.spread.request_rate:.3g}/s over "
                "the whole trace: their later turns keep their own times"
            )
            answer["change"] = f"--num-requests {high.spread.enough_requests} or more"
            notes.append(f"more may be possible: {answer['evidence']}; {answer['change']}")
        elif high.missed == (LONG,):
            answer["evidence"] = f"at {bracket.high:.3g}/s the trace is too short for a verdict"
            notes.append(_longer(high))
        else:
            most = resolve_fleet(config).scheduler_config.max_num_seqs
            cause, evidence = what_binds(high, most)
            answer |= {"binding": cause, "evidence": f"at {bracket.high:.3g}/s {evidence}"}
            answer["change"] = f"{REMEDIES[cause]}; nearest target {nearest}"
    return answer | {"notes": notes}


def _longer(high: Trial) -> str:
    assert high.backlog is not None
    return (
        "more may be possible: at higher rates half the arrivals take less time than a "
        "request spends in a replica, so that replicas never fill; --num-requests "
        f"{2 * high.backlog.enough_requests} or more shows the steady state"
    )


def _nothing(outcomes: Sequence[Outcome], wish: Wish) -> dict[str, Any]:
    """Return an empty answer with the reason why the nearest configuration misses the targets."""
    reason = f"no configuration serves {wish.asked_rate:g} requests/s" if wish.asked_rate else ""
    if outcomes:
        why = _why_not(outcomes[0], wish)
        reason = f"{reason}: {why}" if reason and wish.counts_replicas else why
    empty = dict.fromkeys(("options", "command", "binding", "evidence", "interval", "nearest"))
    return empty | {"request_rate": 0.0, "num_gpus": 0, "reason": reason, "notes": []}


def _why_not(one: Outcome, wish: Wish) -> str:
    """Return why a configuration is rejected: its highest rate, or the misses at its lowest."""
    if one.bracket.low > 0:
        return f"carries {one.bracket.low:.3g} of {wish.asked_rate:g} requests/s"
    most = (
        ""
        if one.replicas is None
        else f"{one.replicas} replica{'s' if one.replicas > 1 else ''} miss it"
    )
    lowest = one.trials.whole(min(rate for rate, seed in one.trials.runs if seed == 0))
    told = [f"{name} is {_plain(value)}" for name, value in lowest.values.items()]
    said = {STABLE: "requests pile up", SERVED: "requests are left unserved"}
    said[LONG] = "the trace is too short"
    said[REACHED] = "sessions come at a lower rate, as their later turns keep their own times"
    told += [said[name] for name in lowest.missed if name in said]
    return f"{most or 'no rate meets it'}: at {lowest.request_rate:.3g}/s {', '.join(told)}"


def _notes(outcome: Outcome) -> list[str]:
    return merged(trial.notes for trial in outcome.trials.runs.values())


def _costs(outcome: Outcome, wish: Wish) -> dict[str, Any]:
    """Return the cost of a configuration, if prices are known and it meets the targets."""
    config, rate = outcome.candidate.config, outcome.bracket.low
    if wish.objective == "cost" and wish.asked_rate is not None:
        rate = wish.asked_rate
    if not wish.prices or config is None or wish.score(outcome) == -math.inf:
        return {}
    run = outcome.trials.whole(outcome.bracket.low)
    assert run.summary is not None
    return {
        "cost": cost_of(run.summary, run.num_cached_tokens, outcome.trials.config, wish.prices),
        "cost_per_hour": wish.hourly(config, outcome.num_gpus),
        "cost_per_1000_requests": wish.cost(config, outcome.num_gpus, rate),
    }


def _entry(outcome: Outcome, wish: Wish) -> dict[str, Any]:
    """Return a configuration with the load that it sustains."""
    rate = outcome.bracket.low
    entry: dict[str, Any] = {
        "options": outcome.candidate.options,
        "num_gpus": outcome.num_gpus,
        "request_rate": rate,
        "rate_per_gpu": rate / outcome.num_gpus,
    }
    if outcome.replicas is not None:
        entry["data_parallel_size"] = outcome.replicas
    entry |= _costs(outcome, wish)
    if wish.score(outcome) == -math.inf:
        entry["reason"] = _why_not(outcome, wish)
    return entry


def _runs(outcome: Outcome, front: Sequence[Any]) -> dict[str, Any]:
    """Return the runs of an outcome, with their positions on the Pareto front."""
    runs = []
    points = {point.request_rate: point for point in outcome.points}
    for (rate, seed), trial in sorted(outcome.trials.runs.items()):
        row: dict[str, Any] = {"request_rate": rate, "seed": seed, "met": trial.met}
        row |= {"missed": list(trial.missed), "values": dict(trial.values)}
        point = points.get(rate) if seed == 0 else None
        if point is not None:
            row["output_tokens_per_second_per_gpu"] = point.tokens_per_gpu
            row["output_tokens_per_second_per_user"] = point.tokens_per_user
            row["dominated"] = dominated(point, front)
        runs.append(row)
    return {"runs": runs}


def _lead(best: Outcome, second: Outcome, wish: Wish) -> float | None:
    """Return the lead of the best configuration's score over the second's, in percent."""
    first, other = abs(wish.score(best)), abs(wish.score(second))
    if first == other:  # equal numbers of GPUs: compare the rates, by which they are sorted
        first, other = best.bracket.low, second.bracket.low
    return 100 * abs(first - other) / other if other else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _percent(share: float) -> float | None:
    return 100 * share if math.isfinite(share) else None


def _plain(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"
