"""Runs that begin with a saved cache, and runs without their warm-up."""

from __future__ import annotations

import json
import pickle
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refused import refused

import kvsim
import workloads
from kvsim.cli import main
from kvsim.kv.saved_cache import read_cache
from kvsim.trace.cuts import content_digest
from kvsim.trace.files import write_trace

OPTIONS: dict[str, Any] = {"model": "llama-3-8b", "gpu": "a100-80gb", "backend": "python"}
#: One request at a time, so that none crosses the cut.
ALONE: dict[str, Any] = {**OPTIONS, "max_concurrency": 1}


def chats(seed: int = 3, number: int = 60) -> kvsim.Trace:
    return workloads.multi_turn(num_requests=number, seed=seed, turns=4, request_rate=2)


def saved(path: Path, **options: Any) -> Path:
    kvsim.simulate(chats()[:30], save_cache=path, **ALONE | options)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a saved cache, which no test changes."""
    return saved(tmp_path_factory.mktemp("saved") / "cache.npz")


@pytest.mark.long
@pytest.mark.parametrize("model", ["llama-3-8b", "gemma-3-27b"])
def test_loaded_blocks_are_in_no_block_table(model):
    memory = kvsim.simulate(chats(), warmup_requests=30, **ALONE | {"model": model}).summary[
        "kv_cache"
    ]
    assert 0.0 <= memory["reservation"] < 0.1 < memory["token_states"] <= 1.0


@pytest.mark.long
@pytest.mark.parametrize("model", ["llama-3-8b", "gemma-3-27b"])
@pytest.mark.parametrize("num_blocks", [None, 700])
def test_the_second_half_hits_as_in_the_whole_run(model, num_blocks, tmp_path: Path):
    """With all blocks, and with a pool that evicts; with layers that have windows, too."""
    trace = chats()
    options = ALONE | {"model": model, "num_gpu_blocks_override": num_blocks}
    if num_blocks and model != "llama-3-8b":
        options["num_gpu_blocks_override"] = 4000
    whole = kvsim.simulate(trace, **options).requests["num_cached_tokens"]
    path = saved(tmp_path / "cache.npz", **options)
    second = kvsim.simulate(trace[30:], load_cache=path, **options).requests["num_cached_tokens"]
    assert whole[30:].sum() > 0
    assert second.tolist() == whole[30:].tolist()
    cold = kvsim.simulate(trace[30:], **options).requests["num_cached_tokens"]
    assert cold.sum() < second.sum()


@pytest.mark.long
def test_a_warm_up_is_left_out_and_its_cache_is_kept(cache: Path):
    trace = chats()
    warm = kvsim.simulate(trace, warmup_requests=30, **ALONE)
    loaded = kvsim.simulate(trace[30:], load_cache=cache, **ALONE)
    assert warm.requests.tolist() == loaded.requests.tolist()
    assert "warmup_requests: 30 requests are in no table" in warm.provenance["notes"]


@pytest.mark.long
def test_compiled_code_starts_warm_too(cache: Path):
    runs = [
        kvsim.simulate(chats()[30:], load_cache=cache, **ALONE | {"backend": backend})
        for backend in ("python", "compiled")
    ]
    assert runs[0].requests.tolist() == runs[1].requests.tolist()


@pytest.mark.long
def test_a_smaller_pool_takes_the_newest_blocks(cache: Path):
    run = kvsim.simulate(chats()[30:], load_cache=cache, **ALONE, num_gpu_blocks_override=301)
    number = len(read_cache(cache).key)
    said = f"load_cache: 300 of {number:,} blocks fit into the pool, the newest"
    assert number > 300
    assert said in run.provenance["notes"]


def test_the_newest_blocks_are_those_of_the_last_request(cache: Path):
    number = len(read_cache(cache).key) // 2
    last = chats()[29:30]
    run = kvsim.simulate(last, load_cache=cache, **ALONE, num_gpu_blocks_override=number)
    assert run.requests["num_cached_tokens"][0] > 0


def test_outputs_without_names_hit_nothing_of_the_run_before(tmp_path: Path):
    """Fresh contents have numbers by row, which begin again in the second run."""
    trace = kvsim.Trace.from_arrays([0.0], [64], [64], segments=[[(0, 0, 64)]])
    kvsim.simulate(trace, save_cache=tmp_path / "one", **OPTIONS)
    kvsim.simulate(trace, load_cache=tmp_path / "one", save_cache=tmp_path / "two", **OPTIONS)
    once, twice = (read_cache(tmp_path / name) for name in ("one", "two"))
    assert (once.num_requests, twice.num_requests) == (1, 2)
    assert len(np.unique(twice.key)) == len(np.unique(once.key)) + 3  # outputs in full blocks


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"block_size": 32}, r"load_cache the cache was saved with block_size \[16\]"),
        ({"model": "llama-2-7b"}, "load_cache the cache was saved with model "),
        ({"kv_cache_dtype": "fp8"}, "saved with kv_cache_dtype auto, the run has fp8"),
        ({"data_parallel_size": 2}, "load_cache needs one replica"),
        ({"allocator": "contiguous-max"}, "load_cache needs allocator paged"),
        ({"enable_prefix_caching": False}, "load_cache needs allocator paged"),
        ({"allocator": "paged+eviction=lfu"}, "load_cache needs eviction lru"),
        ({"kv_offloading_size": 1.0}, "load_cache conflicts with KV in other memory"),
        ({"record_block_events": True}, "load_cache conflicts with KV events"),
    ],
)
def test_another_cache_is_refused_in_one_line(options, said, cache: Path):
    with pytest.raises(ValueError, match=said) as error:
        kvsim.simulate(chats()[30:], load_cache=cache, **{**ALONE, **options})
    assert "\n" not in str(error.value)


class Harmful:
    """Would write a file if a reader took pickles."""

    def __reduce__(self):
        return Path.touch, (Path("harmed"),)


def test_what_is_no_saved_cache_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    whole = cache.read_bytes()
    contents = {
        "empty": b"",
        "text": b"cache",
        "cut": whole[:-40],
        "pickle": pickle.dumps(Harmful()),
    }
    np.savez(tmp_path / "objects.npz", about=np.array([Harmful()], object), key=1, group=1)
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in [*contents, "objects.npz", "missing"]:
        with pytest.raises(ValueError, match=r"load_cache .*: ") as error:
            kvsim.simulate(chats()[30:], load_cache=tmp_path / name, **ALONE)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("number", [60, 61, -1])
def test_a_warm_up_leaves_requests_to_serve(number):
    with pytest.raises(ValueError, match="warmup_requests must be below 60"):
        kvsim.simulate(chats(), warmup_requests=number, **ALONE)


@pytest.mark.long
def test_the_command_saves_and_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Of the options that name a file, each is refused where it makes no sense."""
    trace, path = tmp_path / "chats.jsonl", tmp_path / "cache"
    write_trace(chats(number=12), trace)
    base = ["run", "--trace", str(trace), "--model", "llama-3-8b", "--gpu", "a100-80gb"]
    base += ["--backend", "python", "--json", "-"]
    rates = []
    for options in (["--save-cache", str(path)], ["--load-cache", str(path)]):
        main([*base, *options])
        rates.append(json.loads(capsys.readouterr().out)["prefix_cache_hit_rate"])
    assert rates[1] > rates[0]
    for options, said in (
        (["--save-cache", str(path), "--replications", "2"], "omit --replications"),
        (["--save-cache", str(tmp_path / "no" / "file")], "no such directory"),
        (["--load-cache", str(path), "--block-size", "32"], "saved with block_size [16]"),
        (["--same-contents"], "same-contents"),
        (["--warmup-requests", "3", "--record", str(tmp_path / "case")], "an empty cache"),
    ):
        assert said in refused(capsys, shlex.join([*base, *options]))


