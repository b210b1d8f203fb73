"""Files behind a host tier: as many pages as in memory without a limit, read more slowly."""

from __future__ import annotations

from typing import Any

import pytest
from refused import refused

import kvsim
import workloads
from kvsim.cli.main import cli
from kvsim.cli.pasted import translate

TIERED: dict[str, Any] = {
    "model": "qwen3-8b",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "page_size": 64,
    "max_total_tokens": 20_000,
    "enable_hierarchical_cache": True,
    "hicache_ratio": 1.2,
    "hicache_storage_prefetch_policy": "wait_complete",
    "backend": "python",
}


def served(store: str) -> dict[str, Any]:
    trace = workloads.shared_prefix(num_prefixes=20, prefix=4000, num_requests=60, request_rate=2)
    return kvsim.simulate(trace, **TIERED, kv_store=store).summary["kv_store"]


@pytest.mark.long
def test_files_hold_what_unlimited_memory_holds_and_are_slower_to_read() -> None:
    files, memory = served("file"), served("mooncake+gib=100000")
    assert files["num_fetches"] == memory["num_fetches"] > 10
    assert files["mean_ms"] > memory["mean_ms"]


@pytest.mark.long
def test_a_full_disk_evicts() -> None:
    assert served("file+gib=2")["num_fetches"] < served("file")["num_fetches"]


def test_backends_of_a_pasted_line_are_stores() -> None:
    line = "run python -m sglang.launch_server --model-path m --hicache-storage-backend"
    assert translate([*line.split(), "file"], cli).words[-2:] == ["--kv-store", "file"]


def test_other_backends_are_refused_by_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    line = "run python -m sglang.launch_server --model-path m --hicache-storage-backend hf3fs"
    assert "--hicache-storage-backend hf3fs is not modelled: " in refused(capsys, line)
