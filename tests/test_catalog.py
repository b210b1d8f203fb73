"""The catalogue: what the numbers must be, and which names mean which shape."""

import csv
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from kvsim.attention.spec import layers_by_letter
from kvsim.catalog import GpuSpec, ModelSpec, get_gpu, get_model, gpu_names, model_names
from kvsim.catalog.spec import OTHER_KINDS

TABLES = {
    name: tomllib.loads(resources.files("kvsim.catalog").joinpath(f"{name}.toml").read_text())
    for name in ("models", "gpus")
}
GIB = 2**30


def kv_bytes(spec: ModelSpec, kind: str | None = None) -> int:
    """Bytes of bf16 KV per token, over all layers or those of one kind."""
    layers = [layer for layer in spec.layers if kind in (None, layer.kind)]
    return sum(layer.num_vectors * layer.num_kv_heads * layer.head_dim * 2 for layer in layers)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- KV per token -----------------------------------------------------------------------------

KIB_PER_TOKEN = {
    "opt-13b": 800,
    "opt-66b": 2304,
    "opt-175b": 4608,
    "llama-2-7b": 512,
    "llama-2-13b": 800,
    "llama-2-70b": 320,
    "llama-3-8b": 128,
    "llama-3-70b": 320,
    "llama-3.1-405b": 504,
    "mistral-7b": 128,
    "mixtral-8x7b": 128,
    "qwen2.5-7b": 56,
    "qwen2.5-72b": 320,
    "qwen3-8b": 144,
    "qwen3-32b": 256,
    "qwen3-30b-a3b": 96,
    "gpt-oss-20b": 48,
    "gpt-oss-120b": 72,
    "deepseek-v3": 68.625,
    "deepseek-v2": 67.5,
    "falcon-7b": 8,
    "falcon-40b": 120,
    "gemma-3-27b": 496,
}


@pytest.mark.parametrize(("name", "kib"), KIB_PER_TOKEN.items())
def test_kv_per_token_is_exact(name: str, kib: float) -> None:
    assert kv_bytes(get_model(name)) == kib * 1024


@pytest.mark.parametrize(
    ("name", "kib"), [("gpt-oss-20b", 24), ("gpt-oss-120b", 36), ("gemma-3-27b", 80)]
)
def test_kv_of_full_layers_alone_is_exact(name: str, kib: int) -> None:
    assert kv_bytes(get_model(name), "full") == kib * 1024


def test_latent_attention_keeps_one_vector() -> None:
    assert kv_bytes(get_model("deepseek-v3")) == 70_272
    assert {layer[2:] for layer in get_model("deepseek-v3").layers} == {(1, 576, 1)}


def test_windows_sit_on_the_right_layers() -> None:
    def kinds(name: str) -> str:
        return "".join(layer.kind[0] for layer in get_model(name).layers)

    assert kinds("mistral-7b") == "s" * 32
    assert kinds("mistral-7b-v0.2") == "f" * 32
    assert kinds("gemma-2-2b") == "sf" * 13
    assert kinds("gemma-3-1b") == "sssssf" * 4 + "ss"
    assert kinds("gpt-oss-20b") == "sf" * 12
    assert kinds("llama-4-scout") == "cccf" * 12
    assert {layer.window for layer in get_model("gemma-3-27b").layers} == {1024, None}


def test_gemma_4_layers_differ_in_kv_shape() -> None:
    shapes = {layer[0]: layer[2:] for layer in get_model("gemma-4-26b-a4b").layers}
    assert shapes == {"sliding": (8, 256, 2), "full": (2, 512, 2)}


