"""kvsim's own trace files, as ``kvsim.trace.files`` writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvsim.trace.files import DEFAULTS, OPTIONAL, REQUIRED
from workloads.draft import Draft, Piece
from workloads.readers.formats import reader
from workloads.readers.table import MIN_INT

if TYPE_CHECKING:
    from workloads.readers.table import Table


@reader("kvsim", REQUIRED, OPTIONAL)
def read_own(table: Table) -> Draft:
    """Read every column of a Trace; an empty cell of an optional one is its default."""
    optional: dict[str, Any] = {
        name: table.ints(name, least=MIN_INT, empty=default)
        for name, default in DEFAULTS.items()
        if name in table and name != "cache_salt"
    }
    if "cache_salt" in table:
        allowed = "a whole number of at least 0 or a text"
        optional["cache_salt"] = table.convert("cache_salt", _salt, allowed)
    if "output_content_id" in table:
        optional["output_content_id"] = table.ints("output_content_id")
    if "segments" in table:
        allowed = "a list of [content_id, start, num_tokens]"
        optional["segments"] = table.convert("segments", _segments, allowed)
    prompt, output = table.tokens("num_prompt_tokens"), table.tokens("num_output_tokens")
    return Draft(prompt, output, arrival_time=table.floats("arrival_time"), **optional)


def _salt(cell: Any) -> int | str | None:
    if isinstance(cell, str):
        return int(cell) if cell.isdecimal() else cell
    if cell is None or type(cell) is int:
        return cell
    raise TypeError


def _segments(cell: Any) -> list[Piece]:
    pieces = json.loads(cell) if isinstance(cell, str) else cell
    triples = [(content, start, length) for content, start, length in pieces]
    if not all(type(number) is int and 0 <= number < 2**63 for t in triples for number in t):
        raise ValueError
    return triples
