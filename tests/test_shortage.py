"""A waiting request that certainly lacks blocks is refused without a look-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvsim
from kvsim.rules.blocks.paged import lacks_blocks, need_to_admit
from kvsim.rules.kv import look_up, next_own_blocks
from kvsim.rules.vllm import admission

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.request import Request

OPTIONS: dict[str, Any] = {"model": "llama-3-8b", "gpu": "a100-80gb", "backend": "python"}


def drawn(seed: int) -> kvsim.Trace:
    """Return requests with long common prefixes, which come faster than they are served."""
    draw = np.random.default_rng(seed)
    segments = []
    for row in range(60):
        depth = int(draw.integers(1, 4))
        pieces = [(10 * k + int(draw.integers(0, 2)), 0, 96) for k in range(depth)]
        segments.append([*pieces, (100 + row, 0, int(draw.integers(1, 80)))])
    return kvsim.Trace.from_arrays(
        np.sort(draw.uniform(0.0, 0.5, 60)),
        [sum(length for _, _, length in pieces) for pieces in segments],
        draw.integers(1, 150, 60),
        segments=segments,
        priority=draw.integers(0, 3, 60),
    )


def check_verdict(checked: list[bool], kv: KV, request: Request) -> bool:
    """Compare the verdict without a look-up with that of a look-up."""
    verdict = lacks_blocks(kv, request)
    if verdict:
        hit, length = look_up(kv, request), request.num_tokens
        free = kv.pool.num_free - (kv.watermark_blocks if kv.num_held > 0 else 0)
        assert need_to_admit(kv, next_own_blocks(kv), length, length, hit, hit, True) > free
    checked.append(verdict)
    return verdict


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "policy"),
    [(0, "fcfs"), (1, "fcfs"), (7, "fcfs"), (18, "priority")],
)
def test_a_refusal_without_a_look_up_is_right(
    seed: int, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bool] = []
    monkeypatch.setattr(admission, "lacks_blocks", lambda *args: check_verdict(checked, *args))
    options = OPTIONS | {
        "scheduling_policy": policy,
        "num_gpu_blocks_override": 40,
        "max_model_len": 640,
        "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 24,
        "max_num_seqs": 16,
    }
    kvsim.simulate(drawn(seed), **options)
    assert sum(checked) > 100


def test_an_admitted_request_that_shares_the_prompt_counts() -> None:
    """A needs 8 blocks, or 4 while B holds the others; they are free once the second one ends."""
    pieces = [[(1, 0, 64)], [(2, 0, 40)], [(1, 0, 64), (3, 0, 60)], [(1, 0, 64), (4, 0, 8)]]
    trace = kvsim.Trace.from_arrays(
        [0.0, 1.0, 1.02, 1.03],
        [64, 40, 124, 72],
        [1, 8, 1, 60],
        segments=pieces,
        priority=[0, 0, 2, 1],
    )
    options = {"scheduling_policy": "priority", "num_gpu_blocks_override": 11}
    result = kvsim.simulate(trace, **OPTIONS | options, max_model_len=150)
    table = result.requests
    assert table["first_scheduled_time"][2] == table["finish_time"][1]
    assert table["finish_time"][3] > table["finish_time"][1] + 0.3
