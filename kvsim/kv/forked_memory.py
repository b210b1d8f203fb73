"""Lays out the memory of block tables that fork."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.attention import cdiv
from kvsim.records.kv import FORKED
from kvsim.records.paged import Block, BlockTable, Holding, KVGroup

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheConfig
    from kvsim.records.kv import KV
    from kvsim.records.memory import Memory


def lay_out_forked(
    memory: Memory,
    kv: KV,
    config: KVCacheConfig,
    *,
    block_size: int | None = None,
    max_num_seqs: int,
    fewest_samples: int = 1,
    most_samples: int,
) -> None:
    """Lay out an empty pool and tables for requests of several sequences. Mutates ``kv``.

    Parameters
    ----------
    memory, kv : where, and the record to fill
    config : as the manager's
    block_size : tokens per block, instead of the configured
    max_num_seqs : most sequences that run or are swapped out at once
    fewest_samples, most_samples : sequences per request of the trace
    """
    plan = config.grouping(block_size)
    size, num_blocks = plan.groups[0].block_size, config.num_bytes // plan.bytes_per_block
    kv.manager = FORKED
    kv.bytes_per_block = plan.bytes_per_block
    kv.max_model_len = config.max_model_len
    kv.watermark_blocks = int(config.watermark * num_blocks)
    kv.num_cpu_free = config.swap_space_bytes // plan.bytes_per_block
    kv.beam_switch = config.beam_switch if config.use_beam_search else 0.0
    kv.num_groups, kv.groups = 1, memory.records(KVGroup, 1)
    kv.groups[0].block_size = size
    kv.groups[0].slot_bytes = plan.bytes_per_block // size
    kv.pool.num_usable = max(num_blocks - 1, 0)
    kv.pool.blocks = memory.records(Block, max(num_blocks, 1))
    kv.pool.unhashed = memory.list_of(range(num_blocks - 1, 0, -1))
    kv.pool.num_unhashed = kv.pool.num_usable
    kv.pool.num_seen = memory.ints(max(num_blocks, 1))
    kv.places, kv.moved_to = memory.ints(num_blocks), memory.ints(num_blocks)
    kv.parents, kv.column = memory.ints(most_samples), memory.ints(most_samples)
    # One more than can be held: the next one's.
    count = max_num_seqs // fewest_samples + 1
    kv.num_holdings = kv.num_free_holdings = count
    kv.holdings = memory.records(Holding, count)
    kv.free_holdings = memory.list_of(range(count - 1, -1, -1))
    for h in range(count):
        tables = kv.holdings[h].tables = memory.records(BlockTable, most_samples)
        for s in range(most_samples):
            tables[s].blocks = memory.ints(cdiv(config.max_model_len, size) + 1)
