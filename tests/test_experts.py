"""Step times of routed experts, GEMMs in fewer bits, and steps that no CUDA graph covers."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import numpy as np
import pytest

import kvsim
from experiments.validation import relatives
from experiments.validation.trust import RECORDS as DOCS
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.budget.lora import lora_bytes
from kvsim.catalog import get_gpu, get_model
from kvsim.cost.efficiency import basis_of, efficiency_of, measured_card
from kvsim.cost.experts import FEW_EXPERTS, choice_probabilities, routing
from kvsim.cost.model import CostConfig
from kvsim.cost.relative import SPREAD
from kvsim.cost.roofline import RooflineCost
from kvsim.cost.work import WorkCounter
from kvsim.lora import LoRAConfig
from kvsim.records.request import Request
from kvsim.sched.scheduler import StepPlan
from kvsim.trace import Trace


def config_of(model: str, gpu: str = "h100-sxm", tp: int = 1, **options) -> CostConfig:
    spec = get_model(model)
    layout = kv_layout(spec, kv_dtype("bf16"), tensor_parallel_size=tp)
    options = {"quantization": spec.quantization, "max_num_batched_tokens": 8192} | options
    return CostConfig(spec, get_gpu(gpu), layout, tensor_parallel_size=tp, **options)


def plan(*work: tuple[int, int]) -> StepPlan:
    """Make a step of (tokens computed before, new tokens) per request."""
    made = []
    for i, (before, new) in enumerate(work):
        request = Request(i, 0.0, before + new, 1, [(i, 0, before + new)], 99)
        request.num_computed_tokens = before + new
        made.append((request, new))
    return StepPlan.of(made)


def times(config: CostConfig, *work: tuple[int, int]):
    return RooflineCost(config).times(WorkCounter(config).count(plan(*work)))


# -- routing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (128, 4), (256, 8), (384, 8), (2, 2)])
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.2, 3.0])
def test_a_token_visits_so_many_experts(experts: int, chosen: int, skew: float) -> None:
    chances = choice_probabilities(experts, chosen, skew)
    assert chances.sum() == pytest.approx(chosen)
    assert (np.diff(chances) <= 1e-12).all()
    assert 0 < chances.min() <= chances.max() <= 1


def test_evenly_spread_tokens_touch_what_the_closed_form_says() -> None:
    """E (1 - (1 - k / E)^m) of E experts."""
    found = routing(128, 4, 0.0, 1, 512)
    for m in (0, 1, 7, 32, 200):
        assert found.touched[m] == pytest.approx(128 * (1 - (1 - 4 / 128) ** m))
    assert found.token_rows == pytest.approx(4)


def test_skewed_tokens_touch_fewer_but_one_token_as_many() -> None:
    even, skewed = routing(128, 4, 0.0, 1, 4096), routing(128, 4, 0.8, 1, 4096)
    assert skewed.touched[1] == pytest.approx(4) == even.touched[1]
    assert 0.7 < skewed.touched[32] / even.touched[32] < 0.83  # MODELS: 57 to 68 of 82
    assert skewed.touched[-1] == pytest.approx(128, rel=2e-3)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_busiest_rank_has_more_than_its_share(ranks: int) -> None:
    whole, one = routing(256, 8, 0.8, 1, 64), routing(256, 8, 0.8, ranks, 64)
    assert 8 / ranks < one.token_rows < 8
    assert 0.95 * whole.touched[64] / ranks < one.touched[64] <= 256 / ranks
    even = routing(256, 8, 0.0, ranks, 64)
    assert even.token_rows == pytest.approx(8 / ranks)


# -- experts ---------------------------------------------------------------------------------------


def test_experts_take_the_soft_maximum_of_reading_and_computing() -> None:
    """gpt-oss-120b on one H100: 128 experts of 3 x 2,880 x 2,880 and biases, 4 per token."""
    config = config_of("gpt-oss-120b")
    shares, gpu, model = efficiency_of("h100-sxm").experts["mxfp4"], config.gpu, config.model
    rows, per_expert = 32 * 4, model.num_expert_params
    touched = routing(128, 4, 0.8, 1, 8192).touched[32]
    memory = touched * per_expert * 0.531 / (gpu.memory_bandwidth_bytes_per_s * shares.weights)
    arithmetic = 2 * (rows + shares.block * touched) * per_expert
    arithmetic /= gpu.bf16_flops_per_s * shares.gemm
    p = shares.power
    both = (memory**p + arithmetic**p) ** (1 / p)
    moved = 2 * (2 * 2880 + 3 * 2880)
    both += rows * moved / (gpu.memory_bandwidth_bytes_per_s * shares.activations)
    found = times(config, *[(500, 1)] * 32).gemms
    alone = RooflineCost(config)
    alone.record.experts.num_layers = 0.0
    others = alone.gemms(alone.work.count(plan(*[(500, 1)] * 32)))
    assert found - others == pytest.approx(36 * both, rel=1e-9)


def test_few_experts_are_priced_like_dense_layers() -> None:
    """Mixtral's 8: tokens spread evenly, and nothing but weights and FLOPs counts."""
    config = config_of("mixtral-8x7b", tp=2)
    assert config.model.num_experts <= FEW_EXPERTS
    rate, gpu = efficiency_of("h100-sxm"), config.gpu
    counted = WorkCounter(config).count(plan((500, 1)))
    assert counted.touched == pytest.approx(2)
    read = counted.weight_bytes / (gpu.memory_bandwidth_bytes_per_s * rate.weights)
    assert times(config, (500, 1)).gemms == pytest.approx(read, rel=0.01)


