"""KVCache.AI's traces, a ``block_size`` in each record (github.com/kvcache-ai/kvcache-blog).

Its converter of SGLang's logs, scripts/sglang-log-to-kvcache-trace.py there, writes times in
seconds since 1970; traces made of Mooncake's keep its milliseconds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workloads.readers.columns import log_times, session_numbers
from workloads.readers.formats import reader, without_failed
from workloads.readers.mooncake import hashed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.draft import Draft
    from workloads.readers.table import Table

_SESSIONS = ("session_id", "user_id", "concurrent_id")
_IDS = "a list of whole numbers or texts"


@reader(
    "kvcache-ai",
    ["block_size", "hash_ids", "input_length"],
    ["timestamp", "output_length", "id", *_SESSIONS],
)
def read_kvcache_ai(table: Table, *, output_tokens: int = 1, drop_failed: bool = False) -> Draft:
    """Read blocks of each record's size, the last one cut to the prompt.

    Parameters
    ----------
    table : of the keys block_size, hash_ids, input_length, and timestamp and output_length
    output_tokens : of every request, where the file has no output_length
    drop_failed : leave out requests without output instead of refusing them
    """
    notes: tuple[str, ...] = ()
    if "output_length" in table:
        table, notes = without_failed(table, "output_length", drop_failed)
        outputs = table.tokens("output_length")
    else:
        outputs = [output_tokens] * len(table)
        notes = (f"the file has no output lengths: {output_tokens} tokens each (output-tokens)",)
    times = None
    if "timestamp" in table:
        times, unit = log_times(table, "timestamp", small="milliseconds")
        notes = (*notes, f"timestamp read as {unit}")
    names: dict[int | str, int] = {}
    ids = [
        [names.setdefault(name, len(names)) for name in blocks]
        for blocks in table.convert("hash_ids", _ids, _IDS)
    ]
    sizes = table.ints("block_size", least=1)
    draft = replace(
        hashed(table, sizes, ids, outputs),
        arrival_time=times,
        session_id=session_numbers(table, _SESSIONS),
        notes=notes,
    )
    return draft if times is None else draft.in_order_of_arrival()


def _ids(cell: Any) -> Sequence[int | str]:
    if type(cell) is not list or not all(type(one) in (int, str) for one in cell):
        raise ValueError
    return cell
