"""B6: hits per round of chats against a store of 80 GB, Mooncake's SSD benchmark.

The rounds and the publication stand in ``rounds``; Mooncake's store plays itself, of one engine, as
in the benchmark. The order of clients is drawn once: the order of the arithmetic that the band
came with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.validation.fleets import rounds as rounds_study
from experiments.validation.fleets.bars import Row, above, close

if TYPE_CHECKING:
    from pathlib import Path

SETS: tuple[str, ...] = ()
#: Number of client orders drawn to show how much the order changes the arithmetic.
ORDERS = 40
#: A store of 80 GB that is full before anything leaves, and one as it is shipped, of 80 GiB.
PLAIN = f"mooncake+gib={rounds_study.HOST_BYTES / (1 << 30)}+mark=1+batch=0+pull=always"
SHIPPED = "mooncake+gib=80+pull=always"


def rows(data: Path) -> list[Row]:
    """Play the rounds and hold them against arithmetic and the publication."""
    order = rounds_study.shuffled(0)
    plain = rounds_study.serve(order, kv_store=PLAIN)
    shipped = rounds_study.serve(order, kv_store=SHIPPED)
    expected = rounds_study.arithmetic(order, front_first=True)
    others = [
        rounds_study.arithmetic(rounds_study.shuffled(seed), front_first=True)
        for seed in range(ORDERS)
    ]
    fixed = rounds_study.arithmetic(
        [(k, c) for k in range(1, 9) for c in range(rounds_study.CLIENTS)], front_first=True
    )
    found = []
    for k, published in rounds_study.PUBLISHED.items():
        what, all_orders = f"round {k}: hits, %", [one[k] for one in others]
        found.append(close(f"{what}, plain LRU", expected[k], plain[k], points=1))
        note = (
            f"who comes when is not published: {ORDERS} orders make "
            f"{np.mean(all_orders):.1f} +- {np.std(all_orders):.1f} of a plain LRU, the same order "
            f"every round {fixed[k]:.1f}"
        )
        found.append(close(f"{what}, published", published, shipped[k], points=4, note=note))
    large = rounds_study.serve(order, kv_store=SHIPPED + "+disk-gib=1000")
    note = "memory and disks; what leaves the memory is read from there"
    return [*found, above("round 8: hits, %, with SSD", "84 and more", large[8], 84, note)]
