"""B6: hits per round of chats against a store of 80 GB, Mooncake's SSD benchmark.

The rounds, the arithmetic of a plain LRU and the publication stand in ``_rounds``; vLLM's own
offloading to host memory plays the store, of one engine, as in the benchmark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments import _rounds
from experiments._fleet import Row, above, close

if TYPE_CHECKING:
    from pathlib import Path

SETS: tuple[str, ...] = ()
#: Orders of clients that are averaged: nobody published the one that was played.
ORDERS = 3
#: Bytes of a store that never overflows here: host memory and disks together.
BOTH = 10**12


def mean(runs: list[dict[int, float]], k: int) -> float:
    """Return the hit rate of a round over several orders, percent."""
    return float(sum(run[k] for run in runs) / len(runs))


def both_tiers() -> dict[str, Any]:
    """Return the options of one host store as large as memory and disks together."""
    options = _rounds.native("lru")
    options["kv_transfer_config"]["kv_connector_extra_config"]["cpu_bytes_to_use"] = BOTH
    return options


def rows(data: Path) -> list[Row]:
    """Play the rounds and hold them against arithmetic and the publication."""
    del data
    orders = [_rounds.visits(seed) for seed in range(ORDERS)]
    ours = [_rounds.serve(order, **_rounds.native("lru")) for order in orders]
    plain = [_rounds.arithmetic(order) for order in orders]
    fixed = _rounds.arithmetic([(k, c) for k in range(1, 9) for c in range(_rounds.CLIENTS)])
    found = []
    for k, published in _rounds.PUBLISHED.items():
        here, expected = mean(ours, k), mean(plain, k)
        what = f"round {k}: hits, %"
        found.append(close(f"{what}, plain LRU", expected, here, points=1))
        spread = [run[k] for run in ours]
        note = f"{min(spread):.1f} to {max(spread):.1f} by who comes when, which is not published; "
        note += f"the same order every round: {fixed[k]:.1f}"
        found.append(close(f"{what}, published", published, here, points=4, note=note))
    large = _rounds.serve(orders[0], **both_tiers())
    note = "kvsim has no disks: one host store of 1 TB stands for both tiers, for hits alone"
    return [*found, above("round 8: hits, %, with SSD", "84 and more", large[8], 84, note)]
