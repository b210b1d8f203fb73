"""``kvsim compare --policies``: session and eviction policies on the same requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.errors import unknown_name
from kvsim.parametric import SESSION_POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.trace import Trace


def read_policies(text: str) -> list[dict[str, str]]:
    """Return the options that select each policy; LRU, the default, needs none.

    Raises
    ------
    ValueError
        For a name that is neither a session policy nor an eviction policy.

    Examples
    --------
    >>> read_policies("lru,sieve,program=20")
    [{}, {'eviction': 'sieve'}, {'session_policy': 'program=20'}]
    """
    return [_options_of(name) for name in names_of(text)]


def names_of(text: str) -> list[str]:
    """Return the names between commas, each once."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def _options_of(name: str) -> dict[str, str]:
    from kvsim.kv.eviction import EVICTION_POLICIES

    if name == "lru":
        return {}
    if name.partition("=")[0] in SESSION_POLICIES:
        return {"session_policy": name}
    plain = [one for one in EVICTION_POLICIES.names() if not one.startswith("session-")]
    if name.partition(":")[0] in plain or ".py:" in name:
        return {"eviction": name}
    raise unknown_name("policy", name, [*plain, *SESSION_POLICIES])


def bounds_of(trace: Trace, summary: Mapping[str, Any]) -> dict[str, float]:
    """Return bounds of the hit rate: of an infinite cache, and of the optimum at the run's size.

    The optimum serves the requests one at a time in the order of the trace, knows all of them, and
    has the blocks of all replicas. It is left out for several pools, and if other memory holds KV,
    too.
    """
    from kvsim.hits.backend import backend_of
    from kvsim.hits.paths import paths_of
    from kvsim.hits.policies import lru_at_all_sizes, simulation

    cache = summary["kv_cache"]
    backend = backend_of("compiled")
    paths = paths_of(trace, cache["block_size"], 0, backend, as_engine=True)
    whole = int(lru_at_all_sizes(paths, backend)[-1])
    bounds = {"infinite_hit_rate": whole / paths.measured_tokens}
    if summary["external_prefix_cache_hit_rate"] is None and summary["pools"] is None:
        size = cache["num_usable_blocks"] * len(summary["replicas"])
        hits = simulation("optimal", paths, backend)(min(size, max(paths.num_blocks, 1)))
        bounds["optimal_hit_rate"] = hits / paths.measured_tokens
    return bounds


def bound_notes(bounds: Mapping[str, float]) -> list[str]:
    """Return a note on the bounds of the hit rate."""
    said = f"{100 * bounds['infinite_hit_rate']:.1f} % in an infinite cache"
    if "optimal_hit_rate" in bounds:
        said += (
            f", {100 * bounds['optimal_hit_rate']:.1f} % for the optimum at this size, with "
            "requests one at a time in the order of the trace"
        )
    return [f"bounds of the hit rate: {said}"]
