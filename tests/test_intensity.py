"""Arithmetic intensity against closed forms, and the command that prints it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import kvsim
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.catalog import get_gpu, get_model, gpu_names, model_names
from kvsim.cli import main
from kvsim.cost.model import CostConfig
from kvsim.cost.roofline import RooflineCost
from kvsim.cost.traffic import gemm_activation_bytes, query_bytes
from kvsim.intensity.roofline import Roofline, roofline
from kvsim.intensity.uniform import uniform_work
from kvsim.records.cost import Work
from kvsim.records.request import Request
from kvsim.sched.scheduler import StepPlan

#: Elements of Llama-3-8B's and Llama-2-7B's matrices, embedding aside.
LLAMA_3_8B = 7_504_924_672
HEAD = 128_256 * 4096


def cost_config(model: str, gpu: str = "h100-sxm", tp: int = 1) -> CostConfig:
    spec = get_model(model)
    layout = kv_layout(spec, kv_dtype("bf16"), tensor_parallel_size=tp)
    return CostConfig(spec, get_gpu(gpu), layout, tensor_parallel_size=tp)


def intensity(found: Roofline, phase: str, part: str) -> float:
    return found.row(phase, part).intensity


# -- known answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "quantization", "ridge"),
    [
        ("h100-sxm", None, 989.4 / 3.35),  # 295
        ("a100-40gb", None, 312 / 1.555),  # 200.6
        ("mi300x", "fp8", 493),
        ("mi300x", None, 1307.4 / 5.3),
        ("h100-sxm", "awq", 989.4 / 3.35),  # 4-bit weights, 16-bit arithmetic
        ("a100-40gb", "fp8", 312 / 1.555),  # has no FP8 unit
        ("a100-40gb", "int8", 624 / 1.555),
    ],
)
def test_ridge_points(gpu: str, quantization: str | None, ridge: float) -> None:
    found = roofline(model="llama-3-8b", gpu=gpu, quantization=quantization)
    assert found.ridge_point == pytest.approx(ridge, rel=2e-3)
    assert found.row("decode", "GEMMs").ridge_point == found.ridge_point
    attention = found.row("decode", "attention").ridge_point
    assert attention == pytest.approx(
        get_gpu(gpu).bf16_flops_per_s / get_gpu(gpu).memory_bandwidth_bytes_per_s
    )


@pytest.mark.parametrize("batch", [1, 8, 32, 128])
def test_a_decode_gemm_does_as_many_operations_per_byte_as_the_batch_is_large(batch: int) -> None:
    row = roofline(model="llama-3-8b", batch_size=batch).row("decode", "GEMMs")
    # 2 m n k operations; 2 (n k + m k + m n) bytes
    layer = 4096 + 6144 + 4096 + 4096 + 4096 + 28_672 + 14_336 + 4096
    activations = 32 * layer + 4096 + 128_256
    assert row.flops == 2 * batch * LLAMA_3_8B
    # the weights hold norms, too, which no GEMM reads twice
    assert row.num_bytes == pytest.approx(2 * (LLAMA_3_8B + batch * activations), rel=1e-9)
    assert 0.95 * batch < row.intensity < batch


@pytest.mark.parametrize(
    ("model", "kv_cache_dtype", "expected"),
    [
        ("llama-2-7b", "auto", 1),  # MHA
        ("opt-13b", "auto", 1),
        ("llama-3-8b", "auto", 4),  # 4 query heads per KV head
        ("llama-2-70b", "auto", 8),
        ("llama-3-8b", "fp8", 8),
        ("falcon-7b", "auto", 71),  # MQA
    ],
)
def test_decode_attention_has_the_intensity_of_its_head_groups(
    model: str, kv_cache_dtype: str, expected: float
) -> None:
    found = [
        roofline(model=model, gpu="h100-sxm", kv_cache_dtype=kv_cache_dtype, batch_size=n)
        for n in (1, 64, 10**6)
    ]
    values = {intensity(one, "decode", "attention") for one in found}
    assert max(values) == pytest.approx(min(values), rel=1e-12)  # whatever the batch
    # queries, outputs and the new token's KV take it below
    assert expected * 0.9 < max(values) < expected
    assert found[0].compute_bound_batch_size["attention"] is None
    assert found[0].row("decode", "attention").bound == "memory"


def test_mla_is_the_exception() -> None:
    """128 heads share one latent: 2 x (576 + 512) x 128 FLOPs on 1,152 bytes, 242 FLOP/B."""
    found = roofline(model="deepseek-v3", gpu="h200-sxm", context_len=65_536)
    assert intensity(found, "decode", "attention") == pytest.approx(242, rel=0.01)
    assert found.compute_bound_batch_size["attention"] == 1
    h100 = roofline(model="deepseek-v3", gpu="h100-sxm", context_len=65_536)
    assert h100.compute_bound_batch_size["attention"] is None


@pytest.mark.parametrize("gpu", gpu_names())
def test_a_long_prompt_is_compute_bound_on_every_card(gpu: str) -> None:
    found = roofline(model="llama-3-8b", gpu=gpu, batch_size=1, context_len=4096)
    assert {found.row("prefill", part).bound for part in ("GEMMs", "attention", "step")} == {
        "compute"
    }
    assert found.row("decode", "step").bound == "memory"
    # causal: n (n + 1) / 2 pairs, 4 x 4,096 FLOPs each in 32 layers
    pairs = 4096 * 4097 // 2
    row = found.row("prefill", "attention")
    assert row.flops == pairs * 4 * 4096 * 32
    # keys and values are read and written, queries read, outputs written
    assert row.num_bytes == 4096 * (2 * 131_072 + 32 * 2 * 4096 * 2)


def test_the_batch_at_which_decode_gemms_become_compute_bound_is_a_boundary() -> None:
    for model, gpu in (("llama-3-8b", "h100-sxm"), ("mixtral-8x7b", "h100-sxm"), ("gpt2", "t4")):
        found = roofline(model=model, gpu=gpu, context_len=512)
        batch = found.compute_bound_batch_size["GEMMs"]
        assert batch is not None
        assert batch > found.ridge_point
        for size, bound in ((batch - 1, "memory"), (batch, "compute"), (10 * batch, "compute")):
            one = roofline(model=model, gpu=gpu, context_len=512, batch_size=size)
            assert one.row("decode", "GEMMs").bound == bound
    dense = roofline(model="llama-3-8b", gpu="h100-sxm").compute_bound_batch_size["GEMMs"]
    experts = roofline(model="mixtral-8x7b", gpu="h100-sxm").compute_bound_batch_size["GEMMs"]
    assert experts > 3 * dense  # each of 8 experts sees a quarter of the tokens
    quantised = roofline(model="llama-3-8b", gpu="h100-sxm", quantization="awq")
    assert quantised.compute_bound_batch_size["GEMMs"] < dense / 3


def test_narrow_gemms_never_become_compute_bound() -> None:
    """Their intensity ends at weights over activations; a thin model's lies under a high ridge."""
    thin = replace(
        get_model("gpt2"), name="thin", hidden_size=96, num_heads=2, num_kv_heads=2,
        intermediate_size=384, vocab_size=1000,
    )  # fmt: skip
    assert (
        roofline(model=thin, gpu="h100-sxm", context_len=512).compute_bound_batch_size["GEMMs"]
        is None
    )


