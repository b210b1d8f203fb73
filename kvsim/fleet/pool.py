"""A pool: identical replicas behind their gateways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.engine.contents import Contents
    from kvsim.engine.setup import Setup
    from kvsim.fleet.gateways import Gateways
    from kvsim.fleet.member import Member
    from kvsim.pool_config import Role
    from kvsim.trace import Trace


@dataclass(eq=False)
class Pool:
    """Identical replicas behind their gateways.

    Parameters
    ----------
    name, role : as configured
    setup : setup of each replica
    trace : the requests as these replicas serve them; in a prefill pool they have one output token
    contents : contents of these requests, by row
    table : this pool's requests table
    members : all replicas ever started, in the order of their start
    places : the current replica in each slot; routers choose replicas by slot

    Attributes
    ----------
    gateways : choose among the replicas; set before the first request
    own_hits : prompt tokens of each request found in this pool's own caches; None if these are the
        hits in the table
    """

    name: str
    role: Role
    setup: Setup
    trace: Trace
    contents: Contents
    table: NDArray[Any]
    members: list[Member] = field(default_factory=list)
    places: list[Member | None] = field(default_factory=list)
    own_hits: NDArray[np.int64] | None = None
    gateways: Gateways = field(init=False)

    @property
    def gpus_per_replica(self) -> int:
        config = self.setup.config
        return config.tensor_parallel_size * config.pipeline_parallel_size

    def choosable(self) -> list[Member]:
        """Return the replicas that the gateways may choose, by slot."""
        return [one for one in self.places if one is not None and one.is_choosable]

    @property
    def is_choosable(self) -> bool:
        """Return True if the gateways may choose any replica."""
        return any(one is not None and one.is_choosable for one in self.places)

    def served(self) -> NDArray[Any]:
        """Return the requests table with the hits in this pool's own caches."""
        if self.own_hits is None or np.array_equal(self.table["num_cached_tokens"], self.own_hits):
            return self.table
        table = self.table.copy()
        table["num_cached_tokens"] = self.own_hits
        return table
