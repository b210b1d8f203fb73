"""DistServe's placement: its step times, its requests, and the search for it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from experiments.fleet import BARS
from experiments.validation.distserve import placement as distserve_placement
from experiments.validation.distserve import profile as distserve
from kvsim.cli import main

if TYPE_CHECKING:
    from pathlib import Path

#: Round constants in the form of its profiles, ms.
CONSTANTS: dict[str, Any] = {
    "decoding_large_small_bs_threshold": 3,
    "prefill": [10.0, 0.01, 1e-6],
    "decoding_smallbs": [20.0, 0.001, 0.5],
    "decoding_largebs": [5.0, 0.002, 1.0],
}
#: Prompts in no time at all with two GPUs, in none that is good with one.
PROFILE = "experiments.validation.distserve.profile"
EAGER = {**CONSTANTS, "prefill": [1.0, 0.0, 0.0]}
LATE = {**CONSTANTS, "prefill": [500.0, 0.0, 0.0]}


def profile_in(folder: Path, **constants: Any) -> Path:
    path = folder / "profiler-a100-80g.distserve.json"
    path.write_text(json.dumps({distserve.MODEL: constants}))
    return path


def test_steps_cost_what_its_constants_say() -> None:
    prompts = distserve.prompts_ms(CONSTANTS, [10, 20])
    assert prompts == pytest.approx(10 + 0.3 + 0.0005 + 1 + 2 + 0.003)
    small = distserve.outputs_ms(CONSTANTS, [100, 200])
    assert small == pytest.approx(20 + 0.3 + 1 + 2 + 0.03)
    large = distserve.outputs_ms(CONSTANTS, [100, 200, 300])
    assert large == pytest.approx(5 + 1.2 + 3 + 2 + 0.06)


def test_a_profile_prices_either_pool_by_its_degree(tmp_path: Path) -> None:
    profile = profile_in(tmp_path, **{"1": LATE, "2": CONSTANTS})
    request = SimpleNamespace(num_computed_tokens=100)
    prompt: Any = SimpleNamespace(num_tokens=[30], requests=[request])
    output: Any = SimpleNamespace(num_tokens=[1], requests=[request])
    times = {}
    for degree in (1, 2):
        config: Any = SimpleNamespace(tensor_parallel_size=degree)
        model = distserve.OfProfile(config, profile=str(profile))
        times[degree] = model.step(prompt).time, model.step(output).time
    assert times[1][0] == pytest.approx(503.003 / 1e3)
    assert times[2][0] == pytest.approx(distserve.prompts_ms(CONSTANTS, [30]) / 1e3)
    assert times[1][1] == times[2][1] == pytest.approx(22.61 / 1e3)


def test_requests_are_its_own_at_any_rate() -> None:
    slow, fast = distserve.requests(300, 1.0), distserve.requests(300, 4.0)
    assert slow.num_prompt_tokens.tolist()[:4] == [55, 829, 697, 1316]
    assert slow.num_output_tokens.tolist()[-2:] == [446, 20]
    assert (fast.num_prompt_tokens == slow.num_prompt_tokens).all()
    assert slow.arrival_time == pytest.approx(4 * fast.arrival_time)
    assert (slow.num_prompt_tokens + slow.num_output_tokens < 2048).all()
    assert len(distserve.requests(7)) == 7
    with pytest.raises(ValueError, match="num_requests=301: there are 300"):
        distserve.requests(301)


def test_a_rate_is_halved_as_its_search_does() -> None:
    tried: list[float] = []
    assert distserve_placement.halved(lambda rate: tried.append(rate) or rate < 1.6) == 1.5625
    assert tried == [2.5, 1.25, 1.875, 1.5625, 1.71875]
    assert distserve_placement.halved(lambda rate: False) == 0.0


def test_only_what_fits_in_four_gpus_is_a_placement() -> None:
    assert distserve_placement.placements() == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert BARS["B4"].sets == distserve_placement.SETS


@pytest.mark.slow
def test_the_bar_finds_the_better_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / distserve_placement.SETS[0]
    folder.mkdir(parents=True)
    profile_in(folder, **{"1": LATE, "2": EAGER})
    (folder / "max_num_tokens.csv").write_text(
        "model,tp,pp,max_num_tokens\nfacebook/opt-13b,1,1,65536\nfacebook/opt-13b,2,1,131072\n"
        "facebook/opt-13b,2,2,9\nfacebook/opt-13b,4,1,262144\nfacebook/opt-66b,1,1,9"
    )
    monkeypatch.setattr(distserve_placement, "NUM_REQUESTS", 20)
    common = distserve_placement.options(tmp_path)
    assert common["blocks"] == {1: 4096, 2: 8192, 4: 16384}
    found = distserve_placement.means(common, distserve_placement.placements(), 2)
    assert found[1, 1] == found[1, 2] == (0.0, 0.0, 0.0)
    assert found[2, 1][1] >= found[2, 2][1] > 0
    early, late = (distserve_placement.p90_ttft((2, 1), common, s) for s in ("prefill", "decode"))
    assert early < 20 < late


@pytest.mark.slow
def test_kvsim_search_finds_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = profile_in(tmp_path, **{"1": LATE, "2": EAGER})
    main(
        [
            *("search", "--model", distserve.MODEL, "--gpu", "a100-80gb", "--num-requests", "100"),
            *(
                "--workload",
                f"{PROFILE}:requests",
                "--first-token-from",
                "prefill",
            ),
            *(
                "--cost-model",
                f"{PROFILE}:OfProfile+profile={profile}",
            ),
            *("--no-async-scheduling", "--no-enable-prefix-caching", "--replications", "1"),
            *("--max-num-batched-tokens", "65536", "--num-gpu-blocks-override", "4096"),
            *("--slo", "p90_ttft_ms<=200", "--objective", "cost", "--gpu-price", "a100-80gb=1"),
            *("--over", "prefill.tensor-parallel-size=1,2", "decode.tensor-parallel-size=1,2"),
            *("--max-gpus", "4", "--json", "-"),
        ]
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["options"] == {
        "prefill.tensor_parallel_size": "2",
        "decode.tensor_parallel_size": "1",
    }
    assert np.isfinite(answer["request_rate"])
