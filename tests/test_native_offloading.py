"""Native offloading in simulated runs: what is found again, how long it takes, what is refused."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.catalog import get_gpu
from kvsim.cost.hierarchy import COPY_SECONDS
from kvsim.trace import Trace

SMALL: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "a100-40gb",
    "max_model_len": 2048,
    "max_num_seqs": 2,
    "num_gpu_blocks_override": 140,
    "backend": "python",
}
#: Bytes of a block of 16 tokens.
BLOCK = 16 * 131_072
GIB = 2**30


def native(gib: float = 1.0, **extra: Any) -> dict[str, Any]:
    options = {"cpu_bytes_to_use": gib * GIB, **extra}
    transfer = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": options}
    return {"kv_transfer_config": transfer}


def returning(tokens: int = 1600, others: int = 2) -> Trace:
    """One prompt, others that push it out of the GPU, and the same once more."""
    contents = [7, *range(100, 100 + others), 7]
    count = len(contents)
    segments = [[(content, 0, tokens)] for content in contents]
    times = [20.0 * k for k in range(count)]
    return Trace.from_arrays(times, [tokens] * count, [4] * count, segments=segments)


def test_what_was_stored_is_loaded_and_takes_its_time() -> None:
    """100 blocks come over PCIe before the last token is computed once more."""
    found = kvsim.simulate(returning(), **SMALL, **native())
    rows, summary = found.requests, found.summary
    assert rows["num_cached_tokens"].tolist() == [0, 0, 0, 1599]
    load = 100 * BLOCK / get_gpu("a100-40gb").pcie_bytes_per_s + 64 * COPY_SECONDS
    assert summary["mean_kv_load_ms"] == pytest.approx(1000 * load, rel=1e-6)
    waited = rows["first_scheduled_time"] - rows["arrival_time"]
    assert waited.tolist() == pytest.approx([0, 0, 0, load], rel=1e-6)
    assert summary["num_kv_loads"] == 1
    assert summary["external_prefix_cache_hit_rate"] == pytest.approx(1600 / 6400)
    assert summary["kv_cache"]["fetched_bytes"] == 100 * BLOCK
    assert summary["kv_cache"]["stored_bytes"] == 300 * BLOCK


def test_what_the_gpu_has_is_not_asked_of_the_connector() -> None:
    """The last time all but the block with the last token is on the GPU; the host has that one."""
    trace = Trace.from_arrays(
        [0.0, 20.0, 40.0, 60.0, 80.0],
        [1600] * 5,
        [4] * 5,
        segments=[[(content, 0, 1600)] for content in (7, 100, 101, 7, 7)],
    )
    for backend in ("python", "compiled"):
        summary = kvsim.simulate(trace, **SMALL | {"backend": backend}, **native()).summary
        assert summary["external_prefix_cache_hit_rate"] == (1600 + 16) / (4 * 1600 + 16)


def test_what_a_preempted_request_finds_again_does_not_count() -> None:
    """Two grow until one must go; it loads its own KV, which its prompt did not find."""
    trace = Trace.from_arrays([0.0, 0.0], [1000, 1000], [300, 300])
    for backend in ("python", "compiled"):
        options = SMALL | {"backend": backend, "enable_prefix_caching": False}
        summary = kvsim.simulate(trace, **options, **native()).summary
        assert summary["num_preemptions"] > 0
        assert summary["num_kv_loads"] > 0
        assert summary["external_prefix_cache_hit_rate"] == 0.0


def test_outputs_are_stored_only_if_asked_for() -> None:
    """Of 80 tokens in and 41 out, 120 have KV: five blocks of the prompt, seven of all."""
    trace = Trace.from_arrays([0.0, 50.0], [80, 80], [41, 41])
    prompts = kvsim.simulate(trace, **SMALL, **native()).summary["kv_cache"]["stored_bytes"]
    options = native(offload_prompt_only=False)
    whole = kvsim.simulate(trace, **SMALL, **options).summary["kv_cache"]["stored_bytes"]
    assert (prompts, whole) == (2 * 5 * BLOCK, 2 * 7 * BLOCK)


@pytest.mark.parametrize("seed", range(3))
def test_lru_is_plain_lru(seed: int) -> None:
    """Clients in random order: contents used longest ago leave, of a request the later ones."""
    rng = np.random.default_rng(seed)
    visits = [(k, int(c)) for k in range(1, 6) for c in rng.permutation(5)]
    most, size = 60, 64  # chunks of 16 tokens, and tokens more per round
    held: OrderedDict[tuple[int, int], None] = OrderedDict()
    expected = []
    for k, client in visits:
        chunks, found = k * size // 16, 0
        while found < chunks and (client, found) in held:
            found += 1
        expected.append(min(16 * found, k * size - 1))
        for chunk in range(chunks - 1, -1, -1):
            held[client, chunk] = None
            held.move_to_end((client, chunk))
        while len(held) > most:
            held.popitem(last=False)
    trace = Trace.from_arrays(
        [10.0 * k for k in range(len(visits))],
        [k * size for k, _ in visits],
        [1] * len(visits),
        segments=[[(client, 0, k * size)] for k, client in visits],
    )
    options = SMALL | {"enable_prefix_caching": False, "num_gpu_blocks_override": 60}
    found = kvsim.simulate(trace, **options, **native(most * BLOCK / GIB))
    assert found.requests["num_cached_tokens"].tolist() == expected
    assert 0 < sum(expected) < sum(k * size for k, _ in visits)


def test_the_flag_of_vllm_says_the_same() -> None:
    a = kvsim.simulate(returning(), **SMALL, **native()).summary
    flags = {"kv_offloading_size": 1.0, "kv_offloading_backend": "native"}
    assert kvsim.simulate(returning(), **SMALL, **flags).summary == a


@pytest.mark.long
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_nothing_is_lost_under_pressure(policy: str) -> None:
    """All memory is recounted after every step, and everybody ends."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(20, 900, 60)
    segments = [[(int(rng.integers(0, 4)), 0, int(n))] for n in prompts]
    arrivals = np.sort(rng.uniform(0, 6, 60))
    trace = Trace.from_arrays(arrivals, prompts, rng.integers(1, 60, 60), segments=segments)
    options = SMALL | {"max_num_seqs": 16, "check_invariants": True}
    found = kvsim.simulate(trace, **options, **native(0.1, eviction_policy=policy)).summary
    assert found["completed"] == 60
    assert found["kv_cache"]["stored_bytes"] > 0
    assert policy == "arc" or found["num_kv_loads"] > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", [1012, 1032, 1196, 1380, 1396])
