"""The best of several configurations, by successive halving if there are many.

Up to ``FEW`` configurations are searched with the whole trace. If there are more, all are searched
with an eighth of the trace and a wide bracket, the best quarter of them with a third of the trace,
and the best quarter of those with the whole trace. If the space is too large for that, Optuna's TPE
samples it.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

from kvsim.study.objective import Outcome, dominated, points_of
from kvsim.study.search import TOLERANCE, Bracket, fewest, highest_rate
from kvsim.study.space import candidate, combinations, size_of, without_rejecting
from kvsim.study.trial import Trials
from kvsim.study.workers import in_order, num_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvsim.study.objective import Wish
    from kvsim.study.slo import Slo
    from kvsim.study.space import Candidate
    from kvsim.study.trial import Requests
    from kvsim.trace import Trace

#: Up to this number of configurations are all searched with the whole trace.
FEW = 8
#: Stages before the whole trace: a stage uses the first 1/8 or 1/3 of the requests, but at least
#: LEAST, and closes the bracket to the tolerance ROUGH.
SHARES, LEAST, ROUGH = (8, 3), 100, 0.1
#: Configurations kept for the next stage: one in KEPT, and at least LEAST_KEPT.
KEPT, LEAST_KEPT = 4, 4
#: A space with more options and more combinations than this is sampled SAMPLES times.
MOST_OPTIONS, MOST_COMBINATIONS, SAMPLES = 5, 2000, 200
#: Maximum number of replicas that the objective ``gpus`` tries without ``--max-gpus``.
MOST_REPLICAS = 64


def outcome_of(
    one: Candidate, requests: Requests, slo: Slo, guess: float, tolerance: float = TOLERANCE
) -> Outcome:
    """Find the highest rate that a configuration sustains."""
    assert one.config is not None
    trials = Trials(one.config, requests, slo)
    bracket = highest_rate(trials.passes, guess, tolerance=tolerance)
    return Outcome(one, trials, bracket, one.num_gpus)


def enough_replicas(
    one: Candidate, requests: Requests, slo: Slo, asked: float, max_gpus: int | None
) -> Outcome:
    """Find the fewest replicas that sustain a rate, and the highest rate that these sustain.

    If even the largest allowed number fails, the outcome has that number and a bracket from 0.
    """
    assert one.config is not None
    config = one.config
    most = max_gpus // one.num_gpus if max_gpus else MOST_REPLICAS
    made: dict[int, Trials] = {}

    def passes(number: int) -> bool:
        made[number] = Trials(
            config.model_copy(update={"data_parallel_size": number}), requests, slo
        )
        return made[number].passes(asked)

    number = fewest(passes, most)
    if number is None:
        return Outcome(one, made[most], Bracket(0.0, asked), most * one.num_gpus, replicas=most)
    trials = made[number]
    return Outcome(
        one, trials, highest_rate(trials.passes, asked), number * one.num_gpus, replicas=number
    )


def choose(
    given: Mapping[str, Any],
    over: Mapping[str, Sequence[str]],
    requests: Requests,
    slo: Slo,
    wish: Wish,
    *,
    guess: float,
    max_gpus: int | None = None,
    workers: int | None = 1,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[list[Candidate], list[Outcome]]:
    """Search configurations; return all, and the outcomes of those that served the whole trace.

    Outcomes are sorted, best first. ``workers`` processes share the configurations, which does not
    change the outcomes; None means one process per core, or a single one for up to ``FEW``
    configurations.

    Raises
    ------
    ValueError
        If no configuration can run.
    """
    trace = requests(guess, 0)
    if len(over) > MOST_OPTIONS and size_of(over) > MOST_COMBINATIONS:
        candidates, kept = _sampled(given, over, requests, slo, wish, guess, max_gpus, on_progress)
    else:
        made = [candidate(given, options, trace, max_gpus) for options in combinations(over)]
        candidates = without_rejecting(made, len(trace))
        kept = [one for one in candidates if not one.reason]
        for share in SHARES:
            if len(kept) <= FEW:
                break
            short = shortened(requests, len(trace), share)
            rough = []
            for found in _answered(outcome_of, kept, (short, slo, guess, ROUGH), workers):
                rough.append(found)
                on_progress(len(rough), len(kept))
            kept = [o.candidate for o in best_of(rough, wish)]
    if not [one for one in candidates if not one.reason]:
        reasons = dict.fromkeys(one.reason for one in candidates)
        raise ValueError(f"no configuration can run: {'; '.join(reasons)}")
    if wish.counts_replicas:
        rest: tuple[Any, ...] = (requests, slo, wish.asked_rate, max_gpus)
        outcomes = list(_answered(enough_replicas, kept, rest, workers))
    else:
        outcomes = list(_answered(outcome_of, kept, (requests, slo, guess), workers))
    for found in outcomes:
        found.points = points_of(found)
    return candidates, sorted(outcomes, key=lambda o: (-wish.score(o), o.num_gpus, -o.bracket.low))


def _answered(
    search: Callable[..., Outcome],
    asked: Sequence[Candidate],
    rest: tuple[Any, ...],
    workers: int | None,
) -> Iterator[Outcome]:
    """Search configurations in ``workers`` processes; yield their outcomes in order."""
    # A few searches end before other processes have started.
    few = workers is None and len(asked) <= FEW
    number = 1 if few else num_workers(workers, len(asked))
    arguments = [(one, *rest) for one in asked]
    for one, found in zip(asked, in_order(search, arguments, number), strict=True):
        found.candidate = one  # another process returns a copy
        yield found


def best_of(outcomes: Sequence[Outcome], wish: Wish) -> list[Outcome]:
    """Return the best quarter, at least four; ``pareto`` ranks by numbers of undominated points."""
    number = max(math.ceil(len(outcomes) / KEPT), LEAST_KEPT)
    if wish.objective == "pareto":
        points = {id(o): points_of(o) for o in outcomes}
        everything = [p for own in points.values() for p in own]

        def rank(o: Outcome) -> float:
            return -sum(not dominated(p, everything) for p in points[id(o)])
    else:

        def rank(o: Outcome) -> float:
            return -wish.score(o)

    return sorted(outcomes, key=rank)[:number]


def shortened(requests: Requests, num_requests: int, share: int) -> Requests:
    """Return a function that gives the first ``1/share`` of the requests, for a stage.

    A trace of sessions is not cut: few sessions never reach the requested rate.
    """
    number = min(max(num_requests // share, LEAST), num_requests)

    def beginning(rate: float, seed: int) -> Trace:
        trace = requests(rate, seed)
        return trace if (trace.session_id >= 0).any() else trace[:number]

    return beginning


def _sampled(
    given: Mapping[str, Any],
    over: Mapping[str, Sequence[str]],
    requests: Requests,
    slo: Slo,
    wish: Wish,
    guess: float,
    max_gpus: int | None,
    on_progress: Callable[[int, int], object],
) -> tuple[list[Candidate], list[Candidate]]:
    """Sample a space by Optuna's TPE with a short trace; return all samples and the best ones."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ValueError(
            f"--over: {size_of(over):,} combinations of {len(over)} options are too "
            f"many; pip install optuna to sample {SAMPLES} of them"
        ) from None
    trace = requests(guess, 0)
    short = shortened(requests, len(trace), SHARES[0])
    seen: dict[tuple[str, ...], tuple[Candidate, Outcome | None]] = {}

    def score(trial: Any) -> float:
        options = {name: trial.suggest_categorical(name, values) for name, values in over.items()}
        key = tuple(options.values())
        if key not in seen:
            one = candidate(given, options, trace, max_gpus)
            outcome = None if one.reason else outcome_of(one, short, slo, guess, ROUGH)
            seen[key] = (one, outcome)
        found = seen[key][1]
        on_progress(trial.number + 1, SAMPLES)
        return -1e12 if found is None else max(wish.score(found), -1e12)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=0)
    optuna.create_study(direction="maximize", sampler=sampler).optimize(score, n_trials=SAMPLES)
    candidates = without_rejecting([one for one, _ in seen.values()], len(trace))
    fit = [
        outcome
        for one, (_, outcome) in zip(candidates, seen.values(), strict=True)
        if outcome is not None and not one.reason
    ]
    return candidates, [outcome.candidate for outcome in best_of(fit, wish)]
