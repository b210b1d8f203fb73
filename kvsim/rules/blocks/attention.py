"""Rules of each kind of attention: blocks that are dropped, kept, or needed for a hit (vLLM 0.33).

docs/vllm-rules.md, section 8, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import CHUNKED, FULL, MAMBA, MAMBA_ALIGN, RSWA, SLIDING

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import KVGroup
    from kvsim.records.request import Request


def cdiv(a: int, b: int) -> int:
    """Divide, rounding up."""
    return -(-a // b)


def num_skipped(kind: int, window: int, num_tokens: int) -> int:
    """Return the number of leading tokens that token ``num_tokens`` and later ones do not see."""
    if kind == FULL:
        return 0
    if kind == CHUNKED:  # a token sees only its own chunk
        return num_tokens // window * window
    if kind > CHUNKED:
        return max(0, num_tokens - 1) if kind >= MAMBA else 0
    return max(0, num_tokens - window + 1)  # a token sees itself and the window - 1 before it


def sees_all(kind: int) -> bool:
    """Return True if a hit needs all blocks of the prefix, as under full attention."""
    return kind == FULL or kind == RSWA  # noqa: PLR1714


def has_gap(kind: int) -> bool:
    """Return True if tokens see leading tokens and a window, but not those between."""
    return kind == RSWA


def num_leading(group: KVGroup, request: Request) -> int:
    """Return the number of leading tokens that all tokens of a request see."""
    return request.num_prompt_tokens if group.kind == RSWA else 0


def admission_cap(
    kind: int, window: int, block_size: int, max_in_flight_tokens: int, max_model_len: int
) -> int:
    """Return the most blocks that a request holds in a group; 0 if only its length limits them."""
    if kind == FULL or kind > CHUNKED:
        return 0
    if kind == CHUNKED:
        return cdiv(min(window + max_in_flight_tokens, max_model_len), block_size)
    longest = min(window - 1 + max_in_flight_tokens, max_model_len)
    return cdiv(longest, block_size) + 1  # the window may start inside a block


def run_length(group: KVGroup) -> int:
    """Return the number of consecutive blocks that a hit needs: those of a window, or one state."""
    if group.kind == MAMBA_ALIGN:
        return 1
    return cdiv(group.window - group.extra_retained - 1, group.block_size) + group.drops_last_block


def keeps_all(kv: KV, group: KVGroup) -> bool:
    """Return True if a later hit could need any block of a request."""
    if group.kind == MAMBA_ALIGN:
        return not kv.keeps_boundaries
    if group.kind != SLIDING:
        return True
    return kv.segment > 0 and run_length(group) >= kv.segment // group.block_size


def worth_caching(kv: KV, group: KVGroup, request: Request, place: int) -> bool:
    """Return True if a later hit could need the block at index ``place`` of a request.

    For a window, a hit needs a run of consecutive blocks; for states, one block.
    """
    run, ahead = run_length(group), int(group.drops_last_block)
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
    return end - run_length(group) <= place < end
