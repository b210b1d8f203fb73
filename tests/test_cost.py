"""Step times: each term of the roofline against its closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvsim
from kvsim.catalog import get_gpu, get_model, gpu_names, model_names
from kvsim.cost.constant import ConstantCost
from kvsim.cost.efficiency import Efficiency, efficiency_of
from kvsim.cost.model import CostConfig, StepCost
from kvsim.cost.roofline import RooflineCost, num_keys, num_pairs
from kvsim.memory.layout import kv_dtype, kv_layout
from kvsim.request import Request
from kvsim.sched.scheduler import StepPlan
from kvsim.trace import Trace


def cost_config(model: str = "llama-3-8b", gpu: str = "h100-sxm", tp: int = 1) -> CostConfig:
    spec = get_model(model)
    layout = kv_layout(spec, kv_dtype("bf16"), tensor_parallel_size=tp)
    return CostConfig(
        spec, get_gpu(gpu), layout, quantization=spec.quantization, tensor_parallel_size=tp
    )


def plan(*work: tuple[int, int], unfinished: int = 0) -> StepPlan:
    """Make a step of (tokens computed before, new tokens) per request."""
    made = StepPlan()
    for i, (before, new) in enumerate(work):
        request = Request(i, 0.0, before + new, 1, [(i, 0, before + new)], 99)
        request.num_computed_tokens = before + new
        made.add(request, new)
    made.unfinished.update(range(unfinished))
    return made


def price(config: CostConfig, *work: tuple[int, int], **options: int) -> StepCost:
    return RooflineCost(config).step(plan(*work, **options))


def elementwise(rate: Efficiency, bandwidth: float) -> float:
    """Seconds per token of a Llama-3-8B: norms, rotary embedding, activation."""
    return 32 * 2 * (8 * 4096 + 2 * 128 * 40 + 3 * 14336) / (bandwidth * rate.elementwise)


def test_a_lone_decode_reads_all_weights_once() -> None:
    config = cost_config()
    cost = price(config, (1000, 1))
    rate = efficiency_of("h100-sxm")
    streamed = 2 * (8_030_261_248 - 128_256 * 4096)  # all but the embedding table
    kv = 1001 * 131_072
    bandwidth = config.gpu.memory_bandwidth_bytes_per_s
    launches = rate.layer_launch + 4 * rate.gemm_launch + rate.decode_launch + rate.decode_request
    overhead = rate.step + rate.request + 32 * launches + elementwise(rate, bandwidth)
    expected = streamed / (bandwidth * rate.weights) + kv / (bandwidth * rate.decode_attention)
    assert cost.time == pytest.approx(expected + overhead, rel=1e-12)
    assert cost.bytes == streamed + kv + 131_072
    assert cost.flops == pytest.approx(2 * 7_504_924_672 + 1001 * 4 * 4096 * 32, rel=1e-9)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    config = cost_config()
    cost = price(config, (0, 8192))
    rate = efficiency_of("h100-sxm")
    pairs = 8192 * 8193 // 2
    gemm = 2 * 8192 * (7_504_924_672 - 128_256 * 4096) + 2 * 128_256 * 4096
    attention = pairs * 4 * 4096 * 32
    assert cost.flops == gemm + attention
    peak = config.gpu.bf16_flops_per_s
    expected = gemm / (peak * rate.gemm) * (1 + rate.gemm_falloff)
    expected += attention / (peak * rate.prefill_attention)
    bandwidth = config.gpu.memory_bandwidth_bytes_per_s
    expected += 8192 * elementwise(rate, bandwidth)
    expected += 8192 * 32 * 2 * 128 * (2 * 32 + 2 * 8) / (bandwidth * rate.prefill_io)
    launches = rate.layer_launch + 4 * rate.gemm_launch + rate.prefill_launch
    overhead = rate.step + rate.request + 32 * launches
    assert cost.time == pytest.approx(expected + overhead, rel=1e-12)


def test_attention_adds_to_the_gemms() -> None:
    config = cost_config()
    short, long = price(config, (100, 1)).time, price(config, (100_100, 1)).time
    extra = 100_000 * 131_072 / (3.35e12 * efficiency_of("h100-sxm").decode_attention)
    assert long - short == pytest.approx(extra, rel=1e-9)


def test_decodes_slow_down_beside_a_long_prompt_and_hardly_beside_a_short_one() -> None:
    config, rate = cost_config(), efficiency_of("h100-sxm")
    reading = 100_001 * 131_072 / (3.35e12 * rate.decode_attention)
    for tokens, share in ((2048, 1.0), (512, 1.0), (128, 0.25)):
        apart = price(config, (100_000, 1)).time - price(config, (0, 1)).time
        mixed = price(config, (100_000, 1), (0, tokens)).time
        mixed -= price(config, (0, 1), (0, tokens)).time
        assert mixed - apart == pytest.approx(rate.mixed_decode * share * reading, rel=1e-3)


def test_an_unfinished_prompt_needs_no_lm_head() -> None:
    config = cost_config()
    sampled, unsampled = price(config, (0, 1)), price(config, (0, 1), unfinished=1)
    head = 128_256 * 4096
    assert sampled.bytes - unsampled.bytes == 2 * head
    assert sampled.flops - unsampled.flops == 2 * head


def test_chunks_add_up_to_the_whole_prompt() -> None:
    config = cost_config()
    whole = price(config, (0, 3000), unfinished=1)
    chunks = [price(config, (at, 1000), unfinished=1) for at in (0, 1000, 2000)]
    assert sum(c.flops for c in chunks) == pytest.approx(whole.flops, rel=1e-12)


def test_experts_are_read_as_they_are_touched() -> None:
    config = cost_config("mixtral-8x7b")
    one, two, many = (price(config, *[(10, 1)] * n).bytes for n in (1, 2, 64))
    expert = 3 * 4096 * 14_336 * 2 * 32  # of all layers
    assert two - one == pytest.approx(expert * 8 * (0.75 - 0.75**2), rel=1e-3)
    assert many - one == pytest.approx(6 * expert, rel=1e-2)
    dense = cost_config("llama-3-8b")
    assert price(dense, (10, 1)).bytes < one


def test_tensor_parallelism_divides_the_work_and_adds_messages() -> None:
    alone, four = cost_config("llama-3-70b"), cost_config("llama-3-70b", tp=4)
    a, b = price(alone, (1000, 1)), price(four, (1000, 1))
    assert b.flops == pytest.approx(a.flops / 4, rel=1e-12)
    assert b.bytes == pytest.approx(a.bytes / 4, rel=1e-9)
    assert a.time / 4 < b.time < a.time


@given(st.sampled_from(["full", "sliding", "chunked"]), st.integers(1, 20), st.integers(0, 60))
def test_query_key_pairs_are_what_counting_gives(kind: str, window: int, tokens: int) -> None:
    def sees(query: int) -> int:
        if kind == "full":
            return query + 1
        return min(query + 1, window) if kind == "sliding" else query % window + 1

    assert num_pairs(kind, window, tokens) == sum(sees(q) for q in range(tokens))
    if tokens:
        assert num_keys(kind, window, tokens - 1, 1) == sees(tokens - 1)


def test_windows_bound_the_keys_read() -> None:
    sliding = cost_config("mistral-7b")
    assert price(sliding, (5000, 1)).bytes == price(sliding, (30_000, 1)).bytes
    half = cost_config("gpt-oss-20b")
    near, far = price(half, (1000, 1)).bytes, price(half, (2000, 1)).bytes
    assert far - near == 1000 * 24_576  # only the full layers


def test_every_model_and_card_of_the_catalogue_has_a_step_time() -> None:
    for model in model_names():
        cost = price(cost_config(model), (100, 1), (0, 64))
        assert 0 < cost.time < 10, model
    for gpu in gpu_names():
        cost = price(cost_config("llama-3-8b", gpu), (100, 1), (0, 64))
        assert 0 < cost.time < 10, gpu


def test_constant_cost() -> None:
    assert ConstantCost(cost_config(), seconds=0.25).step(plan((0, 5))) == (0.25, 0.0, 0.0)


def test_a_run_says_what_its_step_times_rest_on() -> None:
    trace = Trace.from_arrays([0.0], [10], [2])

    def basis(**options: str) -> str:
        return kvsim.simulate(trace, model="llama-3-8b", **options).provenance["step_time"]

    assert basis(gpu="h100-sxm").startswith("fitted on kernels of the h100")
    assert "no measurements of rtx-4090" in basis(gpu="rtx-4090")
    assert basis(gpu="l40s", cost_model="roofline+host-seconds=0.01").endswith(
        "overridden: host-seconds=0.01"
    )
    assert basis(gpu="l40s", cost_model="constant") == "cost model constant"
