"""What decode replicas do on their own: compute a prompt, or refuse one for ever."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
from kvsim.engine.replica import Replica
from kvsim.engine.setup import resolve
from kvsim.fleet.simulate import serve
from kvsim.results.tables import FinishReason
from kvsim.trace import Trace

#: A second a step, and nothing that overlaps.
OPTIONS: dict[str, Any] = {
    "gpu": "h100-sxm",
    "cost_model": "constant+seconds=1",
    "async_scheduling": False,
    "num_prefill_workers": 1,
    "num_decode_workers": 1,
    "check_invariants": True,
}

both = pytest.mark.parametrize("backend", ["python", "compiled"])


@pytest.mark.long
@both
@pytest.mark.parametrize("first_token_from", ["decode", "prefill"])
def test_a_pushed_prompt_may_be_computed_where_it_goes_on_before(
    backend: str, first_token_from: str
) -> None:
    """The prefill replica has another prompt until 3.05; the decode replica begins at 2.1.

    That has 16 of the 20 tokens, by the first request.
    """
    trace = Trace.from_arrays(
        [0, 2.05, 2.1],
        [500, 500, 20],
        [1, 1, 3],
        segments=[[(0, 0, 500)], [(1, 0, 500)], [(0, 0, 20)]],
    )
    options = OPTIONS | {"model": "llama-3.1-8b", "backend": backend}
    result = kvsim.simulate(
        trace,
        **options,
        kv_transfer_protocol="push",
        kv_recompute_threshold=100,
        first_token_from=first_token_from,
    )
    row = result.requests[2]
    assert row["first_scheduled_time"] == pytest.approx(2.1)
    assert row["first_token_time"] == pytest.approx(3.1)
    assert row["finish_time"] == pytest.approx(5.1)
    assert (row["transfer_time"], row["num_cached_tokens"]) == (0.0, 16)


@pytest.mark.long
def test_a_prompt_of_one_token_may_be_there_and_wait_for_its_adapter() -> None:
    """It has a block, and no token of it is computed: the last one is computed once more."""
    trace = Trace.from_arrays([0, 0.5], [7, 1], [8, 5], lora_id=[1, 2])
    options = OPTIONS | {"model": "llama-3.1-8b", "enable_lora": True, "max_loras": 1}
    options |= {"async_scheduling": True, "kv_transfer_protocol": "push"}
    row = kvsim.simulate(trace, **options, backend="python").requests[1]
    assert row["first_token_time"] > 9


@pytest.mark.long
@both
@pytest.mark.parametrize("protocol", ["pull", "push"])
@pytest.mark.parametrize("router", ["round-robin", "least-outstanding"])
def test_a_prompt_that_never_fits_where_it_goes_on_is_refused_there(
    backend: str, protocol: str, router: str
) -> None:
    """50 tokens take 4 blocks in each of 7 groups, and 7 more stay free for drafts: 35 of 34.

    The next request is sent when that is known; what the prefill replica held is free again.
    """
    replicas: list[Replica] = []
    options = OPTIONS | {
        "model": "gemma-3-4b",
        "backend": backend,
        "router": router,
        "num_gpu_blocks_override": 35,
        "max_model_len": 60,
        "max_concurrency": 1,
        "kv_transfer_protocol": protocol,
        "speculative_config": {
            **{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
        },
    }
    trace = Trace.from_arrays([0, 0.1, 0.2], [50, 20, 20], [10, 4, 4])
    setup = resolve(kvsim.Config.build(**options))
    result = serve(setup, trace, on_start=replicas.append)
    done = FinishReason.FINISHED
    assert result.requests["finish_reason"].tolist() == [FinishReason.REJECTED, done, done]
    assert result.summary["rejections"] == {"needs more KV memory than there is": 1}
    assert result.requests["num_output_tokens"].tolist() == [0, 4, 4]
    for replica in replicas:
        state = replica.state
        assert (
            state.kv.num_held == state.num_outstanding == state.connector.waiting_for_kv.length == 0
        )