def test_activations_of_gemms_by_hand() -> None:
    """Elements in and out of every product; 8-bit arithmetic reads bytes and writes 16 bits."""
    layers = 64  # Qwen3-32B on two GPUs: 64 heads and 8 KV heads of 128, 5,120 and 25,600 wide
    read = layers * (5120 + 4096 + 5120 + 12_800)
    written = layers * (4096 + 2 * 512 + 5120 + 2 * 12_800 + 5120)
    wide = cost_config("qwen3-32b", tp=2)
    head = 2 * (5120 + 151_936 / 2)
    assert gemm_activation_bytes(wide) == (2 * (read + written), head)
    assert gemm_activation_bytes(replace(wide, quantization="fp8")) == (read + 2 * written, head)
    awq = replace(wide, quantization="awq")
    assert gemm_activation_bytes(awq) == gemm_activation_bytes(wide)
    # DeepSeek-V3: MLA, three dense layers, 8 experts of 256 and a shared one
    read = 61 * (7168 + 1536 + 7168 + 512 + 128 * 128)
    written = 61 * (1536 + 128 * 192 + 576 + 128 * 256 + 7168)
    for count, width in ((3, 18_432), (58 * 9, 2048)):
        read += count * (7168 + width)
        written += count * (2 * width + 7168)
    assert gemm_activation_bytes(cost_config("deepseek-v3"))[0] == 2 * (read + written)
    plain = get_model("opt-13b")  # two matrices in its MLP
    both = (5120 + 3 * 5120) + (5120 + 5120) + (5120 + 20_480) + (20_480 + 5120)
    assert gemm_activation_bytes(cost_config("opt-13b"))[0] == 2 * plain.num_layers * both


