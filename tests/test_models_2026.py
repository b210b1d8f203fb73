"""Models of 2026: KV per token, bytes of weights, and what a run says of its step times."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_catalog import rows

import kvsim
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.budget.planner import plan_groups
from kvsim.budget.weights import QUANTIZED_BYTES, part_params, quantized_params, weight_bytes
from kvsim.catalog import get_model, model_names
from kvsim.cost.accuracy import UNKNOWN

CONFIGS = Path(__file__).parent / "data" / "hf_configs"

#: Kinds of attention and state in the table's words, and what it names differently.
NAMES = {"llama-3.1-70b-fp8": "llama-3.1-70b", "qwen3-235b-a22b-fp8": "qwen3-235b-a22b"}


def per_token(name: str, dtype: str = "bf16", **options: int) -> int:
    return kv_layout(get_model(name), kv_dtype(dtype), **options).bytes_per_token


def test_models_agree_with_the_shared_table_of_2026(whole_data: Path) -> None:
    for row in rows(whole_data / "models_2026.csv"):
        spec = get_model(NAMES.get(row["name"], row["name"]))
        sizes = (spec.num_layers, spec.hidden_size, spec.num_heads, spec.vocab_size)
        wanted = tuple(int(row[key]) for key in ("layers", "hidden", "heads", "vocab"))
        assert sizes == wanted, row["name"]
        if row["experts"]:
            experts = (spec.num_experts, spec.num_experts_per_token, spec.moe_intermediate_size)
            wanted = tuple(int(row[key]) for key in ("experts", "active", "expert_width"))
            assert experts == wanted, row["name"]
        assert str(spec.window or "") == row["window"], row["name"]
        if ", top" in row["indexer"]:
            heads, dim = row["indexer"].split(", ")[0].split(" x ")
            assert (spec.index_num_heads, spec.index_head_dim) == (int(heads), int(dim))
        if "float32" in row["linear_state"]:
            assert spec.state_dtype == "fp32"


# -- KV -------------------------------------------------------------------------------------------

KV = {
    # 61 latents of 576 elements and 61 index keys of 128 bytes and a scale
    ("deepseek-v3.2", "bf16"): 61 * (1152 + 132),
    # 512 bytes and four scales, 64 rotary elements in 16 bits: the planner's 656
    ("deepseek-v3.2", "fp8"): 61 * (656 + 132),
    ("glm-5.2", "bf16"): 78 * 1152 + 21 * 132,
    ("kimi-k2.5", "fp8"): 61 * 576,
    ("minimax-m2.5", "bf16"): 62 * 2 * 8 * 128 * 2,
    ("minimax-m3", "bf16"): 60 * 2 * 4 * 128 * 2 + 57 * 128 * 2,
    ("mimo-v2-flash", "bf16"): (39 * 8 + 9 * 4) * (192 + 128) * 2,
    ("qwen3.5-397b-a17b", "bf16"): 15 * 2 * 2 * 256 * 2,
    ("nemotron-3-super-120b-a12b", "bf16"): 8 * 2 * 2 * 128 * 2,
    ("kimi-k3", "bf16"): 24 * 1152,
    ("falcon-h1-34b", "bf16"): 72 * 2 * 4 * 128 * 2,
    ("lfm2-1.2b", "bf16"): 6 * 2 * 8 * 64 * 2,
    ("mistral-small-4", "bf16"): 36 * (256 + 64) * 2,
}


@pytest.mark.parametrize(("which", "size"), KV.items())
def test_kv_per_token_of_every_kind(which: tuple[str, str], size: int) -> None:
    assert per_token(*which) == size


def test_index_keys_are_on_every_rank_and_share_a_group_with_the_latents() -> None:
    split = per_token("deepseek-v3.2", tensor_parallel_size=8)
    assert split == per_token("deepseek-v3.2")
    layout = kv_layout(get_model("deepseek-v3.2"), kv_dtype("fp8"))
    plan = plan_groups(layout, 64)
    assert [group.num_layers for group in plan.groups] == [122]
    assert plan.bytes_per_block == 3_076_352  # as vLLM's own planner has it
    assert layout.scale_bytes_per_token == 61 * (16 + 4)


def test_layers_that_share_kv_keep_none() -> None:
    spec = replace(get_model("gemma-3-4b"), num_kv_shared_layers=10)
    kept = kv_layout(spec, kv_dtype("bf16"))
    assert len(kept.layers) == 24 == spec.num_layers - 10
    assert kept.layers == kv_layout(get_model("gemma-3-4b"), kv_dtype("bf16")).layers[:24]


def test_states_are_as_wide_as_the_file_says_unless_told_otherwise() -> None:
    sizes = [
        kvsim.capacity(
            model="nemotron-3-nano-30b-a3b", gpu="h200-sxm", mamba_ssm_cache_dtype=dtype
        ).states
        for dtype in ("auto", "float32", "bfloat16")
    ]
    wide, same, narrow = (size["bytes_per_state"] for size in sizes if size is not None)
    assert wide == same
    assert wide - narrow == 23 * 64 * 64 * 128 * 2


# -- weights --------------------------------------------------------------------------------------


def test_parts_add_up() -> None:
    for name in model_names():
        spec = get_model(name)
        body = spec.num_params - spec.num_embedding_params - spec.num_lm_head_params
        parts = part_params(spec)
        assert sum(parts.values()) == body, name
        assert min(parts.values()) >= 0, name


def test_what_a_checkpoint_leaves_out_explains_its_published_count() -> None:
    # llmfit 1.1.17's counts of the hub's metadata, two 4-bit weights in a byte; in the first of
    # them scales are not counted, in the second they are, beside a 16-bit drafting module
    minimax = get_model("nvidia/MiniMax-M2.5-NVFP4")
    touched = sum(quantized_params(minimax, "nvfp4"))
    assert minimax.num_params - touched // 2 == pytest.approx(116_349_510_656, rel=1e-6)
    deepseek = get_model("nvidia/DeepSeek-V3.1-NVFP4")
    touched = sum(quantized_params(deepseek, "nvfp4"))
    with_module = 684_489_845_504
    assert with_module - touched * 0.4375 == pytest.approx(393_632_819_968, rel=1e-3)
    # the bytes of both checkpoints (vLLM's recipes) less the tower: the module is in 16 bits
    qwen = get_model("Qwen/Qwen3.8-27B")
    module = 55_563_006_776 - 2 * (qwen.num_params + qwen.num_tower_params)
    stored = weight_bytes(qwen, quantization="nvfp4") + module
    assert stored == pytest.approx(26_381_249_312, rel=1e-4)


def test_only_named_parts_of_a_checkpoint_are_narrow() -> None:
    spec = get_model("kimi-k2.5")
    plain, narrow = weight_bytes(spec), weight_bytes(spec, quantization="int4")
    saved = spec.num_routed_expert_params * (2 - QUANTIZED_BYTES["int4"])
    assert plain - narrow == pytest.approx(saved, rel=1e-12)
    assert weight_bytes(spec, towers=False) == plain - 2 * spec.num_tower_params


def test_experts_lie_whole_on_the_ranks_of_all_replicas() -> None:
    spec = get_model("minimax-m2.5")
    dense = spec.num_params - spec.num_routed_expert_params
    one = weight_bytes(spec, expert_parallel_size=8)
    assert one == 2 * (dense + spec.num_routed_expert_params // 8)
    uneven = weight_bytes(spec, expert_parallel_size=6)  # 43 of 256 on the first rank
    assert uneven == pytest.approx(2 * (dense + spec.num_routed_expert_params * 43 / 256))
    options = {"model": "minimax-m2.5", "gpu": "h200-sxm", "tensor_parallel_size": 2}
    both = kvsim.capacity(**options, data_parallel_size=4, enable_expert_parallel=True)
    split = kvsim.capacity(**options, data_parallel_size=4)
    assert "32 of 256 experts on each of 8 GPUs" in both.assumptions
    assert "1/8 of every routed expert on each of 8 GPUs" in split.assumptions
    assert both.budget_bytes["weights"] == split.budget_bytes["weights"]
    alone = kvsim.capacity(**options | {"gpu": "b300"})
    assert both.budget_bytes["weights"] < alone.budget_bytes["weights"] / 3


def test_towers_may_be_left_out() -> None:
    options = {"model": "kimi-k2.5", "gpu": "b200", "tensor_parallel_size": 8}
    text = kvsim.capacity(**options, language_model_only=True).budget_bytes["weights"]
    whole = kvsim.capacity(**options).budget_bytes["weights"]
    assert whole - text == pytest.approx(2 * 471_143_920 / 8, abs=1)


# -- runs -----------------------------------------------------------------------------------------


def test_a_fine_tune_takes_the_shape_of_its_base(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--hf-config-path"):
        kvsim.capacity(model="someone/My-Tune-7B", gpu="h100-sxm")
    for base in ("qwen2.5-7b", str(CONFIGS / "qwen2.5-7b-instruct.json")):
        found = kvsim.capacity(model="someone/My-Tune-7B", hf_config_path=base, gpu="h100-sxm")
        assert (found.model, found.bytes_per_token) == ("someone/My-Tune-7B", 56 * 1024)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deepseek-v3.2", ["sparse attention", "fp8-block weights"]),
        ("nvidia/Kimi-K2.5-NVFP4", ["nvfp4 weights", "latent attention"]),
        ("nemotron-3-super-120b-a12b", ["mamba2 layers", "latent experts"]),
    ],
)
def test_runs_say_what_no_step_time_has(name: str, said: list[str]) -> None:
    trace = kvsim.Trace.from_arrays([0.0, 0.1], [100, 200], [4, 4])
    result = kvsim.simulate(
        trace,
        model=name,
        gpu="b300",
        tensor_parallel_size=8,
        backend="python",
    )
    told = json.dumps(result.provenance)
    assert all(part in told for part in said)
    assert UNKNOWN in told


# -- the page -------------------------------------------------------------------------------------

TABLE = Path(__file__).parents[1] / "docs" / "howto" / "capacity-2026.csv"


def test_the_pages_capacities_are_what_the_code_gives() -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))[1:]
    assert len(lines) == 30
    for name, stored, gpu, *numbers in lines:
        options = {
            "model": name.strip("`"),
            "gpu": gpu,
            "quantization": stored,
            "tensor_parallel_size": 8,
            "max_model_len": 131072,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
        }
        if stored == "bf16":
            del options["quantization"]
        if numbers[0] == "does not fit":
            with pytest.raises(ValueError, match="does not fit"):
                kvsim.capacity(**options)
            continue
        found = kvsim.capacity(**options)
        budget = {part: size / 2**30 for part, size in found.budget_bytes.items()}
        overheads = budget["activations"] + budget["non_torch"] + budget["cuda_graphs"]
        parts = (budget["total"], budget["weights"], overheads, budget["kv_cache"])
        assert numbers == [
            *(f"{part:.2f}" for part in parts),
            f"{found.bytes_per_token:,}",
            f"{found.num_gpu_blocks:,} x {found.block_size}",
            f"{found.max_concurrency['8192']:,}",
        ], (name, gpu)
