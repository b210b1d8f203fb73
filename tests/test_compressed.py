"""DeepSeek-V4: KV of windows, of compressed tokens and of compressors, worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

import kvsim
from kvsim.budget.capacity import Memory, resolve_memory
from kvsim.budget.weights import weight_bytes
from kvsim.catalog import get_model
from kvsim.catalog.hf_config import read_hf_config
from kvsim.cli.main import main
from kvsim.config import RunConfig

CONFIG = Path(__file__).parent / "data" / "hf_configs" / "deepseek-v4-flash.json"
SERVER = {"model": "deepseek-v4-flash", "gpu": "h200-sxm", "tensor_parallel_size": 2}

#: Bytes of a page, padded to 576: 64 slots of 584; 64 index keys of 128 + 4; 2 slots of 584.
TOKENS, KEYS, HEAVY = 65 * 576, 15 * 576, 3 * 576
#: 4 states of 2 x 2 x 512 and of 2 x 2 x 128 FP32 numbers, 8 of 2 x 512.
STATES, KEY_STATES = 57 * 576, 15 * 576


def memory_of(max_model_len: int, **options: Any) -> Memory:
    given = SERVER | {"max_num_batched_tokens": 16384, "async_scheduling": False} | options
    return resolve_memory(RunConfig.build(**given, max_model_len=max_model_len))


def test_groups_and_pages_of_flash() -> None:
    plan = memory_of(30_000).plan
    assert [
        (group.kind, group.window, group.block_size, group.num_layers, group.page_bytes)
        for group in plan.groups
    ] == [
        ("sliding", 128, 64, 22, 22 * TOKENS),
        ("sliding", 128, 64, 21, 21 * TOKENS),
        ("full", None, 256, 62, 21 * (TOKENS + KEYS) + 20 * HEAVY),
        ("sliding", 8, 4, 42, 21 * (STATES + KEY_STATES)),
        ("sliding", 128, 8, 20, 20 * STATES),
    ]
    assert plan.bytes_per_block == 21 * (TOKENS + KEYS) + 20 * HEAVY == 1_002_240
    assert (plan.scheduler_block_size, plan.hash_block_size) == (256, 4)


def test_blocks_per_request_are_those_of_a_start_up_error_of_vllm() -> None:
    # vLLM issue 44376, version 0.22, V4-Flash: 30,000 tokens need 6.66 GiB, and 5.44 GiB hold
    # 13,528 tokens. Its blocks were not packed yet: 22 pages of each of three sizes.
    block = 22 * (TOKENS + KEYS + HEAVY)
    whole = memory_of(30_000).plan.reserved_blocks(16384, 30_000)
    # 118 + 2 x (258 + 1) + (4098 + 1) + (2064 + 1)
    assert whole == 118 + 518 + 4099 + 2065
    assert f"{whole * block / 2**30:.2f}" == "6.66"
    most = memory_of(13_528).plan.reserved_blocks(16384, 13_528)
    assert most == 53 + 2 * 213 + 3383 + 1692
    assert f"{most * block / 2**30:.2f}" == "5.44"


def test_bytes_per_token_count_compressed_tokens_alone() -> None:
    # 21 layers: 584 / 4 and a key of 132 / 4; 20 layers: 584 / 128
    assert memory_of(4096).layout.bytes_per_token == int(21 * (146 + 33) + 20 * 584 / 128) == 3850
    pro = memory_of(4096, model="deepseek-v4-pro", gpu="b300", tensor_parallel_size=8)
    assert pro.layout.bytes_per_token == int(30 * (146 + 33) + 31 * 584 / 128) == 5511


def test_parameters_explain_the_elements_of_the_published_files() -> None:
    # the list counts packed experts, scales, hash tables and the drafting layer, too
    pro = get_model("deepseek-v4-pro")
    scale, h, rank, width = 128**2, 7168, 1536, 16384
    narrow = h * rank + rank * 65536 + 512 * h + width * 4096 + h * width + 3 * 3072 * h
    layer = narrow + narrow // scale + (3 * 384 * 3072 * h) * (1 / 2 + 1 / 32)
    layer += 128 + 512 + rank + 2 * h + 384 * h + 2 * (24 * 4 * h + 24 + 3)
    ends = 2 * 129280 * h + 4 * 4 * h + 4 + 1 + h
    light = 512 + 128 * 512 + 2 * 512 * h
    indexed = 512 + 4 * 1024 + 2 * 1024 * h + 128 + 4 * 256 + 2 * 256 * h + 64 * h
    indexed += 8192 * rank + 8192 * rank // scale
    drafts = layer + 384 + (2 * h * h) * (1 + 1 / scale) + 3 * h + 4 * 4 * h + 4 + 1
    tables = 3 * 6 * 129280 + 58 * 384
    total = ends + 61 * layer + 31 * light + 30 * indexed + drafts + tables
    assert total == 861_608_274_846
    packed = pro.num_routed_expert_params * (1 / 2 - 1 / 32)
    scales = 61 * narrow // scale + 30 * 8192 * rank // scale
    assert pro.num_params - packed + scales + drafts + 3 * 6 * 129280 == total


def test_active_parameters_are_the_published_ones() -> None:
    for name, billions in (("deepseek-v4-pro", 49), ("deepseek-v4-flash", 13)):
        assert round(get_model(name).num_active_params / 1e9) == billions


def test_weights_are_those_of_the_files() -> None:
    # 805.32 GiB with the drafting layer of 13.0 GiB, from the same list
    stored = weight_bytes(get_model("deepseek-v4-pro"), quantization="fp8-mxfp4")
    assert stored == pytest.approx(850_748_205_004, rel=2e-3)


def test_the_reader_finds_the_entry_of_the_catalogue(tmp_path: Path) -> None:
    read, named = read_hf_config(CONFIG), get_model("deepseek-v4-flash")
    for field in vars(named):
        if field not in ("name", "hf_id", "source", "quantized_parts", "aliases"):
            assert getattr(read, field) == getattr(named, field), field
    newer = json.loads(CONFIG.read_text("utf-8"))
    kinds = {0: "sliding_attention", 4: "csa", 128: "hca"}
    newer["layer_types"] = [kinds[ratio] for ratio in newer.pop("compress_ratios")[:43]]
    newer |= {"compress_rates": {"csa": 4, "hca": 128}, "mlp_layer_types": ["hash_moe"] * 3}
    del newer["num_hash_layers"]
    (tmp_path / "config.json").write_text(json.dumps(newer), "utf-8")
    again = read_hf_config(tmp_path)
    assert again.compress_ratios == named.compress_ratios
    assert again.num_params == named.num_params


@pytest.mark.parametrize(
    ("ratios", "message"),
    [([0] * 42, "has 42 entries for 43 layers"), ([0] * 42 + [8], "8 is not supported")],
)
def test_wrong_ratios_are_refused(tmp_path: Path, ratios: list[int], message: str) -> None:
    values = json.loads(CONFIG.read_text("utf-8")) | {"compress_ratios": ratios}
    (tmp_path / "config.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(ValueError, match=message):
        read_hf_config(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "sglang"], "engine sglang: its pools for the compressed KV"),
        (["--engine", "tensorrt-llm"], "engine tensorrt-llm: its pools"),
        (["--kv-cache-dtype", "bfloat16"], r"allowed: auto, fp8"),
        (["--disable-hybrid-kv-cache-manager"], "disable_hybrid_kv_cache_manager: not modelled"),
        (["--decode-context-parallel-size", "2"], "which vLLM does not split over ranks"),
        (["--allocator", "paged+window=4096"], "cannot be changed"),
    ],
)
def test_what_is_not_known_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ["--model", "deepseek-v4-flash", "--gpu", "h200-sxm", "--tensor-parallel-size", "2"]
    with pytest.raises(SystemExit) as stopped:
        main(["capacity", *server, *options])
    assert stopped.value.code == 2
    found = capsys.readouterr().err
    assert len(found.strip().splitlines()) == 1
    assert all(part in found for part in message.split("|"))


def test_other_block_sizes_are_told_to_have_no_kernel() -> None:
    found = kvsim.capacity(**SERVER, block_size=128)
    assert any("multiples of 256" in note for note in found.assumptions)


@pytest.mark.long
def test_runs_with_a_constant_step_time_are_equal_as_python_and_compiled() -> None:
    trace = kvsim.Trace.from_arrays([0.0, 0.1, 0.2, 0.3], [1000, 3000, 5000, 5000], [10, 20, 30, 9])
    options = SERVER | {"max_model_len": 30_000, "cost_model": "constant"}
    python, compiled = (
        kvsim.simulate(trace, **options, backend=backend, check_invariants=True)
        for backend in ("python", "compiled")
    )
    assert python.metrics == compiled.metrics
    assert python.metrics.completed == 4
    with pytest.raises(ValueError, match="no step times for the compressed attention"):
        kvsim.simulate(trace, **options | {"cost_model": "roofline"})