# -- consistency with the cost model ---------------------------------------------------------------


def plan(batch: int, before: int, new: int) -> StepPlan:
    made = []
    for i in range(batch):
        request = Request(i, 0.0, before + new, 1, [(i, 0, before + new)], 99)
        request.num_computed_tokens = before + new
        made.append((request, new))
    return StepPlan.of(made)


@pytest.mark.parametrize(
    "model",
    ["llama-3-8b", "mistral-7b", "gpt-oss-20b", "gemma-3-27b", "deepseek-v3", "llama-4-scout"],
)
def test_uniform_steps_are_counted_and_timed_like_any_other(model: str) -> None:
    config = cost_config(model, tp=2)
    cost = RooflineCost(config)
    queries = query_bytes(config, cost.work.classes)
    inner, logits = gemm_activation_bytes(config)
    for batch, before, new in ((1, 0, 1), (7, 4999, 1), (3, 0, 8000), (2, 500, 30)):
        counted = cost.work.count(plan(batch, before, new))
        alike = uniform_work(cost.work, batch, before, new)
        for name in Work.kinds():
            same = pytest.approx(getattr(counted, name), rel=1e-12)
            assert getattr(alike, name) == same, name
        if before not in (0, 4999):
            continue
        found = roofline(
            model=config.model, gpu="h100-sxm", quantization=None, tensor_parallel_size=2,
            batch_size=batch, context_len=before + new,
        )  # fmt: skip
        if config.model.quantization is not None:
            continue  # the configuration takes the checkpoint's, cost_config does not
        step = found.row("decode" if new == 1 else "prefill", "step")
        flops, num_bytes = cost.work.totals(counted)
        extra = batch * new * (inner + queries) + batch * logits
        assert step.flops == pytest.approx(flops, rel=1e-12)
        assert step.num_bytes == pytest.approx(num_bytes + extra, rel=1e-12)
        assert step.seconds == pytest.approx(cost.times(counted).total, rel=1e-12)


@pytest.mark.slow
def test_no_modelled_time_is_below_the_ideal() -> None:
    for model in model_names():
        longest = get_model(model).max_position_embeddings
        if get_model(model).num_state_layers:
            continue  # refused
        for gpu in ("h100-sxm", "a100-40gb", "l4", "mi300x"):
            for batch, context in ((1, 128), (32, 1000), (128, 300)):
                found = roofline(
                    model=model, gpu=gpu, batch_size=batch, context_len=min(context, longest)
                )
                for row in found.rows:
                    if get_model(model).is_mla and row.part == "attention":
                        continue  # its arithmetic is not priced in decodes
                    assert row.ideal_seconds <= row.seconds, (model, gpu, row)
                    assert row.mfu <= 1
                    assert row.mbu <= 1


def test_a_step_of_two_arithmetics_mixes_their_peaks() -> None:
    found = roofline(model="llama-3-8b", gpu="h100-sxm", quantization="fp8")
    gemms, attention, step = found.rows[:3]
    assert found.arithmetic == "fp8"
    assert gemms.peak_flops_per_s == 1978.9e12
    assert attention.peak_flops_per_s == 989.4e12
    seconds = gemms.flops / 1978.9e12 + attention.flops / 989.4e12
    assert step.ideal_seconds == pytest.approx(seconds)
    assert attention.peak_flops_per_s < step.peak_flops_per_s < gemms.peak_flops_per_s


