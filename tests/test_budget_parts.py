"""What only some deployments have in memory: states, adapters, a drafter, an encoder's cache.

Runs of models with states stand here, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kvsim
import workloads
from kvsim.budget.drafter import drafter_bytes, drafter_of, with_drafter
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.budget.lora import lora_bytes
from kvsim.budget.padding import padded_experts
from kvsim.catalog import get_model
from kvsim.catalog.spec import ModelSpec
from kvsim.config import Config
from kvsim.cost.roofline import state_traffic
from kvsim.engine.setup import resolve
from kvsim.intensity.roofline import roofline
from kvsim.lora import LoRAConfig
from kvsim.speculation import SpeculativeConfig
from kvsim.trace import Trace
from kvsim.training.remedies import train_memory

MIB = 2**20


def capacity(model: str, **options: Any) -> Any:
    return kvsim.capacity(model=model, gpu="h200-sxm", **options)


def speculative(method: str, drafts: int = 3, **options: Any) -> SpeculativeConfig:
    return SpeculativeConfig.of({"method": method, "num_speculative_tokens": drafts, **options})


def parts(**options: Any) -> dict[str, int]:
    found: dict[str, int] = capacity("llama-3.1-8b", **options).budget_bytes
    return found


# -- states ---------------------------------------------------------------------------------------

#: Bytes of one layer's state on one GPU, by tensor parallelism.
STATES = [
    ("jamba-v0.1", 1, 311_296),
    ("nemotron-h-8b", 1, 2_158_592),
    ("nemotron-h-8b", 8, 2_158_592 // 8),
    ("qwen3-next-80b-a3b", 1, 1_097_728),
    ("qwen3-next-80b-a3b", 4, 1_097_728 // 4),
    ("kimi-linear-48b-a3b", 1, 2_170_880),
]


@pytest.mark.parametrize(("name", "tp", "size"), STATES)
def test_bytes_of_a_state(name: str, tp: int, size: int) -> None:
    layout = kv_layout(get_model(name), kv_dtype("bf16"), tensor_parallel_size=tp)
    assert {layer.state_bytes for layer in layout.layers if layer.kind == "mamba"} == {size}
    assert {layer.bytes_per_token for layer in layout.layers if layer.kind == "mamba"} == {0}


def test_groups_of_mamba_are_copied_where_ranks_do_not_share_them_evenly() -> None:
    state = get_model("nemotron-h-8b").state
    assert state is not None
    assert state.num_conv_channels(16) == (8192 + 2 * 16 * 128) // 16
    assert state.num_conv_channels(8) == (8192 + 2 * 8 * 128) // 8
    with pytest.raises(ValueError, match="128 heads of linear attention cannot be divided"):
        state.num_bytes(2, 2, tensor_parallel_size=3)


def test_drafts_widen_the_window_of_some_states() -> None:
    def widened(name: str) -> int:
        sizes = [
            kv_layout(get_model(name), kv_dtype("bf16"), num_speculative_tokens=n).layers[0]
            for n in (0, 2)
        ]
        return sizes[1].state_bytes - sizes[0].state_bytes

    assert widened("qwen3-next-80b-a3b") == 2 * 8192 * 2
    assert widened("nemotron-h-8b") == 2 * 10_240 * 2
    assert widened("kimi-linear-48b-a3b") == widened("jamba-v0.1") == 0


def test_dtype_of_states() -> None:
    """That of the weights unless the flag or the model says; the window stays as the weights."""
    plain = capacity("nemotron-h-8b").states["bytes_per_state"]
    wide = capacity("nemotron-h-8b", mamba_ssm_cache_dtype="float32").states["bytes_per_state"]
    assert wide - plain == 24 * 128 * 64 * 128 * 2
    both = capacity("nemotron-h-8b", dtype="float32").states["bytes_per_state"]
    assert both == 2 * plain
    own = capacity("kimi-linear-48b-a3b", mamba_ssm_cache_dtype="bfloat16").states
    assert own == capacity("kimi-linear-48b-a3b").states


#: The examples of vLLM's planner, 20 GiB: options, block size, blocks, and requests that fit.
PLANNED: list[tuple[str, dict[str, Any], int, int, float]] = [
    ("qwen3-next-80b-a3b", {"max_model_len": 131_072}, 544, 1606, 6.502),
    ("nemotron-h-8b", {"max_model_len": 32_768}, 528, 2482, 33.0933),
    ("jamba-v0.1", {"max_model_len": 65_536}, 80, 16_384, 19.6451),
    ("kimi-linear-48b-a3b", {"max_model_len": 131_072}, 1920, 1387, 18.4933),
]


@pytest.mark.parametrize(("name", "options", "block_size", "blocks", "requests"), PLANNED)
def test_capacity_of_hybrids_is_vllms(
    name: str, options: dict[str, Any], block_size: int, blocks: int, requests: float
) -> None:
    found = capacity(name, kv_cache_memory_bytes=20 * 2**30, **options)
    assert (found.block_size, found.num_gpu_blocks) == (block_size, blocks)
    longest = str(options["max_model_len"])
    assert found.max_concurrency[longest] == int(requests)
    assert f"block_size {block_size}, raised from 16" in " ".join(found.assumptions)


def test_states_in_a_capacity() -> None:
    found = capacity("nemotron-h-8b")
    state, page = 2_158_592, 528 * 4096
    assert found.states == {
        "num_layers": 24,
        "bytes_per_state": 24 * state,
        "padding_bytes": 24 * (page - state),
        "blocks_per_request": 12,
    }
    assert found.to_dict()["states"] == found.states
    uncached = capacity("nemotron-h-8b", enable_prefix_caching=False)
    assert uncached.states["blocks_per_request"] == 6
    spec = speculative("ngram", 2)
    assert capacity("nemotron-h-8b", speculative_config=spec).states["blocks_per_request"] == 24
    assert "states" not in capacity("llama-3.1-8b").to_dict()


def test_a_plain_model_keeps_its_block_size() -> None:
    found = capacity("llama-3.1-8b")
    assert found.block_size == 16
    assert not any("raised" in note for note in found.assumptions)


def test_cached_states_need_chunked_prefill() -> None:
    with pytest.raises(ValueError, match="caches its states at the ends of chunks"):
        capacity("nemotron-h-8b", enable_chunked_prefill=False)
    off = {"enable_chunked_prefill": False, "enable_prefix_caching": False}
    assert capacity("nemotron-h-8b", **off).fits


def served(model: str, trace: Any, **options: Any) -> Any:
    """Serve by plain Python and recount all memory after every step."""
    limits: dict[str, Any] = {"max_model_len": 8192, "backend": "python", "check_invariants": True}
    return kvsim.simulate(trace, model=model, gpu="h200-sxm", **limits, **options)


#: Deployments of models with states, each in little memory.
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("nemotron-h-8b", {}),
    ("nemotron-h-8b", {"enable_prefix_caching": False}),
    ("nemotron-h-8b", {"speculative_config": speculative("ngram", 2)}),
    ("qwen3-next-80b-a3b", {"quantization": "fp8"}),
    ("kimi-linear-48b-a3b", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
]


@pytest.mark.long
@pytest.mark.parametrize(("model", "options"), RUNS)
def test_models_with_states_are_served(model: str, options: dict[str, Any]) -> None:
    trace = workloads.fixed(prompt=1200, output=20, num_requests=12, request_rate=100.0)
    found = served(model, trace, kv_cache_memory_bytes=10**9, **options)
    assert found.summary["completed"] == 12
    assert found.summary["kv_cache"]["token_states"] > 0.75


@pytest.mark.long
def test_a_prefix_of_whole_blocks_is_hit_with_its_state() -> None:
    """The second request finds the state after the second block of 528 tokens."""
    content = [[(1, 0, 1100)]] * 2
    trace = Trace.from_arrays([0.0, 5.0], [1100, 1100], [4, 4], segments=content)
    found = served("nemotron-h-8b", trace)
    assert list(found.requests["num_cached_tokens"]) == [0, 1056]
    off = served("nemotron-h-8b", trace, enable_prefix_caching=False)
    assert list(off.requests["num_cached_tokens"]) == [0, 0]


def test_states_are_read_and_written_in_every_step() -> None:
    config = Config.build(model="nemotron-h-8b", gpu="h200-sxm")
    cost_config = resolve(config).cost_config
    assert state_traffic(cost_config) == 2 * 24 * 2_158_592
    halves = Config.build(model="nemotron-h-8b", gpu="h200-sxm", pipeline_parallel_size=2)
    assert state_traffic(resolve(halves).cost_config) == 2 * 24 * 2_158_592
    plain = Config.build(model="llama-3-8b", gpu="h200-sxm")
    assert state_traffic(resolve(plain).cost_config) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allocator": "dynamic"}, "only paged and radix without host memory keep them"),
        ({"allocator": "virtual"}, "only paged and radix without host memory"),
        ({"allocator": "paged+swap"}, "only paged and radix without host memory"),
        ({"kv_offloading_size": 1.0}, "only paged and radix without host memory"),
        ({"scheduler": "vllm-v0"}, "only vllm computes prompts so that they can be cached"),
    ],
)
def test_what_has_no_rules_for_states_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(Config.build(model="nemotron-h-8b", gpu="h200-sxm", **options))


def test_roofline_and_training_know_no_states() -> None:
    with pytest.raises(ValueError, match="whose work is not counted"):
        roofline(model="nemotron-h-8b", gpu="h200-sxm")
    with pytest.raises(ValueError, match="only the memory of attention is known"):
        train_memory(model="nemotron-h-8b", gpu="h200-sxm")


def test_layers_of_a_hybrid() -> None:
    jamba, nemotron = get_model("jamba-v0.1"), get_model("nemotron-h-8b")
    assert (jamba.num_state_layers, len(jamba.layers), jamba.num_mlp_layers) == (28, 4, 32)
    assert (nemotron.num_state_layers, len(nemotron.layers), nemotron.num_mlp_layers) == (24, 4, 24)
    assert sum(mixer is None for mixer in nemotron.mixers) == 24
    assert get_model("llama-3-8b").state is None


def test_a_state_layer_needs_its_shape() -> None:
    shape: ModelSpec = get_model("nemotron-h-8b")
    for broken in ({"state_form": None}, {"state_size": 0}, {"conv_kernel": 0}):
        with pytest.raises(ValueError, match="layers M need state_form"):
            replace(shape, **broken)  # type: ignore[arg-type]


# -- LoRA -----------------------------------------------------------------------------------------


def test_adapters_take_rank_times_inputs_and_outputs() -> None:
    """Llama 3.1 8B, by hand: Q, K, V, O, gate, up, down of 32 layers."""
    sides = (4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 3 * (4096 + 14_336)
    model = get_model("llama-3.1-8b")
    assert lora_bytes(model, LoRAConfig(1, 16)) == 32 * sides * 16 * 2
    assert lora_bytes(model, LoRAConfig(3, 64)) == 12 * 32 * sides * 16 * 2
    assert lora_bytes(model, LoRAConfig(1, 16), dtype="fp32") == 32 * sides * 16 * 4
    half = lora_bytes(model, LoRAConfig(1, 16), pipeline_parallel_size=2)
    assert half == 16 * sides * 16 * 2


def test_one_side_of_an_adapter_is_on_every_rank() -> None:
    sides = (4096 + 512) + 2 * (4096 + 128) + (512 + 4096) + 2 * (4096 + 1792) + (1792 + 4096)
    model = get_model("llama-3.1-8b")
    ranks = lora_bytes(model, LoRAConfig(1, 16), tensor_parallel_size=8)
    assert ranks == 32 * sides * 16 * 2


def test_adapters_of_experts_latents_and_states() -> None:
    mixtral = get_model("mixtral-8x7b")
    attention = (4096 + 4096) * 2 + (4096 + 1024) * 2
    expert = 3 * (4096 + 14_336)
    assert lora_bytes(mixtral, LoRAConfig(1, 1)) == 32 * 2 * (attention + 8 * expert)
    kimi = get_model("kimi-linear-48b-a3b")
    latent = (2304 + 6144) + (2304 + 576) + (512 + 8192) + (4096 + 2304)
    state = (2304 + 4096 + 12_288) + (4096 + 2304)
    experts = 26 * 257 * 3 * (2304 + 1024) + 3 * (2304 + 9216)
    sides = 7 * latent + 20 * state + experts
    assert lora_bytes(kimi, LoRAConfig(1, 1)) == 2 * sides
    v3 = get_model("deepseek-v3")
    only = replace(v3, num_layers=1)
    queries = (7168 + 1536) + (1536 + 128 * 192)
    rest = (7168 + 576) + (512 + 128 * 256) + (128 * 128 + 7168) + 3 * (7168 + 18_432)
    assert lora_bytes(only, LoRAConfig(1, 1)) == 2 * (queries + rest)
    mamba = get_model("nemotron-h-8b")
    mixer = (4096 + 8192 + 10_240) + (8192 + 4096)
    sides = 24 * mixer + 4 * attention + 24 * 2 * (4096 + 21_504)
    assert lora_bytes(mamba, LoRAConfig(1, 1)) == 2 * sides


def test_adapters_in_a_budget() -> None:
    plain, lora = parts(), parts(enable_lora=True, max_loras=4, max_lora_rank=64)
    assert "adapters" not in plain
    assert lora["adapters"] == plain["kv_cache"] - lora["kv_cache"] == 1280 * MIB
    found = capacity("llama-3.1-8b", enable_lora=True)
    assert any(note.startswith("adapters of every linear layer") for note in found.assumptions)


# -- drafters -------------------------------------------------------------------------------------


def test_weights_of_drafters() -> None:
    model = get_model("llama-3.1-8b")
    assert drafter_bytes(model, speculative("ngram")) == 0
    draft = speculative("draft_model", model="llama-3.2-1b")
    assert drafter_bytes(model, draft) == 2 * 1_235_814_400
    eagle = drafter_bytes(model, speculative("eagle3"))
    assert eagle == pytest.approx(2 * 0.425e9, rel=0.01)  # the published head has 0.42e9
    assert drafter_bytes(model, speculative("eagle3"), tensor_parallel_size=2) == eagle // 2
    quantised = speculative("draft_model", model="llama-3.2-1b-fp8")
    assert drafter_bytes(model, quantised) < drafter_bytes(model, draft)


def test_a_prediction_module_is_all_that_the_checkpoint_has_beside_the_model() -> None:
    """Qwen3-Next: 81,324,862,720 parameters on the hub, the module among them."""
    model = get_model("qwen3-next-80b-a3b")
    module = drafter_of(model, speculative("mtp", 1)).own_params
    assert model.num_params + module == 81_324_862_720
    assert drafter_of(model, speculative("mtp", 3, mtp_modules=3)).own_params == 3 * module
    assert drafter_bytes(model, speculative("mtp", 1), quantization="fp8") == module
    assert drafter_bytes(model, speculative("eagle", 1), quantization="fp8") % 2 == 0


@pytest.mark.parametrize(
    ("target", "options", "added"),
    [
        ("llama-3.1-8b", {"method": "ngram"}, []),
        ("llama-3.1-8b", {"method": "eagle"}, [("full", 4096)]),
        ("gpt-oss-20b", {"method": "eagle3"}, [("full", 2048)]),
        ("deepseek-v3", {"method": "mtp", "mtp_modules": 2}, [("full", 1152)] * 2),
        ("qwen3-next-80b-a3b", {"method": "mtp"}, [("full", 2048)]),
        ("llama-3.1-8b", {"method": "draft_model", "model": "llama-3.2-1b"}, [("full", 2048)] * 16),
    ],
)
def test_layers_of_drafters(
    target: str, options: dict[str, Any], added: list[tuple[str, int]]
) -> None:
    model = get_model(target)
    layout = kv_layout(model, kv_dtype("bf16"))
    whole = with_drafter(layout, model, speculative(**options))
    assert whole.layers[: len(layout.layers)] == layout.layers
    behind = whole.layers[len(layout.layers) :]
    assert [(layer.kind, layer.bytes_per_token) for layer in behind] == added


def test_scales_of_a_drafters_kv_are_counted() -> None:
    model = get_model("llama-3.1-8b")
    layout = kv_layout(model, kv_dtype("int8"))
    whole = with_drafter(layout, model, speculative("eagle"))
    assert whole.scale_bytes_per_token == layout.scale_bytes_per_token * 33 // 32
    assert with_drafter(layout, model, None) is layout


def test_a_drafter_in_a_budget_and_in_a_run() -> None:
    spec = speculative("eagle3")
    found = capacity("llama-3.1-8b", speculative_config=spec)
    plain = parts()
    assert found.bytes_per_block == 33 * 65_536
    graphs = found.budget_bytes["cuda_graphs"] - plain["cuda_graphs"]
    assert graphs != 0
    less = plain["kv_cache"] - found.budget_bytes["kv_cache"]
    assert found.budget_bytes["drafter"] + graphs == less
    assert "the drafter (eagle3) has layers of the model's own shape" in found.assumptions
    setup = resolve(Config.build(model="llama-3.1-8b", gpu="h200-sxm", speculative_config=spec))
    assert setup.kv.num_gpu_blocks == found.num_gpu_blocks


def test_a_draft_model_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown model"):
        capacity("llama-3.1-8b", speculative_config=speculative("draft_model", model="nope"))


# -- the encoder's cache, and logs ----------------------------------------------------------------


def test_an_encoder_cache_in_a_budget() -> None:
    found = parts(encoder_cache_size=8192)
    assert found["encoder_cache"] == 8192 * 4096 * 2
    assert sum(found.values()) == 2 * found["total"]
    assert list(found)[-4:] == ["encoder_cache", "non_torch", "cuda_graphs", "kv_cache"]


def test_a_logged_part_holds_what_belongs_to_it() -> None:
    """vLLM logs adapters and drafter among the weights, the encoder's cache among activations."""
    options: dict[str, Any] = {
        "enable_lora": True,
        "speculative_config": speculative("eagle"),
        "encoder_cache_size": 1000,
    }
    assert {"adapters", "drafter", "encoder_cache"} <= parts(**options).keys()
    logged = parts(logged={"weights": 16.0}, **options)
    assert {"adapters", "drafter"}.isdisjoint(logged)
    assert "encoder_cache" not in parts(logged={"activations": 2.0}, **options)


