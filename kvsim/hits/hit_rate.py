"""Hit rates of a prefix cache over its size: ``kvsim hits`` and ``kvsim.hit_rate``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvsim.config import Config
from kvsim.errors import FieldError
from kvsim.hits.backend import backend_of
from kvsim.hits.paths import paths_of
from kvsim.hits.policies import USUAL, check_policies, lru_at_all_sizes, simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from kvsim.hits.backend import Backend
    from kvsim.hits.paths import Paths
    from kvsim.hits.tiers import Deployment, Tier
    from kvsim.trace import Trace

    Ints = NDArray[np.int64]

GIB = 2**30
#: Tokens per block where neither a size nor a model is given: vLLM's default.
USUAL_BLOCK_SIZE = 16
#: Default sizes at which a policy is simulated: all different blocks, half of them, a quarter, ...
NUM_SIZES = 14
#: Default points of LRU's curve, which is known at every size.
NUM_LRU_SIZES = 200
#: Share of the ceiling at which a curve has its knee.
KNEE = 0.9

ROWS = np.dtype(
    [
        *(("policy", "U8"), ("num_blocks", np.int64), ("hit_tokens", np.int64)),
        *(("hit_rate", np.float64), ("gib", np.float64), ("dollars", np.float64)),
    ]
)
DEFINITIONS = {
    False: (
        "the tokens of a prompt's longest cached prefix, in blocks, of which a prompt's last may "
        "be shorter; outputs are not cached"
    ),
    True: (
        "the tokens of a prompt's longest cached prefix in full blocks, which leaves at least one "
        "prompt token to compute; outputs are cached, too"
    ),
}


@dataclass(frozen=True, eq=False)
class HitRate:
    """Hit tokens of cache policies by the number of blocks; requests are served one at a time.

    Attributes
    ----------
    curves : sizes in blocks and hit tokens, two arrays per policy
    lru : LRU's hit tokens at every size from 0 to ``distinct_blocks``; they grow with the size
    block_size : tokens per block
    num_requests, measure_from : number of requests, and index of the first one with counted hits
    measured_tokens : prompt tokens of the requests that count
    total_blocks, distinct_blocks : blocks of all requests, and different ones among them
    deployment : the model's blocks and the user's caches; None without a model
    gib_price : dollars per GiB; None without one
    """

    curves: dict[str, tuple[Ints, Ints]]
    lru: Ints
    block_size: int
    num_requests: int
    measure_from: int
    measured_tokens: int
    total_blocks: int
    distinct_blocks: int
    deployment: Deployment | None = None
    gib_price: float | None = None

    @property
    def definition(self) -> str:
        """The definition of hit tokens; with a model it is that of an engine."""
        return DEFINITIONS[self.deployment is not None]

    @property
    def ceiling(self) -> float:
        """Hit rate of an infinite cache."""
        return float(self.lru[-1]) / self.measured_tokens

    @property
    def knee(self) -> int:
        """Smallest size in blocks at which LRU reaches 90 % of the ceiling."""
        return int(np.searchsorted(self.lru, KNEE * self.lru[-1]))

    def lru_rate(self, num_blocks: int) -> float:
        """Return LRU's hit rate at any size in blocks."""
        return float(self.lru[min(num_blocks, self.distinct_blocks)]) / self.measured_tokens

    @cached_property
    def table(self) -> NDArray[Any]:
        """One row per policy and size: hit_tokens, hit_rate, gib and dollars (NaN if unknown)."""
        rows = np.zeros(sum(len(sizes) for sizes, _ in self.curves.values()), ROWS)
        first = 0
        for policy, (sizes, hits) in self.curves.items():
            part = rows[first : first + len(sizes)]
            part["policy"], part["num_blocks"], part["hit_tokens"] = policy, sizes, hits
            first += len(sizes)
        rows["hit_rate"] = rows["hit_tokens"] / self.measured_tokens
        rows["gib"] = self._gib(rows["num_blocks"])
        rows["dollars"] = rows["gib"] * (np.nan if self.gib_price is None else self.gib_price)
        return rows

    def _gib(self, num_blocks: Any) -> Any:
        size = np.nan if self.deployment is None else self.deployment.block_bytes
        return num_blocks * size / GIB

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.table)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types; a curve is a list of [num_blocks, hit_rate]."""
        found = self.deployment
        shown: dict[str, Any] = {
            "num_requests": self.num_requests,
            "measure_from": self.measure_from,
            "block_size": self.block_size,
            "total_blocks": self.total_blocks,
            "distinct_blocks": self.distinct_blocks,
            "measured_tokens": self.measured_tokens,
            "ceiling": self.ceiling,
            "knee": self.knee,
            "hits_are": self.definition,
            "deployment": found.name if found else None,
            "bytes_per_block": found.block_bytes if found else None,
            "gib_price": self.gib_price,
            "curves": self._curves("num_blocks"),
        }
        if found is not None:
            shown["curves_gib"] = self._curves("gib")
        if self.gib_price is not None:
            shown["curves_dollars"] = self._curves("dollars")
        shown["tiers"] = [self._tier(tier) for tier in found.tiers] if found else []
        shown["notes"] = list(found.notes) if found else []
        return shown

    def _curves(self, by: str) -> dict[str, list[list[float]]]:
        rows = self.table
        return {
            policy: [[r[by].item(), r["hit_rate"].item()] for r in rows[rows["policy"] == policy]]
            for policy in self.curves
        }

    def _tier(self, tier: Tier) -> dict[str, Any]:
        gib = float(self._gib(tier.num_blocks))
        return {**tier._asdict(), "gib": gib, "lru_hit_rate": self.lru_rate(tier.num_blocks)}

    def plot(self) -> Figure:
        """Draw the curves, and the user's caches in them."""
        from kvsim.report.plots.hits import hits

        return hits(self.to_dict())

    def save(self, folder: str | Path) -> None:
        """Write ``hits.json``, ``hits.csv`` and ``hits.png``, all of them or none."""
        from kvsim.report.hits import save_hits

        save_hits(self.to_dict(), self.table, folder)


