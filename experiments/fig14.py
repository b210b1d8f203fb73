"""Fig. 14 of the PagedAttention paper: parallel samples and beams, OPT-13B on Alpaca.

The figures are ratios of vLLM's sustained rate to that of Orca (Oracle), which stores a copy of the
prompt for every sequence. In the paper they are 1.3 for one sequence and 2.3 for beams of width 6,
and grow with the number of sequences. Bands, stated before the first run: 25 %, and a higher ratio
for beams than for samples. Orca's copies between beams take no time here.

    python -m experiments.fig14 [--quick] [--out DIR]
"""

from __future__ import annotations

from typing import Any

import workloads
from experiments._setting import Check, Figure, bars, main, sustained_rate, within

CASES = [("samples", 1), ("samples", 2), ("samples", 4), ("samples", 6)]
CASES += [("beams", 2), ("beams", 4), ("beams", 6)]


def measure(quick: bool) -> Figure:
    """Compare ratios of sustained rates."""
    trace = workloads.alpaca(num_requests=300 if quick else 1500, request_rate=1.0, seed=0)
    rows: list[dict[str, Any]] = []
    for kind, n in CASES:
        options = {"num_samples": n, "use_beam_search": kind == "beams"}
        ours = sustained_rate("vLLM", trace, **options)
        orca = sustained_rate("Orca (Oracle)", trace, **options)
        rows.append({"kind": kind, "n": n, "vllm": ours, "orca": orca, "ratio": ours / orca})
    ratio = {(row["kind"], row["n"]): row["ratio"] for row in rows}
    checks = [
        within("one sequence: vLLM / Orca (Oracle)", ratio["samples", 1], 1.3, percent=25),
        *(Check(f"{n} samples", ratio["samples", n]) for n in (2, 4, 6)),
        *(Check(f"beam width {n}", ratio["beams", n]) for n in (2, 4)),
        within("beam width 6", ratio["beams", 6], 2.3, percent=25),
        Check("beams 6 over samples 6", ratio["beams", 6] / ratio["samples", 6], None, 1.0, 10.0),
    ]

    def draw(picture: Any) -> None:
        axes = picture.subplots()
        bars(axes, [f"{row['n']} {row['kind']}" for row in rows], {"ratio": list(ratio.values())})
        axes.set_ylabel("vLLM's rate over Orca (Oracle)'s")

    return Figure("Fig. 14: several sequences per request", checks, rows, draw)


if __name__ == "__main__":
    main("fig14", measure, __doc__)
