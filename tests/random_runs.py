"""Random small configurations of every kind, on tiny pools: what a run may never lose or hang on.

``drawn(kind, seed)`` is one of them. The kinds are every allocator, scheduler, order of service,
feature and part of a fleet; ``python tests/random_runs.py KIND SEED`` shows one and runs it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvsim.catalog import get_model
from kvsim.trace import Trace
from kvsim.trace.items import read_items

Options = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A configuration and its requests."""

    kind: str
    seed: int
    trace: Trace
    options: Options

    def __str__(self) -> str:
        return f"{self.kind} {self.seed}: {self.options}"


def one(draw: random.Random, **choices: tuple[Any, ...]) -> Options:
    """Return one of each choice."""
    return {name: draw.choice(values) for name, values in choices.items()}


def trace_of(draw: random.Random, longest: int, n: int | None = None) -> Trace:
    """Return few requests, many at once, that often share what they begin with."""
    n = draw.randint(2, 16) if n is None else n
    gaps = [draw.choice([0.0, 0.0, 0.003, 0.03, 1.0]) for _ in range(n)]
    segments = []
    for row in range(n):
        shared, own = draw.choice([0, 0, 5, 17, 32]), draw.randint(1, max(1, longest - 8))
        pieces = [(draw.randint(0, 1), 0, shared)] if shared else []
        segments.append([*pieces, (100 + row, 0, own)])
    columns: dict[str, Any] = {
        "priority": [draw.randint(0, 2) for _ in range(n)],
        "tenant": [draw.choice([-1, 3, 3, 8]) for _ in range(n)],
        "cache_salt": [draw.choice([0, 0, 0, 7]) for _ in range(n)],
        "session_id": [draw.choice([-1, -1, 4, 5]) for _ in range(n)],
    }
    return Trace.from_arrays(
        np.cumsum(gaps).tolist(),
        [sum(length for _, _, length in pieces) for pieces in segments],
        [draw.randint(1, 25) for _ in range(n)],
        segments=segments,
        **columns,
    )


def tiny(draw: random.Random) -> Options:
    """Return a deployment under memory pressure."""
    seqs = draw.randint(1, 8)
    return {
        "model": "llama-3-8b",
        "gpu": "h200-sxm",
        "block_size": 4,
        "num_gpu_blocks_override": draw.randint(6, 60),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(seqs, draw.choice([16, 64, 512])),
        **one(
            draw,
            max_model_len=(32, 64, 120),
            watermark=(0.0, 0.0, 0.2, 0.7),
            enable_prefix_caching=(True, False),
            cost_model=("roofline", "constant+seconds=0.02", "constant+seconds=1"),
        ),
    }


def vllm(draw: random.Random) -> Options:
    """Return options of vLLM's scheduler."""
    return tiny(draw) | one(
        draw,
        scheduling_policy=("fcfs", "fcfs", "priority", "vtc", "dlpm"),
        num_lookahead_tokens=(0, 0, 3, 9),
        async_scheduling=(False, True),
        long_prefill_token_threshold=(0, 0, 5),
        scheduler_reserve_full_isl=(True, False),
    )


def like(name: str, **changes: Any) -> Any:
    """Return a model with a window that short requests leave."""
    return replace(get_model(name), name=f"{name} {changes}", **changes)


WINDOWED = tuple(like(m, window=w) for m in ("gpt-oss-20b", "gemma-3-27b") for w in (5, 16, 33))


SMALL_STATES = like("falcon-h1-0.5b", state_num_heads=1, state_head_dim=16, state_size=16)


def other_scheduler(draw: random.Random) -> Options:
    """Return options of a scheduler that is not vLLM's of today."""
    scheduler = draw.choice(["vllm-v0", "orca", "static"])
    options = tiny(draw) | {"scheduler": scheduler}
    if scheduler == "vllm-v0":
        options |= one(draw, preemption_mode=("recompute", "swap"), swap_space=(0.0, 0.001, 4.0))
    else:
        del options["max_num_batched_tokens"]
    options["enable_prefix_caching"] = False
    options["max_num_batched_tokens"] = 512
    if scheduler in ("orca", "static"):
        del options["max_num_batched_tokens"]
    return options


def samples(draw: random.Random) -> Options:
    """Return options of requests with several sequences."""
    options = other_scheduler(draw)
    while options["scheduler"] != "vllm-v0":
        options = other_scheduler(draw)
    beams = draw.choice([False, True])
    options |= one(draw, num_samples=(2, 3), beam_switch=(0.1, 0.5))
    return options | {"use_beam_search": beams, "max_num_seqs": max(3, options["max_num_seqs"])}


