"""Headroom of predicted latencies below their targets, and llm-d's rules on headroom.

Source: llm-d-router at 2b0e7579, pkg/epp/framework/plugins: scheduling/scorer/latency,
scheduling/filter/sloheadroomtier and requestcontrol/admitter/latencyslo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.routing.view import ReplicaView

#: Share of the KV cache below which a replica counts as cold.
COLD = 0.02
#: Range of headrooms up to which they count as equal, seconds.
LEAST_RANGE = 1e-12
#: Number of different scores.
STEPS = 100


class Headroom(NamedTuple):
    """Target minus prediction of each latency, seconds; below 0 the target is missed.

    Without targets these are the negated predictions, which serve only for comparisons.
    """

    ttft: float
    tpot: float

    @property
    def is_met(self) -> bool:
        """Return True if both targets would be met."""
        return self.ttft >= 0 and self.tpot >= 0


def meeting(headrooms: Sequence[Headroom]) -> list[int]:
    """Return the indices of the headrooms that meet their targets."""
    return [place for place, one in enumerate(headrooms) if one.is_met]


def can_be_shed(headrooms: Sequence[Headroom], replicas: Sequence[ReplicaView]) -> bool:
    """Return True if no replica would meet the targets, and none is idle or cold."""
    busy = (r.scraped.num_running > 0 and r.scraped.kv_usage >= COLD for r in replicas)
    return not meeting(headrooms) and all(busy)


def latency_scores(
    headrooms: Sequence[Headroom],
    in_flight: Sequence[int],
    weights: tuple[float, float],
    *,
    most: bool,
) -> list[float]:
    """Score headrooms: above 0 and up to 1 for candidates, 0 for the other replicas.

    Candidates are the replicas that meet both targets. If there are none, they are the idle
    replicas; else those that meet the TTFT target; else those that meet the TPOT target; else all.

    Parameters
    ----------
    headrooms : headroom of each replica
    in_flight : number of requests in flight at each replica
    weights : weights of TTFT and TPOT; a target with equal headrooms does not count
    most : True if the largest headroom is best among replicas that meet the targets, False if the
        smallest one is
    """
    kept = meeting(headrooms)
    best_is_least = not (most and kept)
    kept = (
        kept
        or [place for place, number in enumerate(in_flight) if number == 0]
        or [place for place, one in enumerate(headrooms) if one.ttft >= 0]
        or [place for place, one in enumerate(headrooms) if one.tpot >= 0]
        or list(range(len(headrooms)))
    )
    scores = [0.0] * len(headrooms)
    distances = _distances([headrooms[place] for place in kept], weights)
    for place, distance in zip(kept, distances, strict=True):
        good = 1 - distance if best_is_least else distance
        scores[place] = min(int(good * STEPS) + 1, STEPS) / STEPS
    return scores


def _distances(headrooms: Sequence[Headroom], weights: tuple[float, float]) -> list[float]:
    """Return the weighted distance of each headroom from 0, scaled from 0 (least) to 1 (most)."""
    sides = [[abs(one[side]) for one in headrooms] for side in (0, 1)]
    ranges = [max(side) - min(side) for side in sides]
    told = [reach > LEAST_RANGE for reach in ranges]
    total = sum(weights)
    share = list(weights) if total > 0 else [1.0, 0.0]
    if told[0] != told[1]:
        share = [float(one) for one in told]
    places = [
        [(value - min(side)) / reach if is_told else 0.5 for value in side]
        for side, reach, is_told in zip(sides, ranges, told, strict=True)
    ]
    whole = sum(share)
    return [(share[0] * a + share[1] * b) / whole for a, b in zip(*places, strict=True)]
