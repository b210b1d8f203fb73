"""``--max-model-len auto``: the longest request that fits into the KV memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.config import Config

if TYPE_CHECKING:
    from pathlib import Path

#: Models whose own length does not fit, of each kind of layer.
SHORT: dict[str, dict[str, Any]] = {
    "full": {"model": "llama-3.1-8b", "gpu": "l4"},
    "windows": {"model": "gemma-3-12b", "gpu": "l40s", "kv_cache_memory_bytes": 2**32},
    "short-windows": {"model": "gemma-3-1b", "gpu": "l4", "num_gpu_blocks_override": 700},
    "latents": {"model": "deepseek-v2-lite", "gpu": "l40s", "kv_cache_memory_bytes": 2**28},
    "states": {"model": "nemotron-h-8b", "gpu": "l40s", "kv_cache_memory_bytes": 3 * 2**26},
    "ranks": {
        "model": "llama-3.1-70b",
        "gpu": "a100-80gb",
        "tensor_parallel_size": 2,
        "kv_cache_memory_bytes": 2**32,
    },
    "override": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "num_gpu_blocks_override": 1001},
    "v0.20": {"model": "llama-3.1-8b", "gpu": "l4", "vllm_version": "0.20"},
}


@pytest.mark.parametrize("name", SHORT)
def test_the_length_fits_and_a_block_more_does_not(name: str) -> None:
    options = SHORT[name]
    found = kvsim.capacity(**options, max_model_len="auto")
    assert found.fits
    assert found.max_model_len < kvsim.capacity(**options).max_model_len
    same = kvsim.capacity(**options, max_model_len=found.max_model_len)
    assert replace(same, assumptions=()) == replace(found, assumptions=())
    for more in (1, found.block_size):
        longer = kvsim.capacity(**options, max_model_len=found.max_model_len + more)
        assert not longer.fits
    (said,) = (one for one in found.assumptions if "auto" in one)
    assert said.startswith(f"max_model_len {found.max_model_len} (auto: the longest that fits; ")


def test_the_null_block_holds_nobodys_tokens() -> None:
    """1,000 usable blocks of 16."""
    assert kvsim.capacity(**SHORT["override"], max_model_len=-1).max_model_len == 16_000


def test_a_model_that_fits_whole_gets_its_own_length() -> None:
    options: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
    found = kvsim.capacity(**options, max_model_len="auto")
    assert found.max_model_len == 131_072
    assert "max_model_len 131072 (auto: the model's, which fits)" in found.assumptions
    own = kvsim.capacity(**options)
    assert replace(own, assumptions=()) == replace(found, assumptions=())


def test_a_request_of_that_length_is_served_and_a_longer_one_refused() -> None:
    trace = kvsim.Trace.from_arrays([0.0, 0.0], [15_990, 16_000], [10, 10])
    result = kvsim.simulate(trace, **SHORT["override"], max_model_len="auto", backend="python")
    assert (result.summary["completed"], result.summary["num_rejected"]) == (1, 1)
    assert result.requests["num_output_tokens"].tolist() == [10, 0]


def test_a_run_is_that_of_the_length_written_out_and_says_it(tmp_path: Path) -> None:
    trace = workloads.sharegpt(num_requests=30, request_rate=8, seed=0)
    options: dict[str, Any] = {**SHORT["full"], "backend": "python"}
    found = kvsim.simulate(trace, **options, max_model_len="auto")
    length = kvsim.capacity(**SHORT["full"], max_model_len="auto").max_model_len
    assert found.summary == kvsim.simulate(trace, **options, max_model_len=length).summary
    notes = found.provenance["notes"]
    said = f"max_model_len {length} (auto: the longest that fits; the model's is 131072)"
    assert said in notes
    found.save(tmp_path)
    assert kvsim.load(tmp_path).config.max_model_len == -1


@pytest.mark.parametrize("value", ["-1", "'auto'", "'AUTO'"])
def test_toml_takes_both_words(value: str, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f"model = 'llama-3.1-8b'\nmax_model_len = {value}\n".replace("'", '"'))
    config = Config.from_toml(path)
    assert config.max_model_len == -1
    path.write_text(config.to_toml())
    assert Config.from_toml(path) == config
    path.write_text('max_model_len = "8000"')
    with pytest.raises(ValueError, match="must be a number, without quotes"):
        Config.from_toml(path)


@pytest.mark.parametrize(
    "line",
    [
        "capacity llama-3.1-8b --gpu l4 --max-model-len auto --json -",
        "capacity vllm serve llama-3.1-8b --max-model-len -1 --gpu l4 --json -",
    ],
)
def test_capacity_prints_the_length(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(line.split())
    found = json.loads(capsys.readouterr().out)
    assert found["max_model_len"] == kvsim.capacity(**SHORT["full"], max_model_len=-1).max_model_len


@pytest.mark.parametrize("command", ["run", "compare --allocators paged,paged+fp8"])
def test_runs_say_the_length(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = "vllm serve llama-3.1-8b --max-model-len -1 --gpu l4 --num-requests 5 --backend python"
    first, *rest = command.split()
    main([first, *line.split(), *rest])
    shown = capsys.readouterr()
    said = " ".join((shown.out + shown.err).split())
    assert "(auto: the longest that fits; the model's is 131072)" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_model_len": 0}, "is 0: must be a whole number, at least 1, auto, or none"),
        ({"max_model_len": -2}, "is -2: must be a whole number, at least 1, auto, or none"),
        ({"max_model_len": "long"}, "is 'long': must be a whole number, at least 1, auto, or none"),
        ({"max_model_len": "auto", "engine": "sglang"}, "is auto: only engine vllm supports auto"),
        (
            {"max_model_len": "auto", "num_gpu_blocks_override": 1},
            "is auto: not one token fits into the available KV",
        ),
    ],
)
def test_what_is_no_length_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"max_model_len {said}"):
        kvsim.capacity(model="llama-3.1-8b", gpu="l4", **options)
