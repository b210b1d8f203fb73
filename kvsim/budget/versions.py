"""The differences between vLLM's versions that kvsim knows: a table, and its thresholds.

All other rules are those of vLLM 0.33 under every ``vllm_version``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Release = tuple[int, int, int]

#: The first vLLM with kernels for the latents of MLA.
FIRST_LATENTS = (0, 7, 1)
#: The first vLLM with V1 as its engine.
V1 = (0, 8, 0)
#: The first vLLM whose kernels determine the block size; before, it was 16, as far as kvsim knows.
FIRST_CHOICE = (0, 9, 0)
#: The first vLLM that computes experts on gathered tokens in smaller chunks.
CHUNKED_FINER = (0, 12, 0)
#: The first vLLM with 4 to 5 us of host work per request between steps. By measured TPOT, versions
#: 0.10 to 0.12 took 31 to 37 us per request.
HOST_FREED = (0, 13, 0)
#: The first vLLM that schedules asynchronously by default.
ASYNC = (0, 14, 0)
#: The first vLLM whose start-up budget counts CUDA graphs (vllm #38284), and whose log counts
#: tokens by requests of max_model_len, not by the blocks of a group.
GRAPHS_COUNTED = (0, 21, 0)


class Change(NamedTuple):
    """A rule that changed in a release: the rule ``now``, and the rule ``before``.

    ``option`` is the option that selects the older rule; empty if ``vllm_version`` selects it.
    """

    since: Release
    now: str
    before: str
    option: str = ""


CHANGES = (
    Change(FIRST_LATENTS, "MLA stores latents", "keys and values of every head"),
    Change(
        V1,
        "engine V1's overheads and chunked prefill by default",
        "V0's, and whole prompts at once",
    ),
    Change(V1, "scheduler of V1", "the one of V0", "--scheduler vllm-v0"),
    Change(FIRST_CHOICE, "tokens per block by the attention kernels", "16"),
    Change(CHUNKED_FINER, "gathered tokens pass the experts by 16,384", "by 32,768"),
    Change(HOST_FREED, "little host time per request and step", "31 to 37 us"),
    Change(ASYNC, "asynchronous scheduling by default", "synchronous", "--no-async-scheduling"),
    Change(GRAPHS_COUNTED, "the budget counts CUDA graphs", "it does not"),
    Change(GRAPHS_COUNTED, "gpu_memory_utilization 0.92 by default", "0.90"),
    Change(GRAPHS_COUNTED, "the log counts tokens by requests", "by the blocks of a group"),
)
#: Rules that may differ between versions and are 0.33's in all of them.
NOT_KNOWN = (
    "max_num_seqs and max_num_batched_tokens by default (since V1), retention of cached prefixes, "
    "groups of layers, admission of whole prompts, speed of the kernels"
)


def version_of(vllm_version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    parts = vllm_version.lstrip("v").split(".")
    if len(parts) < 2 or not all(p.isdigit() for p in parts[:2]):
        raise ValueError(f"vllm_version {vllm_version!r}: must look like 0.33 or 0.19.1")
    return int(parts[0]), int(parts[1])


def precedes(vllm_version: str, release: Release) -> bool:
    """Return True if a version is older than a release; ``0.7`` means the last 0.7 release."""
    version = version_of(vllm_version)
    if version != release[:2]:
        return version < release[:2]
    patch = re.match(r"v?\d+\.\d+\.(\d+)", vllm_version)
    return patch is not None and int(patch[1]) < release[2]


def changes_between(one: str, other: str) -> list[Change]:
    """Return the rules that differ between two versions, the oldest change first."""
    return [c for c in CHANGES if precedes(one, c.since) != precedes(other, c.since)]


def upgrade_notes(versions: Iterable[str]) -> Iterator[str]:
    """Yield the known differences of each version from the first, and the rules not known."""
    first, *others = dict.fromkeys(versions)
    for other in others:
        found = changes_between(first, other)
        followed = "; ".join(_told(c) for c in found if not c.option)
        yield (
            f"vllm_version {first} and {other}: "
            f"{followed or 'no rule that kvsim knows differs by itself'}"
        )
        for change in found:
            if change.option:
                yield (
                    f"vllm_version {first} and {other}: {_told(change)}: not followed, give "
                    f"{change.option} for the older one"
                )
    if others:
        yield f"as in 0.33 under every vllm_version, because kvsim knows no other rule: {NOT_KNOWN}"


def _told(change: Change) -> str:
    major, minor, patch = change.since
    since = f"{major}.{minor}" + (f".{patch}" if patch else "")
    return f"{change.now} since {since} (before: {change.before})"
