"""What autoscalers expect of the next interval."""

from __future__ import annotations

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.fleet.scaling.autoscaler import PoolLoad, make_autoscaler
from kvsim.fleet.scaling.forecast import Trend
from kvsim.fleet.scaling.traffic import Traffic
from kvsim.trace import Trace


def test_a_trend_is_foreseen() -> None:
    """By hand: 20 after 10 moves level and trend by 2001 / 2011 and 1000 / 2011 of the surprise."""
    trend = Trend()
    assert trend.next(10.0) == 10.0
    assert trend.next(20.0) == pytest.approx(10 + 10 * 2001 / 2011 + 10 * 1000 / 2011)
    ramp = Trend()
    assert [ramp.next(7.0 * k) for k in range(40)][-1] == pytest.approx(280.0, abs=0.01)
    flat = Trend()
    assert {flat.next(5.0) for _ in range(9)} == {5.0}
    # Trust in a value falls with its noise.
    sure, unsure = Trend(noise=0.1), Trend(noise=1000.0)
    jumps = [sure.next(0.0), unsure.next(0.0), sure.next(10.0), unsure.next(10.0)]
    assert jumps[2] > jumps[3] > 0


def needed(predictor: str, *requests: int) -> list[int]:
    """Ask about intervals of 10 s: a replica answers 0.909 requests/s, with steps of 10 ms each."""
    planner = make_autoscaler(f"dynamo-throughput+interval=10+predictor={predictor}")
    return [
        planner.desired(
            PoolLoad(
                *(10.0 * k, [], 3, 0, 1600, 16, 100.0, lambda number, _: 0.01 * number),
                max_num_seqs=256,
                traffic=lambda _, number=number: Traffic(number, 100.0, 10.0 * (number > 0), 0.0),
            )
        )
        for k, number in enumerate(requests)
    ]


def test_dynamo_throughput_foresees_a_ramp() -> None:
    """10, 20, 30 requests need 2, 3, 4 replicas, and the next 40 would need 5."""
    assert needed("constant", 10, 20, 30) == [2, 3, 4]
    assert needed("kalman", 10, 20, 30) == [2, 3, 5]


def test_a_trend_leads_to_one_replica_at_least_and_idle_intervals_tell_nothing() -> None:
    assert needed("kalman", 50, 30, 10, 1)[-2:] == [1, 1]
    assert needed("kalman", 10, 0, 20, 30) == [2, 3, 3, 5]  # as many as there are, three


@pytest.mark.long
def test_a_pool_that_foresees_a_ramp_lets_less_wait() -> None:
    """From none to twenty requests a second in ten minutes, asked every two."""
    drawn = workloads.sharegpt(num_requests=6000, request_rate=1.0)
    trace = Trace.from_arrays(
        np.sqrt(60.0 * np.arange(1, 6001)), drawn.num_prompt_tokens, drawn.num_output_tokens
    )
    options = {"model": "llama-3.1-8b", "gpu": "a10g", "cold_start": 60.0}
    scaler = "dynamo-throughput+interval=120+max=16+predictor="
    last, trend = (
        kvsim.simulate(trace, autoscaler=scaler + predictor, **options).summary
        for predictor in ("constant", "kalman")
    )
    assert trend["mean_ttft_ms"] < 0.8 * last["mean_ttft_ms"]


def test_an_unknown_predictor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"predictor=arima: must be constant or kalman"):
        make_autoscaler("dynamo-sla+predictor=arima")
