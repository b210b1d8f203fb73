"""Memory of real servers: what their logs, and vLLM's own planner, say of layout and overheads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvsim
from kvsim.attention.mamba import StateCache
from kvsim.attention.sliding import SlidingWindow
from kvsim.budget.capacity import blocks_of_tokens, resolve_memory
from kvsim.budget.kernels import default_block_size
from kvsim.budget.pages import Page
from kvsim.budget.planner import KVPlan, plan_pages
from kvsim.budget.replicated import replicated_bytes
from kvsim.budget.settings import expert_replicas
from kvsim.catalog import get_model
from kvsim.config import Config
from kvsim.engine.setup import resolve

GIB = 2**30
CONFIGS = Path(__file__).parent / "data" / "hf_configs"

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
    assert four["kv_cache"] == pytest.approx(54, abs=0.5)  # NCCL has buffers, too
    whole = parts(**A100, data_parallel_size=4, enable_expert_parallel=True)
    assert whole["weights"] == pytest.approx(four["weights"])  # 128 experts divide evenly
    cut = parts(**A100, data_parallel_size=2, tensor_parallel_size=2)
    experts = (one["weights"] - four["weights"]) * 4 / 3
    rest = one["weights"] - experts  # attention, embeddings and head are cut by TP alone
    # routers lie whole on both
    assert cut["weights"] == pytest.approx(experts / 4 + rest / 2, abs=0.02)
    dense = parts(model="llama-3.1-8b", gpu="a100-80gb", data_parallel_size=4)
    assert dense["weights"] == pytest.approx(14.96, abs=0.01)


def test_work_on_the_tokens_of_all_ranks_is_what_eight_h20_logged() -> None:
    """48.66 GiB of KV at 0.9 of the memory, 55.65 at 0.95: Qwen3-Coder-480B in FP8."""
    options = {"model": "qwen3-coder-480b-a35b", "gpu": "h200-sxm", "quantization": "fp8-block"}
    options |= {"data_parallel_size": 8, "enable_expert_parallel": True, "vllm_version": "0.10"}
    for share, logged in ((0.9, 48.66), (0.95, 55.65)):
        found = parts(**options, gpu_memory_utilization=share)
        assert found["kv_cache"] == pytest.approx(logged, rel=0.001)
    tokens, hidden = 8 * 8192, 6144
    rows = 32_768 * 8  # a chunk's tokens, with eight experts each
    sorted_rows = rows * (6144 * 2 + 6144 * 2 + 6144)  # both workspaces in 16 bits, inputs in 8
    gathered = 2 * tokens * hidden * 2
    assert found["activations"] == (sorted_rows + gathered) / GIB
    finer = parts(**options | {"vllm_version": "0.33"})
    assert finer["activations"] == (sorted_rows / 2 + gathered) / GIB
    as_they_come = parts(**options | {"quantization": "fp8"})
    assert as_they_come["activations"] == (rows * (6144 + 2560) * 2 + gathered) / GIB
    alone = parts(model="llama-3.1-8b", gpu="a100-80gb", data_parallel_size=4)
    assert alone["non_torch"] == pytest.approx(0.32)


def test_four_h200_hold_what_four_ranks_share() -> None:
    options = {"model": "qwen3-235b-a22b", "gpu": "h200-sxm", "max_num_seqs": 128}
    options |= {"max_model_len": 8192}
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


# -- windows, and the two lines of the log ---------------------------------------------------------


def window_plan(window: int, block_size: int = 16) -> KVPlan:
    """Make the plan of a model of one layer with a window."""
    return plan_pages([Page("sliding", window, block_size, 4, 64, 64)])


@pytest.mark.parametrize(
    ("window", "in_flight", "longest", "blocks"),
    [(300, 2048, 256, 17), (65, 128, 1000, 13), (512, 16384, 2048, 129), (1024, 2048, 4096, 193)],
)
def test_a_window_counts_one_block_more_whatever_cuts_it(
    window: int, in_flight: int, longest: int, blocks: int
) -> None:
    """Computed by vLLM's own code; so many does the rule of admissions count, too."""
    plan = window_plan(window)
    assert plan.reserved_blocks(in_flight, longest) == blocks
    assert SlidingWindow.admission_cap(window, 16, in_flight, longest) == blocks
    assert plan.blocks_for(longest, in_flight, longest) == min(blocks, -(-longest // 16))
    assert plan_pages([Page("chunked", window, 16, 4, 64, 64)]).reserved_blocks(
        in_flight, longest
    ) == -(-min(window + in_flight, longest) // 16)


def test_seventeen_blocks_of_a_thousand() -> None:
    assert round(1000 / window_plan(300).reserved_blocks(4096, 256), 2) == 58.82


@pytest.mark.parametrize(
    ("model", "options", "concurrency"),
    [
        # 25.39 GiB, as the log rounds them: 0.02 % either way
        ("gemma-3-1b", {"max_model_len": 2048, "kv_cache_memory_bytes": 27262304911}, 461.21),
        ("gemma-3-1b", {"max_model_len": 256, "kv_cache_memory_bytes": 27262304911}, 3525.4),
        ("gemma-3-27b", {"max_model_len": 4096, "num_gpu_blocks_override": 89_994}, 50.05),
    ],
)
def test_concurrency_is_what_servers_with_windows_logged(
    model: str, options: dict[str, int], concurrency: float
) -> None:
    found = kvsim.capacity(model=model, gpu="h100-sxm", **options)
    assert found.logged_concurrency == pytest.approx(concurrency, rel=2e-4)
    longest = str(options["max_model_len"])
    assert found.max_concurrency[longest] == int(found.logged_concurrency)
    assert found.num_tokens == int(found.logged_concurrency * found.max_model_len)


def test_the_logs_tokens_are_those_of_requests_since_0_21() -> None:
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 100}
    options |= {"kv_cache_memory_bytes": 10 * GIB}
    found = kvsim.capacity(**options)
    assert (found.num_gpu_blocks, found.num_tokens) == (5120, 73_142)
    for version in ("0.20.2", "0.6.4"):
        assert kvsim.capacity(vllm_version=version, **options).num_tokens == 81_920
    assert kvsim.capacity(vllm_version="0.21", **options).num_tokens == 73_142


@pytest.mark.parametrize(
    ("model", "groups"), [("gemma-3-27b", 7), ("gpt-oss-20b", 2), ("qwen3.5-27b", 4)]
)
def test_before_it_they_were_those_of_a_groups_blocks(model: str, groups: int) -> None:
    options = {"model": model, "gpu": "h200-sxm", "num_gpu_blocks_override": 9999}
    old = kvsim.capacity(vllm_version="0.20", **options)
    assert old.num_tokens == 9999 // groups * old.block_size
    new = kvsim.capacity(**options)
    assert new.num_tokens == int(new.logged_concurrency * new.max_model_len) != old.num_tokens


@pytest.mark.parametrize(("version", "tokens"), [("0.33", 73_142), ("0.20", 81_920)])
def test_a_logs_tokens_become_its_blocks(version: str, tokens: int) -> None:
    options: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 100}
    config = Config.build(vllm_version=version, num_gpu_blocks_override=1000, **options)
    assert blocks_of_tokens(config, resolve_memory(config), tokens) == 5120


# -- latents, before there were kernels for them ---------------------------------------------------

DEEPSEEK = {"model": "deepseek-v2", "gpu": "h100-sxm", "tensor_parallel_size": 8}
DEEPSEEK |= {"gpu_memory_utilization": 0.95, "max_model_len": 8192}


@pytest.mark.parametrize(
    ("version", "size"),
    [("0.5", 983_040), ("0.6.6", 983_040), ("0.7.0", 983_040), ("0.7.1", 69_120), ("0.7", 69_120)],
)
def test_keys_and_values_of_mla_were_full_and_padded(version: str, size: int) -> None:
    """2 x 60 layers x 16 heads of a rank x 256 elements of 2 bytes."""
    found = kvsim.capacity(vllm_version=version, **DEEPSEEK)
    assert found.bytes_per_token == size
    if size == 983_040:  # 2,368 tokens were logged: 2.2 GiB
        parts = {"kv_cache": 2368 * size / GIB}
        logged = kvsim.capacity(vllm_version=version, logged=parts, **DEEPSEEK)
        assert logged.num_tokens == 2368


def test_decodes_over_full_keys_are_priced_as_such() -> None:
    def decode(version: str) -> Any:
        options = DEEPSEEK | {"num_gpu_blocks_override": 100, "vllm_version": version}
        work = resolve(Config.build(**options)).cost.work  # type: ignore[attr-defined]
        return work.classes[0]

    old, new = decode("0.6.6"), decode("0.7.1")
    assert old.kv_bytes == 983_040
    assert new.kv_bytes == 69_120
    assert old.pair_flops < new.pair_flops  # 192 + 128 multiply-adds, not 576 + 512
    assert old.pair_flops == old.prompt_pair_flops


# -- block sizes by attention kernels --------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "gpu", "dtype", "size"),
    [
        ("llama-3.1-8b", "h100-sxm", "auto", 16),
        ("llama-3.1-8b", "b200", "fp8", 16),
        ("llama-3.1-8b", "mi300x", "auto", 16),
        ("deepseek-v3", "h200-sxm", "auto", 16),
        ("deepseek-v3", "h200-sxm", "fp8", 64),
        ("deepseek-v3", "a100-80gb", "fp8", 16),
        ("deepseek-v3", "rtx-pro-6000", "fp8", 16),
        ("deepseek-v3", "b200", "auto", 32),
        ("deepseek-v3", "gb300", "fp8", 32),
        ("kimi-k2.5", "b200", "auto", 32),
        ("deepseek-v3.2", "h200-sxm", "auto", 64),
        ("deepseek-v3.2", "b200", "fp8", 64),
        ("glm-5", "h200-sxm", "auto", 64),
        ("minimax-m3", "h200-sxm", "auto", 128),
        ("gemma-4-26b-a4b", "h100-sxm", "fp8", 64),
        ("gemma-4-26b-a4b", "h100-sxm", "auto", 16),
        ("gemma-4-26b-a4b", "l40s", "fp8", 16),
    ],
)
def test_block_sizes_are_those_of_vllms_kernels(
    model: str, gpu: str, dtype: str, size: int
) -> None:
    options = {"model": model, "gpu": gpu, "kv_cache_dtype": dtype, "tensor_parallel_size": 16}
    options |= {"num_gpu_blocks_override": 100, "max_model_len": 4096}
    if model == "gemma-4-26b-a4b":
        options["tensor_parallel_size"] = 2
    config = Config.build(**options)
    memory = resolve_memory(config)
    found = default_block_size(memory.model, gpu, memory.layout.dtype, "0.33")
    assert found == size
    assert memory.block_size % size == 0
    given = kvsim.capacity(**options, block_size=128)
    assert given.block_size % 128 == 0
    notes = kvsim.capacity(**options).assumptions
    assert any(note.startswith(f"block_size {size} (of vLLM's") for note in notes) == (size != 16)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "size", "unit"), [("llama-3.1-8b", 7, 16), ("deepseek-v3.2", 16, 64)]
)
def test_a_block_size_that_no_kernel_takes_is_said(model: str, size: int, unit: int) -> None:
    options: dict[str, Any] = {"model": model, "gpu": "h200-sxm", "block_size": size}
    options |= {"num_gpu_blocks_override": 5000, "max_model_len": 4096, "tensor_parallel_size": 8}
    said = f"kernels for {model} take multiples of {unit}; vLLM would not start"
    assert any(said in note for note in kvsim.capacity(**options).assumptions)
    trace = kvsim.Trace.from_arrays([0.0], [10], [2])
    run = kvsim.simulate(trace, backend="python", **options)
    assert said in json.dumps(run.provenance)
    fine = kvsim.simulate(trace, backend="python", **options | {"block_size": 2 * unit})
    assert "refuse to start" not in json.dumps(fine.provenance)