def test_mfu_and_mbu_are_shares_of_peaks() -> None:
    for row in roofline(model="llama-3-8b", gpu="h100-sxm").rows:
        assert row.mfu == pytest.approx(row.flops / row.seconds / 989.4e12)
        assert row.mbu == pytest.approx(row.num_bytes / row.seconds / 3.35e12)
        ideal = max(row.mfu, row.mbu) * row.seconds
        assert row.ideal_seconds == pytest.approx(ideal)


def test_tensor_parallelism_divides_the_work() -> None:
    alone, four = (
        roofline(model="llama-3-70b", gpu="h100-sxm", tensor_parallel_size=n) for n in (1, 4)
    )
    for a, b in zip(alone.rows, four.rows, strict=True):
        assert b.flops == pytest.approx(a.flops / 4)
    assert not alone.fits
    assert four.fits
    assert four.decode_memory_bytes == pytest.approx(alone.decode_memory_bytes / 4, rel=1e-3)


def test_memory_of_the_batch_is_weights_and_kv() -> None:
    found = roofline(model="llama-3-8b", gpu="h100-sxm", batch_size=10, context_len=1000)
    assert found.decode_memory_bytes == 2 * 8_030_261_248 + 10 * 1000 * 131_072
    window = roofline(model="mistral-7b", gpu="h100-sxm", context_len=32_000)
    assert window.decode_memory_bytes < 20e9 + 32 * 4096 * 131_072


