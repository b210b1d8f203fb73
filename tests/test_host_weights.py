"""Weights in host memory: vLLM's --cpu-offload-gb and --offload-group-size."""

from __future__ import annotations

from typing import Any

import pytest
from refused import refused

import kvsim
from kvsim.budget.weights import num_end_params
from kvsim.catalog import get_gpu, get_model
from kvsim.cli.main import cli
from kvsim.cli.pasted import translate
from kvsim.config import Config
from kvsim.cost.roofline import RooflineCost
from kvsim.engine.setup import resolve
from kvsim.records.cost import Cost, Work
from kvsim.rules.costs.host_weights import copying_time, reading_time
from kvsim.rules.price import copy_wait
from kvsim.testing import equal_tables

GIB = 2**30
LLAMA: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "rtx-4090", "max_model_len": 8192}
LAYER = 436_224_000  # of Llama-3.1-8B: 218,112,000 parameters of 2 bytes


def sized(**options: Any) -> kvsim.Capacity:
    return kvsim.capacity(**LLAMA, **options)


def layers_of(pattern: str, buffers: int, copy_time: float) -> Cost:
    """Return copies for a pattern of one group: C for a layer that is copied."""
    cost, number = Cost(), pattern.count("C")
    cost.host.num_layers, cost.host.group_size = 2 * len(pattern), len(pattern)
    cost.host.num_in_group, cost.host.num_buffers = number, buffers
    cost.host.copy_time, cost.host.ready = copy_time, [0.0] * buffers
    return cost


def test_the_pool_grows_by_the_weights_in_host_memory() -> None:
    plain, less = sized(), sized(cpu_offload_gb=4)
    assert less.budget_bytes["kv_cache"] - plain.budget_bytes["kv_cache"] == 4 * GIB
    assert plain.budget_bytes["weights"] - less.budget_bytes["weights"] == 4 * GIB


def test_no_more_than_the_layers_is_moved() -> None:
    model = get_model("llama-3.1-8b")
    ends = 2 * num_end_params(model, 1, towers=True)
    assert sized(cpu_offload_gb=100).budget_bytes["weights"] == pytest.approx(ends, abs=10**6)


def test_more_buffers_than_offloaded_layers_take_memory() -> None:
    """One layer of 32 is moved, and three buffers are allocated all the same, as by the server."""
    plain, more = sized(), sized(offload_group_size=32, offload_prefetch_step=3)
    added = more.budget_bytes["weights"] - plain.budget_bytes["weights"]
    assert added == pytest.approx(2 * LAYER, abs=1000)
    assert any("allocates 3 buffers" in note for note in more.assumptions)
    none = sized(offload_group_size=32)
    assert not any("buffers" in note for note in none.assumptions)


def test_copied_layers_have_buffers_instead() -> None:
    """Layers 7, 15, 23, 31, or the last two of each eight; a buffer each, or three."""
    plain = sized().budget_bytes["weights"]
    for options, layers in (
        ({}, 3),
        ({"offload_num_in_group": 2}, 7),
        ({"offload_num_in_group": 2, "offload_prefetch_step": 3}, 5),
    ):
        less = sized(offload_group_size=8, **options).budget_bytes["weights"]
        assert plain - less == pytest.approx(layers * LAYER, rel=1e-3)


def test_a_decode_waits_for_the_weights_that_it_reads_over_pcie() -> None:
    """4 GiB over 25 or 32 GB/s, less the time of the same weights from the GPU's memory."""
    plain, moved = (
        resolve(Config(**LLAMA, cpu_offload_gb=gib, kv_cache_memory_bytes="2G")) for gib in (0, 4)
    )
    assert isinstance(plain.cost, RooflineCost)
    assert isinstance(moved.cost, RooflineCost)
    share = moved.memory.host_weights.share
    assert share == pytest.approx(4 * GIB / (32 * LAYER), rel=1e-3)
    work = Work(num_requests=1, num_tokens=1, num_decodes=1, weight_bytes=32.0 * LAYER)
    before = plain.cost.gemms(work)
    wanted = 4 * GIB / plain.memory.gpu.pcie_bytes_per_s - share * before
    assert moved.cost.gemms(work) - before == pytest.approx(wanted, rel=1e-3)
    long = Work(num_requests=1, num_tokens=65536, weight_bytes=32.0 * LAYER)
    assert reading_time(moved.cost.record, long, 60.0) == 0.0


@pytest.mark.parametrize(
    ("pattern", "buffers", "copy", "wait"),
    [
        # Two groups. Layer 1 ends at 2, the copy of layer 3 at 5: it begins 2 late, ends at 6, and
        # the copy of the next step's layer 1 at 9: 5 beyond the four layers.
        ("-C", 1, 3.0, 5.0),
        # Copies of half a layer are hidden, but for the last, which ends with the step.
        ("-C", 1, 0.5, 0.5),
        # Both copied layers are there at the start: only their next copies are waited for, of
        # which the first runs under the layers 2 and 3.
        ("-C", 2, 3.0, 4.0),
        # Layers 0 to 3 one by one: each but the first waits for a copy of 3, and one more ends.
        ("CC", 1, 3.0, 12.0),
    ],
)
def test_copies_run_ahead_of_the_layers(
    pattern: str, buffers: int, copy: float, wait: float
) -> None:
    assert copying_time(layers_of(pattern, buffers, copy), 1.0) == pytest.approx(wait)


