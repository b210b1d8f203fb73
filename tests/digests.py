"""200 small runs and a digest of all that each returns: the judge of an edit that changes nothing.

``python tests/digests.py check [FILE] [--only PATTERN]`` says which runs of a file differ, and in
what; ``record`` writes them anew. ``tests/data/digests.tsv`` is recorded before such an edit,
and recorded anew only where results are meant to change. A line is a run, then a digest of each
part: its requests, memory samples, steps, events (block events, samples, gaps between tokens, map
of memory) and summary.

Of a table the values count, field by field in their order, and not the fields' names. Left out is
what may change once though no result does: provenance (versions, times, the machine) and the field
``key`` of block events, a hash. A run of another numpy, Python or processor may differ in the last
bit of a float: compare on one machine. Names of runs seed what is drawn: they stay as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from random_runs import KINDS, WINDOWED, drawn, like, tiny, trace_of

import kvsim
from kvsim.fleet.disaggregation.policy import DISAGGREGATIONS
from kvsim.fleet.kv_store.store import STORES
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS
from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.manager import ALLOCATORS
from kvsim.results.result import Result
from kvsim.trace import Trace
from kvsim.trace.items import read_items

FILE = Path(__file__).parent / "data" / "digests.tsv"
PARTS = ("requests", "memory", "steps", "events", "summary")
#: Keys of a summary that came after the digests were taken.
ADDED = ("sessions",)
#: Fields of tables whose values are hashes.
HASHES = {"key"}
#: Runs in all, and of a kind by the compiled engine.
MOST, COMPILED = 200, 2

Options = dict[str, Any]

#: A fleet of three small replicas.
FLEET: Options = {"data_parallel_size": 3, "enable_prefix_caching": True}
APART: Options = {"num_prefill_workers": 2, "num_decode_workers": 2, "enable_prefix_caching": True}
SGLANG: Options = {"engine": "sglang", "page_size": 4, "max_running_requests": 6}
TIERS: Options = SGLANG | {"enable_hierarchical_cache": True, "hicache_ratio": 2.0}
OFFLOAD: Options = {"kv_offloading_size": 0.03, "kv_offloading_backend": "native"}
#: Several groups of layers share the blocks.
MORE_BLOCKS: Options = {"num_gpu_blocks_override": 150}
#: States of Mamba layers lie hundreds of tokens apart.
LONG: Options = {"block_size": None, "max_model_len": 8192, "max_num_batched_tokens": 2048}


def drafts(method: str, number: int = 3, **more: Any) -> Options:
    return {"speculative_config": {"method": method, "num_speculative_tokens": number, **more}}


def offload(**extra: Any) -> Options:
    return OFFLOAD | {"kv_transfer_config": {"kv_connector_extra_config": extra}}


def by_hand() -> dict[str, Options]:
    """Return what no draw is sure to hold, by name: every part that has a name, every feature."""
    found: dict[str, Options] = {}
    for name in EVICTION_POLICIES.names():
        found[f"eviction {name}"] = {"allocator": f"paged+eviction={name}"}
    for name in ALLOCATORS.names():
        if name != "radix":
            plain = name.startswith(("contiguous", "dynamic"))
            found[f"allocator {name}"] = {"allocator": name, "scheduler": "orca" if plain else None}
    for name in ROUTERS.names():
        found[f"router {name}"] = FLEET | {"router": name}
    for name in AUTOSCALERS.names():
        eager = {
            "hpa": "target=1",
            "kpa": "target=1",
            "apa": "target=1+window=0",
            "dynamo-sla": "ttft=0.01",
        }
        scaler = f"{name}+{eager[name]}" if name in eager else name
        more = {"autoscaler": f"{scaler}+max=4+interval=0.2", "cold_start": 0.3}
        found[f"autoscaler {name}"] = {"router": "round-robin", "max_num_seqs": 2, **more}
    for name in STORES.names():
        store = f"{name}+pull=always" + ("+chunk=16" if name == "lmcache" else "")
        found[f"store {name}"] = FLEET | {"kv_store": store, "router": "round-robin"}
    for name in DISAGGREGATIONS.names():
        found[f"disaggregation {name}"] = APART | {"disaggregation": name}
    for policy in ("retry", "fail", "migrate"):
        failure = f"rate+gpu-hours=0.0002+detection=0.1+policy={policy}"
        pools = APART if policy == "migrate" else FLEET
        found[f"failures {policy}"] = pools | {"failures": failure, "cold_start": 0.3}
    at = "at+time=0.1+replica=1+detection=0.1"
    found["failures at"] = FLEET | {"failures": at, "cold_start": 0.3, "router": "round-robin"}
    for name in ("llm-d", "dynamo"):
        found[f"flow {name}"] = FLEET | {"flow_control": name, "router": name}
    return found | {
        "migration": FLEET | {"migration": "llumnix", "router": "round-robin"},
        "pools": {
            "pool": [
                {"role": "prefill", "replicas": 2, "max_num_seqs": 3},
                {"role": "decode", "replicas": 1, "autoscaler": "hpa+target=1+max=3+interval=0.2"},
            ]
        },
        "vllm-v0 recompute": {"scheduler": "vllm-v0", "enable_prefix_caching": False},
        "vllm-v0 swap": {
            "scheduler": "vllm-v0",
            "enable_prefix_caching": False,
            "preemption_mode": "swap",
        },
        "static": {"scheduler": "static", "enable_prefix_caching": False},
        "priority": {"scheduling_policy": "priority", "async_scheduling": False},
        "vtc": {"scheduling_policy": "vtc"},
        "dlpm": {"scheduling_policy": "dlpm"},
        "ngram": drafts("ngram"),
        "eagle": drafts("eagle"),
        "eagle3": drafts("eagle3", 2),
        "mtp": drafts("mtp", 2, mtp_modules=2),
        "draft model": drafts("draft_model", model="llama-3.2-1b"),
        "suffix": drafts("suffix"),
        "lora": {"enable_lora": True, "max_loras": 2},
        "encoder": {"model": like("gemma-3-4b", window=16), "encoder_cache_size": 64} | MORE_BLOCKS,
        "encoder whole": {
            "model": like("gemma-3-4b", window=5),
            "encoder_cache_size": 90,
            "disable_chunked_mm_input": True,
        }
        | MORE_BLOCKS,
        "prefill interval": {"prefill_schedule_interval": 3},
        "watermark": {"watermark": 0.3},
        "threshold": {"long_prefill_token_threshold": 5},
        "retention": {"prefix_cache_retention_interval": 16, "model": WINDOWED[1]} | MORE_BLOCKS,
        "one group": {"disable_hybrid_kv_cache_manager": True, "model": WINDOWED[1]},
        "drafts by batch": drafts("eagle", 3, num_speculative_tokens_per_batch_size=[[1, 2, 3]]),
        "window": {"model": WINDOWED[1]} | MORE_BLOCKS,
        "mla": {"model": "deepseek-v2-lite"},
        "experts": {
            "model": "deepseek-v2-lite",
            "enable_expert_parallel": True,
            "data_parallel_size": 2,
            "router": "vllm-dp",
        },
        "mamba none": {"model": "nemotron-h-8b", **LONG},
        "mamba align": {"model": "nemotron-h-8b", **LONG, "mamba_cache_mode": "align"},
        "jamba": {"model": "jamba-v0.1", **LONG, **MORE_BLOCKS, "tensor_parallel_size": 2},
        "stages": {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
        "fp8": {"kv_cache_dtype": "fp8", "quantization": "fp8"},
        "eager": {"enforce_eager": True},
        "samples": {"num_samples": 3},
        "ends by eos": {"ends_by": "eos"},
        "events": {"kv_events_config": {"enable_kv_cache_events": True}},
        "memory map": {"record_memory_map": True},
        "horizon": {"horizon": 4.0},
        "goodput": {"goodput": {"ttft": 100.0, "tpot": 10.0}},
        "front end": {"front_end_latency": 0.01, "max_concurrency": 3},
        "sessions": {"session_think_time": 0.1},
        "offloading lru": offload(eviction_policy="lru"),
        "offloading arc": offload(eviction_policy="arc"),
        "offloading outputs": offload(offload_prompt_only=False),
        "connector": OFFLOAD | {"kv_transfer_config": {"kv_connector": "OffloadingConnector"}},
        "pull": APART | {"kv_transfer_protocol": "pull", "kv_recompute_threshold": 8},
        "push": APART | {"kv_transfer_protocol": "push", "first_token_from": "prefill"},
        "sglang": SGLANG,
        "sglang lpm": SGLANG | {"schedule_policy": "lpm", "chunked_prefill_size": 16},
        "sglang mixed": SGLANG | {"enable_mixed_chunk": True, "chunked_prefill_size": 16},
        "sglang weight": SGLANG | {"schedule_policy": "dfs-weight"},
        "sglang priority": SGLANG | {"enable_priority_scheduling": True},
        "sglang lfu": SGLANG | {"radix_eviction_policy": "lfu"},
        "sglang windows": SGLANG | {"model": WINDOWED[1], "chunked_prefill_size": 16},
        "sglang random": SGLANG | {"schedule_policy": "random"},
        "sglang slru": SGLANG | {"radix_eviction_policy": "slru"},
        "sglang windows crowded": SGLANG
        | {"model": WINDOWED[1], "chunked_prefill_size": 8, "swa_full_tokens_ratio": 0.75},
        "sglang host": TIERS,
        "sglang host crowded": TIERS | {"max_total_tokens": 120, "hicache_ratio": 1.2},
        "sglang selective": TIERS | {"hicache_write_policy": "write_through_selective"},
        "sglang write back": TIERS | {"hicache_write_policy": "write_back"},
        "sglang storage": TIERS | {"kv_store": "mooncake"},
        "sglang fleet": SGLANG | {"data_parallel_size": 2, "router": "sglang-cache-aware"},
    }


def base(name: str, more: Options) -> Options:
    """Return the options of a run made by hand."""
    if more.get("engine") == "sglang":
        own = {"model": "llama-3-8b", "gpu": "h200-sxm", "max_total_tokens": 240}
        return own | more
    draw = random.Random(f"base {name}")
    own = tiny(draw) | {"max_num_seqs": 6, "max_model_len": 120, "num_gpu_blocks_override": 44}
    own |= {"max_num_batched_tokens": 64, "watermark": 0.0, "enable_prefix_caching": True}
    own["cost_model"] = draw.choice(["roofline", "roofline", "constant+seconds=0.02"])
    scheduler = more.get("scheduler")
    if scheduler in ("orca", "static"):
        del own["max_num_batched_tokens"]
    allocator = more.get("allocator", "paged")
    if not allocator.startswith(("paged", "tiered", "unified")):
        del own["enable_prefix_caching"], own["watermark"]
        if not allocator.startswith("contiguous"):
            del own["block_size"]
        if allocator == "virtual":
            own["num_gpu_blocks_override"] = 400
    if scheduler == "vllm-v0":
        own["max_num_batched_tokens"] = 512
    return {key: value for key, value in (own | more).items() if value is not None}


def long_prompts(draw: random.Random) -> Trace:
    """Return prompts of thousands of tokens that share what they begin with."""
    shared = [draw.choice([0, 1300, 2600]) for _ in range(16)]
    own = [draw.randint(1, 1500) for _ in shared]
    segments = [
        [(0, 0, s), (100 + k, 0, n)] if s else [(100 + k, 0, n)]
        for k, (s, n) in enumerate(zip(shared, own, strict=True))
    ]
    lengths = [s + n for s, n in zip(shared, own, strict=True)]
    arrivals = [0.02 * k for k in range(len(shared))]
    answers = [draw.randint(1, 25) for _ in shared]
    return Trace.from_arrays(arrivals, lengths, answers, segments=segments)


def run_of(name: str) -> tuple[Trace, Options]:
    """Return a run by its name: ``backend kind seed``, or ``backend hand name``."""
    backend, kind, rest = name.split("/")
    if kind != "hand":
        one = drawn(kind, int(rest))
        trace, options = one.trace, dict(one.options)
    else:
        options = base(rest, by_hand()[rest])
        draw = random.Random(f"trace {rest}")
        trace = long_prompts(draw) if "max_model_len" in by_hand()[rest] else trace_of(draw, 90, 30)
        rows = np.arange(len(trace))
        if options.get("enable_lora"):
            trace = replace(trace, lora_id=rows % 4)
        if "encoder_cache_size" in options:
            items = [[(n // 4, -(-n // 2))] for n in trace.num_prompt_tokens.tolist()]
            offsets, start, length = read_items(items, len(trace))
            trace = replace(trace, item_offsets=offsets, item_start=start, item_num_tokens=length)
    options["backend"] = backend
    options["record_steps"] = True
    if backend == "python":
        options["record_block_events"] = True
    return trace, options


def digest_of(value: bytes) -> str:
    """Return the first half of a SHA-256."""
    return hashlib.sha256(value).hexdigest()[:32]


def bytes_of(array: NDArray[Any]) -> bytes:
    """Return the values of an array, and what kind they are; every NaN is the same."""
    if array.dtype.names is not None:
        fields = [array[name] for name in array.dtype.names if name not in HASHES]
        return b"".join(map(bytes_of, fields))
    if np.issubdtype(array.dtype, np.floating):
        array = np.where(np.isnan(array), np.nan, array)
    return f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()


def digests_of(result: Result) -> list[str]:
    """Return a digest of each part of a result."""
    events = [result.block_events, result.samples, result.token_gaps, result.memory_map]
    tables = [[result.requests], [result.memory], [result.steps], [*events, result.tenant]]
    said = {k: v for k, v in result.summary.items() if k not in ADDED}
    summary = json.dumps(said, sort_keys=True).encode()
    return [*(digest_of(b"".join(map(bytes_of, t))) for t in tables), digest_of(summary)]


def line_of(name: str) -> list[str]:
    """Return a run's digests.

    Raises
    ------
    ValueError
        If the configuration is refused.
    """
    trace, options = run_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return digests_of(kvsim.simulate(trace, **options))


def read(path: Path) -> dict[str, list[str]]:
    """Return the digests of a file, by run."""
    lines = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return {name: digests for name, *digests in lines}


def differing(name: str, digests: list[str]) -> list[str]:
    """Return the parts of a run that are not what was recorded."""
    try:
        new = line_of(name)
    except ValueError as error:
        return [f"refused: {error}"]
    return [part for part, a, b in zip(PARTS, digests, new, strict=True) if a != b]


def names() -> Iterator[str]:
    """Yield the runs to record: those made by hand, compiled ones, then draws by their seed."""
    yield from (f"python/hand/{name}" for name in by_hand())
    for seed in range(COMPILED):
        yield from (f"compiled/{kind}/{seed}" for kind in KINDS)
    for seed in range(100):
        yield from (f"python/{kind}/{seed}" for kind in KINDS)


def record(path: Path, pattern: str) -> None:
    """Write the digests of as many runs as are kept, or again of those that a pattern names.

    Who is refused is left out.
    """
    found = read(path) if pattern else {}
    for name in [n for n in (*names(), *found) if fnmatch(n, f"*{pattern}*")]:
        if not pattern and len(found) == MOST:
            break
        try:
            found[name] = line_of(name)
        except ValueError as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
    lines = [("run", *PARTS), *((name, *digests) for name, digests in found.items())]
    path.write_text("".join("\t".join(line) + "\n" for line in lines))


def check(path: Path, pattern: str) -> int:
    """Print what differs; return how many runs do. Exits with 2 if no run has such a name."""
    chosen = {n: d for n, d in read(path).items() if fnmatch(n, f"*{pattern}*")}
    if not chosen:
        print(f"--only {pattern}: must be part of a recorded run's name", file=sys.stderr)
        sys.exit(2)
    wrong = {name: found for name, d in chosen.items() if (found := differing(name, d))}
    for name, found in wrong.items():
        print(f"{name}: {', '.join(found)}")
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} runs are as recorded")
    return len(wrong)


def main() -> None:
    """Record or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument("--only", default="", help="part of a run's name, or a pattern of it")
    given = parser.parse_args()
    if given.what == "record":
        record(given.file, given.only)
    elif check(given.file, given.only):
        sys.exit(1)


if __name__ == "__main__":
    main()
