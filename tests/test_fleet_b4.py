"""DistServe's placement: its step times, and the requests they are asked for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from experiments import _fleet_b4
from experiments.fleet import BARS
from kvsim.fleet.fabric import fabrics

if TYPE_CHECKING:
    from pathlib import Path

#: Round constants in the form of its profiles, ms.
CONSTANTS: dict[str, Any] = {
    "decoding_large_small_bs_threshold": 3,
    "prefill": [10.0, 0.01, 1e-6],
    "decoding_smallbs": [20.0, 0.001, 0.5],
    "decoding_largebs": [5.0, 0.002, 1.0],
}


def test_steps_cost_what_its_constants_say() -> None:
    prefill = _fleet_b4.model_of(CONSTANTS, prefills=True)(None)
    decode = _fleet_b4.model_of(CONSTANTS, prefills=False)(None)
    prompts: Any = SimpleNamespace(num_tokens=[10, 20])
    assert prefill.step(prompts).time == pytest.approx((10 + 0.3 + 0.0005 + 1) / 1e3)

    def contexts(*lengths: int) -> Any:
        return SimpleNamespace(requests=[SimpleNamespace(num_computed_tokens=n) for n in lengths])

    assert decode.step(contexts(100, 200)).time == pytest.approx((20 + 0.3 + 1) / 1e3)
    assert decode.step(contexts(100, 200, 300)).time == pytest.approx((5 + 1.2 + 3) / 1e3)


def test_a_profile_prices_either_pool_by_its_degree(tmp_path: Path) -> None:
    dear = {**CONSTANTS, "prefill": [20.0, 0.01, 1e-6]}
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({_fleet_b4.MODEL: {"1": dear, "2": CONSTANTS}}))
    request = SimpleNamespace(num_computed_tokens=100)
    prompt: Any = SimpleNamespace(num_tokens=[30], requests=[request])
    output: Any = SimpleNamespace(num_tokens=[1], requests=[request])
    times = {}
    for degree in (1, 2):
        config: Any = SimpleNamespace(tensor_parallel_size=degree)
        model = _fleet_b4.OfProfile(config, profile=str(profile))
        times[degree] = model.step(prompt).time, model.step(output).time
    assert times[1][0] - times[2][0] == pytest.approx(10 / 1e3)
    assert times[1][1] == times[2][1] == pytest.approx((20 + 0.1 + 0.5) / 1e3)


def test_requests_are_the_same_at_any_rate() -> None:
    slow, fast = _fleet_b4.workload(1.0), _fleet_b4.workload(4.0)
    assert (slow.num_prompt_tokens == fast.num_prompt_tokens).all()
    assert slow.arrival_time == pytest.approx(4 * fast.arrival_time)
    assert (slow.num_prompt_tokens + slow.num_output_tokens <= 2048).all()


@pytest.mark.long
def test_the_bar_searches_placements_within_four_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / _fleet_b4.SETS[0]
    folder.mkdir(parents=True)
    profile = {"facebook/opt-13b": dict.fromkeys("124", CONSTANTS)}
    (folder / "profiler-a100-80g.distserve.json").write_text(json.dumps(profile))
    lines = ["model,tp,pp,max_num_tokens"]
    lines += [f"facebook/opt-13b,{tp},1,{tp * 65536}" for tp in (1, 2, 4)]
    (folder / "max_num_tokens.csv").write_text("\n".join(lines))
    monkeypatch.setattr(_fleet_b4, "NUM_REQUESTS", 20)
    found, own = _fleet_b4.best_rates(tmp_path, ("ttft_at_prefill", "ttft"))
    assert set(found) == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert all(own[placement] <= rate for placement, rate in found.items())
    assert _fleet_b4.INSTANT.name not in fabrics()
    assert BARS["B4"].sets == _fleet_b4.SETS