# -- drafters with a file of their own -------------------------------------------------------------

#: Five layers with a window, otherwise as wide as the target (Qwen3.5-27B's shape).
DFLASH = {
    "model_type": "qwen3",
    "num_hidden_layers": 5,
    "hidden_size": 5120,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 17408,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "sliding_window": 2048,
    "layer_types": ["sliding_attention"] * 5,
}
SERVED = {
    "model": "Qwen/Qwen3.8-27B",
    "hf_config_path": "qwen3.5-27b",
    "gpu": "rtx-3090",
    "quantization": "int4",
    "max_model_len": 60928,
    "max_num_seqs": 8,
    "mamba_ssm_cache_dtype": "bfloat16",
    "kv_cache_memory_bytes": 6_000_000_000,
}


@pytest.fixture
def dflash(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(DFLASH))
    return file


@pytest.mark.parametrize("method", ["dflash", "draft_model"])
def test_a_drafters_own_file_counts(dflash: Path, method: str) -> None:
    """VLLM 0.29 served 61,303 tokens so (public copy of a log 70778931940)."""
    spec = {"method": method, "model": str(dflash), "num_speculative_tokens": 7}
    found = kvsim.capacity(**SERVED, speculative_config=spec)
    assert (found.num_tokens, found.fits) == (61_303, True)
    assert not any("the model's own shape" in note for note in found.assumptions)


