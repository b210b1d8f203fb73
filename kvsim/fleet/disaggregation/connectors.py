"""Connectors: how the replicas of a pool send or receive KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engine.checks import called
from kvsim.engine.setup import with_connector
from kvsim.engines.policies import VLLM
from kvsim.kv.paged import PagedManager
from kvsim.records.connector import FAKE
from kvsim.sched.connector import Role as ConnectorRole
from kvsim.sched.connector import make_connector

if TYPE_CHECKING:
    from kvsim.engine.setup import Setup
    from kvsim.pool_config import Role

#: vLLM's connector role of the replicas of a pool; mixed replicas read and fill a store.
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
    """Return the setup with a connector that sends or receives KV.

    Raises
    ------
    ValueError
        If the scheduler has no connectors, one is set already, or the KV cannot be transferred.
    """
    config = setup.config
    if setup.scheduler_config.kv_transfer is not None:
        beside = {"kv_store": "a KV store", "migration": "migration"}
        raise ValueError(
            "kv_transfer_config: conflicts with "
            f"{beside.get(option, 'separate prefill and decode replicas')}"
        )
    if setup.scheduler_type.rules_of != VLLM or type(setup.kv) is not PagedManager:
        raise ValueError(
            f"{option}: scheduler {setup.scheduler!r} with allocator {called(config)} "
            "cannot transfer KV; vllm with paged can"
        )
    if not all(spec.can_transfer for spec in setup.kv.groups):
        raise ValueError(
            f"{option}: {setup.memory.model.name} has layers other than full and "
            "sliding-window attention; only the KV of these two is transferred"
        )
    connector = make_connector(
        FAKE,
        "kv_both" if reads_store else CONNECTOR_ROLES[role],
        "recompute" if reads_store or recomputes else "fail",
        kv_recompute_threshold,
    )
    return with_connector(setup, connector)
