"""Rules that differ by kind of attention, and blocks worth caching (vLLM 0.33).

The kinds are in :mod:`kvsim.attention`, which also says what each rule returns.

docs/vllm-rules.md, section 8, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.dispatch import ByKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockTable, KVGroup, LookupSpec, RequestBlocks
    from kvsim.records.request import Request


def cdiv(a: int, b: int) -> int:
    """Divide, rounding up."""
    return -(-a // b)


num_skipped: Callable[[int, int, int], int] = ByKind("num_skipped")
admission_cap: Callable[[int, int, int, int, int], int] = ByKind("admission_cap")
find_of_kind: Callable[[int, KV, RequestBlocks, LookupSpec, int, bool], int] = ByKind("find")
keeps_all: Callable[[int, KV, KVGroup], bool] = ByKind("keeps_all")
run_length: Callable[[int, KVGroup], int] = ByKind("run_length")
drop_unseen: Callable[[int, KV, Request, KVGroup, BlockTable, int], None] = ByKind("drop_unseen")
has_unseen: Callable[[int, KVGroup, BlockTable, int], bool] = ByKind("has_unseen")
last_quiet_end: Callable[[int, KV, Request, KVGroup, RequestBlocks, int], int] = ByKind(
    "last_quiet_end"
)
loses_token: Callable[[int, KVGroup, RequestBlocks], bool] = ByKind("loses_token")
num_pairs: Callable[[int, int, int], int] = ByKind("num_pairs")
num_keys: Callable[[int, int, int, int], int] = ByKind("num_keys")


def worth_caching(kv: KV, group: KVGroup, request: Request, place: int) -> bool:
    """Return True if a later hit could need the block at index ``place`` of a request.

    For a window, a hit needs a run of consecutive blocks; for states, one block.
    """
    run, ahead = run_length(group.kind, group), int(group.drops_last_block)
    if kv.segment > 0:
        blocks = max(kv.segment // group.block_size, 1)
        if place >= ahead and (place - ahead) % blocks >= blocks - run:
            return True
    if not kv.keeps_boundaries:
        return False
    # Only the window before the last aligned boundary is kept.
    prompt, shared = request.num_prompt_tokens, request.shared_prefix_boundary
    if not kv.drops_last_block:
        return is_in_run(kv, group, prompt - 1, place) or is_in_run(kv, group, shared, place)
    size = kv.scheduler_block_size
    for tokens in (prompt - 1, prompt):
        boundary = max(tokens // size * size - size, 0)
        if is_in_run(kv, group, boundary, place):
            return True
    if shared == 0:
        return False
    if is_in_run(kv, group, shared, place):
        return True
    return group.has_drafter and is_in_run(kv, group, shared - group.block_size, place)


def is_in_run(kv: KV, group: KVGroup, boundary: int, place: int) -> bool:
    """Return True if a block is in the run that a hit of up to ``boundary`` tokens needs."""
    end = boundary // kv.alignment * kv.alignment // group.block_size + group.drops_last_block
    return end - run_length(group.kind, group) <= place < end