def test_whole_experts_lie_on_ranks_under_expert_parallelism() -> None:
    split = config_of("minimax-m2.5", gpu="h200-sxm", tp=8)
    whole = replace(split, expert_parallel_size=8)
    one, other = WorkCounter(split), WorkCounter(whole)
    assert other.record.experts.expert_bytes == pytest.approx(8 * one.record.experts.expert_bytes)
    few, many = plan((9, 1)), plan((0, 8000))
    assert other.count(few).weight_bytes > one.count(few).weight_bytes  # one has them all
    assert other.count(many).weight_bytes == pytest.approx(one.count(many).weight_bytes, rel=1e-2)
    assert times(whole, (9, 1)).gemms > times(split, (9, 1)).gemms


def test_replicas_that_attend_alone_bring_their_tokens_to_each_others_experts() -> None:
    alone = config_of("minimax-m2.5", gpu="h200-sxm", expert_parallel_size=4)
    four = replace(alone, num_attention_ranks=4)
    assert times(alone, (9, 1)).all_reduce == 0
    rate, link = efficiency_of("h200-sxm"), alone.gpu.nvlink_bytes_per_s
    each = 2 * 62
    token = 3 * 3072 * 2 / (link * rate.link_ring)
    expected = each * (rate.all_reduce + token)
    assert times(four, (9, 1)).all_reduce == pytest.approx(expected)
    touched = routing(256, 8, 0.8, 4, 8192 * 4).touched
    assert WorkCounter(four).count(plan((9, 1))).touched == pytest.approx(touched[4])


def test_replicas_cut_experts_that_none_of_them_has_whole() -> None:
    """DP x TP slices: a GPU reads a quarter as much of those that the tokens of all four touch."""
    alone = config_of("minimax-m2.5", gpu="h200-sxm")
    four = replace(alone, num_attention_ranks=4)
    one, other = WorkCounter(alone), WorkCounter(four)
    assert 4 * other.record.experts.expert_bytes == one.record.experts.expert_bytes
    assert 4 * other.record.experts.row_flops == one.record.experts.row_flops
    assert other.record.experts.token_rows == 4 * one.record.experts.token_rows
    touched = routing(256, 8, 0.8, 1, 8192 * 4).touched
    assert other.count(plan((9, 1))).touched == pytest.approx(touched[4])
    whole = replace(four, expert_parallel_size=4)
    assert times(four, (9, 1)).all_reduce == times(whole, (9, 1)).all_reduce > 0
    many = plan((0, 8000))
    assert other.count(many).weight_bytes == pytest.approx(
        WorkCounter(whole).count(many).weight_bytes, rel=1e-2
    )


# -- GEMMs in fewer bits ---------------------------------------------------------------------------


def test_the_lm_head_and_what_a_format_leaves_stay_wide() -> None:
    """MiniMax in NVFP4: experts alone; attention in 16 bits."""
    config = config_of("minimax-m2.5", gpu="b200", tp=2, quantization="nvfp4")
    record = WorkCounter(config).record
    assert record.narrow.num_bytes == 0 < record.wide.num_bytes
    narrow = config_of("llama-3.1-70b", gpu="b200", tp=2, quantization="fp8")
    record = WorkCounter(narrow).record
    assert record.narrow.num_bytes > 30 * record.wide.num_bytes
    assert (
        times(narrow, (9, 1)).lm_head == times(replace(narrow, quantization=None), (9, 1)).lm_head
    )


