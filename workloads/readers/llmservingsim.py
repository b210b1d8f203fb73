"""LLMServingSim's requests, with or without token ids (github.com/casys-kaist/LLMServingSim)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.draft import Draft
from workloads.prefixes import common_prefix_segments
from workloads.readers.formats import reader

if TYPE_CHECKING:
    from workloads.readers.table import Table


@reader(
    "llmservingsim",
    ["input_toks", "output_toks", "arrival_time_ns"],
    ["input_tok_ids", "output_tok_ids"],
)
def read_llmservingsim(table: Table) -> Draft:
    """Read token ids as content: prompts share exactly the tokens of their common prefixes.

    See :func:`workloads.prefixes.common_prefix_segments`. Without ids every prompt is unique.
    """
    prompts, outputs = table.tokens("input_toks"), table.tokens("output_toks")
    times = [ns / 1e9 for ns in table.floats("arrival_time_ns")]
    if "input_tok_ids" not in table:
        return Draft(prompts, outputs, arrival_time=times)
    prompt_ids = _token_ids(table, "input_tok_ids", prompts)
    output_ids: list[list[int]] = [[] for _ in outputs]
    if "output_tok_ids" in table:
        output_ids = _token_ids(table, "output_tok_ids", outputs)
    segments, output_content_id = common_prefix_segments(prompt_ids, output_ids)
    return Draft(
        prompts,
        outputs,
        arrival_time=times,
        segments=segments,
        output_content_id=output_content_id,
    )


def _token_ids(table: Table, name: str, lengths: list[int]) -> list[list[int]]:
    ids = table.convert(name, _list_of_ints, "a list of token ids")
    for row, (tokens, length) in enumerate(zip(ids, lengths, strict=True)):
        if len(tokens) != length:
            raise table.error(row, f"{name} has {len(tokens)} ids, must have {length}")
    return ids


def _list_of_ints(cell: Any) -> list[int]:
    if type(cell) is not list or not all(type(token) is int for token in cell):
        raise ValueError
    return cell
