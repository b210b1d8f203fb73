"""Table 1 of the PagedAttention paper: how many KV slots each model has.

python -m experiments.table1 [--quick] [--out DIR]
"""

from __future__ import annotations

import kvsim
from experiments._setting import MODELS, Figure, main, within

PAPER = {"13B": (15_700, 0.2), "66B": (9_700, 1.5), "175B": (60_100, 0.2)}


def measure(quick: bool) -> Figure:
    """Compare the numbers of slots; the bands are 0.2 %, for 66B 1.5 %.

    Slots are memory over bytes per token, as in the paper; blocks of 16 have a few slots fewer.
    """
    checks, rows = [], []
    for model, (paper, percent) in PAPER.items():
        found = kvsim.capacity(**MODELS[model])
        slots = found.budget_bytes["kv_cache"] // found.bytes_per_token
        checks.append(within(f"{model} slots", slots, paper, percent=percent))
        rows.append({"model": model, "slots": slots, "paper": paper})
    return Figure("Table 1: KV slots", checks, rows)


if __name__ == "__main__":
    main("table1", measure, __doc__)