@pytest.mark.parametrize(
    ("model", "gpu", "ranks", "logged"),
    [("gpt-oss-20b", "a100-80gb", 1, 13.72), ("gpt-oss-120b", "a100-80gb", 4, 17.22)],
)
def test_marlin_pads_mxfp4_experts_to_what_was_logged(
    model: str, gpu: str, ranks: int, logged: float
) -> None:
    found = kvsim.capacity(model=model, gpu=gpu, tensor_parallel_size=ranks)
    assert found.budget_bytes["weights"] / 2**30 == pytest.approx(logged, rel=0.007)


def test_experts_are_padded_to_whole_tiles_of_a_cards_kernels() -> None:
    model = get_model("gpt-oss-120b")
    padded = {gpu: padded_experts(model, gpu, "mxfp4", ranks_per_expert=4)
              for gpu in ("l4", "rtx-5090", "h100-sxm", "b200", "mi300x")}  # fmt: skip
    wide = 768 * 3072 / (720 * 2880)
    assert padded == pytest.approx(
        {"l4": wide, "rtx-5090": wide, "h100-sxm": 768 / 720, "b200": wide, "mi300x": 1}
    )
    assert padded_experts(model, "b200", "mxfp4", ranks_per_expert=1) == (3072 / 2880) ** 2
    assert padded_experts(model, "l4", "int4", ranks_per_expert=4) == 1


