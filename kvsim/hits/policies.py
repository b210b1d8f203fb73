"""The cache policies by name, as functions from a size to hit tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kvsim.errors import unknown_name
from kvsim.hits.rules.arc import arc_hits
from kvsim.hits.rules.fifo import fifo_hits
from kvsim.hits.rules.leaves import GDSF, LFU, OPTIMAL, leaf_hits, next_uses
from kvsim.hits.rules.lru import lru_hits
from kvsim.hits.rules.s3fifo import s3fifo_hits
from kvsim.hits.rules.sieve import sieve_hits
from kvsim.hits.rules.slru import slru_hits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvsim.hits.paths import Compile, Paths

#: All policies, in the order of their columns.
POLICIES = ("lru", "fifo", "lfu", "slru", "arc", "gdsf", "s3fifo", "sieve", "optimal")
#: Policies that are drawn by default.
USUAL = ("lru", "fifo", "lfu", "s3fifo", "sieve", "optimal")
QUEUES = {
    "fifo": fifo_hits,
    "slru": slru_hits,
    "arc": arc_hits,
    "s3fifo": s3fifo_hits,
    "sieve": sieve_hits,
}
LEAVES = {"lfu": LFU, "gdsf": GDSF, "optimal": OPTIMAL}


def check_policies(policies: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each once, or refuse an unknown one."""
    for name in policies:
        if name not in POLICIES:
            raise unknown_name("policy", name, POLICIES)
    if not policies:
        raise ValueError(f"policies: at least one of {', '.join(POLICIES)}")
    return tuple(dict.fromkeys(policies))


def lru_at_all_sizes(paths: Paths, compile_: Compile) -> NDArray[Any]:
    """Return LRU's hit tokens at every size from 0 to the number of different blocks."""
    hits: NDArray[Any] = compile_(lru_hits)(paths.requests, paths.num_blocks)
    return hits


def simulation(name: str, paths: Paths, compile_: Compile) -> Callable[[int], int]:
    """Return a function from a size in blocks to the hit tokens of a policy other than LRU."""
    if name in QUEUES:
        return partial(compile_(QUEUES[name]), paths.requests)
    upcoming = compile_(next_uses)(paths.requests)
    serve = compile_(leaf_hits)
    return lambda size: int(serve(paths.requests, size, LEAVES[name], upcoming))
