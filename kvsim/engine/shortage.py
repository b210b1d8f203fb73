"""The reason why no request fits into the KV memory, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engine.setup import resolve
from kvsim.kv.paged import PagedManager
from kvsim.records.request import Request
from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.kv.manager import KVCacheManager
    from kvsim.results.result import Result

#: First words of the reason that this module explains.
TOO_BIG = "needs more KV memory than there is"


def why_none(result: Result) -> str:
    """Return the reasons why no request of a run was served, in one line."""
    shortest = int(result.requests["num_prompt_tokens"].min())
    reasons = [in_numbers(why, result.config, shortest) for why in result.summary["rejections"]]
    return f"no request can ever be served: {'; '.join(reasons)}"


def in_numbers(reason: str, config: Config, shortest_prompt: int) -> str:
    """Return a reason of rejections with the needed memory, the available memory, and remedies."""
    if not reason.startswith(TOO_BIG):
        return reason
    setup = resolve(config)
    longest = setup.memory.limits.max_model_len
    most = _most_tokens(setup.kv, longest)
    if most == 0:
        return (
            f"{reason}: {setup.allocator.base} fits no request of any length at "
            f"max_model_len {longest:,}: lower --max-model-len, or {_more(config)}"
        )
    there, needed = f"{most:,} tokens of a request fit, prompt and output together", ""
    kv = setup.kv
    if type(kv) is PagedManager and len(kv.groups) == 1:
        there += f" ({kv.num_usable:,} blocks of {kv.block_size})"
        needed = f" ({cdiv(shortest_prompt, kv.block_size):,} blocks)"
    return (
        f"{reason}: {there}, and the shortest prompt has {shortest_prompt:,}{needed} "
        f"before its output: {_more(config)}"
    )


def _most_tokens(kv: KVCacheManager, longest: int) -> int:
    """Return the largest request in tokens that an empty memory can serve, or 0."""
    low, high = 1, longest + 1  # sizes that fit, and do not; a request has two tokens or more
    while high - low > 1:
        middle = (low + high) // 2
        if kv.fits(Request(0, 0.0, middle - 1, 1)):
            low = middle
        else:
            high = middle
    return 0 if low == 1 else low


def _more(config: Config) -> str:
    """Return the options that give more KV memory."""
    for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        if getattr(config, name) is not None:
            return f"raise --{name.replace('_', '-')}"
    return "raise --gpu-memory-utilization or -tp, or give a larger --gpu"