def test_models_agree_with_the_shared_table(whole_data: Path) -> None:
    for row in rows(whole_data / "models.csv"):
        spec = get_model(row["model"].removesuffix("/R1"))
        assert kv_bytes(spec) == int(row["kv_bytes_per_token_bf16"]), row["model"]
        full = row["kv_bytes_per_token_full_layers_only"] or row["kv_bytes_per_token_bf16"]
        if spec.name != "gemma-4-26b-a4b":  # there the cell takes the sliding layers' KV heads
            assert kv_bytes(spec, "full") == int(full), row["model"]
        sizes = (spec.num_layers, spec.hidden_size, spec.num_heads, spec.vocab_size)
        assert sizes == tuple(int(row[key]) for key in ("layers", "hidden", "heads", "vocab"))
        assert str(spec.window or "") == row["sliding_window"], row["model"]
        if row["experts"]:
            assert row["experts"] in (
                f"{spec.num_experts}/top{spec.num_experts_per_token}",
                str(spec.num_experts),
            )


# -- parameters -------------------------------------------------------------------------------

#: Off by what the comment says; every other entry is exact.
INEXACT = {
    "opt-66b",  # the count is rounded, from the name
    "opt-175b",  # the same
    "gemma-4-26b-a4b",  # scales of routers and layers are not modelled
    "gemma-4-31b",  # the same
    "kimi-k3",  # residual attention and norms of latents are not modelled
    "step-3.7-flash",  # a million of 197,000 million
}

PARAMS = {
    "gpt2": 124_439_808,
    "opt-13b": 12_853_473_280,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "gpt-oss-20b": 20_914_757_184,
    "deepseek-v3": 671_026_419_200,
    "falcon-7b": 7_217_189_760,
    "phi-4": 14_659_507_200,
    "gemma-2-9b": 9_241_705_984,
}


def test_parameters_match_the_checkpoint() -> None:
    for name, table in TABLES["models"].items():
        count = table["checkpoint_params"]
        num_params = get_model(name).num_params
        assert num_params == pytest.approx(count, rel=0.01), name
        assert (num_params == count) == (name not in INEXACT), name


@pytest.mark.parametrize(("name", "count"), PARAMS.items())
def test_well_known_counts(name: str, count: int) -> None:
    assert get_model(name).num_params == count


def test_gemma_4_misses_only_its_scales() -> None:
    spec = get_model("gemma-4-26b-a4b")
    scales = spec.hidden_size + spec.num_experts + 1  # router input, router output, layer
    missing = TABLES["models"][spec.name]["checkpoint_params"] - spec.num_params
    assert missing == spec.num_layers * scales


@pytest.mark.parametrize(
    ("name", "billions"),
    [("mixtral-8x7b", 12.8), ("qwen3-30b-a3b", 3.0), ("gpt-oss-120b", 5.1), ("deepseek-v3", 36.7)],
)
def test_active_parameters(name: str, billions: float) -> None:
    # LM head counted, embedding lookup not: DeepSeek's 37B, Mixtral's 12.9B count the lookup too
    assert get_model(name).num_active_params / 1e9 == pytest.approx(billions, rel=0.03)


def test_tied_head_is_counted_once() -> None:
    tied = get_model("llama-3.2-1b")
    assert tied.num_lm_head_params == 0
    assert tied.num_params == 1_235_814_400
    assert get_model("phi-2").num_lm_head_params == 51_200 * 2_561  # it has a bias


# -- names ------------------------------------------------------------------------------------