def test_a_trace_without_contents_has_nothing_to_save(tmp_path: Path):
    trace = workloads.fixed(prompt=64, output=4, num_requests=3, request_rate=1.0)
    with pytest.raises(ValueError, match="save_cache the trace names no contents"):
        kvsim.simulate(trace, save_cache=tmp_path / "cache", **OPTIONS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_damaged_files_are_refused_in_one_line(cache: Path, tmp_path: Path):
    """Every bit flipped at random, and an array that is no archive."""
    whole, draw = cache.read_bytes(), np.random.default_rng(0)
    path = tmp_path / "damaged.npz"
    for at in draw.integers(len(whole), size=300):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(flipped)
        try:
            read_cache(path)
        except ValueError as error:
            assert "damaged.npz: not a saved cache" in str(error)  # noqa: PT017
    with path.open("wb") as file:
        np.save(file, np.zeros(4))
    with pytest.raises(ValueError, match="not a saved cache"):
        read_cache(path)


@pytest.mark.long
def test_the_cache_of_another_trace_is_refused_unless_both_share_contents(
    cache: Path, tmp_path: Path
):
    other = chats(seed=4)
    with pytest.raises(ValueError, match="another trace filled this cache") as error:
        kvsim.simulate(other, load_cache=cache, **ALONE)
    assert "\n" not in str(error.value)
    assert content_digest(chats()[30:]) == content_digest(chats()[:30].with_request_rate(9.0))
    again = tmp_path / "again.npz"
    shared = kvsim.simulate(other, load_cache=cache, save_cache=again, same_contents=True, **ALONE)
    assert any("equal numbers are taken" in note for note in shared.provenance["notes"])
    for trace in (chats(), other):  # both have filled it
        notes = kvsim.simulate(trace, load_cache=again, **ALONE).provenance["notes"]
        assert not any(note.startswith("load_cache: contents") for note in notes)
    with pytest.raises(ValueError, match="same_contents needs load_cache"):
        kvsim.simulate(other, save_cache=again, same_contents=True, **ALONE)


def test_salts_are_refused(cache: Path):
    salted = kvsim.Trace.from_arrays(
        [0.0, 1.0], [64, 64], [1, 1], segments=[[(0, 0, 64)]] * 2, cache_salt=["a", "b"]
    )
    with pytest.raises(ValueError, match="load_cache does not take salts"):
        kvsim.simulate(salted, load_cache=cache, same_contents=True, **ALONE)
    kvsim.simulate(salted, warmup_requests=1, **ALONE)
