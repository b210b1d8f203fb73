"""Lays out an empty virtual KV memory for the rules of :mod:`kvsim.rules.virtual`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.contiguous_memory import lay_out_holdings
from kvsim.records.kv import VIRTUAL
from kvsim.records.virtual import MappedRows, Stretch, TensorKind
from kvsim.rules.virtual import num_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.kv.manager import KVCacheConfig
    from kvsim.records.kv import KV
    from kvsim.records.memory import Memory


def lay_out_virtual(
    memory: Memory,
    kv: KV,
    config: KVCacheConfig,
    *,
    kinds: Sequence[tuple[int, int, int | None]],
    page_bytes: int,
    max_requests: int,
) -> None:
    """Lay out the memory of a virtual manager.

    Parameters
    ----------
    kinds : of tensors: how many, bytes per token of one, and their window or None
    max_requests : most requests that hold memory at once, or wait for it on the host
    """
    virtual, num_pages = kv.virtual, config.num_bytes // page_bytes
    kv.manager = VIRTUAL
    kv.max_model_len = config.max_model_len
    kv.num_lookahead_tokens = config.num_lookahead_tokens
    kv.reserve_full_isl = config.reserve_full_isl
    kv.reserve_output = config.reserve_output
    kv.has_windows = any(window is not None for _, _, window in kinds)
    virtual.tensors = memory.records(TensorKind, len(kinds))
    virtual.num_kinds = len(kinds)
    for k, (num_tensors, token_bytes, window) in enumerate(kinds):
        virtual.tensors[k].num_tensors = num_tensors
        virtual.tensors[k].token_bytes = token_bytes
        virtual.tensors[k].window = window or 0
    virtual.num_tensors = sum(count for count, _, _ in kinds)
    virtual.token_bytes = sum(count * size for count, size, _ in kinds)
    virtual.page_bytes = page_bytes
    virtual.num_pages = virtual.num_free_pages = num_pages
    virtual.free_pages = memory.list_of(range(num_pages - 1, -1, -1))
    virtual.num_free_host_pages = config.swap_space_bytes // page_bytes
    virtual.num_spared = int(config.watermark * num_pages)
    virtual.max_in_flight_tokens = config.max_in_flight_tokens
    lay_out_holdings(memory, kv, max_requests + 1)
    virtual.stretches = memory.records(Stretch, max_requests + 1)
    for h in range(max_requests + 1):
        virtual.stretches[h].rows = memory.records(MappedRows, len(kinds))
        for k, (num_tensors, _, _) in enumerate(kinds):
            longest = num_rows(virtual, virtual.tensors[k], config.max_model_len)
            virtual.stretches[h].rows[k].pages = memory.ints(longest * num_tensors)