def test_levels_and_the_intensity_each_needs() -> None:
    found = roofline(model="llama-3-8b", gpu="h100-sxm")
    needs = {level.name: found.level_intensity(level) for level in found.levels}
    assert needs["SRAM"] == pytest.approx(4096 / 128)  # operations over bytes of one clock
    assert needs["HBM"] == found.ridge_point
    assert needs["host"] == pytest.approx(989.4e12 / (63e9 * 0.81))


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.long
def test_the_command_prints_writes_and_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", "llama-3-8b", "--gpu", "h100-sxm", "--batch-size", "64"]
    main(["roofline", *options, "--context-len", "1000", "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    expected = roofline(model="llama-3-8b", gpu="h100-sxm", batch_size=64, context_len=1000)
    assert answer == json.loads(json.dumps(expected.to_dict()))
    assert [(r["phase"], r["part"]) for r in answer["rows"]] == [
        (phase, part) for phase in ("prefill", "decode") for part in ("GEMMs", "attention", "step")
    ]
    target = tmp_path / "out"
    main(["roofline", *options, "--context-len", "1000", "--out", str(target)])
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 100
    assert sorted(p.name for p in target.iterdir()) == ["roofline.json", "roofline.png"]
    assert json.loads((target / "roofline.json").read_text()) == answer
    assert str(target) in shown


def test_the_table_says_what_limits_what(capsys: pytest.CaptureFixture[str]) -> None:
    main(["roofline", "--model", "llama-3-8b", "--gpu", "h100-sxm"])
    text = capsys.readouterr().out
    lines = text.splitlines()
    decode = next(line for line in lines if line.startswith("decode") and "attention" in line)
    assert "4.0" in decode
    assert "memory" in decode
    prefill = next(line for line in lines if line.startswith("prefill") and "GEMMs" in line)
    assert "compute" in prefill
    text = " ".join(text.split())
    assert "ridge point 295 FLOP/B" in text
    assert "GEMMs of decodes become compute-bound from 326 requests on" in text
    assert "attention of decodes at no batch size" in text
    for level in ("SRAM", "L2", "HBM", "peer GPU", "host", "NVMe"):
        assert level in text
    main(["roofline", "--model", "llama-3-70b", "--gpu", "l4", "--context-len", "100"])
    assert "more than the 21.87 GiB" in " ".join(capsys.readouterr().out.split())
    main(["roofline", "--model", "deepseek-v3", "--gpu", "h200-sxm", "-tp", "8"])
    assert "MFU" in capsys.readouterr().out


def test_what_reaches_past_the_measurements_is_said() -> None:
    def notes(**options: object) -> str:
        return " ".join(roofline(**options).assumptions)  # type: ignore[arg-type]

    usual = notes(model="llama-3-8b")
    assert "timed in steps of up to 32,768 tokens" in usual
    assert "beyond" not in usual
    assert "below the ideal" not in usual
    assert "40,000 tokens is beyond" in notes(model="qwen2.5-7b", batch_size=40_000, context_len=9)
    assert "below the ideal" not in notes(model="gpt2", gpu="l4", batch_size=512, context_len=300)
    many = {"gpu": "l4", "batch_size": 4096, "context_len": 300}
    assert "below the ideal" in notes(model="deepseek-v3", **many)  # its queries


def test_many_prompts_are_timed_in_steps_of_a_measured_size() -> None:
    few, many, rest = (
        roofline(model="llama-3-8b", gpu="h100-sxm", batch_size=n).row("prefill", "step")
        for n in (16, 32, 8)  # 16 x 2,048 = 32,768 tokens
    )
    assert many.seconds == 2 * few.seconds
    odd = roofline(model="llama-3-8b", gpu="h100-sxm", batch_size=40).row("prefill", "step")
    assert odd.seconds == pytest.approx(2 * few.seconds + rest.seconds)
    assert many.flops == 2 * few.flops
    assert many.num_bytes < 2 * few.num_bytes  # weights are counted once


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "0 is not in the range x>=1"),
        (["--batch-size", "x"], "not a valid integer"),
        (["--context-len", "0"], "0 is not in the range x>=1"),
        (["--context-len", "8193", "--model", "llama-3-8b"], "--context-len is 8193: must be 1 to"),
        (["--model", "llama-3-8c"], "unknown model 'llama-3-8c'; did you mean"),
        (["--gpu", "h100-sxn"], "unknown GPU 'h100-sxn'; did you mean"),
        (["--quantization", "gguf"], "unknown quantization 'gguf'"),
        (["--dtype", "int8"], "unknown dtype 'int8'"),
        (["--kv-cache-dtype", "int3"], "unknown KV cache dtype 'int3'"),
        (["-tp", "3"], "40 KV heads cannot be divided"),
        (["-tp", "0"], "--tensor-parallel-size is '0'"),
        (["--batch-size", "9" * 400], "too large"),
        (["--out", "file"], "cannot create this directory"),
        (["--json", "no/dir.json"], "cannot be written"),
        (["--router", "random"], "No such option"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(SystemExit) as stopped:
        main(["roofline", *arguments])
    said = capsys.readouterr()
    assert (stopped.value.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 0), ("context_len", 0), ("batch_size", 1.5), ("context_len", 1.5)],
)
def test_the_library_refuses_what_the_command_does(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}: must be"):
        roofline(model="llama-3-8b", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown option 'modle'"):
        roofline(modle="llama-3-8b")


def test_an_interrupted_figure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(found: Roofline) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvsim.report.plots.roofline.roofline", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["roofline", "--out", str(tmp_path / "out")])
    assert stopped.value.code == 130
    assert not list(tmp_path.iterdir())


def test_the_figure_holds_the_roofs_and_the_points() -> None:
    found = roofline(model="llama-3-8b", gpu="h100-sxm")
    (axes,) = kvsim.plot.roofline(found).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "(FLOP/B)" in axes.get_xlabel()
    assert "(TFLOP/s)" in axes.get_ylabel()
    roofs = {line.get_label(): line.get_xydata() for line in axes.lines}
    hbm = roofs["HBM, 3.35 TB/s"]
    for x, y in hbm:
        assert y == pytest.approx(min(x * 3.35, 989.4))
    drawn = {(x, y) for c in axes.collections for x, y in c.get_offsets()}
    for row in found.rows:
        if row.part != "step":
            point = (row.intensity, row.flops / row.seconds / 1e12)
            assert any(point == pytest.approx(one) for one in drawn), row
    everything = kvsim.plot.roofline(roofline(model="llama-3-8b", quantization="fp8"))
    assert everything.axes