@pytest.mark.parametrize(("quantization", "gain"), [("fp8", 1.5), ("nvfp4", 1.5)])
def test_fewer_bits_take_launches_and_save_the_rest(quantization: str, gain: float) -> None:
    wide = config_of("llama-3.1-70b", gpu="b200", quantization=None)
    narrow = replace(wide, quantization=quantization)
    slow, fast = times(wide, (0, 8000)), times(narrow, (0, 8000))
    assert slow.gemms / fast.gemms > gain
    rate = efficiency_of("b200")
    launches = 80 * (4 * (rate.gemms[quantization].launch - rate.gemm_launch))
    launches += 80 * rate.layer_launch_quantized
    assert fast.host - slow.host == pytest.approx(launches)
    assert fast.elementwise > slow.elementwise  # activations are quantised


def test_weights_alone_in_fewer_bits_compute_in_16() -> None:
    config = config_of("llama-3-8b", quantization="awq")
    wide = replace(config, quantization=None)
    assert times(config, (0, 8000)).host == times(wide, (0, 8000)).host
    assert times(config, (9, 1)).gemms < 0.4 * times(wide, (9, 1)).gemms


# -- launches --------------------------------------------------------------------------------------


def test_a_step_that_no_graph_covers_waits_for_its_launches() -> None:
    config = config_of("minimax-m2.5", gpu="h200-sxm", tp=8, captured_tokens=512)
    rate = efficiency_of("h200-sxm")
    least = 62 * (rate.uncaptured_layer + rate.uncaptured_experts) + rate.step + rate.request
    covered, longer = times(config, (0, 512)), times(config, (0, 513))
    assert covered.launch_wait == 0
    assert longer.total == pytest.approx(least)
    assert longer.total > covered.total
    assert times(config, (0, 8192)).launch_wait == 0  # it takes longer than its launches
    eager = replace(config, captured_tokens=0)
    assert times(eager, (9, 1)).total == pytest.approx(least)


def test_launches_of_experts_take_longer_in_a_format_whose_kernels_do() -> None:
    rate = efficiency_of("b200")
    own = rate.experts["nvfp4"].uncaptured
    assert own > 0 == rate.experts["fp8-block"].uncaptured
    for quantization, more in (("fp8-block", 0.0), ("nvfp4", own)):
        config = config_of(
            "minimax-m2.5", gpu="b200", tp=8, captured_tokens=512, quantization=quantization
        )
        least = 62 * (rate.uncaptured_layer + rate.uncaptured_experts + more)
        longer = times(config, (0, 513))
        assert longer.total == pytest.approx(least + rate.step + rate.request)


EAGLE3 = {"method": "eagle3", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 512),
        ({"max_num_seqs": 16}, 32),
        ({"max_num_seqs": 16, "speculative_config": EAGLE3}, 128),
        ({"max_num_seqs": 128, "speculative_config": EAGLE3}, 512),
        ({"max_cudagraph_capture_size": 2048}, 2048),
        ({"enforce_eager": True, "max_cudagraph_capture_size": 2048}, 0),
    ],
)
def test_which_steps_a_graph_covers(options, tokens: int) -> None:
    from kvsim.config import Config
    from kvsim.engine.setup import resolve

    setup = resolve(Config.build(model="llama-3-8b", gpu="h100-sxm", **options))
    assert setup.cost.record.captured_tokens == tokens


@pytest.mark.long
@pytest.mark.parametrize(("version", "waits"), [("0.10", True), ("0.12.3", True), ("0.13", False)])
def test_old_versions_work_for_every_request_between_steps(version: str, waits: bool) -> None:
    trace = Trace.from_arrays(np.zeros(64), [100] * 64, [50] * 64)
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "backend": "python"}
    new = kvsim.simulate(trace, **options, async_scheduling=True).summary["mean_tpot_ms"]
    options |= {"vllm_version": version, "num_gpu_blocks_override": 9000}
    old = kvsim.simulate(trace, **options, async_scheduling=True).summary["mean_tpot_ms"]
    extra = 64 * 1e3 * efficiency_of("h100-sxm").sync_request
    assert old - new == pytest.approx(extra if waits else 0, rel=0.05, abs=1e-6)


# -- the front end and the cards -------------------------------------------------------------------