def test_without_a_file_a_drafter_has_the_targets_shape(dflash: Path) -> None:
    spec = {"method": "dflash", "model": "z-lab/Qwen3.5-27B-DFlash", "num_speculative_tokens": 7}
    found = kvsim.capacity(**SERVED, speculative_config=spec)
    assert found.num_tokens < 61_303
    assert any("the model's own shape" in note for note in found.assumptions)
    own = kvsim.capacity(**SERVED, speculative_config=spec | {"model": str(dflash)})
    shared = 2 * 248320 * 5120 * 2  # embedding and LM head are the target's
    alone = spec | {"method": "draft_model", "model": str(dflash)}
    whole = kvsim.capacity(**SERVED, speculative_config=alone)
    joined = 5 * 5120 * 5120 * 2
    sizes = [c.budget_bytes["drafter"] for c in (own, whole)]
    assert sizes[1] - sizes[0] == shared - joined


def test_a_run_drafts_with_that_file(dflash: Path) -> None:
    spec = {"method": "dflash", "model": str(dflash), "num_speculative_tokens": 7}
    trace = kvsim.Trace.from_arrays([0.0, 0.1], [3000, 50], [40, 40])
    run = kvsim.simulate(
        trace, backend="python", check_invariants=True, speculative_config=spec, **SERVED
    )
    assert run.summary["completed"] == 2


