"""Benefit of attention variants: MHA, GQA, MQA, MLA and windows, with equal KV memory.

The first question: what would Llama-2-7B (32 KV heads) gain if its heads shared KV, or saw only a
window? Weights and KV memory stay the same, on an A100-80GB; requests have 1,024 tokens in and out,
and all arrive at once. The second question: what does a latent (DeepSeek-V3's MLA) store per layer
and token, compared with GQA-8? The bands were stated before the first run, and are exact. Bytes per
token are 1/4 (GQA-8) and 1/32 (MQA) of MHA's. A window of W tokens holds at most W tokens' bytes of
a request of any length. MLA stores 576 numbers per layer, GQA-8 with heads of 128 stores 2,048; on
each of 8 GPUs MLA still stores 576, GQA-8 256.

Findings. GQA-8 runs 3.8 times as many requests at once as MHA, and yields 2.6 times the tokens per
second; for MQA it is 18 and 5.8 times. The time of GEMMs and launches grows with the batch, so
throughput grows more slowly than the number of requests. A window of half the length gives only
1.5x, since a request of 2,048 tokens has 1,536 on average during its decodes; and a window changes
the model's output. MLA stores 28 % of GQA-8's numbers on one GPU, but more than twice as many on
each of eight, since it has no heads to split.

    python -m experiments.attention_variants [--quick] [--out DIR]
"""

from __future__ import annotations

from typing import Any

import kvsim
import workloads
from experiments._setting import Check, Figure, main, within
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.catalog import get_model

VARIANTS = {
    "MHA": "paged",
    "GQA-8": "paged+gqa=8",
    "MQA": "paged+mqa",
    "window 1024": "paged+window=1024",
    "GQA-8, window 1024": "paged+gqa=8+window=1024",
}
SHARE = {"GQA-8": 4, "MQA": 32}
WINDOW = 1024
LENGTH = 2048  # tokens of a request, half of them prompt
DEPLOYMENT: dict[str, Any] = {
    "model": "llama-2-7b",
    "gpu": "a100-80gb",
    "kv_cache_memory_bytes": 40 * 10**9,
    "max_model_len": 4096,
    "max_num_seqs": 1024,
    "max_num_batched_tokens": 2048,
}


def measure(quick: bool) -> Figure:
    """Count bytes and requests, and serve one workload with every variant."""
    trace = workloads.fixed(
        prompt=LENGTH // 2,
        output=LENGTH // 2,
        num_requests=600 if quick else 4000,
        request_rate=float("inf"),
    )
    rows = []
    for name, allocator in VARIANTS.items():
        fits = kvsim.capacity(**DEPLOYMENT, allocator=allocator)
        summary = kvsim.simulate(trace, **DEPLOYMENT, allocator=allocator).summary
        rows.append(
            {
                "variant": name,
                "bytes_per_token": fits.bytes_per_token,
                "mib_per_request": fits.bytes_per_token * kept_tokens(name) / 2**20,
                "mean_running": summary["mean_running"],
                "output_tokens_per_s": summary["output_throughput"],
            }
        )
    return Figure("Attention variants", _checks(rows), rows, lambda picture: _draw(picture, rows))


def kept_tokens(variant: str) -> int:
    """Return the number of a request's tokens that still need KV when it ends."""
    return WINDOW if "window" in variant else LENGTH


def window_of_a_long_request() -> float:
    """Return the peak of the live KV of a request of three windows, in windows."""
    result = kvsim.simulate(
        workloads.fixed(prompt=1, output=3 * WINDOW, num_requests=1),
        **DEPLOYMENT,
        allocator=VARIANTS["window 1024"],
        async_scheduling=False,
    )
    window_bytes = WINDOW * kvsim.capacity(**DEPLOYMENT).bytes_per_token
    return float(result.memory["token_states"].max()) / window_bytes


def numbers_per_layer(model: str, tensor_parallel_size: int) -> int:
    """Return the KV elements that one GPU stores per token and layer."""
    layout = kv_layout(
        get_model(model), kv_dtype("bf16"), tensor_parallel_size=tensor_parallel_size
    )
    return layout.layers[0].bytes_per_token // 2


def _checks(rows: list[dict[str, Any]]) -> list[Check]:
    named = {row["variant"]: row for row in rows}
    checks = []
    for name, share in SHARE.items():
        ratio = named["MHA"]["bytes_per_token"] / named[name]["bytes_per_token"]
        checks.append(within(f"bytes per token: MHA / {name}", ratio, share, percent=0))
    most = window_of_a_long_request()
    checks.append(within("live KV of a long request, in windows", most, 1, percent=0))
    for tp in (1, 8):
        mla, gqa = (numbers_per_layer(model, tp) for model in ("deepseek-v3", "llama-3-8b"))
        checks.append(within(f"MLA's numbers per layer, TP {tp}", mla, 576, percent=0))
        checks.append(within(f"GQA-8's numbers per layer, TP {tp}", gqa, 2048 / tp, percent=0))
    mha = named["MHA"]["output_tokens_per_s"]
    for row in rows[1:]:
        ratio = row["output_tokens_per_s"] / mha
        checks.append(Check(f"output tokens/s: {row['variant']} / MHA", ratio))
    return checks


def _draw(picture: Any, rows: list[dict[str, Any]]) -> None:
    picture.set_size_inches(10, 4)
    panels = {
        "mib_per_request": f"MiB of KV per request of {LENGTH:,} tokens",
        "mean_running": "requests in flight",
        "output_tokens_per_s": "output tokens/s",
    }
    places = range(len(rows))[::-1]
    for i, (axes, (key, label)) in enumerate(
        zip(picture.subplots(1, 3), panels.items(), strict=True)
    ):
        values = [row[key] for row in rows]
        marks = axes.barh(places, values)
        axes.bar_label(marks, [f"{value:,.0f}" for value in values], padding=2, fontsize=8)
        axes.set_yticks(places, [row["variant"] for row in rows] if i == 0 else [])
        axes.set_xlim(0, 1.25 * max(values))
        axes.set_xlabel(label)
        axes.locator_params(axis="x", nbins=4)


if __name__ == "__main__":
    main("attention_variants", measure, __doc__)
