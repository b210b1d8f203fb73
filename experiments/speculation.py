"""Speed-up of speculative decoding, by batch size.

Llama-3.1-8B on an H100 serves contexts of 500 tokens with EAGLE-3, three drafts, and 2.4 tokens per
verification. The reference is a formula fitted to measured servers (SpecDecode-Bench):

    verification   5.886 ms + 21.01 us per token + 39.26 ns per KV token + 1.207 ms
    EAGLE-3        2.135 ms + 2.38 ns per KV token + 0.84 us per draft

The fixed time of kvsim's drafter is the formula's 2.135 ms; all other constants are kvsim's own.
Bands, stated before the first run: the gain is within 10 % of the formula's at every batch size,
and falls as the batch grows. n-gram drafting is shown with kvsim's default acceptance (1.40 tokens
on ShareGPT).

Findings. With a small batch the GPU's arithmetic is idle while it reads the weights, so three more
tokens per request take hardly any time, and the gain is 1.8. With 128 requests a verification has
512 tokens; their arithmetic takes as long as the reading of the weights, and the gain is 1.2.
n-gram drafts take no time but that of their verification. Few of them are accepted, and no step can
be scheduled before the tokens are known in which drafts are looked up: the gain is at most a
quarter, and a loss from 32 requests on.

    python -m experiments.speculation [--quick] [--out DIR]
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import kvsim
import workloads
from experiments._setting import Check, Figure, lines, main, within

BATCHES = (1, 4, 16, 32, 64, 128)
CONTEXT, NUM_DRAFTS, LENGTH = 500, 3, 2.4
#: Output tokens of a request; its mean context is CONTEXT.
OUTPUT = 200
DEPLOYMENT: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
EAGLE3 = {
    "method": "eagle3",
    "num_speculative_tokens": NUM_DRAFTS,
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_length": LENGTH,
}
NGRAM = {"method": "ngram", "num_speculative_tokens": NUM_DRAFTS}


def expected_gain(batch: int) -> float:
    """Return the speed-up of EAGLE-3 by the fitted formula."""
    kv_tokens = batch * CONTEXT

    def verification(num_tokens: int) -> float:
        return 5.886 + 21.01e-3 * num_tokens + 39.26e-6 * kv_tokens + 1.207

    drafting = 2.135 + 2.38e-6 * kv_tokens + 0.84e-3 * batch * NUM_DRAFTS
    step = verification(batch * (1 + NUM_DRAFTS)) + drafting
    return LENGTH * verification(batch) / step


def mean_tpot(batch: int, num_requests: int, **options: Any) -> float:
    """Return the milliseconds per token while ``batch`` requests always run."""
    trace = workloads.fixed(
        prompt=CONTEXT - OUTPUT // 2,
        output=OUTPUT,
        num_requests=num_requests,
        request_rate=float("inf"),
    )
    result = kvsim.simulate(trace, **DEPLOYMENT, **options, max_num_seqs=batch)
    return float(result.summary["mean_tpot_ms"])


def measure(quick: bool) -> Figure:
    """Serve every batch size with and without drafts."""
    rows = []
    for batch in BATCHES:
        count = batch * max(1, (64 if quick else 256) // batch)
        plain = mean_tpot(batch, count)
        eagle3 = mean_tpot(batch, count, speculative_config=EAGLE3)
        # n-gram drafts on the host, from tokens it must know: no step is scheduled ahead.
        ngram = mean_tpot(batch, count, speculative_config=NGRAM)
        rows.append(
            {
                "batch": batch,
                "tpot_ms": plain,
                "eagle3_tpot_ms": eagle3,
                "ngram_tpot_ms": ngram,
                "eagle3_gain": plain / eagle3,
                "formula": expected_gain(batch),
                "ngram_gain": plain / ngram,
            }
        )
    checks = [
        within(f"EAGLE-3, gain at batch {r['batch']}", r["eagle3_gain"], r["formula"], percent=10)
        for r in rows
    ]
    gains = [row["eagle3_gain"] for row in rows]
    rise = max(after / before for before, after in pairwise(gains))
    checks.append(Check("largest rise of the gain from one batch to the next", rise, None, 0, 1.01))
    checks += [Check(f"n-gram, gain at batch {r['batch']}", r["ngram_gain"]) for r in rows]
    return Figure("Speculative decoding", checks, rows, lambda picture: _draw(picture, rows))


def _draw(picture: Any, rows: list[dict[str, Any]]) -> None:
    axes = picture.subplots()
    batches = [row["batch"] for row in rows]
    curves = {"EAGLE-3": "eagle3_gain", "EAGLE-3, formula": "formula", "n-gram": "ngram_gain"}
    lines(axes, {name: (batches, [r[key] for r in rows]) for name, key in curves.items()})
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_xlabel("requests in the batch")
    axes.set_ylabel("times as fast as without drafts")


if __name__ == "__main__":
    main("speculation", measure, __doc__)