def test_prompts_are_tokenised_one_after_another() -> None:
    trace = Trace.from_arrays([0.0, 0.0, 0.0, 5.0], [1000] * 4, [10] * 4)
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "front_end_latency_per_token": 1e-4}
    for backend in ("python", "compiled"):
        table = kvsim.simulate(trace, **options, backend=backend).requests
        assert table["first_scheduled_time"] == pytest.approx([0.1, 0.2, 0.3, 5.1], abs=0.02)
        assert (table["first_scheduled_time"] >= [0.1, 0.2, 0.3, 5.1]).all()
        assert table["arrival_time"].tolist() == [0.0, 0.0, 0.0, 5.0]


@pytest.mark.long
def test_clients_wait_for_the_front_end_too() -> None:
    """One request at a time: each takes its prompt's tokenisation more."""
    trace = Trace.from_arrays(np.zeros(5), [1000] * 5, [10] * 5)
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "max_concurrency": 1}
    plain = kvsim.simulate(trace, **options).summary["duration"]
    late = kvsim.simulate(trace, **options, front_end_latency_per_token=1e-4).summary["duration"]
    assert late - plain == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("gpu", "card"),
    [
        ("gb300", "b200"),
        ("b300", "b200"),
        ("h200-sxm", "h200"),
        ("rtx-4090", "h100"),
        ("l4", "l40s"),
        ("rtx-5090", "rtx-pro-6000"),
        ("a100-40gb", "a100"),
        ("mi300x", "h100"),
    ],
)
def test_cards_without_measurements_take_the_nearest_ones(gpu: str, card: str) -> None:
    assert measured_card(get_gpu(gpu).name) == card
    rate = efficiency_of(get_gpu(gpu).name)
    assert {"fp8", "fp8-block"} <= set(rate.gemms)
    assert {"16-bit", "fp8-block", "mxfp4", "int4"} <= set(rate.experts)
    assert all(0 < share.weights < 1.1 for share in rate.experts.values())
    assert math.isfinite(rate.latent_attention)


def test_a_card_of_simple_tests_takes_the_h100s_constants_as_these_compare() -> None:
    """The ratios are those of the guide's figures to the catalog's peaks, on both cards."""
    mine, other = get_gpu("mi300x"), get_gpu("h100-sxm")

    def ratio(measured: float, peak: float, theirs: float, their_peak: float) -> float:
        return measured / peak / (theirs / their_peak)

    mi300x, h100 = efficiency_of("mi300x"), efficiency_of("h100-sxm")
    rates = mine.fp8_flops_per_s, other.fp8_flops_per_s
    gemm = ratio(1159.54, rates[0], 1351.4, rates[1])
    memory = ratio(
        4.09, mine.memory_bandwidth_bytes_per_s, 2.97, other.memory_bandwidth_bytes_per_s
    )
    attention = ratio(328.6, mine.bf16_flops_per_s, 327.9, other.bf16_flops_per_s)
    link = ratio(316.82, mine.nvlink_bytes_per_s, 478.87, other.nvlink_bytes_per_s)
    for expected, of in (
        (gemm, lambda e: e.gemm),
        (gemm, lambda e: e.experts["fp8-block"].gemm),
        (gemm, lambda e: e.gemms["fp8-block"].gemm),
        (memory, lambda e: e.weights),
        (memory, lambda e: e.experts["16-bit"].activations),
        (attention, lambda e: e.prefill_attention_8bit),
        (link, lambda e: e.link_ring),
        (0.07 / 0.04, lambda e: e.all_reduce),
        (1.0, lambda e: e.layer_launch),
    ):
        assert of(mi300x) / of(h100) == pytest.approx(expected, rel=2e-3)
    assert efficiency_of("mi325x") == mi300x
    assert efficiency_of("mi355x") == mi300x
    assert "scaled by simple tests of mi300x" in basis_of("mi355x")
    assert "simple tests" not in basis_of("rtx-4090")


def test_the_spread_of_cards_without_tables_is_that_of_the_loops_left_out() -> None:
    with (DOCS / relatives.FILE).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for name, stated in SPREAD.items():
        found = np.quantile([abs(float(row[name])) for row in rows], [0.5, 0.9])
        assert [round(float(one)) for one in found] == list(stated)
        assert f"{name} by {stated[0]}" in basis_of("rtx-4090")
    assert {row["card"] for row in rows} == set(relatives.RELATIVES)
    assert "such fractions" not in basis_of("h100-sxm")