def allocator(*names: str, scheduler: str | None = None) -> Callable[[random.Random], Options]:
    """Return what draws options of one of some allocators."""

    def draws(draw: random.Random) -> Options:
        options = vllm(draw) | {"allocator": draw.choice(names)}
        if scheduler is not None:
            kept = ("model", "gpu", "num_gpu_blocks_override", "max_num_seqs", "max_model_len")
            options = {name: options[name] for name in (*kept, "allocator", "block_size")}
            options["scheduler"] = scheduler
        return options

    return draws


def speculation(draw: random.Random) -> Options:
    """Return options of drafts."""
    methods: list[Options] = [
        {"method": "ngram", "num_speculative_tokens": 3},
        {"method": "eagle3", "num_speculative_tokens": 2},
        {"method": "mtp", "num_speculative_tokens": 2, "mtp_modules": 2},
        {"method": "draft_model", "num_speculative_tokens": 3, "model": "llama-3.2-1b"},
    ]
    return vllm(draw) | {"speculative_config": draw.choice(methods), "num_lookahead_tokens": 0}


def offloading(draw: random.Random) -> Options:
    """Return options of vLLM's native offloading."""
    policy = draw.choice(["lru", "arc"])
    extra = draw.choice([{}, {"offload_prompt_only": False}, {"sync_load_budget_bytes": 10**8}])
    return vllm(draw) | {
        "kv_offloading_size": draw.choice([0.005, 0.03]),
        "kv_offloading_backend": "native",
        "kv_transfer_config": {
            "kv_connector_extra_config": {"eviction_policy": policy, **extra},
        },
    }


def offloading_states(draw: random.Random) -> Options:
    """Return options of native offloading for a model with states, every 16 tokens one."""
    options = offloading(draw) | {"model": SMALL_STATES, "enable_prefix_caching": True}
    options |= {"block_size": 16, "num_lookahead_tokens": 0}
    if draw.random() < 0.5:
        drafts = {"method": "ngram", "num_speculative_tokens": 2}
        options |= {"speculative_config": drafts, "async_scheduling": False}
    return options


def offloading_drafts(draw: random.Random) -> Options:
    """Return options of native offloading beside drafts."""
    return speculation(draw) | offloading(draw) | {"num_lookahead_tokens": 0}


def sglang(draw: random.Random) -> Options:
    """Return options of SGLang."""
    pages = draw.choice([1, 4, 16])
    options = {
        "model": "llama-3-8b",
        "gpu": "h200-sxm",
        "engine": "sglang",
        "page_size": pages,
        "max_total_tokens": pages * draw.randint(3, 120),
        "max_running_requests": draw.randint(1, 8),
        **one(
            draw,
            chunked_prefill_size=(-1, 16, 64),
            schedule_policy=("fcfs", "lpm", "lof"),
            enable_mixed_chunk=(False, True),
            disable_overlap_schedule=(False, True),
        ),
    }
    if draw.random() < 0.3:
        options |= {"enable_hierarchical_cache": True, "hicache_ratio": 2.0}
    if options["chunked_prefill_size"] < 0:
        options["enable_mixed_chunk"] = False
    return options


def sglang_waits(draw: random.Random) -> Options:
    """Return options of SGLang whose loop waits, and whose queue is short."""
    return sglang(draw) | one(
        draw,
        max_queued_requests=(None, 2, 5),
        prefill_decode_interval=(0, 1, 3),
        prefill_decode_interval_min_bs=(0, 2),
        min_free_slots_delay=(0, 2, 4),
        scheduler_recv_interval=(1, 3),
        enable_priority_scheduling=(False, True),
    )


def sglang_delays(draw: random.Random) -> Options:
    """Return options of SGLang whose prefills are delayed."""
    return sglang_waits(draw) | one(
        draw,
        disable_overlap_schedule=(False,),
        enable_prefill_delayer=(True,),
        prefill_delayer_token_usage_low_watermark=(None, 0.3),
        prefill_delayer_queue_min_ratio=(None, 0.5, 2.0),
        prefill_delayer_max_delay_ms=(5000.0, 30.0),
    )


