"""Memory of real servers: what their logs, and vLLM's own planner, say of layout and overheads."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
from kvsim.budget.capacity import expert_replicas
from kvsim.config import Config

GIB = 2**30

A100 = {"model": "Qwen/Qwen3-30B-A3B", "gpu": "a100-80gb", "max_model_len": 8192}


def parts(**options: Any) -> dict[str, float]:
    """Parts of a budget in GiB."""
    budget = kvsim.capacity(**options).budget_bytes
    return {part: size / GIB for part, size in budget.items()}


# -- experts of data-parallel ranks ----------------------------------------------------------------


def test_data_parallel_ranks_share_the_experts_of_each_layer() -> None:
    """VLLM's data-parallel page: cut over DP x TP ranks, with expert parallelism or not."""
    one, four = parts(**A100), parts(**A100, data_parallel_size=4)
    assert one["weights"] == pytest.approx(56.87, abs=0.01)
    assert four["weights"] == pytest.approx(16.37, abs=0.01)
    assert four["kv_cache"] == pytest.approx(55.06, abs=0.1)
    whole = parts(**A100, data_parallel_size=4, enable_expert_parallel=True)
    assert whole["weights"] == pytest.approx(four["weights"])  # 128 experts divide evenly
    cut = parts(**A100, data_parallel_size=2, tensor_parallel_size=2)
    experts = (one["weights"] - four["weights"]) * 4 / 3
    rest = one["weights"] - experts  # attention, embeddings and head are cut by TP alone
    assert cut["weights"] == pytest.approx(experts / 4 + rest / 2, abs=0.01)
    dense = parts(model="llama-3.1-8b", gpu="a100-80gb", data_parallel_size=4)
    assert dense["weights"] == pytest.approx(14.96, abs=0.01)


def test_four_h200_hold_what_four_ranks_share() -> None:
    options = {"model": "qwen3-235b-a22b", "gpu": "h200-sxm", "max_model_len": 16384}
    assert kvsim.capacity(data_parallel_size=4, **options).fits
    with pytest.raises(ValueError, match="does not fit"):
        kvsim.capacity(**options)


@pytest.mark.parametrize(
    "alone",
    [{"engine": "sglang"}, {"autoscaler": "hpa+max=4"}, {"failures": "rate+gpu-hours=9"}],
)
def test_servers_of_their_own_have_all_experts(alone: dict[str, str]) -> None:
    config = Config.build(**A100, data_parallel_size=4, **alone)
    assert expert_replicas(config) == 1
    shared = config.model_copy(update={"enable_expert_parallel": True})
    assert expert_replicas(shared) == 4


def test_modules_of_a_drafter_share_their_experts_too() -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 1}
    options = {"model": "deepseek-v3", "gpu": "b200", "tensor_parallel_size": 8}
    options |= {"max_model_len": 8192, "speculative_config": spec, "quantization": "fp8"}
    one, two = parts(**options), parts(**options, data_parallel_size=2)
    experts = 256 * 3 * 7168 * 2048 / GIB / 8
    assert one["drafter"] - two["drafter"] == pytest.approx(experts / 2, rel=1e-3)
