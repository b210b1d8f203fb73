"""The KV connector of a simulated server, from vLLM's flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.budget.budget import GIB
from kvsim.engines.policies import VLLM
from kvsim.kv.paged import PagedManager
from kvsim.kv_transfer import KVTransferConfig
from kvsim.records.connector import OFFLOADING
from kvsim.rules.blocks.attention import cdiv
from kvsim.sched.connector import make_connector
from kvsim.sched.offloading import make_offloading

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.kv.manager import KVCacheManager
    from kvsim.kv_transfer import OffloadingOptions
    from kvsim.records.offloading import Offloading
    from kvsim.sched.scheduler import Scheduler


def has_offloading(config: Config) -> bool:
    """Return True if a server keeps chunks in host memory by vLLM's connector."""
    return config.kv_transfer_config is not None or config.kv_offloading_backend is not None


def connector_settings(
    config: Config, kv: KVCacheManager, kind: type[Scheduler], scheduler: str
) -> dict[str, Any]:
    """Return the fields of SchedulerConfig for a KV connector and its host memory."""
    flag = "kv_offloading_backend" if config.kv_transfer_config is None else "kv_transfer_config"
    given = config.kv_transfer_config
    if given is None:
        if config.kv_offloading_backend is None:
            return {}
        if config.kv_offloading_size is None:
            raise ValueError(f"{flag}: kv_offloading_size is missing")
        given = KVTransferConfig()
    elif config.kv_offloading_size is not None and config.kv_offloading_backend is None:
        raise ValueError(f"{flag}: with kv_offloading_size, set kv_offloading_backend to native")
    if kind.rules_of != VLLM:
        raise ValueError(f"{flag}: scheduler {scheduler!r} has no KV connectors; vllm has")
    if type(kv) is not PagedManager:
        raise ValueError(f"{flag}: allocator {config.allocator!r} cannot be offloaded; paged can")
    _check_groups(flag, kv)
    return {
        "kv_transfer": make_connector(OFFLOADING, given.kv_role, given.kv_load_failure_policy),
        "offloading": _offloading(config, given.kv_connector_extra_config, kv),
    }


def _check_groups(flag: str, kv: PagedManager) -> None:
    """Refuse groups that cannot be offloaded."""
    if any(spec.layer == "mamba" and not spec.caches_states for spec in kv.groups):
        raise ValueError(
            f"{flag}: without prefix caching states cannot be offloaded; set enable_prefix_caching"
        )
    if not all(spec.can_offload for spec in kv.groups):
        raise ValueError(
            f"{flag}: only the KV of full and sliding-window attention and states are offloaded"
        )
    if kv.config.prefix_match_unit and any(spec.caches_states for spec in kv.groups):
        raise ValueError(
            f"{flag}: hits that end inside a block are not modelled with offloading; leave "
            "prefix_match_unit unset"
        )


def _offloading(config: Config, options: OffloadingOptions, kv: PagedManager) -> Offloading:
    """Return the settings of offloading: the number of chunks in host memory, and the policy."""
    size = options.cpu_bytes_to_use
    if config.kv_offloading_size is not None:
        size = config.kv_offloading_size * GIB
    tp = config.tensor_parallel_size
    chunk_bytes = cdiv(kv.bytes_per_block * options.blocks_per_chunk, 4096) * 4096
    num_chunks = int(size / tp) // chunk_bytes
    if num_chunks < 1:
        raise ValueError(
            f"kv_transfer_config: cpu_bytes_to_use is {size:.0f}: must hold at least one chunk of "
            f"{chunk_bytes * tp} bytes"
        )
    return make_offloading(options, num_chunks, sum(kv.slot_bytes) * tp, timed=True)