IDS = {
    # short names, any case
    "llama-3-8b": ("llama-3-8b", None),
    "LLAMA-3-8B": ("llama-3-8b", None),
    "gpt2": ("gpt2", None),
    # hub ids: organisation, Meta-, fine-tune, date
    "meta-llama/Meta-Llama-3-8B-Instruct": ("llama-3-8b", None),
    "meta-llama/Meta-Llama-3.1-8B": ("llama-3.1-8b", None),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", None),
    "unsloth/llama-3.1-8b-instruct": ("llama-3.1-8b", None),
    "meta-llama/Llama-3.3-70B-Instruct": ("llama-3.1-70b", None),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama-3.2-3b", None),
    "meta-llama/Llama-2-7b-chat-hf": ("llama-2-7b", None),
    "meta-llama/Llama-2-70b-hf": ("llama-2-70b", None),
    "huggyllama/llama-13b": ("llama-13b", None),
    "lmsys/vicuna-13b-v1.5": ("llama-2-13b", None),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": ("llama-4-scout", None),
    "google/gemma-3-27b-it": ("gemma-3-27b", None),
    "google/gemma-2-9b": ("gemma-2-9b", None),
    "tiiuae/falcon-180B-chat": ("falcon-180b", None),
    "facebook/opt-13b": ("opt-13b", None),
    "openai-community/gpt2-xl": ("gpt2-xl", None),
    "microsoft/phi-4": ("phi-4", None),
    "codellama/CodeLlama-34b-Instruct-hf": ("codellama-34b", None),
    "01-ai/Yi-34B-Chat": ("yi-34b", None),
    "deepseek-ai/DeepSeek-V3-0324": ("deepseek-v3", "fp8-block"),
    "deepseek-ai/DeepSeek-R1-0528": ("deepseek-v3", "fp8-block"),
    "deepseek-ai/DeepSeek-V3.2": ("deepseek-v3.2", "fp8-block"),
    "MiniMaxAI/MiniMax-M2": ("minimax-m2.5", "fp8-block"),
    "moonshotai/Kimi-K2-Instruct-0905": ("kimi-k2", "fp8-block"),
    "moonshotai/Kimi-K2.6": ("kimi-k2.5", "int4"),
    "nvidia/Kimi-K2.5-NVFP4": ("kimi-k2.5", "nvfp4"),
    "glm-5": ("glm-5", "fp8-block"),
    "zai-org/GLM-5-FP8": ("glm-5", "fp8-block"),
    "zai-org/GLM-5": ("glm-5-bf16", None),
    "zai-org/GLM-5.1": ("glm-5-bf16", None),
    "Qwen/Qwen3.6-27B": ("qwen3.5-27b", None),
    "nvidia/Qwen3.5-397B-A17B-NVFP4": ("qwen3.5-397b-a17b", "nvfp4"),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": ("nemotron-3-super-120b-a12b", "fp8"),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("nemotron-3-nano-30b-a3b", None),
    "meta-llama/Llama-3.1-8B-Instruct-NVFP4": ("llama-3.1-8b", "nvfp4"),
    "deepseek-ai/DeepSeek-V2.5-1210": ("deepseek-v2", None),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": ("deepseek-v2-lite", None),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": ("llama-3.1-8b", None),
    "openai/gpt-oss-20b": ("gpt-oss-20b", "mxfp4"),
    "mistralai/Mistral-Nemo-Instruct-2407": ("mistral-nemo-12b", None),
    "mistralai/Mistral-Nemo-12B-2407": ("mistral-nemo-12b", None),
    # versions that differ in shape
    "mistralai/Mistral-7B-v0.1": ("mistral-7b", None),
    "mistralai/Mistral-7B-Instruct-v0.1": ("mistral-7b", None),
    "mistralai/Mistral-7B-Instruct-v0.2": ("mistral-7b-v0.2", None),
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral-7b-v0.3", None),
    "mistralai/Mistral-7B-v0.3": ("mistral-7b-v0.3", None),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral-8x7b", None),
    "mistralai/Mixtral-8x22B-v0.1": ("mixtral-8x22b", None),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": ("mixtral-8x22b-instruct", None),
    "Qwen/Qwen2-7B": ("qwen2-7b", None),
    "Qwen/Qwen2.5-7B": ("qwen2.5-7b", None),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2.5-7b-instruct", None),
    "Qwen/Qwen2.5-3B-Instruct": ("qwen2.5-3b", None),
    "Qwen/Qwen3-8B": ("qwen3-8b", None),
    "Qwen/Qwen3-8B-Base": ("qwen3-8b-base", None),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("qwen3-30b-a3b-2507", None),
    "Qwen/Qwen3-4B-Thinking-2507": ("qwen3-4b-2507", None),
    # quantised checkpoints
    "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8": ("llama-3.1-8b", "fp8"),
    "RedHatAI/gemma-3-27b-it-FP8-dynamic": ("gemma-3-27b", "fp8"),
    "amd/Llama-3.1-70B-Instruct-FP8-KV": ("llama-3.1-70b", "fp8"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": ("llama-3.1-8b", "int8"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": ("llama-3.1-8b", "gptq"),
    "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4": ("llama-3.1-70b", "awq"),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": ("qwen2.5-7b-instruct", "gptq"),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": ("qwen2.5-7b-instruct", "int8"),
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": ("qwen3-30b-a3b-2507", "fp8"),
    "TheBloke/Llama-2-13B-chat-AWQ": ("llama-2-13b", "awq"),
    "TheBloke/Mistral-7B-Instruct-v0.2-GPTQ": ("mistral-7b-v0.2", "gptq"),
    "llama-3-8b-fp8": ("llama-3-8b", "fp8"),
    "unsloth/gpt-oss-20b-BF16": ("gpt-oss-20b", None),
}


def test_ids_find_their_shape() -> None:
    specs = {hf_id: get_model(hf_id) for hf_id in IDS}
    assert {hf_id: (spec.name, spec.quantization) for hf_id, spec in specs.items()} == IDS


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.2-11B-Vision",
        "Qwen/Qwen2.5-7B-Instruct-1M",
        "Qwen/Qwen2.5-Coder-3B",
        "deepseek-ai/DeepSeek-R1-0528-Qwen3-14B",
        "01-ai/Yi-1.5-34B-32K",
        "mistralai/Mistral-Small-Instruct-2409",
        "gradientai/Llama-3-8B-Instruct-Gradient-1048k",
        "mistralai/Mistral-7B-v0.4",
        "zai-org/GLM-4.5",
        "",
    ],
)
def test_other_shapes_are_not_taken_for_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="unknown model"):
        get_model(name)


