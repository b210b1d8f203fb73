"""Runs under decode context parallelism: blocks, hits and the time of steps."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
from kvsim.cli.main import cli
from kvsim.cli.pasted import translate
from kvsim.config import Config
from kvsim.cost.efficiency import efficiency_of
from kvsim.cost.roofline import RooflineCost
from kvsim.engine.setup import resolve
from kvsim.records.cost import Work
from kvsim.rules.price import exchange_time

KIMI: dict[str, Any] = {"model": "kimi-k2-thinking", "gpu": "h200-sxm", "tensor_parallel_size": 8}
LLAMA: dict[str, Any] = {"model": "llama-3.1-70b", "gpu": "h200-sxm", "tensor_parallel_size": 16}


def cost_of(options: dict[str, Any], shares: int) -> RooflineCost:
    cost = resolve(Config(**options, decode_context_parallel_size=shares)).cost
    assert isinstance(cost, RooflineCost)
    return cost


def test_latent_attention_exchanges_queries_and_outputs_of_the_latent() -> None:
    """61 layers, 8 of 64 heads per rank, 576 and 512 elements of 2 bytes, log-sums of 4."""
    record, rate = cost_of(KIMI, 8).record, efficiency_of("h200-sxm")
    link = 450e9 * rate.link_ring
    token = 7 * 8 * ((576 + 512) * 2 + 8 * 4)
    assert record.exchange_token == pytest.approx(61 * token / link)
    assert record.gather_token == pytest.approx(61 * 576 * 2 * 7 / 8 / link)
    fixed = 61 * 3 * rate.all_reduce
    decodes = Work(num_requests=4, num_tokens=4, num_decodes=4)
    assert exchange_time(record, decodes) == pytest.approx(fixed + 4 * record.exchange_token)
    chunk = Work(num_requests=1, num_tokens=512, num_prompt_context_tokens=1024)
    assert exchange_time(record, chunk) == pytest.approx(fixed + 1024 * record.gather_token)
    first = Work(num_requests=1, num_tokens=512)
    assert exchange_time(record, first) == 0.0


def test_grouped_queries_of_a_whole_step_are_exchanged_after_some_context() -> None:
    """80 layers, 4 of 64 heads per rank of 128 elements, over 2 ranks."""
    record, rate = cost_of(LLAMA, 2).record, efficiency_of("h200-sxm")
    token = 1 * 4 * (2 * 128 * 2 + 2 * 4)
    gpu = kvsim.catalog.get_gpu("h200-sxm")
    link = gpu.link_bytes_per_s(2) * rate.link_ring
    assert record.exchange_token == pytest.approx(80 * token / link)
    mixed = Work(num_requests=2, num_tokens=101, num_decodes=1)
    fixed = 80 * 3 * rate.all_reduce
    assert exchange_time(record, mixed) == pytest.approx(fixed + 101 * record.exchange_token)
    assert exchange_time(record, Work(num_requests=1, num_tokens=100)) == 0.0


def test_each_rank_reads_its_share_of_the_context() -> None:
    one, eight = (cost_of(KIMI, shares).record for shares in (1, 8))
    assert one.layers[0].kv_bytes == 61 * 1152 == 8 * eight.layers[0].kv_bytes
    assert one.layers[0].pair_flops == eight.layers[0].pair_flops  # all heads over an eighth


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", pytest.param("compiled", marks=pytest.mark.slow)])
def test_hits_end_with_blocks_of_all_ranks(backend: Any) -> None:
    """200 shared tokens: 12 blocks of 16, or one of 8 x 16."""
    arrivals, segments = [0.0, 5.0], [[(1, 0, 200)], [(1, 0, 200)]]
    trace = kvsim.Trace.from_arrays(arrivals, [200, 200], [8, 8], segments=segments)
    for shares, hit in ((1, 192), (8, 128)):
        result = kvsim.simulate(
            trace, **KIMI, decode_context_parallel_size=shares, backend=backend, record_steps=True
        )
        assert list(result.requests["num_cached_tokens"]) == [0, hit]


def test_layers_of_an_mtp_module_are_divided_as_the_target_is() -> None:
    """They stay in one group with the target's layers; those of an EAGLE head are a second one."""
    options: dict[str, Any] = {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel_size": 8}
    found = {
        (method, shares): kvsim.capacity(
            **options,
            decode_context_parallel_size=shares,
            speculative_config={"method": method, "num_speculative_tokens": 1},
        )
        for method in ("mtp", "eagle")
        for shares in (1, 8)
    }
    blocks = found["mtp", 1].num_gpu_blocks
    assert (found["mtp", 8].num_gpu_blocks, found["mtp", 8].num_tokens) == (blocks, 128 * blocks)
    assert found["eagle", 1].bytes_per_block == 62 * found["eagle", 8].bytes_per_block


def test_other_tables_refuse_it() -> None:
    trace = kvsim.Trace.from_arrays([0.0], [10], [2])
    with pytest.raises(ValueError, match="aiconfigurator: context parallelism"):
        kvsim.simulate(trace, **KIMI, decode_context_parallel_size=8, cost_model="aiconfigurator")


SGLANG: dict[str, Any] = KIMI | {"engine": "sglang"}


def test_ranks_of_sglang_share_the_tokens_of_a_pool() -> None:
    """Eight times the tokens in as many bytes of each GPU, less rounding; limits are of a rank."""
    one, eight = (kvsim.capacity(**SGLANG, decode_context_parallel_size=n) for n in (1, 8))
    assert eight.num_tokens == 8 * one.num_tokens
    assert (one.block_size, eight.block_size) == (1, 8)
    assert eight.bytes_per_block == one.bytes_per_block == 61 * 1152
    assert eight.budget_bytes == one.budget_bytes
    limit, pages = 100_000, {"page_size": 64, "max_total_tokens": 100_000}
    wide = kvsim.capacity(**SGLANG, decode_context_parallel_size=2, **pages)
    assert wide.num_tokens == 2 * (limit // 64 * 64)
    assert wide.block_size == 128
    setups = [resolve(Config(**SGLANG, decode_context_parallel_size=n)) for n in (1, 8)]
    least, most = (one.scheduler_config.engine_settings for one in setups)
    assert least.max_running_requests == most.max_running_requests
    assert most.max_total_num_tokens == 8 * least.max_total_num_tokens


@pytest.mark.parametrize("backend", ["python", pytest.param("compiled", marks=pytest.mark.slow)])
def test_hits_of_sglang_end_with_pages_of_all_ranks(backend: Any) -> None:
    arrivals, segments = [0.0, 5.0], [[(1, 0, 203)], [(1, 0, 203)]]
    trace = kvsim.Trace.from_arrays(arrivals, [203, 203], [8, 8], segments=segments)
    for shares, hit in ((1, 202), (8, 200)):
        given = {"decode_context_parallel_size": shares, "max_total_tokens": 4096}
        result = kvsim.simulate(trace, **SGLANG, **given, backend=backend)
        assert list(result.requests["num_cached_tokens"]) == [0, hit]


def test_the_time_of_exchanges_is_the_same_under_sglang() -> None:
    ours, vllms = (cost_of(options, 8).record for options in (SGLANG, KIMI))
    assert ours.exchange_token == vllms.exchange_token > 0
    assert ours.gather_token == vllms.gather_token > 0
    assert ours.layers[0].kv_bytes == vllms.layers[0].kv_bytes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "qwen3-235b-a22b"}, "which has no latents"),
        ({"model": "deepseek-v3.2"}, "which has an indexer"),
        ({"enable_hierarchical_cache": True}, "enable_hierarchical_cache"),
        ({"decode_context_parallel_size": 3}, "must divide tensor_parallel_size 8"),
    ],
)
def test_what_sglang_does_not_split_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kvsim.capacity(**(SGLANG | {"decode_context_parallel_size": 2} | given))


def test_a_pasted_line_of_sglang_splits_the_context() -> None:
    line = "run python -m sglang.launch_server --model-path m --tp 8 --dcp-size 4"
    words = translate(line.split(), cli).words
    assert words[words.index("--decode-context-parallel-size") + 1] == "4"
