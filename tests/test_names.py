"""Names of models and cards as people write them, and cards that are others with changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvsim
from kvsim.catalog import get_gpu, get_model
from kvsim.catalog.hf_config import read_hf_config
from kvsim.config import RunConfig


@pytest.mark.parametrize(
    ("given", "name", "quantization"),
    [
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", "qwen3-coder-30b-a3b", "fp8"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1-distill-qwen-7b", None),
        ("casperhansen/deepseek-r1-distill-qwen-32b-awq", "deepseek-r1-distill-qwen-32b", "awq"),
        ("google/gemma-4-31B-it", "gemma-4-31b", None),
        ("Qwen/Qwen3.8-27B", "qwen3.5-27b", None),
        ("Qwen/Qwen3.5-9B", "qwen3.5-9b", None),
        ("Qwen/QwQ-32B-AWQ", "qwq-32b", "awq"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b", None),
        ("Qwen/Qwen3-VL-30B-A3B-Thinking", "qwen3-vl-30b-a3b", None),
        ("zai-org/GLM-4.5-Air-FP8", "glm-4.5-air", "fp8"),
        ("mistralai/Devstral-Small-2507", "devstral-small-24b", None),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-9b-v2", None),
        ("Qwen/Qwen2.5-Math-72B-Instruct", "qwen2.5-math-72b", None),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "qwen3-8b", "bitsandbytes"),
        ("nvidia/Qwen3-8B-FP4", "qwen3-8b", "nvfp4"),
        ("Intel/Qwen3-8B-int4-AutoRound", "qwen3-8b", "gptq"),
    ],
)
def test_posted_ids_find_their_shape(given: str, name: str, quantization: str | None) -> None:
    model = get_model(given)
    assert (model.name, model.quantization) == (name, quantization)


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("someone/my-qwen3-8b-medical", "qwen3-8b?"),
        ("Qwen/Qwen3.9-27B", "27b"),
        ("llama-3-8c", "llama-3-8b"),
        ("x/DeepSeek-R1-Distill-Qwen-14B-tuned", "deepseek-r1-distill-qwen-14b?"),
    ],
)
def test_the_near_name_has_the_size_that_was_asked_for(given: str, near: str) -> None:
    with pytest.raises(ValueError, match="unknown model") as told:
        get_model(given)
    hint = str(told.value).partition("did you mean ")[2].partition("?")[0] + "?"
    assert near in hint
    assert "gemma" not in hint


def test_a_size_that_no_model_has_is_near_the_same_name_in_another_size() -> None:
    with pytest.raises(ValueError, match="did you mean llama-3-8b"):
        get_model("llama-3-9b")
    with pytest.raises(ValueError, match="unknown model") as told:
        get_model("nobody/knows-9b")
    assert "did you mean" not in str(told.value)


VISION = {
    **{"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14},
    **{"spatial_merge_size": 2, "temporal_patch_size": 2, "model_type": "qwen2_5_vl"},
}
TEXT = {
    **{"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28},
    **{"num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064},
    **{"max_position_embeddings": 128000, "tie_word_embeddings": False},
}


def config_file(folder: Path, values: dict[str, Any]) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(values))
    return file


def test_a_file_of_qwen2_5_vl_has_every_parameter_of_its_checkpoint(tmp_path: Path) -> None:
    file = config_file(tmp_path, {**TEXT, "model_type": "qwen2_5_vl", "vision_config": VISION})
    model = read_hf_config(file)
    assert model.num_params + model.num_tower_params == 8_292_166_656  # of the safetensors
    assert model.num_tower_params == get_model("qwen2.5-vl-7b").num_tower_params


def test_deepstack_mergers_of_qwen3_vl_are_counted(tmp_path: Path) -> None:
    vision = {
        **{"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16},
        **{"num_position_embeddings": 2304, "spatial_merge_size": 2, "temporal_patch_size": 2},
        **{"model_type": "qwen3_vl", "deepstack_visual_indexes": [8, 16, 24]},
    }
    text = {
        **{"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32},
        **{"num_hidden_layers": 36, "num_key_value_heads": 8, "vocab_size": 151936},
        **{"max_position_embeddings": 262144, "head_dim": 128, "model_type": "qwen3_vl_text"},
    }
    values = {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision}
    model = read_hf_config(config_file(tmp_path, values))
    assert model.num_params + model.num_tower_params == 8_767_123_696


CARDS = (
    *("h20", "gb10", "dgx-spark", "h800", "a800", "l20", "rtx-3060", "rtx-4070-ti-super"),
    *("rtx-4080", "rtx-5070-ti"),
)


@pytest.mark.parametrize("name", [*CARDS, "NVIDIA RTX 6000 Ada Generation", "mi210", "mi250x"])
def test_posted_cards_are_known(name: str) -> None:
    card = get_gpu(name)
    assert card.unverified
    assert kvsim.capacity(model="qwen3-0.6b", gpu=name).num_gpu_blocks > 0


def test_a_card_may_be_another_one_with_changes() -> None:
    base, card = get_gpu("h200-sxm"), get_gpu("h200-sxm+memory=96GiB+bandwidth=4TB/s+name=mine")
    assert card.name == "mine"
    assert card.nominal_memory_bytes == 96 * 2**30
    assert card.memory_bytes / 2**30 == pytest.approx(
        96 * base.memory_bytes / base.nominal_memory_bytes
    )
    assert card.memory_bandwidth_bytes_per_s == 4e12
    assert card.bf16_flops_per_s == base.bf16_flops_per_s
    assert get_gpu("l4+visible-memory=20GiB").memory_bytes == 20 * 2**30
    fits = kvsim.capacity(model="llama-3-8b", gpu="h200-sxm+memory=96GiB")
    assert fits.num_gpu_blocks < kvsim.capacity(model="llama-3-8b", gpu="h200-sxm").num_gpu_blocks


def test_a_changed_card_goes_through_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('gpu = "h200-sxm+memory=96GiB+name=h20"\n')
    config = RunConfig.from_toml(file)
    assert get_gpu(config.gpu).name == "h20"
    assert "h200-sxm+memory=96GiB+name=h20" in config.to_toml()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h200-sxm+mem=3", "no key 'mem'"),
        ("h200-sxm+memory=much", "must be a number, such as 96GiB"),
        ("h200-sxm+memory", "memory needs a value"),
        ("h200-sxm+memory=1+memory=2", "is given twice"),
        ("h999+memory=1GiB", "unknown GPU 'h999'"),
    ],
)
def test_wrong_changes_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("+", "[+]")):
        get_gpu(text)
