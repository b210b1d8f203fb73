"""Length of a KV block: the cost of small and large blocks, on prompts that share prefixes.

Llama-3-8B runs on an L4, which has little memory beside the weights. There are twenty system
prompts of 500 tokens, questions of about 200 and answers of about 150, and all requests arrive at
once. A block table slows attention by 23 % at 16 tokens per block, and more below (PagedAttention
paper, Fig. 18a). Bands, stated before the first run: the waste (slots reserved or never used)
doubles with the block size, within 25 %; the hit rate is that of the whole blocks in the shared 500
tokens, within 1 point; 16 and 32 are within 3 % of the best throughput.

Findings. The waste does double. A hit ends at a block boundary: of 500 shared tokens, blocks of 16
reuse 496, blocks of 128 reuse 384, blocks of 256 reuse 256. Below 16 the kernel slows down, and
block tables are up to 16 times as long. 16, vLLM's default, is best.

Missed bands. The hit rates of 128 and 256 are 2.5 and 3.5 points lower, because the waste of large
blocks takes memory from cached prefixes, which are evicted; with 120 GiB of memory the hit rates
are those of whole blocks. 32 is 3.2 % slower than 16, because of both the waste and the hit rate.

    python -m experiments.block_size [--quick] [--out DIR]
"""

from __future__ import annotations

from typing import Any

import kvsim
import workloads
from experiments._setting import PAGED_OVERHEAD, Check, Figure, main, near, within

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PREFIX, SUFFIX, OUTPUT = 500, 200, 150


def measure(quick: bool) -> Figure:
    """Serve one workload with every block size."""
    trace = workloads.shared_prefix(
        num_requests=300 if quick else 2000,
        request_rate=float("inf"),
        num_prefixes=20,
        prefix=PREFIX,
        suffix=SUFFIX,
        output=OUTPUT,
        sigma=0.7,
        seed=0,
    )
    tokens = float((trace.num_prompt_tokens + trace.num_output_tokens - 1).mean())
    rows = []
    for size in SIZES:
        summary = kvsim.simulate(
            trace,
            model="llama-3-8b",
            gpu="l4",
            max_model_len=4096,
            block_size=size,
            cost_model=f"roofline+paged-overhead={PAGED_OVERHEAD}",
        ).summary
        held = summary["kv_cache"]
        rows.append(
            {
                "block_size": size,
                "unused_percent": 100
                * (held["reservation"] + held["internal_fragmentation"])
                / (1 - held["external_fragmentation"]),
                "hit_rate_percent": 100 * summary["prefix_cache_hit_rate"],
                "blocks_per_table": -(-tokens // size),
                "mean_running": summary["mean_running"],
                "output_tokens_per_s": summary["output_throughput"],
            }
        )
    return Figure("Block size", _checks(rows), rows, lambda picture: _draw(picture, rows))


def _checks(rows: list[dict[str, Any]]) -> list[Check]:
    by_size = {row["block_size"]: row for row in rows}
    best = max(row["output_tokens_per_s"] for row in rows)
    checks = []
    for size in (16, 128):
        ratio = by_size[size]["unused_percent"] / by_size[size // 2]["unused_percent"]
        checks.append(within(f"waste of {size} over {size // 2}", ratio, 2.0, percent=25))
    cached = by_size[1]["hit_rate_percent"]
    for size in (16, 128, 256):
        whole = PREFIX // size * size / PREFIX * cached
        name = f"hit rate of {size}, %, from whole blocks"
        checks.append(near(name, by_size[size]["hit_rate_percent"], whole, points=1.0))
    for size in (16, 32):
        slower = 100 * (1 - by_size[size]["output_tokens_per_s"] / best)
        checks.append(Check(f"{size} slower than the best, %", slower, None, 0, 3))
    return checks


def _draw(picture: Any, rows: list[dict[str, Any]]) -> None:
    picture.set_size_inches(9, 5.5)
    panels = {
        "unused_percent": "reserved or never used (%)",
        "hit_rate_percent": "prefix hit rate (%)",
        "blocks_per_table": "blocks per request",
        "output_tokens_per_s": "output tokens/s",
    }
    for axes, (key, label) in zip(picture.subplots(2, 2).flat, panels.items(), strict=True):
        axes.plot([row["block_size"] for row in rows], [row[key] for row in rows], marker="o")
        axes.set_xscale("log", base=2)
        axes.set_xticks(SIZES, [str(size) for size in SIZES])
        axes.set_xlabel("tokens per block")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if key == "blocks_per_table":
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)


if __name__ == "__main__":
    main("block_size", measure, __doc__)
