"""Runs under decode context parallelism: blocks, hits and the time of steps."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
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


def test_other_tables_refuse_it() -> None:
    trace = kvsim.Trace.from_arrays([0.0], [10], [2])
    with pytest.raises(ValueError, match="aiconfigurator: context parallelism"):
        kvsim.simulate(trace, **KIMI, decode_context_parallel_size=8, cost_model="aiconfigurator")
