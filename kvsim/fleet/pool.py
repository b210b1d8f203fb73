"""A pool: replicas that are alike, with a router of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvsim.engine.checks import called
from kvsim.kv.paged import PagedManager
from kvsim.records.connector import FAKE
from kvsim.records.engine import VLLM
from kvsim.records.paged import FULL, SLIDING
from kvsim.sched.connector import Role as ConnectorRole
from kvsim.sched.connector import make_connector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.engine.contents import Contents
    from kvsim.engine.setup import Setup
    from kvsim.fleet.gateways import Gateways
    from kvsim.fleet.lifecycle import Lifecycle
    from kvsim.fleet.member import Member
    from kvsim.fleet.scaling import Scaling
    from kvsim.pool_config import Role
    from kvsim.trace import Trace


@dataclass(eq=False)
class Pool:
    """Replicas that are alike.

    Parameters
    ----------
    name, role : as asked for
    setup : what each replica is made of
    trace : the requests as these replicas serve them: of a prefill pool with one token of output
    contents : the same by row
    table : their rows of the requests table, of this pool's part
    gateways : who chooses among them
    members : all that have ever been, in the order of their start
    places : who is at which place now, as the router counts them
    lifecycle, scaling : of its replicas, if their number changes
    """

    name: str
    role: Role
    setup: Setup
    trace: Trace
    contents: Contents
    table: NDArray[Any]
    gateways: Gateways | None = None
    members: list[Member] = field(default_factory=list)
    places: list[Member | None] = field(default_factory=list)
    lifecycle: Lifecycle | None = None
    scaling: Scaling | None = None

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        config = self.setup.config
        return config.tensor_parallel_size * config.pipeline_parallel_size


#: vLLM's role of the replicas of a pool; those that do everything read a store, and fill it.
CONNECTOR_ROLES: dict[Role, ConnectorRole] = {
    "prefill": "kv_producer",
    "decode": "kv_consumer",
    "mixed": "kv_both",
}


def connected(
    setup: Setup,
    role: Role,
    kv_recompute_threshold: int = 0,
    *,
    reads_store: bool = False,
    recomputes: bool = False,
    option: str = "num_prefill_workers",
) -> Setup:
    """Return the same with a connector that gives or takes KV.

    Raises
    ------
    ValueError
        If its scheduler has no connectors or it has one already, or its KV cannot be handed over.
    """
    config = setup.config
    if setup.scheduler_config.kv_transfer is not None:
        beside = {"kv_store": "a KV store", "migration": "migration"}
        raise ValueError(
            "kv_transfer_config: not beside "
            f"{beside.get(option, 'separate prefill and decode replicas')}"
        )
    if setup.scheduler_type.rules_of != VLLM or type(setup.kv) is not PagedManager:
        raise ValueError(
            f"{option}: scheduler {setup.scheduler!r} with allocator "
            f"{called(config)} hands no KV over; vllm with paged does"
        )
    if any(spec.kind not in (FULL, SLIDING) for spec in setup.kv.groups):
        raise ValueError(
            f"{option}: {setup.memory.model.name} keeps more than full and "
            "sliding-window attention; only the KV of these is handed over"
        )
    connector = make_connector(
        FAKE,
        "kv_both" if reads_store else CONNECTOR_ROLES[role],
        "recompute" if reads_store or recomputes else "fail",
        kv_recompute_threshold,
    )
    scheduler_config = replace(setup.scheduler_config, kv_transfer=connector)
    return replace(setup, scheduler_config=scheduler_config)


def transfer_bytes(setup: Setup, num_tokens: int) -> int:
    """Return the bytes of KV that a replica reads for so many tokens, all its GPUs together.

    Heads that are there more than once, since there are more ranks than heads, are read more than
    once; a latent that every rank has is read once.
    """
    config, total = setup.config, 0
    for layer in setup.kv_config.layout.layers:
        ranks = 1 if layer.num_tensors == 1 else config.tensor_parallel_size
        tokens = num_tokens if layer.window is None else min(num_tokens, layer.window)
        total += ranks * (layer.bytes_per_token * tokens + layer.state_bytes)
    return round(total * _stages(setup))


def _stages(setup: Setup) -> float:
    """Return how many times the layers of the largest pipeline stage the model has."""
    num_layers = setup.memory.model.num_layers
    return num_layers / -(-num_layers // setup.config.pipeline_parallel_size)


def num_descriptors(setup: Setup, num_tokens: int) -> int:
    """Return how many pieces a transfer has: a block of a layer's keys, or values, is one."""
    blocks = -(-num_tokens // setup.kv.block_size)
    pieces = sum(layer.num_tensors for layer in setup.kv_config.layout.layers)
    return round(blocks * pieces * _stages(setup))
