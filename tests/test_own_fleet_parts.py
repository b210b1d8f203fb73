"""Parts of a fleet that somebody else wrote: they are asked, and wrong answers are refused."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
import workloads
from kvsim.fleet.disaggregation.placement_context import PlacementContext
from kvsim.fleet.disaggregation.policy import Disaggregation
from kvsim.fleet.routing.router import Router
from kvsim.fleet.scaling.autoscaler import Autoscaler, PoolLoad

HERE = "test_own_fleet_parts"
MODEL: dict[str, Any] = {"model": "llama-3-8b", "gpu": "a100-80gb"}
ONE_EACH = {"num_prefill_workers": 1, "num_decode_workers": 1}
TRACE = workloads.fixed(prompt=100, output=200, num_requests=12, request_rate=4.0)


class Chooser(Router):
    """Answers what it is told."""

    answer: Any = 0

    def choose(self, request: Any, replicas: Any) -> Any:
        del request, replicas
        return self.answer


class Scaler(Autoscaler):
    """As many replicas as there are requests, or what it is told."""

    interval = 0.25
    answer: Any = None

    def desired(self, pool: PoolLoad) -> Any:
        return self.answer if self.answer is not None else int(pool.total("requests"))


class Rule(Disaggregation):
    """The first requests are decoded in place, until so many are there."""

    stays = False
    answer: Any = None

    def place(self, request: PlacementContext) -> Any:
        return self.answer or ("decode" if request.num_scheduled < 2 else "apart")


def test_own_parts_are_asked() -> None:
    grown = kvsim.simulate(TRACE, autoscaler=f"{HERE}:Scaler+max=3", cold_start=0.1, **MODEL)
    assert grown.summary["scaling"]["peak_replicas"] == 3
    apart = kvsim.simulate(TRACE, disaggregation=f"{HERE}:Rule", **ONE_EACH, **MODEL)
    assert apart.requests["prefill_replica"].tolist()[:3] == [-1, -1, 1]


@pytest.mark.parametrize("answer", [3, -2, 1.0, None, "0"])
def test_a_router_may_only_choose_a_replica(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chooser, "answer", answer)
    with pytest.raises(ValueError, match=f"router Chooser chose {answer!r}: must be a whole num"):
        kvsim.simulate(TRACE, router=f"{HERE}:Chooser", data_parallel_size=3, **MODEL)


@pytest.mark.parametrize("answer", [1.5, "2"])
def test_replicas_are_whole(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaler, "answer", answer)
    with pytest.raises(ValueError, match=f"autoscaler Scaler wants {answer!r} replicas: must be"):
        kvsim.simulate(TRACE, autoscaler=f"{HERE}:Scaler", **MODEL)


@pytest.mark.parametrize(
    ("answer", "stays", "longest", "said"),
    [
        ("here", False, None, r"one of: apart, decode, prefill"),
        ("prefill", False, None, "the rule's stays must be True for that"),
        ("prefill", True, 110, "its can_stay is False"),
    ],
)
def test_a_request_is_served_where_it_can_be(
    answer: str, stays: bool, longest: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rule, "answer", answer)
    monkeypatch.setattr(Rule, "stays", stays)
    pools = [
        {"role": "prefill", "replicas": 1, "max_model_len": longest or 8192},
        {"role": "decode", "replicas": 1},
    ]
    with pytest.raises(ValueError, match=f"disaggregation Rule answered '{answer}'.*{said}"):
        kvsim.simulate(TRACE, pool=pools, disaggregation=f"{HERE}:Rule", **MODEL)


def test_what_may_stay_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rule, "answer", "prefill")
    monkeypatch.setattr(Rule, "stays", True)
    rows = kvsim.simulate(TRACE, disaggregation=f"{HERE}:Rule", **ONE_EACH, **MODEL).requests
    assert set(rows["replica"].tolist()) == {1}
