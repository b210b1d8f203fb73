"""Values of a model's file that are said to be others, and names that tell a format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvsim
from kvsim.budget.settings import model_of
from kvsim.catalog import get_model
from kvsim.config import Config

CONFIGS = Path(__file__).parent / "data" / "hf_configs"


# -- values that are said to be others -------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "longest"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 4 * 40960),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                }
            },
            131072,
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "max_position_embeddings": 100}, 200),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 40960),
        ({"text_config": {"max_position_embeddings": 1024}}, 1024),
    ],
)
def test_overrides_change_the_longest_sequence(overrides: dict, longest: int) -> None:
    found = kvsim.capacity(model="qwen3-30b-a3b", gpu="h200-sxm", hf_overrides=overrides)
    assert found.max_model_len == longest
    text = kvsim.capacity(model="qwen3-30b-a3b", gpu="h200-sxm", hf_overrides=json.dumps(overrides))
    assert text == found


def test_overrides_change_the_shape_and_the_rest_is_told(tmp_path: Path) -> None:
    options = {"model": "gemma-3-1b", "gpu": "h100-sxm", "max_model_len": 32768}
    half = kvsim.capacity(**options, hf_overrides={"num_hidden_layers": 13, "architectures": ["X"]})
    whole = kvsim.capacity(**options)
    assert half.bytes_per_token == whole.bytes_per_token // 2
    (note,) = [n for n in half.assumptions if "hf_overrides" in n]
    assert note == "architectures of hf_overrides has no effect in kvsim"
    no_window = kvsim.capacity(**options, hf_overrides={"sliding_window": None})
    assert no_window.logged_concurrency < whole.logged_concurrency
    file = tmp_path / "config.json"
    values = json.loads((CONFIGS / "qwen2.5-7b-instruct.json").read_text("utf-8"))
    file.write_text(json.dumps(values))
    options = {"model": str(file), "gpu": "h100-sxm"}
    found = kvsim.capacity(**options, hf_overrides={"num_hidden_layers": 4, "x": {"y": 1}})
    assert found.bytes_per_token * values["num_hidden_layers"] == 4 * (
        kvsim.capacity(**options).bytes_per_token
    )
    assert "x of hf_overrides has no effect in kvsim" in found.assumptions


def test_a_file_with_scaled_positions_is_as_long_as_vllm_says(tmp_path: Path) -> None:
    values = json.loads((CONFIGS / "qwen2.5-7b-instruct.json").read_text("utf-8"))
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values | {"rope_scaling": yarn}))
    assert get_model(file).max_position_embeddings == 131072


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("{", "hf_overrides is not JSON"),
        ("3", "must be an object such as"),
        ({"hidden_size": "big"}, "hidden_size must be a whole number, not 'big'"),
        ({"num_key_value_heads": 3}, "must divide"),
        ({"rope_scaling": "{bad"}, "rope_scaling must be an object or null, not '{bad'"),
    ],
)
def test_wrong_overrides_are_refused(overrides: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kvsim.capacity(model="qwen3-30b-a3b", gpu="h200-sxm", hf_overrides=overrides)


# -- a name that tells how weights are stored, beside the shape of another -------------------------


@pytest.mark.parametrize(
    ("name", "base", "gib"),
    [
        ("x/my-tune-FP8", "qwen3-30b-a3b", 29.01),
        ("x/my-tune", "qwen3-30b-a3b", 56.87),
        ("x/my-tune", "Qwen/Qwen3-30B-A3B-FP8", 29.01),
        ("x/my-tune-BF16", "Qwen/Qwen3-30B-A3B-FP8", 56.87),
    ],
)
def test_the_format_in_a_name_holds_beside_another_shape(name: str, base: str, gib: float) -> None:
    found = kvsim.capacity(model=name, hf_config_path=base, gpu="h200-sxm", max_model_len=8192)
    assert found.model == name
    assert found.budget_bytes["weights"] / 2**30 == pytest.approx(gib, abs=0.01)
    assert any(note.startswith("weights in ") for note in found.assumptions)


def test_a_file_that_tells_its_format_is_believed(tmp_path: Path) -> None:
    values = json.loads((CONFIGS / "qwen2.5-7b-instruct.json").read_text("utf-8"))
    stored = {"quant_method": "awq", "bits": 4}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values | {"quantization_config": stored}))
    config = Config.build(model="x/y-FP8", hf_config_path=str(file), gpu="l4")
    assert model_of(config).quantization == "awq"
    file.write_text(json.dumps(values))
    assert model_of(config).quantization == "fp8"