def sglang_states(draw: random.Random) -> Options:
    """Return options of SGLang for a model with states, every few tokens one."""
    options = sglang(draw) | one(
        draw,
        disable_radix_cache=(False, False, False, True),
        mamba_radix_cache_strategy=("auto", "extra_buffer", "extra_buffer_lazy"),
        mamba_track_interval=(1, 8, 16),
        mamba_max_states_per_path=(-1, -1, 1, 2),
        max_mamba_cache_size=(5, 7, 12, 30),
    )
    options["model"] = like("qwen3-next-80b-a3b", state_chunk=draw.choice([4, 16]))
    options["tensor_parallel_size"] = 2
    if options["page_size"] == 1 and draw.random() < 0.4:
        options["mamba_radix_cache_strategy"] = "no_buffer"
    elif options["mamba_radix_cache_strategy"] == "extra_buffer_lazy":
        options["disable_overlap_schedule"] = False
    options.pop("enable_hierarchical_cache", None)
    return options


def sglang_adapters(draw: random.Random) -> Options:
    """Return options of SGLang with a few buffers for adapters."""
    return sglang(draw) | one(
        draw,
        enable_lora=(True,),
        max_loras_per_batch=(1, 2, 3, 8),
        lora_eviction_policy=("lru", "fifo"),
        enable_lora_overlap_loading=(False, True),
        lora_drain_wait_threshold=(0.0, 0.01, 0.2),
    )


def sglang_drafts(draw: random.Random) -> Options:
    """Return options of SGLang with speculation."""
    options = sglang(draw) | one(
        draw,
        speculative_algorithm=("EAGLE", "EAGLE3", "NEXTN"),
        speculative_num_steps=(1, 2, 5),
        speculative_eagle_topk=(1, 2, 4),
        speculative_num_draft_tokens=(2, 4, 8),
        enable_mixed_chunk=(False,),
    )
    options.pop("enable_hierarchical_cache", None)
    return options


def sglang_drafts_of_states(draw: random.Random) -> Options:
    """Return options of SGLang with speculation for a model with states."""
    return sglang_states(draw) | one(
        draw,
        speculative_algorithm=("EAGLE", "NEXTN", "NGRAM"),
        speculative_num_steps=(1, 3),
        mamba_radix_cache_strategy=("extra_buffer",),
        mamba_track_interval=(8, 16),
        max_mamba_cache_size=(7, 12, 30),
        enable_mixed_chunk=(False,),
    )


def sglang_drafts_on_hosts(draw: random.Random) -> Options:
    """Return options of SGLang with speculation and a host tier."""
    return sglang_drafts(draw) | one(
        draw,
        speculative_algorithm=("EAGLE3", "NEXTN", "NGRAM"),
        enable_hierarchical_cache=(True,),
        hicache_ratio=(1.1, 2.0),
        hicache_write_policy=("write_through", "write_through_selective", "write_back"),
    )


def fleet(draw: random.Random) -> Options:
    """Return a fleet whose replicas do everything."""
    routers = ("round-robin", "least-outstanding", "vllm-dp", "llm-d", "dynamo", "session")
    return vllm(draw) | one(
        draw,
        data_parallel_size=(2, 3),
        router=routers,
        max_concurrency=(None, 1, 3),
        session_think_time=(None, 0.1),
    )


def apart(draw: random.Random) -> Options:
    """Return a fleet that computes prompts apart."""
    return vllm(draw) | one(
        draw,
        num_prefill_workers=(1, 2, 3),
        num_decode_workers=(1, 2, 3),
        kv_transfer_protocol=("push", "push", "pull"),
        kv_transfer_fabric=("tcp-ucx", "400g-ib"),
        router=("round-robin", "least-outstanding", "vllm-dp"),
        disaggregation=("always", "always", "llm-d", "dynamo", "splitwise"),
        kv_recompute_threshold=(0, 0, 20),
        proxy_latency=(0.0, 0.01),
        first_token_from=("decode", "prefill"),
        max_concurrency=(None, None, 3),
    )


def failing(draw: random.Random) -> Options:
    """Return such a fleet, or another one, whose replicas come and go."""
    options = draw.choice([apart, fleet])(draw)
    if options.get("disaggregation") == "splitwise":
        options["disaggregation"] = "always"
    if options["router"] == "session":  # counts its replicas once
        options["router"] = "round-robin"
    policies = (
        ("retry", "fail", "migrate") if "num_prefill_workers" in options else ("retry", "fail")
    )
    pool = draw.choice(["prefill", "decode"]) if "num_prefill_workers" in options else None
    failure = f"at+time={draw.choice([0.05, 0.4, 2.5])}+replica=0+policy={draw.choice(policies)}"
    failure += f"+pool={pool}" if pool else ""
    options |= {"failures": failure, "cold_start": draw.choice([0.0, 3.0])}
    if draw.random() < 0.4:
        options["autoscaler"] = "hpa+max=3+interval=0.5"
    return options


