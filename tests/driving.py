"""Making a KV-cache manager's configuration, and driving a manager without a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.attention.full import FullAttention
from kvsim.attention.spec import AttentionSpec
from kvsim.budget.layout import KVLayout, LayerKV, kv_dtype
from kvsim.budget.planner import KVPlan
from kvsim.kv.attention import group_of
from kvsim.kv.manager import NO_HIT, KVCacheConfig
from kvsim.records.request import Request, Status

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheManager


def kv_config(
    num_gpu_blocks: int,
    *groups: AttentionSpec,
    slot_bytes: int = 1,
    num_cpu_blocks: int = 0,
    **options: Any,
) -> KVCacheConfig:
    """Describe a memory of so many blocks, null block included, for hand-made groups.

    Without a group there is one of full attention, in blocks of four. Prefix caching is on.
    """
    specs = groups or (FullAttention(4),)
    size = max(spec.block_size for spec in specs) * slot_bytes
    settings: dict[str, Any] = {
        "max_model_len": 128,
        "enable_prefix_caching": True,
        "swap_space_bytes": num_cpu_blocks * size,
    } | options
    return KVCacheConfig(
        layout=KVLayout((LayerKV("full", None, slot_bytes),), kv_dtype("bf16"), 0),
        num_bytes=num_gpu_blocks * size,
        block_size=specs[0].block_size,
        plan=KVPlan(tuple(group_of(spec, slot_bytes) for spec in specs), size),
        **settings,
    )


def request(
    index: int, prompt: int, output: int, *, arrival: float = 0.0, priority: int = 0
) -> Request:
    """Make a request of its own content."""
    segments = [(100 + index, 0, prompt)]
    return Request(index, arrival, prompt, output, segments, 1000 + index, priority)


def in_turn(index: int, prompt: int, output: int, priority: int = 0) -> Request:
    """Make a request that arrives at the second of its number."""
    return request(index, prompt, output, arrival=float(index), priority=priority)


def compute(kv: KVCacheManager, r: Request, num_tokens: int) -> bool:
    """Do what a scheduler does when it schedules tokens that are done at once."""
    hit = kv.lookup(r) if r.status == Status.WAITING else NO_HIT
    if not kv.allocate_slots(r, num_tokens, hit):
        return False
    r.status = Status.RUNNING
    r.num_computed_tokens += hit.num_tokens + num_tokens
    r.num_tokens = max(r.num_tokens, r.num_computed_tokens)
    kv.check_integrity()
    return True