@pytest.mark.slow
def test_both_backends_give_the_same_tables() -> None:
    trace = kvsim.Trace.from_arrays([0.1 * i for i in range(12)], [300] * 12, [30] * 12)
    kimi: dict[str, Any] = {"model": "kimi-k2-thinking", "gpu": "h200-sxm"}
    kimi |= {"tensor_parallel_size": 8, "num_gpu_blocks_override": 60}
    for options in (
        LLAMA | {"offload_group_size": 4, "offload_prefetch_step": 2},
        LLAMA | {"cpu_offload_gb": 3},
        DEEPSEEK | {"offload_group_size": 4},
        kimi | {"decode_context_parallel_size": 8, "max_num_batched_tokens": 512},
    ):
        both = [kvsim.simulate(trace, **options, backend=b) for b in ("python", "compiled")]
        assert equal_tables(*(one.requests for one in both))


def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = "capacity llama-3.1-8b --gpu h100-sxm"
    groups = f"{line} --offload-group-size 2 --offload-num-in-group 3"
    assert "must be at most offload_group_size, 2" in refused(capsys, groups)
    other = f"{line} --engine tensorrt-llm --cpu-offload-gb 3"
    assert "engine tensorrt-llm does not support it" in refused(capsys, other)


def test_a_server_that_copies_weights_before_each_layer_waits_for_all_of_them() -> None:
    """3 GiB more for the pool, and 3 GiB over PCIe in every step, of prompts and decodes."""
    options: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "sglang"}
    plain, moved = (kvsim.capacity(**options, cpu_offload_gb=gib) for gib in (0, 3))
    grown = moved.budget_bytes["kv_cache"] - plain.budget_bytes["kv_cache"]
    assert grown == pytest.approx(3 * GIB, abs=2 * plain.bytes_per_token)
    trace = kvsim.Trace.from_arrays([0.0], [600], [20])
    steps = [
        kvsim.simulate(trace, **options, cpu_offload_gb=gib, record_steps=True, backend="python")
        .steps["duration"]
        .tolist()
        for gib in (0, 3)
    ]
    wait = 3 * GIB / get_gpu("h100-sxm").pcie_bytes_per_s
    assert [b - a for a, b in zip(*steps, strict=True)] == pytest.approx([wait] * len(steps[0]))
    with pytest.raises(ValueError, match="engine sglang does not support it for llama"):
        kvsim.capacity(**options, offload_group_size=4)


#: The routed experts of a layer of DeepSeek-V3 on one of eight GPUs, in FP8 with scales.
EXPERTS = 256 * 3 * 7168 * 2048 * (1 + 4 / 128**2) / 8
DEEPSEEK: dict[str, Any] = {
    **{"model": "deepseek-v3", "gpu": "h200-sxm", "engine": "sglang"},
    "tensor_parallel_size": 8,
}


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({"offload_group_size": 4}, 14),  # 3, 7, ..., 59 less the first
        ({"offload_group_size": 4, "offload_num_in_group": 2}, 29),  # 2, which is dense, 3, 6, ...
        ({"offload_group_size": 1}, 58),  # all but three dense layers, of which one is the first
        ({"offload_group_size": 8, "offload_prefetch_step": 3}, 4),
    ],
)
def test_an_engine_may_move_only_the_experts_of_layers(options: Any, layers: int) -> None:
    plain, less = (kvsim.capacity(**DEEPSEEK, **given) for given in ({}, options))
    saved = plain.budget_bytes["weights"] - less.budget_bytes["weights"]
    assert saved == pytest.approx(layers * EXPERTS, rel=1e-6)
    pages = less.budget_bytes["kv_cache"] - plain.budget_bytes["kv_cache"]
    assert pages == pytest.approx(saved, abs=2 * plain.bytes_per_block)


def test_in_cuda_graphs_copies_of_experts_and_layers_take_turns() -> None:
    """A decode waits for all 15 copies and the first one again; a prompt's run under layers."""
    cost = resolve(Config(**DEEPSEEK, offload_group_size=4)).cost
    assert isinstance(cost, RooflineCost)
    record, copy = cost.record, EXPERTS / get_gpu("h200-sxm").pcie_bytes_per_s
    decode = Work(num_requests=8, num_tokens=8, num_decodes=8)
    assert copy_wait(record, decode, 0.02) == pytest.approx(16 * copy)
    prompt = Work(num_requests=1, num_tokens=8)
    assert copy_wait(record, prompt, 61 * 8 * copy) == pytest.approx(0.0, abs=1e-9)
    many = Work(num_requests=9999, num_tokens=9999, num_decodes=9999)
    assert copy_wait(record, many, 61 * 8 * copy) < copy


def test_dense_layers_copy_nothing() -> None:
    """CC, of which the first is dense: 1 for it, then a copy of 3 before each other one."""
    cost = layers_of("CC", 1, 3.0)
    cost.host.num_dense = 1
    assert copying_time(cost, 1.0) == pytest.approx(9.0)


def test_experts_that_the_server_cannot_move_are_refused(capsys: Any) -> None:
    line = "capacity --gpu h200-sxm -tp 8 --engine sglang --offload-group-size"
    packed = f"{line} 4 --model kimi-k2-thinking"
    assert "weights in int4 have other tensors" in refused(capsys, packed)
    ahead = f"{line} 30 --model deepseek-v3 --offload-prefetch-step 2"
    assert "must be less than the 2 offloaded layers" in refused(capsys, ahead)
    pasted = "run python -m sglang.launch_server --model-path m --offload-group-size"
    assert translate([*pasted.split(), "-1"], cli).words[-1] == "0"
    with pytest.raises(ValueError, match="sharded_gpu is not modelled"):
        translate([*pasted.split(), "4", "--offload-mode", "sharded_gpu"], cli)
