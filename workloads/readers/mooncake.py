"""Traces with one hash id per block of the prompt: Mooncake and Qwen-Bailian.

Mooncake: github.com/kvcache-ai/Mooncake, FAST'25. Qwen-Bailian:
github.com/alibaba-edu/qwen-bailian-usagetraces-anon. Equal ids are equal blocks wherever they
stand. Outputs have no ids, so a prompt that repeats an earlier output does so under ids of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.draft import Draft, Piece
from workloads.readers.formats import reader, without_failed

if TYPE_CHECKING:
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
    return _hashed(table, 512, times, None, notes)


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
    return _hashed(table, 16, table.floats("timestamp"), session_id, notes)


def _hashed(
    table: Table,
    block_size: int,
    times: list[float],
    session_id: list[int] | None,
    notes: tuple[str, ...],
) -> Draft:
    lengths, ids = table.tokens("input_length"), table.convert("hash_ids", hash_ids, HASH_IDS)
    segments: list[list[Piece]] = []
    for row, (length, blocks) in enumerate(zip(lengths, ids, strict=True)):
        if len(blocks) != -(-length // block_size):
            raise table.error(
                row,
                f"hash_ids has {len(blocks)} entries, must have {-(-length // block_size)}: "
                f"one per {block_size} tokens of input_length {length}",
            )
        pieces = [(block, 0, block_size) for block in blocks]
        pieces[-1] = (blocks[-1], 0, length - block_size * (len(blocks) - 1))
        segments.append(pieces)
    return Draft(
        lengths,
        table.tokens("output_length"),
        arrival_time=times,
        segments=segments,
        session_id=session_id,
        places=table.places,
        notes=notes,
    )


def hash_ids(cell: Any) -> list[int]:
    """Check a list of block ids."""
    if type(cell) is not list or not all(type(i) is int and 0 <= i < 2**63 for i in cell):
        raise ValueError
    return cell
