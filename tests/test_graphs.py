"""CUDA graphs: which ones a server captures, and the memory that they take."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kvsim
from experiments.cuda_graphs import Constants, fit, halves, logs
from kvsim.budget.graphs import (
    LAYER_BYTES,
    NARROW_KV_BYTES,
    SHARED,
    Graphs,
    graph_bytes,
    graphs_of,
)
from kvsim.budget.limits import limits_of
from kvsim.catalog import get_gpu, get_model
from kvsim.cli.main import main
from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.study.command import vllm_line

GIB = 2**30
MODEL = "llama-3.1-8b"


def captured(gpu: str = "l40s", **options: Any) -> Graphs:
    config = Config.build(model=MODEL, gpu=gpu, **options)
    return graphs_of(config, limits_of(config, get_model(MODEL), get_gpu(gpu)), get_gpu(gpu))


@pytest.mark.parametrize(
    ("options", "piecewise", "full"),
    [  # "Profiling CUDA graph memory: PIECEWISE=n (largest=m), FULL=..." of logs
        ({}, (51, 512), (35, 256)),
        ({"max_num_seqs": 128}, (35, 256), (19, 128)),
        ({"max_num_seqs": 32}, (11, 64), (7, 32)),
        ({"max_num_seqs": 8}, (5, 16), (4, 8)),
        ({"max_num_seqs": 1, "max_cudagraph_capture_size": 1}, (1, 1), (1, 1)),
        ({"gpu": "h100-sxm"}, (51, 512), (51, 512)),
    ],
)
def test_servers_capture_what_their_logs_say(
    options: dict[str, Any], piecewise: tuple[int, int], full: tuple[int, int]
) -> None:
    found = captured(**options)
    assert (len(found.piecewise), max(found.piecewise)) == piecewise
    assert (len(found.full), max(found.full)) == full


def test_sizes_by_limits_drafts_and_cards() -> None:
    assert captured(max_num_seqs=20).piecewise == (1, 2, 4, 8, 16, 20, 24, 32, 40)
    assert max(captured(max_num_batched_tokens=300, max_num_seqs=300).piecewise) == 300
    assert max(captured("b200").piecewise) == 1024
    assert max(captured("rtx-5090").piecewise) == 512  # of capability 12
    spec = {"method": "ngram", "num_speculative_tokens": 3}
    drafted = captured(max_num_seqs=2, speculative_config=spec)
    assert drafted.piecewise == (1, 2, 4, 8, 16)
    assert drafted.full == (4, 8)
    assert captured(cudagraph_capture_sizes=[4, 1, 9000]).piecewise == (1, 4)


@pytest.mark.parametrize(
    ("options", "piecewise", "full"),
    [
        ({"enforce_eager": True}, 0, 0),
        ({"optimization_level": 0}, 0, 0),
        ({"optimization_level": 1}, 51, 0),
        ({"optimization_level": 2}, 51, 35),
        ({"optimization_level": 3}, 51, 35),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, 0, 0),
        ({"compilation_config": '{"cudagraph_mode": "PIECEWISE"}'}, 51, 0),
        ({"compilation_config": {"cudagraph_mode": "FULL"}}, 0, 51),
        ({"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}, 0, 35),
        ({"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}}, 3, 3),
        ({"cudagraph_capture_sizes": "1 2 4"}, 3, 3),
        ({"cudagraph_capture_sizes": "1,2,4", "optimization_level": 1}, 3, 0),
    ],
)
def test_modes_levels_and_lists(options: dict[str, Any], piecewise: int, full: int) -> None:
    found = captured(**options)
    assert (len(found.piecewise), len(found.full)) == (piecewise, full)
    parts = kvsim.capacity(model=MODEL, gpu="l40s", **options).budget_bytes
    assert parts["cuda_graphs"] == graph_bytes(32, piecewise + full)
    assert (parts["cuda_graphs"] == 0) == (piecewise + full == 0)


def test_graphs_grow_with_layers_graphs_and_ranks() -> None:
    one = graph_bytes(32, 86)
    assert one == int(LAYER_BYTES * 32 * 86)
    assert graph_bytes(64, 86) == pytest.approx(2 * one, abs=1)
    assert graph_bytes(32, 86, num_ranks=2) == pytest.approx(SHARED * one, abs=1)
    assert graph_bytes(32, 86, narrow_kv=True) == one + NARROW_KV_BYTES
    assert graph_bytes(32, 0, narrow_kv=True) == 0


@pytest.mark.parametrize(
    ("options", "gib"),
    [  # logs that name the model; those of DEFECTS that tell the shape alone are in the fit
        ({"model": "qwen2.5-7b", "gpu": "l40s"}, 0.53),
        ({"model": "qwen2.5-72b", "gpu": "l40s", "tensor_parallel_size": 4}, 2.73),
        ({"model": "Qwen/Qwen2.5-32B-Instruct-AWQ", "gpu": "rtx-3090"}, 1.59),
        ({"model": "qwen3.5-27b", "tensor_parallel_size": 4, "max_num_seqs": 2}, 0.17),
    ],
)
def test_the_estimate_is_near_what_servers_logged(options: dict[str, Any], gib: float) -> None:
    given = {"gpu": "rtx-3090", "max_model_len": 4096} | options
    found = kvsim.capacity(**given).budget_bytes["cuda_graphs"] / GIB
    assert found == pytest.approx(gib, abs=0.15)
    assert abs(found - gib) < abs(0.30 - gib)


@pytest.mark.long
def test_the_constants_are_the_fitted_ones_and_each_half_judges_the_other() -> None:
    assert fit(logs()) == pytest.approx(
        Constants(LAYER_BYTES / 2**20, SHARED, NARROW_KV_BYTES / 2**20)
    )
    for half in halves():
        assert half["median_mib"] < 100
        assert half["flat_median_mib"] > 300


def test_only_newer_servers_count_them() -> None:
    for version, counted in (("0.20.2", False), ("0.21", True)):
        parts = kvsim.capacity(model=MODEL, gpu="l40s", vllm_version=version).budget_bytes
        assert (parts["cuda_graphs"] > 0) == counted


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, 0),
        ({"optimization_level": 0}, 0),
        ({"cudagraph_capture_sizes": [1, 64]}, 64),
        ({"compilation_config": {"cudagraph_capture_sizes": [1, 8]}}, 8),
        ({}, 512),
    ],
)
def test_steps_are_priced_as_captured(options: dict[str, Any], tokens: int) -> None:
    setup = resolve(Config.build(model=MODEL, gpu="l40s", **options))
    assert setup.cost.record.captured_tokens == tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compilation_config": "{"}, "compilation_config is not JSON"),
        ({"compilation_config": {"cudagraph_mode": "SOME"}}, "unknown cudagraph_mode 'SOME'"),
        ({"compilation_config": {"cudagraph_capture_sizes": 4}}, "must be a list of token counts"),
        ({"optimization_level": 4}, "optimization_level"),
        ({"cudagraph_capture_sizes": "1,x"}, "cudagraph_capture_sizes"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kvsim.capacity(model=MODEL, gpu="l40s", **options)


def test_flags_files_and_lines_say_the_same(tmp_path: Any, capsys: Any) -> None:
    config = Config.build(model=MODEL, gpu="l40s", cudagraph_capture_sizes="1,2", dtype="auto")
    (tmp_path / "c.toml").write_text(config.to_toml())
    assert Config.from_toml(tmp_path / "c.toml").cudagraph_capture_sizes == (1, 2)
    assert "--cudagraph-capture-sizes 1 2" in vllm_line(config).command
    words = ["capacity", "--model", MODEL, "--gpu", "l40s"]
    for flags in (["-O0"], ["--compilation-config", '{"cudagraph_mode":"NONE"}']):
        main([*words, *flags, "--json", "-"])
        told = capsys.readouterr()
        assert json.loads(told.out)["budget_bytes"]["cuda_graphs"] == 0
        assert "no effect" not in told.err