def test_unknown_names_suggest_near_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'lama-3-8b'; did you mean llama-3-8b"):
        get_model("lama-3-8b")
    with pytest.raises(ValueError, match=r"'deepseek-r2'; did you mean .*deepseek-r1"):
        get_model("deepseek-r2")
    with pytest.raises(ValueError, match=r"unknown GPU 'a100-90gb'; did you mean a100-80gb"):
        get_gpu("a100-90gb")


def test_a_spec_passes_through() -> None:
    model, gpu = get_model("gpt2"), get_gpu("t4")
    assert get_model(model) is model
    assert get_gpu(gpu) is gpu


def test_every_model_answers_to_all_its_names() -> None:
    for name in model_names():
        spec = get_model(name)
        assert (spec.name, spec.source != "") == (name, True)
        for other in (spec.hf_id, *spec.aliases):
            assert get_model(other) == spec, (name, other)
            assert other.lower() == other or other == spec.hf_id, (name, other)


def test_contexts_differ_between_releases() -> None:
    assert get_model("llama-3-8b").max_position_embeddings == 8192
    assert get_model("llama-3.1-8b").max_position_embeddings == 131_072
    assert get_model("Qwen/Qwen2.5-7B").max_position_embeddings == 131_072
    assert get_model("Qwen/Qwen2.5-7B-Instruct").max_position_embeddings == 32_768


def test_import_is_light() -> None:
    heavy = {"numpy", "numba", "matplotlib", "pandas", "pydantic"}
    code = f"import sys, kvsim.catalog; sys.exit(bool({heavy!r} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers must be positive, not 0"),
        ({"num_kv_heads": 5}, r"num_kv_heads \(5\) must divide num_heads \(12\)"),
        ({"layer_pattern": "FX"}, "layer_pattern 'FX' must be made of F, C, S"),
        ({"layer_pattern": "S"}, "need window > 0, not None"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, object], message: str) -> None:
    fields = {key: value for key, value in vars(get_model("gpt2")).items() if key != "name"}
    shape = {key: fields[key] for key in ModelSpec.__dataclass_fields__ if key in fields}
    with pytest.raises(ValueError, match=message):
        ModelSpec(name="broken", **{**shape, **change})


def test_layer_kinds_have_distinct_letters() -> None:
    layers = [kind.layer for kind in layers_by_letter().values()]
    assert layers == ["full", "chunked", "sliding"]
    assert not layers_by_letter().keys() & OTHER_KINDS.keys()