def hit_rate(
    trace: Trace,
    *,
    policies: Sequence[str] = USUAL,
    sizes: Sequence[int] | None = None,
    block_size: int | None = None,
    measure_from: int = 0,
    disk_size: float | None = None,
    gib_price: float | None = None,
    backend: Literal["compiled", "python"] = "compiled",
    on_progress: Callable[[int], object] | None = None,
    **options: Any,
) -> HitRate:
    """Compute hit rates over the size of a prefix cache, without simulating an engine.

    Requests are served one at a time, in order of arrival. LRU is known at all sizes after one
    pass; the other policies are simulated at each size. ``optimal`` knows the future and bounds all
    others. In an engine, hit rates also depend on concurrency, sliding windows, states, pinned
    blocks and time-outs.

    Parameters
    ----------
    trace : the requests
    policies : some of lru, fifo, lfu, slru, arc, gdsf, s3fifo, sieve and optimal; by default all
        but slru, arc and gdsf
    sizes : blocks, ascending; by default 14 halvings of the number of different blocks, and for
        LRU 200 sizes
    block_size : tokens; by default the model's, or 16
    measure_from : index of the first request with counted hits; earlier ones fill the cache
    disk_size : GiB of a disk to mark in the curve
    gib_price : dollars per GiB of cache
    backend : the rules compiled, or as Python
    on_progress : receives the number of finished simulations
    **options : options of :func:`kvsim.capacity`: with ``model`` hits count as in an engine, and
        GPU pool and host memory (``kv_offloading_size``) are marked

    Returns
    -------
    HitRate

    Raises
    ------
    ValueError
        For unknown policies, sizes below 1, a ``measure_from`` outside the trace, and wrong
        options.

    Examples
    --------
    >>> import workloads
    >>> found = hit_rate(workloads.shared_prefix(num_requests=50), policies=["lru"], sizes=[100])
    >>> found.table["num_blocks"].tolist()
    [100]
    """
    names = check_policies(policies)
    _check(trace, sizes, measure_from, disk_size, gib_price)
    given = {name: value for name, value in options.items() if value is not None}
    config = Config.build(**given, block_size=block_size)
    found, size = None, config.block_size or USUAL_BLOCK_SIZE
    if "model" in given or "hf_config_path" in given:
        from kvsim.hits.tiers import deployment_of  # sizing a model takes a while to import

        found = deployment_of(given, config, disk_size)
        size = found.block_size
    elif given:
        raise FieldError(next(iter(given)), "needs a model")
    elif disk_size is not None or gib_price is not None:
        name = "gib_price" if disk_size is None else "disk_size"
        raise FieldError(name, "needs a model, which determines the bytes of a block")
    runner = backend_of(backend)
    paths = paths_of(trace, size, measure_from, runner, as_engine=found is not None)
    curves, lru = _curves(names, sizes, paths, runner, on_progress)
    return HitRate(
        curves,
        lru,
        size,
        len(trace),
        measure_from,
        paths.measured_tokens,
        paths.num_references,
        paths.num_blocks,
        found,
        gib_price,
    )


def _check(
    trace: Trace,
    sizes: Sequence[int] | None,
    measure_from: int,
    disk_size: float | None,
    gib_price: float | None,
) -> None:
    if sizes is not None and (not len(sizes) or min(sizes) < 1):
        raise FieldError("sizes", "must be numbers of blocks, at least one, each at least 1")
    if not 0 <= measure_from < len(trace):
        raise FieldError(
            "measure_from", f"must be a request from 0 to {len(trace) - 1}, got {measure_from}"
        )
    for name, value in (("disk_size", disk_size), ("gib_price", gib_price)):
        if value is not None and not 0 < value < math.inf:
            raise FieldError(name, f"must be above 0 and finite, got {value}")


def _curves(
    names: Sequence[str],
    sizes: Sequence[int] | None,
    paths: Paths,
    backend: Backend,
    on_progress: Callable[[int], object] | None,
) -> tuple[dict[str, tuple[Ints, Ints]], Ints]:
    """Return the curve (sizes, hit tokens) of each policy, and LRU's hit tokens at all sizes."""
    most = paths.num_blocks
    if sizes is None:
        at = np.unique(np.maximum(most >> np.arange(NUM_SIZES), 1))
        between = np.geomspace(1, max(most, 1), NUM_LRU_SIZES).astype(np.int64)
        at_lru = np.unique(np.append(between, at))
    else:
        at = at_lru = np.unique(np.asarray(sizes, np.int64))
    lru = lru_at_all_sizes(paths, backend)
    curves, done = {}, 0
    for name in names:
        if name == "lru":
            curves[name] = at_lru, lru[np.minimum(at_lru, most)]
            continue
        serve, hits = simulation(name, paths, backend), np.zeros(len(at), np.int64)
        for k, size in enumerate(at.tolist()):
            hits[k] = serve(min(size, max(most, 1)))
            done += 1
            if on_progress is not None:
                on_progress(done)
        curves[name] = at, hits
    return curves, lru