def test_constants_by_format_are_read_and_checked(tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[h100.experts.mxfp4]\nlaunch = 1e-3\n[h100.gemms.fp8]\nweights = 0.5\n")
    config = config_of("gpt-oss-120b")
    mine = RooflineCost(config, constants=str(file))
    counted = mine.work.count(plan((9, 1)))
    was = efficiency_of("h100-sxm").experts["mxfp4"].launch
    more = mine.times(counted).host - RooflineCost(config).times(counted).host
    assert more == pytest.approx(36 * (1e-3 - was))
    for text, said in (
        ("[h100.experts.mxfp4]\nlunch = 1e-3\n", "unknown constant"),
        ("[h100]\nexperts = 3\n", "must be a table"),
        ("[h100.experts.mxfp9]\nlaunch = 1e-3\n", "unknown format of experts"),
        ("[h100.gemms.fp8]\nweights = -1\n", "must be a number above 0"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=said):
            RooflineCost(config, constants=str(file))


# -- states and chosen keys ------------------------------------------------------------------------


def test_states_are_read_and_written_and_prompts_scan() -> None:
    """Qwen3-Next: 36 of 48 layers keep a state; the others attend."""
    config = config_of("qwen3-next-80b-a3b", gpu="h200-sxm")
    rate, gpu = efficiency_of("h200-sxm"), config.gpu
    spec = config.model
    assert (spec.num_state_layers, len(spec.layers)) == (36, 12)
    record = RooflineCost(config).record
    launches = 12 * rate.decode_launch + 36 * rate.state_launch
    assert record.decode_time == pytest.approx(launches)
    state = 32 * 128 * 128 * 4 + 8192 * 3 * 2 if spec.state_dtype == "fp32" else None
    if state is not None:
        moved = 2 * 36 * state / (gpu.memory_bandwidth_bytes_per_s * rate.state_traffic)
        assert record.request_time == pytest.approx(rate.request + moved, rel=0.02)
    flops = 36 * 4 * 32 * 128 * 128
    each = max(flops / (gpu.bf16_flops_per_s * rate.scan), 36 * rate.scan_token)
    plain = replace(config, model=replace(spec, layer_pattern="F"))
    attending = RooflineCost(plain).record.prefill_time_per_token * 12 / 48
    assert record.prefill_time_per_token == pytest.approx(attending + each)


def test_sparse_attention_reads_the_keys_that_were_chosen_and_all_index_keys() -> None:
    """DeepSeek-V3.2: 2,048 latents of 576 values, and 128-byte keys of every token."""
    config = config_of("deepseek-v3.2", gpu="h200-sxm", tp=8)
    counter = WorkCounter(config)
    kinds = {(layers.kind, layers.window): layers for layers in counter.classes}
    latents, index = kinds["sliding", 2048], kinds["full", 0]
    assert latents.kv_bytes == 61 * 2 * 576
    assert latents.prompt_pair_flops == latents.pair_flops
    short, long = counter.count(plan((1999, 1))), counter.count(plan((99_999, 1)))
    assert short.decode_bytes == 2000 * (latents.kv_bytes + index.kv_bytes)
    assert long.decode_bytes == 2048 * latents.kv_bytes + 100_000 * index.kv_bytes


# -- adapters --------------------------------------------------------------------------------------


def test_adapters_of_a_batch_are_read_and_their_kernels_launched() -> None:
    """Llama-3-8B, rank 16: two kernels for each of 4 GEMMs in 32 layers, and each adapter once."""
    lengths = [0.0] * 4, [100] * 4, [40] * 4
    trace = Trace.from_arrays(*lengths, lora_id=[1, 2, 2, 0])
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "enable_prefix_caching": False}
    plain = kvsim.simulate(Trace.from_arrays(*lengths), **options).summary["mean_tpot_ms"]
    rate, gpu = efficiency_of("h100-sxm"), get_gpu("h100-sxm")
    for backend in ("python", "compiled"):
        flags = options | {"enable_lora": True, "max_loras": 2, "backend": backend}
        found = kvsim.simulate(trace, **flags).summary["mean_tpot_ms"]
        adapter = lora_bytes(get_model("llama-3-8b"), LoRAConfig(1, 16))
        seconds = 32 * 8 * rate.gemm_launch
        seconds += 2 * adapter / (gpu.memory_bandwidth_bytes_per_s * rate.weights)
        assert (found - plain) / 1e3 == pytest.approx(seconds, rel=0.02)
