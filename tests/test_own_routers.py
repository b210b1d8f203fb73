"""A user's router as rules: one text in Python and in the compiled loop over arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvsim
import workloads
from kvsim.fleet import fleet
from kvsim.plugins.routing import (
    Candidate,
    Placement,
    RouterRules,
    check_router,
    least_loaded,
    per_replica,
    random_below,
)
from kvsim.registry import import_file
from kvsim.testing import equal_tables

PARTS = Path(__file__).parents[1] / "docs" / "examples" / "parts"
PrefixCap = import_file(str(PARTS / "prefix_cap.py")).PrefixCap
OPTIONS: dict[str, Any] = {"model": "llama-3-8b", "gpu": "h100-sxm", "data_parallel_size": 3}


class Turns(RouterRules):
    """All that a class may have: state, random draws, metrics, tokens in flight."""

    every: int = 3
    number: int = per_replica()

    knows = "precise"
    watches_requests = True
    scrape_interval = 0.05
    branches = ("turn", "drawn", "least")

    def choose(self, placement: Placement) -> int:
        self.number += 1
        if self.number % self.every == 0:
            placement.branch = 0
            return self.number % placement.num_candidates
        if self.number % self.every == 1:
            placement.branch = 1
            return random_below(placement.draws, placement.num_candidates)
        placement.branch = 2
        candidates, best = placement.candidates, least_loaded(placement)
        for k in range(placement.num_candidates):
            one = candidates[k].num_uncached_tokens + candidates[k].num_waiting
            other = candidates[best].num_uncached_tokens + candidates[best].num_waiting
            if one - candidates[k].cached_tokens < other - candidates[best].cached_tokens:
                best = k
        return best


class Beyond(RouterRules):
    """The place behind the last candidate, from the third request on."""

    number: int = per_replica()

    def choose(self, placement: Placement) -> int:
        self.number += 1
        return placement.num_candidates if self.number > 2 else 0


def placement(*replicas: tuple[int, int]) -> Placement:
    """Return a placement over replicas of so many requests and cached tokens."""
    candidates = [
        Candidate(index=k, num_outstanding=busy, cached_tokens=cached)
        for k, (busy, cached) in enumerate(replicas)
    ]
    return Placement(num_prompt_tokens=100, candidates=candidates, num_candidates=len(candidates))


@pytest.mark.parametrize(
    ("replicas", "choice"),
    [
        ([(4, 0), (2, 0), (3, 0)], 1),  # nothing is cached: the least loaded
        ([(4, 64), (2, 16), (3, 0)], 0),  # 10 requests with this one: at most 1.5 * 10 / 3 = 5
        ([(5, 64), (1, 16), (3, 0)], 1),  # 5 is not below 5
    ],
)
def test_the_longest_prefix_is_chosen_up_to_the_cap(
    replicas: list[tuple[int, int]], choice: int
) -> None:
    assert PrefixCap().choose(placement(*replicas)) == choice


@pytest.mark.long
@pytest.mark.parametrize("router", [PrefixCap(cap=1.2), Turns(every=4)])
def test_the_loop_over_arrivals_chooses_as_python_does(
    router: RouterRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = workloads.WORKLOADS.create("multi-turn", num_requests=120, seed=3, request_rate=40)
    asked, can_route = [], fleet.can_route
    monkeypatch.setattr(fleet, "can_route", lambda *of: asked.append(can_route(*of)) or asked[-1])
    first = kvsim.simulate(trace, **OPTIONS, router=router)
    assert asked == [True]
    monkeypatch.setattr(fleet, "can_route", lambda *_: False)
    second = kvsim.simulate(trace, **OPTIONS, router=router)
    assert equal_tables(first.requests, second.requests)
    assert first.summary["routing"] == second.summary["routing"]
    assert len(set(first.summary["routing"]["branches"])) == len(router.branches)


def test_rules_keep_the_promises_of_a_router() -> None:
    check_router(PrefixCap, num_runs=1)
    check_router(Turns(every=2), num_runs=1)


@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_a_choice_that_is_no_candidate_is_one_line(backend: str) -> None:
    trace = workloads.fixed(prompt=20, output=2, num_requests=4, request_rate=1.0)
    said = "router Beyond chose 3: must be a whole number, 0 to 2, the index of a"
    with pytest.raises(ValueError, match=said):
        kvsim.simulate(trace, **OPTIONS, router=Beyond(), backend=backend)


def test_a_class_without_a_rule_is_refused() -> None:
    class Nothing(RouterRules):
        """No rule."""

    with pytest.raises(ValueError, match=r"Nothing: must define choose\(self, placement\)"):
        Nothing()


def test_an_unknown_kind_of_knowledge_is_refused() -> None:
    class Precize(RouterRules):
        knows = "precize"  # type: ignore[assignment]

        def choose(self, placement: Placement) -> int:
            return 0

    with pytest.raises(ValueError, match="Precize: knows='precize': must be 'approximate', 'prec"):
        Precize()