def test_a_request_that_preempts_itself_beside_loaded_ones_ends(seed: int) -> None:
    """No step is under way then, though KV is: the replica goes on as soon as it can."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 14))
    prompts, outputs = rng.integers(4, 40, n), rng.integers(4, 60, n)
    arrivals, priority = np.sort(rng.uniform(0, 0.2, n)), rng.integers(0, 3, n)
    segments = [[(int(rng.integers(0, 2)), 0, int(p))] for p in prompts]
    trace = Trace.from_arrays(arrivals, prompts, outputs, priority=priority, segments=segments)
    options = {
        **{"model": "llama-3-8b", "gpu": "b200", "block_size": 1, "max_model_len": 120},
        **{"max_num_seqs": 8, "kv_offloading_size": 0.005, "kv_offloading_backend": "native"},
        "num_gpu_blocks_override": int((prompts + outputs).max() * 1.15) + 2,
        "scheduler_reserve_full_isl": bool(seed % 2),
        "async_scheduling": bool(seed // 2 % 2),
        "enable_chunked_prefill": bool(seed // 4 % 2),
        "scheduling_policy": ["fcfs", "priority"][seed // 8 % 2],
        "watermark": [0, 0.1][seed // 16 % 2],
    }
    found = kvsim.simulate(trace, **options, check_invariants=True).summary
    assert found["completed"] == n


def test_a_prompt_whose_only_token_was_loaded_goes_on() -> None:
    """What was loaded is not looked up again, although no token counts as computed."""
    prompts = [1, 30, 1]
    segments = [[(0, 0, 1)], [(1, 0, 30)], [(0, 0, 1)]]
    trace = Trace.from_arrays([0.0, 1.0, 2.0], prompts, [4, 4, 4], segments=segments)
    options = SMALL | {"block_size": 1, "num_gpu_blocks_override": 36, "max_model_len": 35}
    found = kvsim.simulate(trace, **options, **native(0.1)).summary
    assert (found["completed"], found["num_kv_loads"]) == (3, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_offloading_backend": "native"}, "kv_offloading_size is missing"),
        (native(1e-6), "at least one chunk"),
        (native(eviction_policy="lfu"), "unknown eviction_policy"),
        (native(blocks_per_chunk=0), "at least 1"),
        ({**native(), "scheduler": "orca"}, "has no connectors"),
        ({**native(), "allocator": "contiguous-max", "scheduler": "vllm"}, "cannot be offloaded"),
        (
            {"kv_transfer_config": {"kv_connector": "NixlConnector"}},
            "move KV between servers as NIXL",
        ),
        (
            {"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}},
            "kv_connector is 'LMCacheConnectorV1': give kv_store lmcache.gib=5 instead",
        ),
        ({"kv_transfer_config": {"kv_conector": "x"}}, "unknown setting of a connector"),
        ({"kv_transfer_config": "{"}, "is no JSON"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        kvsim.simulate(returning(), **SMALL | options)
    assert "\n" not in str(raised.value)


def test_a_note_says_that_stores_slow_no_step() -> None:
    said = kvsim.simulate(returning(), **SMALL, **native()).provenance["notes"]
    assert sum("slow no step" in note for note in said) == 1
    plain = kvsim.simulate(returning(), **SMALL).provenance["notes"]
    assert not any("slow no step" in note for note in plain)
