"""Routed experts in host memory, of which each layer keeps the last used ones on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refused import refused

import kvsim
from kvsim.catalog import get_gpu
from kvsim.config import Config
from kvsim.cost.experts import choice_probabilities
from kvsim.cost.paged_experts import fetched
from kvsim.cost.roofline import RooflineCost
from kvsim.engine.setup import resolve
from kvsim.records.cost import Work
from kvsim.testing import equal_tables

MIXTRAL: dict[str, Any] = {
    **{"model": "mixtral-8x7b", "gpu": "h200-sxm", "engine": "sglang"},
    **{"enable_paged_experts": True, "paged_experts_num_resident": 4},
}
EXPERT = 3 * 4096 * 14336 * 2  # bytes of an expert of one of 32 layers
PLAIN = {name: MIXTRAL[name] for name in ("model", "gpu", "engine")}


def test_the_pool_grows_by_the_experts_that_are_not_kept() -> None:
    plain, paged = kvsim.capacity(**PLAIN), kvsim.capacity(**MIXTRAL)
    saved = plain.budget_bytes["weights"] - paged.budget_bytes["weights"]
    assert saved == pytest.approx(32 * 4 * EXPERT, rel=1e-9)
    grown = paged.budget_bytes["kv_cache"] - plain.budget_bytes["kv_cache"]
    assert grown == pytest.approx(saved, abs=2 * plain.bytes_per_block)


@pytest.mark.parametrize(
    ("used", "kept", "copied"),
    [
        ([0.25] * 8, 4, 1.0),  # 2 of 8 experts per step, each there with 4 of 8
        ([1.0] * 8, 4, 4.0),  # all 8, in two waves: 4 are there
        ([0.25] * 8, 8, 0.0),
        ([1.0, 1.0, 0.5, 0.5], 3, 0.5),  # the last step's three are there: half of one is not
    ],
)
def test_a_step_copies_the_experts_that_were_not_used_lately(
    used: list[float], kept: int, copied: float
) -> None:
    assert fetched(np.array(used), kept) == pytest.approx(copied)


@pytest.mark.parametrize(("num_tokens", "kept"), [(1, 16), (1, 32), (4, 48)])
def test_the_mean_is_that_of_a_simulated_lru_cache(num_tokens: int, kept: int) -> None:
    """64 experts, 4 per token, chosen with a skew; within 5 % over 4,000 steps."""
    chances = choice_probabilities(64, 4, 0.8)
    used, rng = 1 - (1 - chances) ** num_tokens, np.random.default_rng(1)
    cache, misses = list(range(64))[:kept], 0
    for step in range(4500):
        wanted = np.flatnonzero(rng.random(64) < used).tolist()
        missing = [e for e in wanted if e not in cache]
        cache = [e for e in cache if e not in wanted] + wanted
        cache = cache[-kept:]
        misses += len(missing) if step >= 500 else 0
    assert fetched(used, kept) == pytest.approx(misses / 4000, rel=0.05)


def test_a_decode_waits_for_its_experts() -> None:
    """One of two experts of a token in each of 32 layers, over PCIe."""
    costs = [resolve(Config(**options)).cost for options in (PLAIN, MIXTRAL)]
    work = Work(num_requests=1, num_tokens=1, num_decodes=1, touched=2.0)
    times = []
    for cost in costs:
        assert isinstance(cost, RooflineCost)
        times.append(cost.gemms(work))
    wait = 32 * EXPERT / get_gpu("h200-sxm").pcie_bytes_per_s
    assert times[1] - times[0] == pytest.approx(wait)
    assert isinstance(costs[1], RooflineCost)
    assert costs[1].record.captured_tokens == 2  # 4 experts, 2 per token


@pytest.mark.slow
def test_both_backends_give_the_same_tables() -> None:
    trace = kvsim.Trace.from_arrays([0.1 * i for i in range(12)], [300] * 12, [30] * 12)
    both = [kvsim.simulate(trace, **MIXTRAL, backend=b) for b in ("python", "compiled")]
    assert equal_tables(*(one.requests for one in both))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mixtral-8x7b", "needs paged_experts_num_resident of at least 2"),
        ("mixtral-8x7b --paged-experts-num-resident 1", "of at least 2"),
        ("mixtral-8x7b --paged-experts-num-resident 4 -tp 2", "excludes tensor_parallel_size 2"),
        ("llama-3-8b --paged-experts-num-resident 4", "has no routed experts"),
    ],
)
def test_what_the_server_does_not_page_is_refused(
    capsys: pytest.CaptureFixture[str], given: str, said: str
) -> None:
    line = "capacity --engine sglang --gpu h200-sxm --enable-paged-experts"
    assert said in refused(capsys, f"{line} {given}")
