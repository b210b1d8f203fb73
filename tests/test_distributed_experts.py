"""Routed experts in parts on the ranks of a server, copied before their layers (DWDP)."""

from __future__ import annotations

from typing import Any

import pytest
from refused import refused

import kvsim
from kvsim.catalog import get_gpu
from kvsim.cli.main import cli
from kvsim.cli.pasted import translate
from kvsim.config import Config
from kvsim.cost.roofline import RooflineCost
from kvsim.engine.setup import resolve
from kvsim.fleet.lock_step import shares_experts
from kvsim.records.cost import Cost, Work
from kvsim.rules.costs.host_weights import copying_time
from kvsim.rules.price import copy_wait
from kvsim.testing import equal_tables

#: Ranks with a GPU each, of Qwen3-30B-A3B: 48 layers of 128 experts of 3 x 2048 x 768 parameters.
RANKS: dict[str, Any] = {
    **{"model": "qwen3-30b-a3b", "gpu": "h100-sxm", "engine": "sglang"},
    **{"data_parallel_size": 4, "enable_dp_attention": True},
}
LAYER = 128 * 3 * 2048 * 768 * 2


def test_two_buffers_hold_the_experts_of_the_other_ranks() -> None:
    shared, copied = (kvsim.capacity(**RANKS, **more) for more in ({}, {"dwdp_size": 4}))
    added = copied.budget_bytes["weights"] - shared.budget_bytes["weights"]
    assert added == 2 * LAYER * 3 // 4
    pages = shared.budget_bytes["kv_cache"] - copied.budget_bytes["kv_cache"]
    assert pages == pytest.approx(added, abs=2 * copied.bytes_per_block)
    assert any("1/4 of the routed experts" in note for note in copied.assumptions)


@pytest.mark.parametrize(
    ("copy", "wait"),
    [
        (3.0, 7.0),  # copies end at 3, 6 and 9, as the third waits for the second
        (0.5, 0.5),  # only the first layer waits
        (1.5, 2.5),  # copies end at 1.5, 3 and 4.5, layers at 2.5, 4 and 5.5
    ],
)
def test_each_forward_pass_fills_two_buffers_first(copy: float, wait: float) -> None:
    cost = Cost()
    cost.host.num_layers, cost.host.num_in_group, cost.host.num_buffers = 3, 1, 2
    cost.host.copy_time, cost.host.ready, cost.host.starts_empty = copy, [0.0, 0.0], True
    assert copying_time(cost, 1.0) == pytest.approx(wait)


def test_a_step_waits_for_the_link_between_the_gpus() -> None:
    """Steps of no length wait for all copies; long layers hide all but the first."""
    cost = resolve(Config(**RANKS, dwdp_size=4)).cost
    assert isinstance(cost, RooflineCost)
    copy = LAYER * 3 / 4 / get_gpu("h100-sxm").nvlink_bytes_per_s
    work = Work(num_requests=8, num_tokens=8, num_decodes=8)
    assert copy_wait(cost.record, work, 1e-9) == pytest.approx(48 * copy, rel=1e-3)
    assert copy_wait(cost.record, work, 48 * 8 * copy) == pytest.approx(copy, rel=1e-3)
    assert not shares_experts(resolve(Config(**RANKS, dwdp_size=4)))  # no rank waits for another
    assert cost.record.captured_tokens == 0  # the server captures no CUDA graph
    assert cost.record.experts.expert_bytes == LAYER / 128  # all experts of its own tokens
    alone = resolve(Config(**RANKS | {"enable_dp_attention": False})).cost
    assert isinstance(alone, RooflineCost)
    assert list(cost.record.experts.touched) == list(alone.record.experts.touched)
    assert cost.record.experts.token_rows == alone.record.experts.token_rows


@pytest.mark.slow
def test_both_backends_give_the_same_tables() -> None:
    trace = kvsim.Trace.from_arrays([0.1 * i for i in range(12)], [300] * 12, [30] * 12)
    options = RANKS | {"dwdp_size": 4}
    both = [kvsim.simulate(trace, **options, backend=b) for b in ("python", "compiled")]
    assert equal_tables(*(one.requests for one in both))


def test_a_pasted_line_divides_attention_among_the_ranks(capsys: Any) -> None:
    line = "run python -m sglang.launch_server --model-path m --tp 4 --dwdp-size 4"
    words = translate(line.split(), cli).words
    for name, value in (("--dwdp-size", "4"), ("--data-parallel-size", "4")):
        assert words[words.index(name) + 1] == value
    assert words[words.index("--tensor-parallel-size") + 1] == "1"
    assert "--enable-dp-attention" in words
    own = "capacity --engine sglang --gpu h100-sxm --model"
    with pytest.raises(ValueError, match="needs enable_dp_attention"):
        kvsim.capacity(**RANKS | {"enable_dp_attention": False}, dwdp_size=4)
    ranks = "--enable-dp-attention --data-parallel-size"
    dense = f"{own} llama-3-8b {ranks} 4 --dwdp-size 4"
    assert "no routed experts" in refused(capsys, dense)
    odd = f"{own} qwen3-30b-a3b {ranks} 3 --dwdp-size 3"
    assert "must divide the 128 experts" in refused(capsys, odd)
    packed = f"{own} kimi-k2-thinking {ranks} 8 --dwdp-size 8"
    assert "not in int4" in refused(capsys, packed)
