"""Speculation with a host tier under SGLang: what comes back from the host, and its memory."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
from kvsim.engine.setup import resolve

SMALL: dict[str, Any] = {
    "model": "qwen3-8b",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "max_total_tokens": 1000,
    "enable_hierarchical_cache": True,
    "backend": "python",
    "check_invariants": True,
}


@pytest.mark.parametrize(
    ("algorithm", "page", "loaded"),
    [(None, 1, 599), ("NGRAM", 1, 599), ("EAGLE3", 1, 598), ("EAGLE3", 16, 592)],
)
def test_the_host_has_pairs_of_an_evicted_prompt(
    algorithm: str | None, page: int, loaded: int
) -> None:
    """A prompt of 600 tokens is pushed out by another one; its last token is computed again.

    Keys of EAGLE are pairs: 600 tokens are 599, of which a match without the last token finds 598.
    """
    segments = [[(1, 0, 600)], [(2, 0, 700)], [(1, 0, 600)]]
    trace = kvsim.Trace.from_arrays([0.0, 1.0, 2.0], [600, 700, 600], [4] * 3, segments=segments)
    result = kvsim.simulate(trace, **SMALL, speculative_algorithm=algorithm, page_size=page)
    assert result.requests["num_cached_tokens"].tolist() == [0, 0, loaded]
    assert result.summary["num_kv_loads"] == 1


def test_a_drafter_takes_no_room_of_the_hosts_tokens() -> None:
    options: dict[str, Any] = {
        k: v for k, v in SMALL.items() if k not in ("backend", "check_invariants")
    }
    options |= {"hicache_size": 10.0}
    plain = resolve(kvsim.Config(**options)).kv_config
    drafts = resolve(kvsim.Config(**options, speculative_algorithm="EAGLE3")).kv_config
    assert drafts.host_slots == plain.host_slots > 60_000
