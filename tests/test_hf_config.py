"""Reading config.json: the fixtures are published files cut down to the keys that set the shape."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.catalog import ModelSpec, get_model
from kvsim.catalog.hf_config import read_hf_config

CONFIGS = Path(__file__).parent / "data" / "hf_configs"
IN_CATALOGUE = sorted(path.stem for path in CONFIGS.glob("*.json") if "qwen1.5" not in path.stem)
KIMI = json.loads((CONFIGS / "kimi-k2.5.json").read_text())["text_config"]
KIMI = {k: v for k, v in KIMI.items() if k not in ("model_type", "quantization_config")}
LLAMA = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(base: str = "llama-3.1-8b", **changes: Any) -> Path:
        values = json.loads((CONFIGS / f"{base}.json").read_text()) | changes
        path = tmp_path / "config.json"
        path.write_text(json.dumps({k: v for k, v in values.items() if v != "absent"}))
        return path

    return write


def shape(spec: ModelSpec) -> dict[str, Any]:
    origin = {"name", "hf_id", "source", "aliases"}
    origin |= {
        "quantized_parts",
        "num_tower_params",
        "patches_per_token",
    }  # the catalogue knows of several formats
    names = {field.name for field in dataclasses.fields(spec)} - origin
    return {name: getattr(spec, name) for name in names}


@pytest.mark.parametrize("name", IN_CATALOGUE)
def test_a_file_gives_the_catalogue_entry(name: str) -> None:
    read, known = read_hf_config(CONFIGS / f"{name}.json"), get_model(name)
    assert read.layers == known.layers
    if name.startswith("falcon"):  # transformers ties a head that the checkpoint stores
        assert read.tie_word_embeddings
        assert known.num_params - read.num_params == known.vocab_size * known.hidden_size
        read = dataclasses.replace(read, tie_word_embeddings=False)
    assert read.num_params == known.num_params
    assert shape(read) == shape(known)


def test_qwen2_moe_misses_only_the_shared_experts_gate() -> None:
    spec = read_hf_config(CONFIGS / "qwen1.5-moe-a2.7b.json")
    assert spec.num_params == 14_315_784_192 - spec.num_layers * spec.hidden_size
    assert (spec.num_shared_experts, spec.num_experts_per_token) == (4, 4)


def test_get_model_takes_files_and_directories(write: Write) -> None:
    path = write()
    for argument in (path, str(path), path.parent, str(path.parent)):
        spec = get_model(argument)
        assert spec.num_params == 8_030_261_248
        assert (spec.name, spec.source) == (path.parent.name, str(path))


def test_name_or_path_names_the_model_only_if_it_is_a_hub_id(write: Write) -> None:
    spec = read_hf_config(write(_name_or_path="meta-llama/Llama-3.1-8B"))
    assert (spec.name, spec.hf_id) == ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B")
    path = write(_name_or_path="/home/someone/step_1000")
    assert read_hf_config(path).name == path.parent.name


# -- attention kinds --------------------------------------------------------------------------


def kinds(path: Path) -> str:
    return "".join(layer.kind[0] for layer in read_hf_config(path).layers)


def test_mistral_without_the_key_has_the_default_window(write: Write) -> None:
    assert kinds(write("mistral-7b", sliding_window="absent")) == "s" * 32
    assert kinds(write("mistral-7b", sliding_window=None)) == "f" * 32


def test_qwen_window_must_be_switched_on(write: Write) -> None:
    on = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert kinds(write("qwen2.5-7b-instruct", **on)) == "f" * 20 + "s" * 8
    assert kinds(write("qwen2.5-7b-instruct", **on | {"use_sliding_window": False})) == "f" * 28


def test_layer_types_win(write: Write) -> None:
    types = ["full_attention"] * 27 + ["sliding_attention"]
    on = {"layer_types": types, "sliding_window": 4096, "use_sliding_window": False}
    assert kinds(write("qwen2.5-7b-instruct", **on)) == "f" * 27 + "s"


def test_a_window_no_context_can_outgrow_is_none(write: Write) -> None:
    assert kinds(write("phi-4", sliding_window=16_384)) == "f" * 40
    assert kinds(write("phi-4", sliding_window=2047)) == "s" * 40


def test_gemma_3_pattern_and_its_other_spelling(write: Write) -> None:
    text = json.loads((CONFIGS / "gemma-3-12b.json").read_text())["text_config"]
    short = {**text, "num_hidden_layers": 7, "sliding_window_pattern": 3}
    assert kinds(write("gemma-3-12b", text_config=short)) == "ssfssfs"
    del short["sliding_window_pattern"]
    path = write("gemma-3-12b", text_config={**short, "_sliding_window_pattern": 2})
    assert kinds(path) == "sfsfsfs"


def test_llama_4_layers_without_rotary_positions_are_full(write: Write) -> None:
    text = json.loads((CONFIGS / "llama-4-scout.json").read_text())["text_config"]
    text |= {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1]}
    assert kinds(write("llama-4-scout", text_config=text)) == "cfcc"


# -- sizes ------------------------------------------------------------------------------------


def test_missing_kv_heads_mean_one_per_head(write: Write) -> None:
    assert read_hf_config(write(num_key_value_heads="absent")).num_kv_heads == 32
    assert read_hf_config(write(num_key_value_heads=None)).num_kv_heads == 32


def test_falcon_kv_heads_depend_on_the_architecture(write: Write) -> None:
    assert read_hf_config(write("falcon-7b")).num_kv_heads == 1  # although the file says 71
    assert read_hf_config(write("falcon-7b", multi_query=False)).num_kv_heads == 71
    assert read_hf_config(write("falcon-40b")).num_kv_heads == 8


def test_dense_layers_among_experts(write: Write) -> None:
    path = write("qwen3-30b-a3b", mlp_only_layers=[0, 1], decoder_sparse_step=2)
    assert read_hf_config(path).num_dense_layers == 25  # 24 even ones, and layer 1
    assert read_hf_config(CONFIGS / "llama-4-maverick.json").num_dense_layers == 24
    assert read_hf_config(CONFIGS / "deepseek-v3.json").num_dense_layers == 3


def test_tied_embeddings_follow_the_file_then_the_family(write: Write) -> None:
    assert not read_hf_config(write(tie_word_embeddings="absent")).tie_word_embeddings
    assert read_hf_config(write("gpt2")).tie_word_embeddings
    assert not read_hf_config(write("gpt2", tie_word_embeddings=False)).tie_word_embeddings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 8}}},
            },
            "int8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
            },
            "fp8",
        ),
        (None, None),
    ],
)
def test_quantization(write: Write, settings: Any, expected: str | None) -> None:
    assert read_hf_config(write(quantization_config=settings)).quantization == expected


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        ("llama-3.1-8b", {"model_type": "mamba"}, "model_type 'mamba' is not supported .*qwen3"),
        ("llama-3.1-8b", {"model_type": "deepseek_v41"}, "n-gram memory are not modelled"),
        ("llama-3.1-8b", {"model_type": "absent"}, "model_type None is not supported"),
        ("llama-3.1-8b", {"hidden_size": "absent"}, "missing key hidden_size$"),
        ("llama-3.1-8b", {"hidden_size": "4096"}, "hidden_size must be an integer, not '4096'"),
        ("llama-3.1-8b", {"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
        ("llama-3.1-8b", {"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ("llama-3.1-8b", {"vocab_size": 0}, "vocab_size must be positive"),
        ("llama-3.1-8b", {"num_key_value_heads": 7}, r"num_kv_heads \(7\) must divide"),
        ("llama-3.1-8b", {"attention_bias": 1}, "attention_bias must be true or false, not 1"),
        ("qwen3-8b", {"layer_types": ["linear_attention"]}, "'linear_attention' is not supported"),
        ("qwen3-8b", {"layer_types": ["full_attention"]}, "has 1 entries for 36 layers"),
        ("qwen3-8b", {"layer_types": "full"}, "layer_types must be a list, not 'full'"),
        ("gpt2", {"n_head": "absent"}, "missing key n_head$"),
        ("gpt2", {"n_positions": "absent", "n_ctx": None}, "missing key n_positions or n_ctx$"),
        ("opt-125m", {"word_embed_proj_dim": 512}, "OPT-350M"),
        ("phi-2", {"qk_layernorm": True}, "qk_layernorm is not supported"),
        ("qwen1.5-moe-a2.7b", {"shared_expert_intermediate_size": 1}, "must be a multiple of"),
        ("llama-3.1-8b", {"quantization_config": {"quant_method": "quip"}}, "'quip' is not"),
        ("llama-3.1-8b", {"quantization_config": "fp8"}, "quantization_config must be an object"),
        (
            "llama-3.1-8b",
            {"quantization_config": {"quant_method": "compressed-tensors"}},
            "compressed-tensors weights of type None",
        ),
    ],
)
def test_bad_files_are_refused_in_one_line(
    write: Write, base: str, changes: dict[str, Any], message: str
) -> None:
    path = write(base, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        read_hf_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_gemma_4_may_share_kv_between_layers(write: Write) -> None:
    text = json.loads((CONFIGS / "gemma-4-26b-a4b.json").read_text())["text_config"]
    small = {"num_kv_shared_layers": 18, "hidden_size_per_layer_input": 256}
    spec = read_hf_config(write("gemma-4-26b-a4b", text_config=text | small))
    assert spec.num_kv_shared_layers == 18
    rows = text["vocab_size"] * 256 * spec.num_layers  # an embedding per layer
    assert rows < spec.num_other_params < 1.04 * rows


# -- of 2026 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kimi-k2.5", "qwen3.5-27b", "qwen3.5-35b-a3b"])
def test_towers_are_counted_to_the_last_parameter(name: str) -> None:
    read = read_hf_config(CONFIGS / f"{name}.json")
    assert read.num_tower_params == get_model(name).num_tower_params > 4e8


def test_indexers_are_where_the_file_says() -> None:
    spec = read_hf_config(CONFIGS / "glm-5.2.json")
    assert (len(spec.layers), spec.num_index_layers) == (78, 21)
    assert spec.indexed[:8] == (True, True, True, False, False, False, True, False)
    assert read_hf_config(CONFIGS / "minimax-m3.json").num_index_layers == 57
    assert read_hf_config(CONFIGS / "deepseek-v3.2.json").num_index_layers == 61


def test_windows_may_have_other_heads() -> None:
    layers = read_hf_config(CONFIGS / "mimo-v2-flash.json").layers
    shapes = {layer.kind: layer[2:] for layer in layers}
    assert shapes == {"full": (4, 160, 2), "sliding": (8, 160, 2)}  # keys of 192, values of 128
    assert sum(layer.kind == "sliding" for layer in layers) == 39


def test_layers_of_nemotron_3_have_one_thing_each() -> None:
    spec = read_hf_config(CONFIGS / "nemotron-3-ultra-550b-a55b.json")
    kinds = (spec.num_state_layers, len(spec.layers), spec.num_moe_layers, spec.num_layers)
    assert kinds == (48, 12, 48, 108)


GRANITE = {
    "model_type": "granitemoehybrid",
    "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
    "hidden_size": 1536,
    "num_hidden_layers": 40,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "vocab_size": 100352,
    "max_position_embeddings": 131072,
    "mamba_n_heads": 48,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
}
PHIMOE = {
    "model_type": "phimoe",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 6400,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "vocab_size": 32064,
    "max_position_embeddings": 131072,
    "attention_bias": True,
    "lm_head_bias": True,
}
GEMMA3N = {
    "model_type": "gemma3n",
    "vision_config": {"model_type": "gemma3n_vision"},
    "audio_config": {"model_type": "gemma3n_audio"},
    "text_config": {
        "model_type": "gemma3n_text",
        "hidden_size": 2048,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": [16384] * 35,
        "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 15,
        "max_position_embeddings": 32768,
    },
}


@pytest.mark.parametrize(
    ("values", "count"),
    [(GRANITE, 6_939_037_248), (PHIMOE, 41_873_153_344), (GEMMA3N, 7_849_978_192)],
    ids=["granite-4.0-h-tiny", "Phi-3.5-MoE", "gemma-3n-E4B"],
)
def test_shapes_from_memory_have_the_published_count(
    tmp_path: Path, values: dict[str, Any], count: int
) -> None:
    # written by hand, not copied; llmfit 1.1.17 lists the counts
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    spec = read_hf_config(path)
    assert spec.num_params + spec.num_tower_params == count
    if spec.num_kv_shared_layers:
        assert len(kv_layout(spec, kv_dtype("bf16")).layers) == 20


MODULES = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "model.layers.0.mlp*"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8-block", (), None)),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            ("nvfp4", (), "fp8"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {"weights": {"type": "int", "num_bits": 4, "group_size": 32}}
                },
                "ignore": MODULES,
            },
            ("int4", ("int4:experts", "int4:mlp", "int4:state", "int4:state_output"), None),
        ),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["gate", "lm_head"]},
            ("fp8", (), None),
        ),
    ],
)
def test_formats_and_what_they_leave_out(write: Write, settings: Any, expected: Any) -> None:
    spec = read_hf_config(
        write(
            "kimi-k2.5",
            model_type="kimi_k2",
            text_config="absent",
            **KIMI,
            quantization_config=settings,
        )
    )
    assert (spec.quantization, spec.quantized_parts, spec.kv_cache_dtype) == expected


def test_modelopts_own_file_is_read(write: Write) -> None:
    path = write()
    beside = {
        "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["model.layers.*.self_attn*"]}
    }
    path.with_name("hf_quant_config.json").write_text(json.dumps(beside))
    spec = read_hf_config(path)
    assert spec.quantization == "nvfp4"
    assert "nvfp4:mlp" in spec.quantized_parts
    assert "nvfp4:attention" not in spec.quantized_parts
    path.with_name("hf_quant_config.json").write_text("[]")
    with pytest.raises(ValueError, match="not a readable ModelOpt file"):
        read_hf_config(path)


@pytest.mark.parametrize("text", ["{", "", '"config"', "[]"])
def test_what_is_not_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not a readable JSON file|must hold a JSON object"):
        get_model(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    for argument in (tmp_path / "no.json", str(tmp_path / "no.json"), str(tmp_path), "./no-model"):
        with pytest.raises(ValueError, match="no such file"):
            get_model(argument)


# -- hybrids ----------------------------------------------------------------------------------


def test_layers_of_hybrids_are_where_the_file_says(write: Write) -> None:
    letters = ["linear_attention"] * 40 + ["full_attention"] * 8
    spec = read_hf_config(write("qwen3-next-80b-a3b", layer_types=letters))
    assert (spec.num_state_layers, len(spec.layers)) == (40, 8)
    spec = read_hf_config(write("jamba-v0.1", attn_layer_offset=0, attn_layer_period=4))
    assert spec.layer_pattern == "FMMM"


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        ("nemotron-h-8b", {"hybrid_override_pattern": "ME"}, "a letter of M, \\*, - and E for"),
        ("nemotron-h-8b", {"hybrid_override_pattern": None}, "a letter of M, \\*, - and E for"),
        ("kimi-linear-48b-a3b", {"linear_attn_config": None}, "missing key linear_attn_config"),
        ("qwen3-next-80b-a3b", {"shared_expert_intermediate_size": 600}, "must be a multiple"),
        ("jamba-v0.1", {"mamba_d_state": 0}, "layers M need state_form"),
    ],
)
def test_hybrids_that_cannot_be_read_say_why(
    write: Write, base: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_hf_config(write(base, **changes))


def test_patches_of_a_token_follow_from_merger_or_image_size(tmp_path: Path) -> None:
    gemma = {"image_size": 896, "patch_size": 14, "hidden_size": 1152, "num_hidden_layers": 27}
    text = json.loads((CONFIGS / "gemma-3-4b.json").read_text(encoding="utf-8"))
    whole = text | {"vision_config": gemma}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(whole | {"mm_tokens_per_image": 256}), encoding="utf-8")
    read = read_hf_config(file)
    assert read.patches_per_token == get_model("gemma-3-4b").patches_per_token == 16
    assert read_hf_config(CONFIGS / "kimi-k2.5.json").patches_per_token == 2 * 2
