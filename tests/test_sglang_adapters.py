"""LoRA adapters under SGLang: recorded schedules, buffers, loads, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import DATA, name_of, smallest

import kvsim
from kvsim.budget.lora import lora_bytes
from kvsim.catalog import get_gpu, get_model
from kvsim.lora import LoRAConfig

RECORDED = sorted((DATA / "sglang_cases2" / "lora").glob("*.json.gz"))
SMALL: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "enable_lora": True,
    "max_total_tokens": 4000,
    "backend": "python",
    "check_invariants": True,
}
#: Bytes of an adapter of rank 16 for Llama-3-8B.
ADAPTER = lora_bytes(get_model("llama-3-8b"), LoRAConfig())


@pytest.mark.parametrize("path", smallest(RECORDED))
def test_recorded_adapters_come_out_identical(path: Path) -> None:
    assert kvsim.replay(path, check_invariants=path.stat().st_size < 6000) is None


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_recorded_adapters_come_out_identical_compiled(path: Path) -> None:
    assert kvsim.replay(path, backend="compiled") is None


def served(lora: list[int], gap: float = 1.0, **more: Any) -> kvsim.Result:
    n = len(lora)
    trace = kvsim.Trace.from_arrays(
        (gap * np.arange(n)).tolist(), [100] * n, [8] * n, lora_id=np.array(lora)
    )
    return kvsim.simulate(trace, **SMALL | more)


@pytest.mark.long
def test_the_least_recently_used_adapter_is_evicted_and_a_load_takes_its_copy() -> None:
    """Two of three buffers are for adapters; adapter 1 is used again before 3 comes."""
    result = served([1, 2, 1, 3, 1, 2], max_loras_per_batch=3)
    assert result.summary["num_adapter_switches"] == 4  # 1, 2, 3 for 2, and 2 for 3
    fifo = served([1, 2, 1, 3, 1, 2], max_loras_per_batch=3, lora_eviction_policy="fifo")
    assert fifo.summary["num_adapter_switches"] == 5  # 3 for 1, 1 for 2, and 2 for 3
    ttft = result.requests["first_token_time"] - result.requests["arrival_time"]
    assert ttft[0] - ttft[2] == pytest.approx(
        ADAPTER / get_gpu("h100-sxm").pcie_bytes_per_s, rel=0.01
    )


def test_a_full_batch_lets_others_pass() -> None:
    """Base and adapter 1 fill both buffers: 2 waits until both have ended, 1 comes before it."""
    result = served([0, 1, 2, 1], gap=0.0, max_loras_per_batch=2)
    first = result.requests["first_scheduled_time"]
    assert first[0] == first[1] == first[3] < first[2]
    assert result.requests["finish_time"][:2].min() <= first[2]


def test_buffers_take_memory_from_the_pool() -> None:
    options: dict[str, Any] = {"model": "llama-3-8b", "gpu": "h100-sxm", "engine": "sglang"}
    plain = kvsim.capacity(**options)
    less = kvsim.capacity(**options, enable_lora=True, max_loras_per_batch=5)
    assert plain.num_tokens is not None
    assert less.num_tokens is not None
    missing = (plain.num_tokens - less.num_tokens) * plain.bytes_per_token
    assert missing == pytest.approx(5 * ADAPTER, abs=2 * plain.bytes_per_token)
