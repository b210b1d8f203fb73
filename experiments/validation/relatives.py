"""How far the rule for cards without kernel tables is off, on cards that have them: leave one out.

The rule: a card takes the fractions of peaks of the measured card of its own generation, else the
H100's. Each measured card is priced by its own fractions and by those that the rule would give it
if its tables were absent. Servers without a front end, in closed loops; the truth here is a fit to
kernels, itself about 5 % off.

    python -m experiments.validation.relatives
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tomli_w

import kvsim
from experiments.validation.record import write_csv
from experiments.validation.trust import RECORDS
from kvsim.cost.efficiency import card_of, read_table
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = "relatives.csv"
#: What the rule gives each measured card without its own table.
RELATIVES = {
    "h100-sxm": "h200",
    **dict.fromkeys(("h200-sxm", "a100-80gb", "b200", "l40s", "rtx-pro-6000"), "h100"),
}
SERVERS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3.1-8b"},
    "FP8": {"model": "llama-3.1-8b", "quantization": "fp8"},
    "experts": {"model": "qwen3-30b-a3b", "tensor_parallel_size": 2},
}
#: Clients, and tokens of a prompt and of an answer.
LOADS = ((1, 512, 16), (16, 1024, 16), (64, 256, 16), (4, 8192, 8))


class Off(NamedTuple):
    """Percent by which a relative's fractions change TPOT and TTFT of a closed loop."""

    card: str
    relative: str
    server: str
    tpot: float
    ttft: float


def left_out() -> Iterator[Off]:
    """Yield the errors of the rule, loop by loop; the A100 has no FP8."""
    for card, relative in RELATIVES.items():
        constants = {k: v for k, v in read_table()[relative].items() if k != "errors" and v}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "relative.toml")
            file.write_text(tomli_w.dumps({card_of(card): constants}), encoding="utf-8")
            for name, server in SERVERS.items():
                if name == "FP8" and card.startswith("a100"):
                    continue
                for load in LOADS:
                    own = _latencies(load, gpu=card, **server)
                    other = _latencies(
                        load, gpu=card, cost_model=f"roofline+constants={file}", **server
                    )
                    tpot, ttft = 100 * (other / own - 1)
                    yield Off(card, relative, name, float(tpot), float(ttft))


def _latencies(load: tuple[int, int, int], **options: Any) -> Any:
    clients, prompt, output = load
    n = 2 * clients
    summary = kvsim.simulate(
        Trace.from_arrays(np.zeros(n), [prompt] * n, [output] * n),
        max_concurrency=clients,
        enable_prefix_caching=False,
        backend="python",
        **options,
    ).summary
    return np.array([summary["mean_tpot_ms"], summary["mean_ttft_ms"]])


def main() -> None:
    """Print the quantiles that kvsim states, and write the loops."""
    rows = list(left_out())
    for name in ("tpot", "ttft"):
        sizes = np.abs([getattr(row, name) for row in rows])
        half, most = np.quantile(sizes, [0.5, 0.9])
        print(f"{name}: {len(rows)} loops, median {half:.1f} %, ninth decile {most:.1f} %")
    columns = ("card", "fractions of", "server", "TPOT", "TTFT")
    lines = ([*row[:3], f"{row.tpot:+.1f}", f"{row.ttft:+.1f}"] for row in rows)
    write_csv(RECORDS / FILE, columns, lines)


if __name__ == "__main__":
    main()
