"""Traces with one hash id per block of the prompt: Mooncake and Qwen-Bailian.

Mooncake: github.com/kvcache-ai/Mooncake, FAST'25. Qwen-Bailian:
github.com/alibaba-edu/qwen-bailian-usagetraces-anon. Equal ids are equal blocks wherever they
stand. Outputs have no ids, so a prompt that repeats an earlier output does so under ids of its own.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.trace.slices import Slices
from workloads.draft import Draft
from workloads.readers.formats import reader, without_failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.readers.table import Table

_LENGTHS = ("input_length", "output_length")
HASH_IDS = "a list of whole numbers from 0 to 2**63 - 1"


@reader("mooncake", ["timestamp", *_LENGTHS, "hash_ids"])
def read_mooncake(table: Table, *, drop_failed: bool = False) -> Draft:
    """Read blocks of 512 tokens, the last one cut to the prompt; ``timestamp`` is in milliseconds.

    Parameters
    ----------
    table : of the keys timestamp, input_length, output_length, hash_ids
    drop_failed : leave out requests without output instead of refusing them
    """
    table, notes = without_failed(table, "output_length", drop_failed)
    times = [ms / 1e3 for ms in table.floats("timestamp")]
    ids = table.convert("hash_ids", hash_ids, HASH_IDS)
    draft = hashed(table, [512] * len(table), ids, table.tokens("output_length"))
    return replace(draft, arrival_time=times, notes=notes)


@reader("bailian", ["chat_id", "parent_chat_id", "timestamp", *_LENGTHS, "hash_ids"])
def read_bailian(table: Table, *, drop_failed: bool = False) -> Draft:
    """Read blocks of 16 tokens and sessions of chained chats; ``timestamp`` is in seconds.

    Parameters
    ----------
    table : of the keys chat_id, parent_chat_id, timestamp, input_length, output_length, hash_ids
    drop_failed : leave out requests without output instead of refusing them
    """
    table, notes = without_failed(table, "output_length", drop_failed)
    sessions: dict[int, int] = {}
    chats, parents = table.ints("chat_id"), table.ints("parent_chat_id", least=-1)
    for chat, parent in zip(chats, parents, strict=True):
        sessions[chat] = sessions.get(parent, len(sessions))
    session_id = [sessions[chat] for chat in chats]
    times = table.floats("timestamp")
    ids = table.convert("hash_ids", hash_ids, HASH_IDS)
    draft = hashed(table, [16] * len(table), ids, table.tokens("output_length"))
    return replace(draft, arrival_time=times, session_id=session_id, notes=notes)


def hashed(
    table: Table,
    block_sizes: Sequence[int],
    ids: Sequence[Sequence[int]],
    outputs: Sequence[int],
) -> Draft:
    """Return requests without times, a content per block id; the last block is cut to the prompt.

    Raises
    ------
    ValueError
        If a prompt has not one id per block.
    """
    lengths = table.tokens("input_length")
    size, counts = np.asarray(block_sizes), np.array([len(blocks) for blocks in ids])
    expected = -(-np.array(lengths) // size)
    if (counts != expected).any():
        row = int(np.argmax(counts != expected))
        raise table.error(
            row,
            f"hash_ids has {counts[row]} entries, must have {expected[row]}: "
            f"one per {size[row]} tokens of input_length {lengths[row]}",
        )
    end = np.cumsum(counts)
    content, tokens = np.fromiter(chain.from_iterable(ids), np.int64), np.repeat(size, counts)
    tokens[end - 1] = lengths - size * (counts - 1)
    segments = Slices(content, tokens, end - counts, end, np.zeros_like(end))
    return Draft(lengths, outputs, segments=segments, places=table.places, ends_by="eos")


def hash_ids(cell: Any) -> list[int]:
    """Return a list of block ids after checking it."""
    if type(cell) is not list or not set(map(type, cell)) <= {int}:
        raise ValueError
    if cell and not 0 <= min(cell) <= max(cell) < 2**63:
        raise ValueError
    return cell
