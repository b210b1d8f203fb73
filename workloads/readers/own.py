"""kvsim's own trace files, as ``kvsim.trace.files`` writes them."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from kvsim.trace.columns import NO_TENANT
from kvsim.trace.endings import ENDINGS
from kvsim.trace.files import DEFAULTS, FLOATS, OPTIONAL, REQUEST_ID, REQUIRED
from kvsim.trace.waits import START
from workloads.draft import Draft, Piece
from workloads.readers.formats import reader
from workloads.readers.table import MIN_INT

if TYPE_CHECKING:
    from workloads.readers.table import Table

#: Columns with entries that may be texts.
NAMED = ("cache_salt", "lora_id")


@reader("kvsim", REQUIRED, (*OPTIONAL, REQUEST_ID))
def read_own(table: Table) -> Draft:
    """Read every column of a Trace; an empty cell of an optional one is its default."""
    optional: dict[str, Any] = {
        name: table.ints(name, least=MIN_INT, empty=default)
        for name, default in DEFAULTS.items()
        if name in table and name not in NAMED
    }
    for name in NAMED:
        if name in table:
            allowed = "a whole number of at least 0 or a text"
            optional[name] = table.convert(name, _code, allowed)
    if "tenant" in table:
        allowed = "a whole number of at least -1 or a text"
        optional["tenant"] = table.convert("tenant", _name, allowed)
    for name, default in FLOATS.items():
        if name in table:
            read = partial(_float, default=default)
            optional[name] = table.convert(name, read, "a number, or empty")
    if "output_content_id" in table:
        optional["output_content_id"] = table.ints("output_content_id")
    if "segments" in table:
        allowed = "a list of [content_id, start, num_tokens]"
        optional["segments"] = table.convert("segments", _segments, allowed)
    if "accepted_drafts" in table:
        allowed = "a list of whole numbers of at least 0"
        optional["accepted_drafts"] = table.convert("accepted_drafts", _counts, allowed)
    if "sample_output_tokens" in table:
        allowed = "a list of whole numbers"
        optional["sample_output_tokens"] = table.convert("sample_output_tokens", _counts, allowed)
    if "ends_by" in table:
        optional["ends_by"] = table.convert("ends_by", _ending, " or ".join(ENDINGS))
    if "encoder_items" in table:
        optional["encoder_items"] = table.convert("encoder_items", _items, "a list of [start, n]")
    if "after" in table:
        optional["after"] = _awaited(table)
    prompt, output = table.tokens("num_prompt_tokens"), table.tokens("num_output_tokens")
    return Draft(prompt, output, arrival_time=table.floats("arrival_time"), **optional)


def _code(cell: Any) -> int | str | None:
    if isinstance(cell, str):
        return int(cell) if cell.isdecimal() else cell
    if cell is None or type(cell) is int:
        return cell
    raise TypeError


def _name(cell: Any) -> int | str | None:
    if cell is None or isinstance(cell, str) or (type(cell) is int and cell >= NO_TENANT):
        return cell
    raise TypeError


def _ending(cell: Any) -> str | None:
    if cell not in (*ENDINGS, "", None):
        raise ValueError
    return cell or None


def _float(cell: Any, default: float) -> float:
    return default if cell is None or cell == "" else float(cell)


def _awaited(table: Table) -> list[list[Any]]:
    """Return the rows that each request waits for; a file may name its requests."""
    lists = table.convert("after", _items_of, f'a list of requests, or of [request, "{START}"]')
    if REQUEST_ID not in table:
        return lists
    rows: dict[str, int] = {}
    for row, name in enumerate(table.columns[REQUEST_ID]):
        if rows.setdefault(str(name), row) != row:
            raise table.error(row, f"{REQUEST_ID} {name!r} is that of an earlier request, too")
    for row, items in enumerate(lists):
        for at, item in enumerate(items):
            name = item[0] if isinstance(item, list) else item
            if str(name) not in rows:
                raise table.error(row, f"after has {name!r}, must be a {REQUEST_ID} of the file")
            other = rows[str(name)]
            items[at] = [other, *item[1:]] if isinstance(item, list) else other
    return lists


def _items_of(cell: Any) -> list[Any]:
    items = json.loads(cell) if isinstance(cell, str) and cell else cell
    if not isinstance(items or [], list) or any(item in (None, []) for item in items or []):
        raise ValueError
    return list(items or [])


def _counts(cell: Any) -> list[int]:
    counts = json.loads(cell) if isinstance(cell, str) else cell
    if counts is None:
        return []
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError
    return list(counts)


def _items(cell: Any) -> list[tuple[int, int]]:
    pairs = json.loads(cell) if isinstance(cell, str) and cell else cell
    items = [(start, length) for start, length in pairs or ()]
    if not all(type(number) is int and 0 <= number < 2**63 for item in items for number in item):
        raise ValueError
    return items


def _segments(cell: Any) -> list[Piece]:
    pieces = json.loads(cell) if isinstance(cell, str) else cell
    triples = [(content, start, length) for content, start, length in pieces]
    if not all(type(number) is int and 0 <= number < 2**63 for t in triples for number in t):
        raise ValueError
    return triples
