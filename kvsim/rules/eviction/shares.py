"""Decisions of SLRU, ARC and GDSF, for block pools and for caches without a clock (``kvsim hits``).

Karedla, Love and Wherry, Caching strategies to improve disk system performance, IEEE Computer 1994;
Megiddo and Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003, figure 4;
Cherkasova, Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy, HP
Labs 1998.
"""

from __future__ import annotations

SHARE = (4, 5)  # share of a cache that SLRU may protect, as a fraction


def most_protected(size: int) -> int:
    """Return the number of blocks that SLRU may protect in a cache of ``size`` blocks."""
    return size * SHARE[0] // SHARE[1]


def target_after(target: int, in_b1: bool, num_b1: int, num_b2: int, size: int) -> int:
    """Return ARC's target length of T1 after a request for a ghost in B1 (or else in B2)."""
    if in_b1:
        return min(target + max(num_b2 // num_b1, 1), size)
    return max(target - max(num_b1 // num_b2, 1), 0)


def evicts_t1(num_t1: int, target: int, returns: bool) -> bool:
    """Return True if ARC evicts from T1; ``returns``: the block to be cached is a ghost in B2."""
    return num_t1 >= 1 and (num_t1 > target or (returns and num_t1 == target))


def worth_of(age: int, uses: int) -> int:
    """Return GDSF's worth of a block, as all blocks have the same size and cost."""
    return age + uses
