"""Flags of servers that change a size, a default or a rule: hand-checked cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from refused import refused

import kvsim
from kvsim.cli.main import cli
from kvsim.cli.pasted import translate
from kvsim.cli.server_flags import flags_of
from kvsim.config import Config
from kvsim.engines.sglang.drafting import shape_of
from kvsim.engines.sglang.pages import page_size_of

if TYPE_CHECKING:
    from pathlib import Path

#: Most flags that affect memory or schedule and are refused, by server.
MOST_REFUSED = {"vllm": 12, "sglang": 12}
GIB = 2**30


@pytest.mark.parametrize("server", MOST_REFUSED)
def test_few_flags_of_memory_or_schedule_are_refused(server: str, whole_data: Path) -> None:
    """Each says what it would take, or why, and what to give instead."""
    table = (whole_data / "flags" / f"flags_{server}.tsv").read_text().splitlines()[1:]
    known, found = flags_of(server), set()
    for row in table:
        names, *_, affects = row.split("\t")
        if "memory" in affects or "schedule" in affects or "older" in affects:
            found |= {flag for name in names.split() if (flag := known.get(name))}
    missing = [flag for flag in found if flag.does == "refused"]
    assert len(missing) <= MOST_REFUSED[server], sorted(f.names[0] for f in missing)


def of(**options: Any) -> kvsim.Capacity:
    return kvsim.capacity(gpu="h100-sxm", **options)


def test_throughput_doubles_the_defaults_of_a_step() -> None:
    plain = kvsim.capacity(model="llama-3-8b", gpu="l4")
    more = kvsim.capacity(model="llama-3-8b", gpu="l4", performance_mode="throughput")
    assert any("max_num_seqs 256 " in note for note in plain.assumptions)
    assert any("max_num_seqs 512 " in note for note in more.assumptions)
    assert any("max_num_batched_tokens 4096 " in note for note in more.assumptions)


def test_a_size_of_blocks_that_the_server_replaces_is_passed_over() -> None:
    line = "capacity vllm serve nemotron-h-8b --gpu h100-sxm --mamba-block-size 1024"
    made = translate(line.split(), cli)
    assert "--mamba-block-size" not in made.words
    assert "blocks of states are those of attention" in " ".join(made.notes())


def test_memory_for_images_on_their_way_is_missing_from_the_pool() -> None:
    plain, less = of(model="llama-3-8b"), of(model="llama-3-8b", mm_ipc_gpu_memory_gb=2)
    assert plain.budget_bytes["kv_cache"] - less.budget_bytes["kv_cache"] == 2 * GIB


def test_without_windows_the_context_ends_at_the_window() -> None:
    assert of(model="mistral-7b").max_model_len == 32768
    capped = of(model="mistral-7b", disable_sliding_window=True)
    assert capped.max_model_len == 4096


@pytest.mark.parametrize(
    ("gpu", "backend", "tokens"),
    [
        ("h200-sxm", None, 16),
        ("h200-sxm", "FLASHMLA", 64),
        ("b200", None, 32),
        ("b200", "cutlass_mla", 128),
        ("b200", "TRITON_MLA", 16),
    ],
)
def test_vllms_blocks_follow_the_backend(gpu: str, backend: str | None, tokens: int) -> None:
    given = {"model": "deepseek-v3", "tensor_parallel_size": 8, "quantization": "fp8"}
    fits = kvsim.capacity(gpu=gpu, attention_backend=backend, kv_cache_memory_bytes="8G", **given)
    assert fits.block_size == tokens


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"gpu": "h100-sxm"}, 1),
        ({"gpu": "b200"}, 64),
        ({"gpu": "b200", "page_size": 16}, 16),
        ({"gpu": "b200", "page_size": 8}, 64),
        ({"gpu": "b200", "attention_backend": "fa4"}, 128),
        ({"gpu": "b200", "attention_backend": "flashinfer"}, 1),
        ({"gpu": "h100-sxm", "attention_backend": "flashmla", "page_size": 1}, 64),
        ({"gpu": "b200", "model": "deepseek-v3"}, 64),
        ({"gpu": "b200", "model": "deepseek-v2"}, 1),
        ({"gpu": "h200-sxm", "model": "deepseek-v3.2"}, 64),
        ({"gpu": "b200", "speculative_eagle_topk": 4}, 1),
    ],
)
def test_sglangs_pages_follow_the_backend(given: dict[str, Any], tokens: int) -> None:
    assert page_size_of(Config(**{"model": "qwen3-8b", "engine": "sglang"} | given)) == tokens


def test_a_line_with_attention_by_ranks_is_divided_among_them() -> None:
    line = "run python -m sglang.launch_server --model-path m --tp 8 --dp-size 4"
    words = translate([*line.split(), "--enable-dp-attention"], cli).words
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    with pytest.raises(ValueError, match="must be a multiple of --dp-size"):
        translate([*line.replace("8", "6").split(), "--enable-dp-attention"], cli)


def test_the_newer_name_of_attention_by_ranks_is_the_same() -> None:
    line = "run python -m sglang.launch_server --model-path m --tp 8"
    older = translate([*line.split(), "--enable-dp-attention", "--dp-size", "4"], cli).words
    newer = translate([*line.split(), "--attn-dp-size", "4"], cli).words
    assert newer == older
    assert (
        "--enable-dp-attention" not in translate([*line.split(), "--attn-dp-size", "1"], cli).words
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--swa-prefix-tails 64", "no layers of compressed KV"),
        ("--enable-decoder-swa-bounded-replay", "no layers of compressed KV"),
        ("--moe-dp-size 2", "no context parallelism"),
        ("--prefill-only-disable-kv-cache", "admission counts the tokens of a pool"),
        ("--enable-session-radix-cache", "no request carries the server's session_id"),
        ("--enable-streaming-session", "no request belongs to a session of the server's"),
    ],
)
def test_what_changes_nothing_without_another_part_is_taken_with_a_note(
    given: str, said: str
) -> None:
    """They act on models, flags or requests that a run beside this engine cannot have."""
    line = f"run python -m sglang.launch_server --model-path m {given}"
    (note,) = translate(line.split(), cli).notes()
    assert said in note
    assert given in note


def test_ranks_of_attention_divide_the_limits_and_share_the_experts() -> None:
    given: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "h100-sxm", "engine": "sglang"}
    alone = kvsim.capacity(**given, data_parallel_size=4)
    ranks = kvsim.capacity(**given, data_parallel_size=4, enable_dp_attention=True)
    assert ranks.budget_bytes["weights"] < 0.4 * alone.budget_bytes["weights"]
    from kvsim.engine.setup import resolve

    setup = resolve(
        Config(**given, data_parallel_size=4, enable_dp_attention=True, max_running_requests=10)
    )
    settings: Any = setup.scheduler_config.engine_settings
    assert settings.max_running_requests == 2
    assert settings.chunked_prefill_size == 2048
    assert settings.schedule_conservativeness == pytest.approx(0.3)


def test_ngrams_and_a_drafter_of_its_own_are_options() -> None:
    config = Config(model="qwen3-8b", engine="sglang", speculative_algorithm="NGRAM")
    assert shape_of(config) == (1, 10, 12)
    options: dict[str, Any] = {"model": "qwen3-8b", "gpu": "h100-sxm", "engine": "sglang"}
    plain = kvsim.capacity(**options)
    ngram = kvsim.capacity(**options, speculative_algorithm="NGRAM")
    assert ngram.num_tokens == plain.num_tokens
    drafter = kvsim.capacity(
        **options, speculative_algorithm="STANDALONE", speculative_draft_model_path="qwen3-0.6b"
    )
    assert plain.budget_bytes["kv_cache"] - drafter.budget_bytes["kv_cache"] > GIB


def test_a_drafter_of_its_own_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    line = "capacity qwen3-8b --engine sglang --speculative-algorithm STANDALONE"
    assert "needs speculative_draft_model_path" in refused(capsys, line)
    wrong = "run --engine sglang --radix-eviction-policy-config [1] --model qwen3-8b"
    assert "must be an object such as" in refused(capsys, wrong)


def test_lmcache_of_one_server_is_a_store_with_the_memory_that_a_variable_names() -> None:
    given = """--kv-transfer-config={"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}"""
    for before, size in ((), "5"), (("LMCACHE_MAX_LOCAL_CPU_SIZE=20",), "20"):
        made = translate(["run", *before, "vllm", "serve", "llama-3-8b", given], cli)
        assert made.words[-2:] == ["--kv-store", f"lmcache+gib={size}"]
        assert f"in {size} GiB of host memory" in " ".join(made.notes())


@pytest.mark.parametrize(
    ("options", "without"),
    [
        ({"offload_prefetch_step": 3}, "offload_group_size"),
        ({"max_lora_rank": 64}, "enable_lora"),
        ({"engine": "sglang", "hicache_ratio": 3.0}, "enable_hierarchical_cache"),
        ({"engine": "sglang", "speculative_num_steps": 3}, "speculative_algorithm"),
        ({"engine": "sglang", "swa_full_tokens_ratio": 0.5}, "sliding windows"),
        ({"engine": "sglang", "mamba_track_interval": 512}, "states"),
    ],
)
def test_options_of_an_absent_feature_are_named(options: dict[str, Any], without: str) -> None:
    """Servers accept them; beside the numbers stands that they change nothing."""
    plain = of(model="llama-3-8b", engine=options.get("engine", "vllm"))
    found = of(model="llama-3-8b", **options)
    name = list(options)[-1]
    notes = [note for note in found.assumptions if f"no effect without {without}" in note]
    assert [note.split()[0] for note in notes] == [name]
    assert found.num_tokens == plain.num_tokens
    assert not any("no effect" in note for note in plain.assumptions)


def test_options_of_a_feature_that_is_on_are_not_named() -> None:
    found = of(model="gpt-oss-20b", engine="sglang", swa_full_tokens_ratio=0.5)
    assert not any("no effect" in note for note in found.assumptions)