def storing(draw: random.Random) -> Options:
    """Return a fleet with a KV store."""
    options = draw.choice([apart, fleet])(draw)
    options |= {"enable_prefix_caching": True, "num_lookahead_tokens": draw.choice([0, 3])}
    options["kv_store"] = draw.choice(["mooncake+pull=always", "peer+pull=always", "lmcache"])
    options["disaggregation"] = "always"
    return options


def moving(draw: random.Random) -> Options:
    """Return a fleet whose running requests move."""
    options = fleet(draw) | {"migration": "llumnix"}
    return options | {"scheduling_policy": draw.choice(["fcfs", "priority"])}


def gated(draw: random.Random) -> Options:
    """Return a fleet with a gate before its routers."""
    options = fleet(draw) | {"flow_control": draw.choice(["llm-d", "dynamo"])}
    return options | {"router": "dynamo" if options["flow_control"] == "dynamo" else "llm-d"}


#: What is drawn, by name.
KINDS: dict[str, Callable[[random.Random], Options]] = {
    "vllm": vllm,
    "windows": lambda draw: vllm(draw) | {"model": draw.choice(WINDOWED)},
    "eviction": allocator(*(f"paged+eviction={p}" for p in ("lfu", "fifo", "sieve", "s3fifo"))),
    "tiered": allocator("tiered+host-gib=0.001", "tiered+host-gib=0.01", "unified+host-gib=0.002"),
    "contiguous": allocator(
        *(f"contiguous-{r}+fit={f}" for r in ("max", "pow2", "oracle") for f in ("first", "best")),
        scheduler="orca",
    ),
    "virtual": allocator("virtual+page-size=64KiB", "virtual", scheduler="vllm"),
    "dynamic": allocator("dynamic", "dynamic+layers=4", scheduler="orca"),
    "other schedulers": other_scheduler,
    "samples": samples,
    "speculation": speculation,
    "offloading": offloading,
    "offloading drafts": offloading_drafts,
    "offloading states": offloading_states,
    "adapters": lambda draw: vllm(draw) | {"enable_lora": True, "max_loras": draw.randint(1, 2)},
    "images": lambda draw: vllm(draw) | {
        "model": like("gemma-3-4b", window=draw.choice([5, 16])),
        "encoder_cache_size": draw.choice([0, 8, 40]),
    },
    "sglang": sglang,
    "sglang waits": sglang_waits,
    "sglang delays": sglang_delays,
    "sglang states": sglang_states,
    "sglang adapters": sglang_adapters,
    "sglang drafts": sglang_drafts,
    "sglang drafts of states": sglang_drafts_of_states,
    "sglang drafts on hosts": sglang_drafts_on_hosts,
    "fleet": fleet,
    "apart": apart,
    "failing": failing,
    "storing": storing,
    "moving and gated": lambda draw: draw.choice([moving, gated])(draw),
}  # fmt: skip


def drawn(kind: str, seed: int) -> Drawn:
    """Return a configuration of a kind, the same for the same seed."""
    draw = random.Random(f"{kind} {seed}")
    options = KINDS[kind](draw)
    options["seed"] = seed
    trace = trace_of(draw, options.get("max_model_len", 60))
    if "num_gpu_blocks_override" in options and draw.random() < 0.8:
        # Room for the longest request and not for two: most can be served, and get in each
        # other's way.
        ahead = options.get("num_lookahead_tokens", 0) + 8
        longest = int((trace.num_prompt_tokens + trace.num_output_tokens).max()) + ahead
        needed = -(-min(longest, options["max_model_len"] + ahead) // options["block_size"]) + 1
        needed *= draw.choice([1, 2]) if "samples" in kind or kind in ("windows", "images") else 1
        options["num_gpu_blocks_override"] = int(needed * draw.uniform(1.0, 1.9)) + 1
    rows = np.arange(len(trace))
    if "adapters" in kind:
        trace = replace(trace, lora_id=rows % 4)
    if kind == "images":
        lengths = trace.num_prompt_tokens.tolist()
        items = [[(n // 4, -(-n // 2))] if k % 3 else [] for k, n in enumerate(lengths)]
        offsets, start, length = read_items(items, len(trace))
        trace = replace(trace, item_offsets=offsets, item_start=start, item_num_tokens=length)
    return Drawn(kind, seed, trace, options)


if __name__ == "__main__":
    import sys

    import kvsim
    from kvsim.testing import check_result

    asked = drawn(sys.argv[1], int(sys.argv[2]))
    result = kvsim.simulate(asked.trace, **asked.options, backend="python", check_invariants=True)
    check_result(result)
