"""SGLang's prefill delayer: schedules worked out by hand, and what it is refused with."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
from kvsim.cli.main import cli
from kvsim.cli.pasted import translate

SMALL: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "max_total_tokens": 4000,
    "backend": "python",
    "check_invariants": True,
    "enable_prefill_delayer": True,
}


def served(arrivals: list[float], outputs: list[int], **options: Any) -> kvsim.Result:
    trace = kvsim.Trace.from_arrays(arrivals, [100] * len(arrivals), outputs)
    return kvsim.simulate(trace, **SMALL | options)


def test_a_prefill_waits_for_places_for_the_largest_one_so_far() -> None:
    """Three begin at once; the first that should wait does not, the next waits for two ends."""
    arrivals, outputs = [0.0, 0.0, 0.0, 0.02, 0.04], [15, 25, 35, 60, 5]
    requests = served(arrivals, outputs, max_running_requests=4).requests
    begun, ended = requests["first_scheduled_time"], requests["finish_time"]
    assert begun[3] < ended[0]
    assert ended[2] <= begun[4] < ended[3]
    free = served(arrivals, outputs, max_running_requests=4, enable_prefill_delayer=False)
    assert free.requests["first_scheduled_time"][4] < ended[1]


@pytest.mark.long
def test_a_prefill_waits_for_as_many_as_the_ratio_says() -> None:
    """Four run after the spared one: min(4 x 1.0, 3) must wait, and begin together."""
    arrivals = [0.0, 0.0, 0.0, 0.02, 0.04, 0.08, 0.12]
    options = {"max_running_requests": 20, "prefill_delayer_queue_min_ratio": 1.0}
    begun = served(arrivals, [99] * 7, **options).requests["first_scheduled_time"]
    assert begun[3] < 0.04
    assert begun[4] == begun[5] == begun[6] >= 0.12


@pytest.mark.long
def test_a_limit_of_a_prefill_is_also_one_of_those_waited_for() -> None:
    """Three run after the spared one: min(3 x 1.0, 3) wait, though two were the most so far."""
    arrivals = [0.0, 0.0, 0.02, 0.04, 0.08, 0.12]
    options = {"max_running_requests": 20, "prefill_delayer_queue_min_ratio": 1.0}
    begun = served(arrivals, [99] * 6, **options, prefill_max_requests=3).requests
    begun = begun["first_scheduled_time"]
    assert begun[2] < 0.04
    assert begun[3] == begun[4] == begun[5] >= 0.12


@pytest.mark.long
def test_a_wait_for_others_ends_after_its_limit() -> None:
    arrivals = [0.0, 0.0, 0.0, 0.02, 0.04]
    options = {
        "max_running_requests": 20,
        "prefill_delayer_queue_min_ratio": 1.0,
        "prefill_delayer_max_delay_ms": 60.0,
        "record_steps": True,
    }
    result = served(arrivals, [99] * 5, **options)
    begun = result.requests["first_scheduled_time"][4]
    assert 0.1 <= begun <= 0.1 + 2 * result.steps["duration"].max()


@pytest.mark.long
def test_nothing_waits_while_little_of_the_pool_is_in_use() -> None:
    """The three take 300 of 4000 tokens and their outputs."""
    arrivals, outputs = [0.0, 0.0, 0.0, 0.02, 0.04], [15, 25, 35, 60, 5]
    for low, waits in ((0.99, False), (0.05, True)):
        requests = served(
            arrivals,
            outputs,
            max_running_requests=4,
            prefill_delayer_token_usage_low_watermark=low,
        ).requests
        assert (requests["first_scheduled_time"][4] >= requests["finish_time"][2]) == waits


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"disable_overlap_schedule": True}, "needs steps that overlap"),
        ({"data_parallel_size": 2, "enable_dp_attention": True}, "modelled for one rank"),
        (
            {
                "model": "qwen3-next-80b-a3b",
                "gpu": "h200-sxm",
                "tensor_parallel_size": 2,
                "prefill_delayer_token_usage_low_watermark": 0.3,
            },
            "the use of a pool of states is not counted",
        ),
    ],
)
def test_where_the_delay_is_not_modelled_it_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        served([0.0], [5], **given)


@pytest.mark.parametrize("backend", ["python", pytest.param("compiled", marks=pytest.mark.long)])
def test_a_ratio_beyond_all_integers_waits_for_the_largest_prefill(backend: str) -> None:
    arrivals, outputs = [0.0, 0.0, 0.0, 0.02, 0.04], [99] * 5
    begun = [
        served(
            arrivals,
            outputs,
            max_running_requests=20,
            prefill_delayer_queue_min_ratio=ratio,
            check_invariants=False,
            backend=backend,
        ).requests["first_scheduled_time"]
        for ratio in (100.0, 1e300)
    ]
    assert begun[0].tolist() == begun[1].tolist()


def test_a_pasted_delay_is_taken() -> None:
    line = "run python -m sglang.launch_server --model-path m --enable-prefill-delayer"
    words = translate([*line.split(), "--prefill-delayer-queue-min-ratio", "0.2"], cli).words
    assert words[-3:] == [
        "--enable-prefill-delayer",
        "--prefill-delayer-queue-min-ratio",
        "0.2",
    ]