def test_the_head_of_a_file_is_the_head_by_method(tmp_path: Path) -> None:
    file = tmp_path / "eagle.json"
    values = json.loads((CONFIGS / "llama-3.1-8b.json").read_text("utf-8"))
    file.write_text(json.dumps(values | {"num_hidden_layers": 1}))
    spec = {"method": "eagle", "num_speculative_tokens": 3}
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 8192}
    plain = kvsim.capacity(**options, speculative_config=spec)
    own = kvsim.capacity(**options, speculative_config=spec | {"model": str(file)})
    assert own.bytes_per_token == plain.bytes_per_token
    off = own.budget_bytes["drafter"] - plain.budget_bytes["drafter"]
    assert abs(off) <= 2 * 2 * 4096  # a norm


# -- decode context parallelism --------------------------------------------------------------------

BLOCK = Page("full", None, 16, 4, 64, 64, num_shares=1)


def logged(pages: list[Page], blocks: int, longest: int, in_flight: int = 64) -> int:
    """Return the tokens that vLLM logs for a plan."""
    return int(blocks / plan_pages(pages).reserved_blocks(in_flight, longest) * longest)


def test_tokens_of_shared_blocks_are_what_vllms_code_computes() -> None:
    """VLLM3, section 4: computed by the real code."""
    two, four = BLOCK._replace(num_shares=2), BLOCK._replace(num_shares=4)
    assert logged([BLOCK], 5120, 100) == 73_142
    assert logged([two], 5120, 100) == 128_000
    assert logged([four], 1001, 1000) == 62_562
    eight = BLOCK._replace(block_size=64, is_latent=True, num_shares=8)
    assert logged([eight], 77, 1000) == 38_500
    mamba = Page("mamba", None, 16, 0, 64, 64, state=StateCache("align"))
    assert logged([mamba, four], 1001, 1000) == 55_611
    assert logged([two, BLOCK], 1001, 1000) == 10_536
    window = BLOCK._replace(kind="sliding", window=65)
    assert logged([two, window], 1001, 1000) == 24_414
    assert plan_pages([mamba, four]).scheduler_block_size == 64
    assert plan_pages([two, BLOCK]).hash_block_size == 16


KIMI = {"model": "kimi-k2-thinking", "gpu": "h200-sxm", "tensor_parallel_size": 8}
KIMI |= {"vllm_version": "0.11", "logged": {"kv_cache": 46.80}, "max_model_len": 131072}


