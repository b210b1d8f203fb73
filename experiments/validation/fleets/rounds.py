"""Rounds of chats against a host cache that overflows in the seventh: Mooncake's SSD benchmark.

Twenty clients, in a new random order each round, send all they have said and 4,096 tokens more,
and get one token. Qwen3-8B keeps 147,456 bytes per token; 80 GB hold 6.6 rounds. What a request
finds is arithmetic: contents leave that were used longest ago.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import numpy as np

import kvsim
from kvsim.trace import Trace

CLIENTS, ROUNDS, NEW_TOKENS, PAGE = 20, 8, 4096, 64
TOKEN_BYTES, HOST_BYTES = 147_456, 80 * 10**9
#: Seconds between requests: nothing overlaps.
GAP = 40.0
#: Hit rates in percent of the benchmark's figure (Mooncake's ssd-offload-benchmark-results.md).
PUBLISHED = {6: 83.3, 7: 77.0, 8: 36.0}

Visits = list[tuple[int, int]]  # round and client


def visits(seed: int) -> Visits:
    """Draw the order of the clients in every round."""
    rng = np.random.default_rng(seed)
    return [(k, int(c)) for k in range(1, ROUNDS + 1) for c in rng.permutation(CLIENTS)]


def shuffled(seed: int) -> Visits:
    """Draw the order of the clients in every round with the standard library's generator."""
    rng, found = random.Random(seed), []
    for k in range(1, ROUNDS + 1):
        clients = list(range(CLIENTS))
        rng.shuffle(clients)
        found += [(k, client) for client in clients]
    return found


def arithmetic(order: Visits, *, front_first: bool = False) -> dict[int, float]:
    """Return the hit rate of each round under plain LRU over pages, in percent.

    Of one request the later pages leave first, as vLLM's do, or the earlier ones, as in a store
    that does not know what follows what.
    """
    held: OrderedDict[tuple[int, int], None] = OrderedDict()
    most = HOST_BYTES // (TOKEN_BYTES * PAGE)
    hits, asked = np.zeros(ROUNDS + 1), np.zeros(ROUNDS + 1)
    for k, client in order:
        pages = k * NEW_TOKENS // PAGE
        found = 0
        while found < pages and (client, found) in held:
            found += 1
        hits[k] += found
        asked[k] += pages
        for page in range(pages) if front_first else range(pages - 1, -1, -1):
            held[client, page] = None
            held.move_to_end((client, page))
            if front_first and len(held) > most:
                held.popitem(last=False)
        while len(held) > most:
            held.popitem(last=False)
    return {k: 100 * float(hits[k] / asked[k]) for k in range(1, ROUNDS + 1)}


def serve(order: Visits, **options: Any) -> dict[int, float]:
    """Return the hit rate of each round as simulated, in percent; the GPU holds one request."""
    trace = Trace.from_arrays(
        [GAP * k for k in range(len(order))],
        [NEW_TOKENS * k for k, _ in order],
        [1] * len(order),
        segments=[[(client, 0, NEW_TOKENS * k)] for k, client in order],
    )
    longest = NEW_TOKENS * ROUNDS + PAGE
    rows = kvsim.simulate(
        trace,
        model="qwen3-8b",
        gpu="a100-40gb",
        block_size=PAGE,
        max_model_len=longest,
        max_num_seqs=4,
        num_gpu_blocks_override=longest // PAGE + 20,
        **options,
    ).requests
    rounds = np.array([k for k, _ in order])
    cached, prompt = rows["num_cached_tokens"], rows["num_prompt_tokens"]
    return {
        k: 100 * float(cached[rounds == k].sum() / prompt[rounds == k].sum())
        for k in range(1, ROUNDS + 1)
    }


def native(policy: str) -> dict[str, Any]:
    """Return the options of vLLM's own offloading."""
    extra = {"cpu_bytes_to_use": HOST_BYTES, "eviction_policy": policy}
    return {
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector",
            "kv_connector_extra_config": extra,
        }
    }
