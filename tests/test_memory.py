"""KV layout, planner, budget and capacity against published and logged figures."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import kvsim
from kvsim.budget.budget import engine_of
from kvsim.budget.layout import KV_DTYPES, heads_per_rank, kv_dtype, kv_layout
from kvsim.budget.limits import limits_of
from kvsim.budget.weights import weight_bytes
from kvsim.catalog import get_gpu, get_model
from kvsim.cli import main
from kvsim.config import Config
from kvsim.engine.capacity import capacity

GB = 10**9


def kv_bytes(model: str, dtype: str = "bf16", **options: int) -> int:
    return kv_layout(get_model(model), kv_dtype(dtype), **options).bytes_per_token


# -- the figures the project started from (published claims, checked by hand) ----------------------


def test_llama_2_7b_seed_figures() -> None:
    per_token = kv_bytes("llama-2-7b")
    assert per_token == 524_288
    assert 4096 * per_token == 2_147_483_648
    assert 8 * 4096 * per_token == 17_179_869_184
    assert 32 * 4096 * per_token == pytest.approx(68.7 * GB, rel=1e-3)
    assert 4096 * kv_bytes("llama-2-7b", num_kv_heads=8) == 536_870_912
    assert 4096 * kv_bytes("llama-2-7b", num_kv_heads=1) == 67_108_864


@pytest.mark.parametrize(
    ("num_tokens", "gigabytes"),
    [(256, 1.07), (512, 2.15), (1024, 4.29), (2048, 8.59), (4096, 17.18), (8192, 34.36)],
)
def test_llama_3_8b_batch_of_32(num_tokens: int, gigabytes: float) -> None:
    assert round(32 * num_tokens * kv_bytes("llama-3-8b") / GB, 2) == gigabytes


def test_llama_2_70b_128_requests() -> None:
    assert round(128 * 2048 * kv_bytes("llama-2-70b") / GB, 1) == 85.9


def test_published_paged_capacity() -> None:
    """60 GB of KV, Llama-3-8B, pages of 16 tokens."""
    c = capacity(model="llama-3-8b", gpu="a100-80gb", kv_cache_memory_bytes=60 * GB)
    assert (c.bytes_per_block, c.num_gpu_blocks, c.num_tokens) == (2_097_152, 28_610, 457_760)
    assert {k: v for k, v in c.max_concurrency.items() if int(k) <= 4096} == {
        "256": 1788,
        "512": 894,
        "1024": 447,
        "2048": 223,
        "4096": 111,
    }


@pytest.mark.parametrize(
    ("model", "gpus", "gpu", "kv_gib", "slots", "tolerance"),
    [
        ("opt-13b", 1, "a100-40gb", 12, 15.7e3, 0.002),
        ("opt-66b", 4, "a100-40gb", 21, 9.7e3, 0.015),
        ("opt-175b", 8, "a100-80gb", 264, 60.1e3, 0.002),
    ],
)
def test_table_1_of_the_paper(
    model: str, gpus: int, gpu: str, kv_gib: int, slots: float, tolerance: float
) -> None:
    c = capacity(
        model=model,
        gpu=gpu,
        tensor_parallel_size=gpus,
        kv_cache_memory_bytes=kv_gib * 2**30 // gpus,
    )
    # The paper counts slots, not whole blocks; with 66B the difference matters.
    assert kv_gib * 2**30 // (c.bytes_per_token * gpus) == pytest.approx(slots, rel=tolerance)
    assert c.num_tokens == pytest.approx(slots, rel=tolerance + 0.001)


# -- dtypes, ranks, stages ------------------------------------------------------------------------


def test_fp8_halves_and_int8_gives_back_its_scales() -> None:
    full = kv_bytes("llama-3-8b")
    assert kv_bytes("llama-3-8b", "fp8") * 2 == full
    assert kv_bytes("llama-3-8b", "fp32") == 2 * full
    # one FP32 scale per token, head and vector: 4 / 128 = 3.1 % of an element
    assert kv_bytes("llama-3-8b", "int8") * 128 * 2 == full * (128 + 4)
    assert kv_bytes("llama-3-8b", "int4") * 128 * 4 == full * (128 + 8)
    layout = kv_layout(get_model("llama-3-8b"), kv_dtype("int8"))
    assert layout.scale_bytes_per_token == 32 * 2 * 8 * 4


def test_vllm_spellings_of_dtypes() -> None:
    assert kv_dtype("auto", model_dtype="fp16") is KV_DTYPES["fp16"]
    assert kv_dtype("fp8_e4m3") is KV_DTYPES["fp8"]
    assert kv_dtype("bfloat16") is KV_DTYPES["bf16"]
    with pytest.raises(
        ValueError, match="unknown KV cache dtype 'int3'; did you mean int8 or int4"
    ):
        kv_dtype("int3")


def test_kv_in_nvfp4_is_refused_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "vllm", "serve", "llama-3.1-8b", "--kv-cache-dtype", "nvfp4", "--gpu", "b200"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "kvsim: KV cache dtype 'nvfp4': the slot sizes of NVFP4 KV are not modelled (allowed: "
        "auto, fp32, bf16, fp16, fp8, int8, int4)"
    )


def test_kv_heads_divide_over_ranks_and_are_copied_below_one() -> None:
    assert kv_bytes("llama-3-8b", tensor_parallel_size=4) * 4 == kv_bytes("llama-3-8b")
    assert kv_bytes("llama-3-8b", tensor_parallel_size=16) * 8 == kv_bytes("llama-3-8b")
    assert kv_bytes("deepseek-v3", tensor_parallel_size=8) == kv_bytes("deepseek-v3") == 70_272
    assert heads_per_rank(4, 2) == 2
    with pytest.raises(ValueError, match=r"8 KV heads cannot be divided over .*size 3"):
        kv_bytes("llama-3-8b", tensor_parallel_size=3)


def test_pipeline_stages_hold_their_layers() -> None:
    assert kv_bytes("llama-3-8b", pipeline_parallel_size=2) * 2 == kv_bytes("llama-3-8b")
    assert kv_bytes("deepseek-v3", pipeline_parallel_size=2) == 31 * 1152  # 31 of 61 layers
    with pytest.raises(ValueError, match="exceeds the 32 layers"):
        kv_bytes("llama-3-8b", pipeline_parallel_size=33)


# -- budget and capacity --------------------------------------------------------------------------


def test_weights_by_dtype_quantisation_and_rank() -> None:
    llama = get_model("llama-3-8b")
    assert weight_bytes(llama) == 2 * 8_030_261_248
    assert weight_bytes(llama, dtype="fp32") == 4 * 8_030_261_248
    assert weight_bytes(llama, tensor_parallel_size=2) == 8_030_261_248
    gib = weight_bytes(get_model("gpt-oss-20b"), quantization="mxfp4") / 2**30
    assert gib == pytest.approx(12.8, rel=0.05)  # the checkpoint is 12.8 GiB
    ends = 2 * 128_256 * 4096 * 2
    assert weight_bytes(llama, quantization="fp8") == 8_030_261_248 - ends // 2 + ends
    assert weight_bytes(llama, pipeline_parallel_size=2) < weight_bytes(llama) * 0.6


def test_a_budget_adds_up() -> None:
    c = capacity(model="llama-3-8b", gpu="a100-80gb")
    b = c.budget_bytes
    parts = b["weights"] + b["activations"] + b["non_torch"] + b["cuda_graphs"] + b["kv_cache"]
    assert parts == b["total"] == int(get_gpu("a100-80gb").memory_bytes * 0.92)
    assert c.num_gpu_blocks == b["kv_cache"] // c.bytes_per_block
    eager = capacity(model="llama-3-8b", gpu="a100-80gb", enforce_eager=True)
    assert eager.budget_bytes["kv_cache"] == b["kv_cache"] + b["cuda_graphs"]


def test_overrides_and_fit() -> None:
    c = capacity(model="llama-3-8b", gpu="l4", num_gpu_blocks_override=512)
    assert (c.num_gpu_blocks, c.num_tokens, c.fits) == (
        512,
        8192,
        False,
    )  # block 0 is the null block
    assert capacity(model="llama-3-8b", gpu="l4", num_gpu_blocks_override=513).fits
    assert c.max_concurrency["8192"] == 0  # what does not fit once is not said to fit
    with pytest.raises(ValueError, match="at least one block, 2097152 bytes"):
        capacity(model="llama-3-8b", gpu="l4", kv_cache_memory_bytes=1000)


def test_weights_that_do_not_fit_are_refused_with_the_sizes() -> None:
    with pytest.raises(ValueError, match=r"llama-3-70b does not fit: weights 131\.4 GiB"):
        capacity(model="llama-3-70b", gpu="a100-80gb")


def test_conventions_follow_the_vllm_version() -> None:
    shares = {v: engine_of(v).gpu_memory_utilization for v in ("0.20.2", "0.21.0", "0.33")}
    assert shares == {"0.20.2": 0.90, "0.21.0": 0.92, "0.33": 0.92}
    counted = {v: engine_of(v).counts_graphs for v in ("v0.19.1", "0.20.2", "0.21.0", "0.33")}
    assert counted == {"v0.19.1": False, "0.20.2": False, "0.21.0": True, "0.33": True}
    assert engine_of("0.6.4.post1").sampler_copies == 9.9
    with pytest.raises(ValueError, match=r"must look like 0\.33"):
        engine_of("latest")


def test_vllm_defaults_by_gpu_class() -> None:
    def limits(gpu: str) -> tuple[str, ...]:
        notes = capacity(model="llama-3-8b", gpu=gpu).assumptions
        return tuple(note.split(" (")[0] for note in notes[:2])

    assert limits("h100-sxm") == ("max_num_seqs 1024", "max_num_batched_tokens 8192")
    assert limits("a100-80gb") == ("max_num_seqs 256", "max_num_batched_tokens 2048")
    assert limits("b200") == ("max_num_seqs 1024", "max_num_batched_tokens 16384")


def test_impossible_limits() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(8\) must be at least max_num_"):
        capacity(model="llama-3-8b", gpu="l4", max_num_batched_tokens=8, max_num_seqs=16)
    with pytest.raises(ValueError, match="without chunked prefill"):
        kvsim.capacity(
            model="llama-3-8b",
            gpu="h100-sxm",
            enable_chunked_prefill=False,
            max_num_batched_tokens=4096,
        )


#: Start-up logs that name GPU, utilisation, version and lengths; the overhead terms were fitted on
#: logs like these, so this is a check of the arithmetic, not of the fit.
LOGGED = {
    ("meta-llama/Llama-3.1-8B", "RTX 4090 24GB (25250627584 B)"): {
        "gpu": replace(get_gpu("rtx-4090"), memory_bytes=25_250_627_584),  # as logged
        "vllm_version": "0.19.0",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
    },
    ("meta-llama/Llama-2-7b-hf", "H100 80GB"): {
        "gpu": "h100-sxm",
        "vllm_version": "0.15.1",
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
    },
}


def test_logged_block_counts_come_out_within_three_percent(whole_data: Path) -> None:
    with (whole_data / "vllm_startup_blocks.csv").open() as file:
        rows = {(r["model"], r["gpu"]): r for r in csv.DictReader(file)}
    for key, options in LOGGED.items():
        row = rows[key]
        c = capacity(
            model=row["model"],
            gpu_memory_utilization=float(row["gpu_memory_utilization"]),
            max_model_len=int(row["max_model_len"]),
            **options,
        )
        assert c.num_gpu_blocks == pytest.approx(int(row["num_gpu_blocks"]), rel=0.03), key


def test_capacity_honours_the_allocator_and_its_modifiers():
    plain = capacity(model="llama-3-8b", gpu="a100-80gb")
    assert capacity(
        model="llama-3-8b", gpu="a100-80gb", allocator="paged+fp8"
    ).bytes_per_token * 2 == (plain.bytes_per_token)
    assert capacity(
        model="llama-3-8b", gpu="a100-80gb", allocator="paged+mqa"
    ).bytes_per_token * 8 == (plain.bytes_per_token)
    larger = capacity(model="llama-3-8b", gpu="a100-80gb", allocator="paged+block-size=32")
    assert larger.block_size == 32
    assert larger.num_gpu_blocks == plain.num_gpu_blocks // 2
    for wrong in ("contiguous-max", "pagd"):
        with pytest.raises(ValueError, match="allocator"):
            capacity(model="llama-3-8b", gpu="a100-80gb", allocator=wrong)


def test_kv_heads_of_their_own_replace_the_latent_of_mla():
    # DeepSeek-V3: 61 layers, head_dim 128, one KV head, K and V in bf16.
    answer = capacity(
        model="deepseek-v3",
        gpu="b200",
        tensor_parallel_size=8,
        num_gpu_blocks_override=1000,
        allocator="paged+mqa",
    )
    assert answer.bytes_per_token == 2 * 61 * 1 * 128 * 2


def test_what_is_not_given_widens_the_blocks_to_a_range() -> None:
    options = {"model": "llama-3.1-8b", "gpu": "rtx-4090", "max_model_len": 8192}
    open_ended = kvsim.capacity(**options)
    assert open_ended.num_gpu_blocks_range is not None
    fewest, most = open_ended.num_gpu_blocks_range
    assert fewest < open_ended.num_gpu_blocks < most
    given = kvsim.capacity(max_num_seqs=128, max_num_batched_tokens=2048, **options)
    assert given.num_gpu_blocks_range is None
    assert given.num_gpu_blocks == most  # the least that activations can take
    assert kvsim.capacity(num_gpu_blocks_override=7, **options).num_gpu_blocks_range is None


def test_a_small_kv_share_is_called_scarce() -> None:
    assert kvsim.capacity(model="llama-3.1-8b", gpu="rtx-4090", max_model_len=8192).scarce
    assert not kvsim.capacity(model="llama-3.1-8b", gpu="h100-sxm", max_model_len=8192).scarce


# -- parts of the budget from a log ----------------------------------------------------------------

#: The first start-up log of a Llama-3.1-8B on an RTX 3090, vLLM 0.6.4: GiB, and 1,952 blocks.
LOG = {"memory": 23.58, "weights": 14.9888, "non_torch": 0.35, "activations": 2.07}


def test_logged_parts_take_the_place_of_estimates() -> None:
    options = {"model": "llama-3.1-8b", "gpu": "rtx-3090", "gpu_memory_utilization": 0.9}
    options |= {"max_model_len": 20000, "vllm_version": "0.6.4", "max_num_seqs": 256}
    found = kvsim.capacity(logged=LOG, **options)
    assert found.num_gpu_blocks == 1952
    assert found.budget_bytes["kv_cache"] / 2**30 == pytest.approx(3.81, abs=0.015)
    assert found.num_gpu_blocks_range is None  # nothing is left that depends on the defaults
    assert not any("estimated" in note and "activations" in note for note in found.assumptions)
    for part, gib in LOG.items():
        one = kvsim.capacity(logged={part: gib}, **options).budget_bytes
        key, factor = ("total", 0.9) if part == "memory" else (part, 1.0)
        assert one[key] == pytest.approx(gib * factor * 2**30, abs=2)
        parts = sum(size for name, size in one.items() if name != "total")
        assert parts == one["total"]
    assert kvsim.capacity(logged={"kv_cache": 3.81}, **options).num_gpu_blocks == 1950


def test_logged_budgets_give_the_logged_blocks(whole_data) -> None:
    """Every start-up log with a full breakdown and a known card: blocks within 0.3 %."""
    logs = pd.read_csv(whole_data / "vllm_startup_blocks.csv")
    columns = ["total_gpu_mem_gib", "weights_gib", "non_torch_gib", "act_peak_gib"]
    logs = logs[logs[[*columns, "num_gpu_blocks", "kv_cache_gib_per_gpu"]].notna().all(axis=1)]
    errors = []
    for log in logs.itertuples():
        if "Llama-3.1-8B" not in log.model:
            continue
        values = dict(zip(LOG, (getattr(log, c) for c in columns), strict=True))
        values |= {"kv_cache": log.kv_cache_gib_per_gpu}
        found = kvsim.capacity(
            model="llama-3.1-8b", gpu="rtx-3090", logged=values, max_model_len=8192
        )
        errors.append(abs(found.num_gpu_blocks / log.num_gpu_blocks - 1))
    assert len(errors) >= 2
    assert max(errors) <= 0.003


@pytest.mark.parametrize(
    ("logged", "message"),
    [
        ({"weight": 1.0}, "did you mean weights"),
        ({"weights": -1.0}, "must be a number, at least 0"),
        ({"kv_cache": 0.0}, "at least one block"),
        ({"weights": 90.0}, "does not fit"),
    ],
)
def test_wrong_logged_parts_are_refused(logged: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kvsim.capacity(model="llama-3-8b", gpu="a100-80gb", logged=logged)


# -- a latent that the model does not have --------------------------------------------------------


def test_a_latent_keeps_its_rank_and_the_rotary_part_on_every_rank() -> None:
    options = {"model": "llama-3-8b", "gpu": "h100-sxm"}
    for tp in (1, 2, 8):  # replicated: no heads to divide
        found = kvsim.capacity(allocator="paged+mla=512", tensor_parallel_size=tp, **options)
        assert found.bytes_per_token == 32 * (512 + 64) * 2
    own = kvsim.capacity(model="deepseek-v3", gpu="h200-sxm", tensor_parallel_size=8)
    what_if = kvsim.capacity(
        model="deepseek-v3", gpu="h200-sxm", tensor_parallel_size=8, allocator="paged+mla=512"
    )
    assert own.bytes_per_token == what_if.bytes_per_token == 70_272
    assert own.num_gpu_blocks == what_if.num_gpu_blocks


def test_the_attention_of_a_latent_costs_what_deepseeks_does() -> None:
    trace = kvsim.Trace.from_arrays([0.0, 0.0], [900, 40], [30, 20])
    options = {"model": "deepseek-v3", "gpu": "h200-sxm", "tensor_parallel_size": 8}
    own = kvsim.simulate(trace, **options)
    what_if = kvsim.simulate(trace, allocator="paged+mla=512", **options)
    assert own.requests.tolist() == what_if.requests.tolist()


@pytest.mark.parametrize(
    ("allocator", "message"),
    [
        ("paged+mla=512+gqa=8", "a latent has no KV heads"),
        ("paged+mla=512+mqa", "a latent has no KV heads"),
        ("paged+mla", "mla=512"),
        ("paged+mla=0", "at least 1"),
    ],
)
def test_wrong_latents_are_refused(allocator: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kvsim.capacity(model="llama-3-8b", gpu="h100-sxm", allocator=allocator)


@pytest.mark.parametrize(
    ("longest", "tokens"), [(1024, 2048), (8192, 8192), (32768, 32768), (32769, 512)]
)
def test_v0_ran_whole_prompts_of_256_sequences_unless_they_were_long(
    longest: int, tokens: int
) -> None:
    config = Config.build(
        model="llama-3.1-8b", gpu="h100-sxm", vllm_version="0.6.4", max_model_len=longest
    )
    limits = limits_of(config, get_model("llama-3.1-8b"), get_gpu("h100-sxm"))
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (tokens, 256)
    later = config.model_copy(update={"vllm_version": "0.8"})
    limits = limits_of(later, get_model("llama-3.1-8b"), get_gpu("h100-sxm"))
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (8192, 1024)
