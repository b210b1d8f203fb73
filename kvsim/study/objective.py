"""Objectives by which configurations are ranked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

from kvsim.errors import unknown_name
from kvsim.study.space import gpus_by_card

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.config import RunConfig
    from kvsim.study.search import Bracket
    from kvsim.study.space import Candidate
    from kvsim.study.trial import Trials

Objective = Literal["rate", "gpus", "cost", "pareto"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)


@dataclass
class Outcome:
    """Load that a configuration sustains.

    Parameters
    ----------
    candidate : the configuration
    trials : its runs
    bracket : the highest rate that passed, and the lowest rate above it that failed
    num_gpus : number of GPUs of all replicas, to which the bracket applies
    replicas : number of replicas, if the search determines it
    points : its runs on the axes of the Pareto front
    """

    candidate: Candidate
    trials: Trials
    bracket: Bracket
    num_gpus: int
    replicas: int | None = None
    points: list[Point] = field(default_factory=list)


class Point(NamedTuple):
    """A run on the two axes of a Pareto front."""

    request_rate: float
    tokens_per_gpu: float
    tokens_per_user: float


class Wish(NamedTuple):
    """An objective and its inputs.

    ``asked_rate`` is the rate to sustain, in requests per second: ``gpus`` needs it, and ``cost``
    may have it. ``prices`` are dollars per GPU-hour by GPU. ``counts_replicas`` is true if the
    search determines the number of replicas that sustain this rate.
    """

    objective: Objective
    asked_rate: float | None = None
    prices: Mapping[str, float] = {}
    counts_replicas: bool = False

    def score(self, outcome: Outcome) -> float:
        """Return the score of an outcome; higher is better, minus infinity means unusable."""
        rate, gpus = outcome.bracket.low, outcome.num_gpus
        if rate <= 0 or outcome.candidate.config is None:
            return -math.inf
        if self.objective == "rate":
            return rate
        if self.objective == "gpus":
            assert self.asked_rate is not None
            if outcome.replicas is not None:
                return -gpus
            return -gpus * math.ceil(self.asked_rate / rate)
        if self.objective == "cost":
            if self.asked_rate is None:
                return -self.cost(outcome.candidate.config, gpus, rate)
            if self.counts_replicas and outcome.replicas is None:  # a stage before the whole trace
                gpus *= math.ceil(self.asked_rate / rate)
            elif rate < self.asked_rate:
                return -math.inf
            return -self.cost(outcome.candidate.config, gpus, self.asked_rate)
        return rate / gpus

    def hourly(self, config: RunConfig, gpus: int) -> float:
        """Return the price of an hour of ``gpus`` GPUs, shared among GPU types as in the pools."""
        cards = gpus_by_card(config)
        hourly = sum(self.prices[name] * number for name, number in cards.items())
        return hourly * (gpus / sum(cards.values()))

    def cost(self, config: RunConfig, gpus: int, rate: float) -> float:
        """Return the price of a thousand requests that arrive at a given rate."""
        return 1000 * self.hourly(config, gpus) / 3600 / rate


def read_objective(name: str) -> Objective:
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)
    return cast("Objective", name)


def dominated(point: Point, others: Sequence[Point]) -> bool:
    """Return True if another point is at least as good on both axes, and better on one."""
    own = (point.tokens_per_gpu, point.tokens_per_user)
    return any(
        (p.tokens_per_gpu >= own[0] and p.tokens_per_user >= own[1])
        and (p.tokens_per_gpu, p.tokens_per_user) != own
        for p in others
    )


def points_of(outcome: Outcome) -> list[Point]:
    """Return a point for each complete run with seed 0 that met every target."""
    found = []
    for (_, seed), trial in sorted(outcome.trials.runs.items()):
        if seed == 0 and trial.met and trial.summary is not None:
            tpot = trial.summary["mean_tpot_ms"]
            if tpot:
                through = trial.summary["output_throughput"] / outcome.num_gpus
                found.append(Point(trial.request_rate, through, 1000 / tpot))
    return found