def test_the_profile_run_of_an_image_encoder_is_the_larger_peak() -> None:
    """Two RTX 5090 with Qwen3.8-27B-FP8 logged 1.59 GiB of peak activation, and KV after it."""
    options = {"model": "Qwen/Qwen3.8-27B", "gpu": "rtx-5090", "tensor_parallel_size": 2}
    options |= {"quantization": "fp8", "max_num_seqs": 4, "vllm_version": "0.26"}
    seen = kvsim.capacity(**options).budget_bytes
    text = kvsim.capacity(**options, language_model_only=True).budget_bytes
    assert seen["activations"] / 2**30 == pytest.approx(1.59, abs=0.01)
    assert text["activations"] / 2**30 == pytest.approx(0.17, abs=0.01)
    # beside many requests' logits the outputs of the image count alone
    many = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    seen = kvsim.capacity(**options | many).budget_bytes
    text = kvsim.capacity(**options | many, language_model_only=True).budget_bytes
    assert seen["activations"] - text["activations"] == 16384 * 5120 * 2
    cached = kvsim.capacity(**options, encoder_cache_size=16384).budget_bytes
    assert cached["encoder_cache"] == 16384 * 5120 * 2
    assert cached["activations"] / 2**30 == pytest.approx(0.17, abs=0.01)