def test_a_server_with_context_parallelism_logged_so_many_tokens() -> None:
    """Row A16: 5,721,088, eight times those without; the log rounds its GiB."""
    one = kvsim.capacity(**KIMI)
    eight = kvsim.capacity(**KIMI, decode_context_parallel_size=8)
    assert eight.num_tokens == 8 * one.num_tokens
    assert eight.num_tokens == pytest.approx(5_721_088, rel=0.005 / 46.80)
    assert eight.num_gpu_blocks == one.num_gpu_blocks
    assert eight.max_concurrency["131072"] == pytest.approx(
        8 * one.max_concurrency["131072"], abs=8
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "kimi-k2-thinking", "tensor_parallel_size": 8, "dcp": 3}, "divide tensor_par"),
        ({"model": "llama-3.1-8b", "tensor_parallel_size": 8, "dcp": 2}, "at most tensor_parallel"),
        ({"model": "llama-3.1-8b", "tensor_parallel_size": 16, "dcp": 2}, None),
        ({"model": "gemma-3-27b", "tensor_parallel_size": 16, "dcp": 2}, "sliding-window layers"),
        (
            {"model": "llama-3.1-8b", "tensor_parallel_size": 16, "engine": "sglang", "dcp": 2},
            "has no latents",
        ),
    ],
)
def test_where_tokens_are_not_shared_out(options: dict[str, Any], message: str | None) -> None:
    given = options | {"decode_context_parallel_size": options["dcp"], "gpu": "h200-sxm"}
    del given["dcp"]
    if message is None:
        assert kvsim.capacity(**given).num_gpu_blocks > 0
        return
    with pytest.raises(ValueError, match=message):
        kvsim.capacity(**given)


def test_a_drafter_beside_shared_tokens_has_all_of_them() -> None:
    spec = {"method": "eagle", "num_speculative_tokens": 1}
    options = {"model": "llama-3.1-8b", "gpu": "h200-sxm", "tensor_parallel_size": 16}
    config = Config.build(**options, speculative_config=spec, decode_context_parallel_size=2)
    groups = resolve_memory(config).plan.groups
    assert {(group.num_shares, group.num_layers) for group in groups} == {(2, 1), (1, 1)}


@pytest.mark.parametrize(
    ("blocks", "tokens", "concurrency"), [(153, 79_648, 4.03), (304, 159_296, 8.0)]
)
def test_a_server_of_0_20_logged_the_tokens_of_a_group(
    blocks: int, tokens: int, concurrency: float
) -> None:
    """Qwen3.6-35B-A3B in NVFP4 with FP8 KV, as in tests/data/logs/vllm-0.20.0.log."""
    found = kvsim.capacity(
        **{"model": "qwen3.6-35b-a3b", "gpu": "rtx-5090", "quantization": "nvfp4"},
        **{"kv_cache_dtype": "fp8", "max_model_len": 65536, "vllm_version": "0.20"},
        num_gpu_blocks_override=blocks,
    )
    assert (found.block_size, found.num_tokens) == (2096, tokens)
    assert round(found.logged_concurrency, 2) == concurrency


# -- what ranks do not share out -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "quantization", "ranks", "logged", "off"),
    [
        ("deepseek-r1", "fp8-block", 8, 79.74, 0.005),
        ("glm-5.2", "nvfp4", 4, 106.86, 0.01),
        ("kimi-k2.5", "int4", 8, 73.58, 0.035),
    ],
)
def test_latents_and_routers_lie_on_every_rank_as_logged(
    model: str, quantization: str, ranks: int, logged: float, off: float
) -> None:
    options = {"gpu": "b200", "tensor_parallel_size": ranks, "max_model_len": 8192}
    found = parts(model=model, quantization=quantization, **options)
    assert found["weights"] == pytest.approx(logged, rel=off)


def test_one_rank_has_a_copy_of_the_up_projections_alone() -> None:
    model = get_model("deepseek-v2-lite")
    copies = 27 * 512 * 16 * (128 + 128) * 2
    assert replicated_bytes(model) == copies
    whole = 27 * 2048 * (512 + 64) * 2 + 26 * 2048 * 64 * 2
    assert replicated_bytes(model, tensor_parallel_size=2) == copies // 2 + whole // 2
    assert replicated_bytes(get_model("llama-3.1-8b"), tensor_parallel_size=2) == 0
