"""The interval of KV memory that ``kvsim capacity`` prints."""

from __future__ import annotations

import pytest

import kvsim

#: Public start-up logs: what was logged (GiB of KV on one GPU), and the server. The spreads were
#: read off these and other logs: that they lie inside is a check of the code, not of the spreads.
LOGS = [
    (4.99, {"model": "Qwen/Qwen3.8-27B-FP8", "gpu": "rtx-3090", "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.92, "max_num_seqs": 2, "max_num_batched_tokens": 8192}),
    (9.84, {"model": "Qwen/Qwen3.6-27B", "quantization": "gptq", "gpu": "rtx-3090",
            "tensor_parallel_size": 2, "gpu_memory_utilization": 0.88, "max_num_seqs": 2,
            "max_num_batched_tokens": 8192}),
    (11.75, {"model": "Qwen/Qwen3.8-27B-FP8", "gpu": "rtx-5090", "tensor_parallel_size": 2}),
    (3.59, {"model": "Inferact/Qwen3.8-27B-NVFP4", "gpu": "rtx-5090", "max_model_len": 32768,
            "kv_cache_dtype": "fp8", "enforce_eager": True}),
    (41.43, {"model": "qwen2.5-14b", "gpu": "h100-sxm", "max_model_len": 4096,
             "max_num_seqs": 256, "gpu_memory_utilization": 0.9, "max_num_batched_tokens": 2048,
             "vllm_version": "0.21"}),
    (4.30, {"model": "gpt-oss-20b", "gpu": "l4", "gpu_memory_utilization": 0.9,
            "kv_cache_dtype": "fp8", "max_model_len": 131072}),
    (36.56, {"model": "gpt-oss-20b", "gpu": "a100-80gb", "gpu_memory_utilization": 0.65,
             "max_model_len": 131072, "vllm_version": "0.19"}),
    (48.66, {"model": "qwen3-coder-480b-a35b", "gpu": "h200-sxm", "quantization": "fp8-block",
             "data_parallel_size": 8, "enable_expert_parallel": True,
             "gpu_memory_utilization": 0.9, "vllm_version": "0.10"}),
]  # fmt: skip
LLAMA = {"model": "llama-3-8b", "gpu": "h100-sxm"}


def interval(**options) -> tuple[float, float]:
    found = kvsim.capacity(**options).kv_cache_bytes_interval
    assert found is not None
    return found[0] / 2**30, found[1] / 2**30


@pytest.mark.parametrize(("logged", "server"), LOGS, ids=lambda value: str(value)[:40])
def test_logged_memory_is_inside(logged, server):
    low, high = interval(**server)
    assert low <= logged <= high


def test_a_16_bit_model_has_a_narrow_interval_and_nvfp4_a_wide_one():
    low, high = interval(**LLAMA, enforce_eager=True)
    estimate = kvsim.capacity(**LLAMA, enforce_eager=True).budget_bytes["kv_cache"] / 2**30
    assert estimate - low == pytest.approx((0.8**2 + (0.005 * 14.96) ** 2) ** 0.5, abs=0.01)
    assert high - estimate == pytest.approx((0.35**2 + (0.005 * 14.96) ** 2) ** 0.5, abs=0.01)
    wide = interval(**LLAMA, quantization="nvfp4", enforce_eager=True)
    assert wide[1] - wide[0] > 1.5 * (high - low)


def test_a_log_narrows_it_part_by_part():
    widths = []
    for logged in ({}, {"cuda_graphs": 0.9}, {"cuda_graphs": 0.9, "weights": 14.96}):
        low, high = interval(**LLAMA, logged=logged)
        widths.append(high - low)
    assert widths[0] > widths[1] > widths[2] > 0


@pytest.mark.parametrize(
    "pinned",
    [{"kv_cache_memory_bytes": 60 * 10**9}, {"num_gpu_blocks_override": 100},
     {"logged": {"kv_cache": 50.0}}, {"engine": "sglang"}],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_memory_that_is_not_estimated_has_none(pinned):
    found = kvsim.capacity(**LLAMA, **pinned)
    assert found.kv_cache_bytes_interval is None
    assert found.to_dict()["kv_cache_bytes_interval"] is None


def test_what_is_seldom_measured_widens_it():
    experts = {"model": "qwen3-30b-a3b", "gpu": "h100-sxm", "enable_expert_parallel": True}
    alone, shared = interval(**experts), interval(**experts, data_parallel_size=8)
    assert shared[1] - shared[0] > alone[1] - alone[0] + 3
    seen, text = interval(**LOGS[2][1]), interval(**LOGS[2][1], language_model_only=True)
    assert seen[1] - seen[0] > text[1] - text[0]


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"model": "gemma-3-4b"}, "nothing for the profile run of image or audio encoders"),
        ({"model": "llama-3-8b", "quantization": "nvfp4"}, "every linear layer in nvfp4"),
    ],
)
def test_what_is_not_estimated_says_so(options, note):
    assert any(note in told for told in kvsim.capacity(**options, gpu="b200").assumptions)
    known = {"model": "qwen3.5-27b", "quantization": "nvfp4", "gpu": "b200"}
    assert not any(note in told for told in kvsim.capacity(**known).assumptions)