# -- GPUs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", gpu_names())
def test_gpu_figures_are_sane(name: str) -> None:
    gpu = get_gpu(name)
    assert gpu.name == name
    assert 0.9 < gpu.memory_bytes / gpu.nominal_memory_bytes <= 1
    assert gpu.nominal_memory_bytes % GIB == 0
    assert 2.7e11 <= gpu.memory_bandwidth_bytes_per_s <= 8e12
    assert 2.5e13 <= gpu.bf16_flops_per_s <= 2.6e15
    assert gpu.fp8_flops_per_s == 0 or 1.9 < gpu.fp8_flops_per_s / gpu.bf16_flops_per_s < 2.1
    if name not in ("b300", "gb300"):  # which all but lost it
        assert gpu.int8_ops_per_s >= 0.49 * gpu.bf16_flops_per_s  # V100 has no tensor INT8
    assert gpu.fp4_flops_per_s == 0 or gpu.fp4_flops_per_s >= 1.9 * gpu.fp8_flops_per_s
    assert 0 <= gpu.nvlink_bytes_per_s <= 9e11
    assert gpu.pcie_bytes_per_s in (15.75e9, 31.5e9, 63e9)
    assert 3 * 2**20 <= gpu.l2_bytes <= 2**28
    assert 28 <= gpu.num_sms <= 304
    assert gpu.source
    assert set(gpu.unverified) <= set(GpuSpec.__dataclass_fields__)
    for alias in gpu.aliases:
        assert get_gpu(alias) is gpu


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("A100-80GB", "a100-80gb"),
        ("a100", "a100-80gb"),
        ("h100", "h100-sxm"),
        ("h100-80gb", "h100-sxm"),
        ("h200", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB300", "gb300"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI325X", "mi325x"),
        ("AMD Instinct MI355X", "mi355x"),
    ],
)
def test_gpus_answer_to_what_drivers_report(reported: str, name: str) -> None:
    assert get_gpu(reported).name == name


def test_figures_that_are_often_wrong_elsewhere() -> None:
    assert get_gpu("mi300x").fp8_flops_per_s == 2614.9e12
    assert get_gpu("mi300x").bf16_flops_per_s == 1307.4e12
    assert get_gpu("rtx-4070").memory_bandwidth_bytes_per_s == 504.2e9
    assert get_gpu("rtx-4090").bf16_flops_per_s == 165.2e12  # with FP32 accumulation
    assert get_gpu("a100-40gb").nvlink_bytes_per_s == 300e9  # one direction
    assert get_gpu("a100-40gb").memory_bytes == round(39.445 * GIB)


def test_gpus_agree_with_the_shared_table(whole_data: Path) -> None:
    for row in rows(whole_data / "gpus.csv"):
        gpu = get_gpu(row["gpu"].split(" (")[0])
        given = {key: float(value) for key, value in row.items() if _is_number(value)}
        assert gpu.memory_bandwidth_bytes_per_s == given["mem_bw_gbps"] * 1e9
        assert gpu.nvlink_bytes_per_s == given["nvlink_total_bidir_gbps"] / 2 * 1e9
        assert gpu.pcie_bytes_per_s == given["pcie_per_dir_gbps"] * 1e9
        assert gpu.l2_bytes == given["l2_mb"] * 2**20
        observed = [float(x) for x in re.findall(r"\d+\.\d+", row["cuda_visible_gib_observed"])]
        if observed:
            assert min(observed) - 0.01 <= gpu.memory_bytes / GIB <= max(observed) + 0.01
        if gpu.name == "rtx-pro-6000":
            continue  # the table has no rates for it
        assert gpu.bf16_flops_per_s == pytest.approx(given["fp16_bf16_dense_tflops"] * 1e12)
        assert gpu.fp8_flops_per_s == pytest.approx(given.get("fp8_dense_tflops", 0) * 1e12)
        assert gpu.int8_ops_per_s == pytest.approx(given["int8_dense_tops"] * 1e12)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None
