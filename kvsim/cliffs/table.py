"""The output of ``kvsim cliffs`` in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.narrow import plain_table
from kvsim.report.text import percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

#: Explanations of the mechanisms.
MECHANISMS = {
    "window": "the pool evicted blocks of a sliding window, without which no hit can end there",
    "state": "the pool evicted the state at the end of the hit",
    "head": "the pool evicted the first block of the prefix, so that no later block hits",
    "whole path": "the pool is smaller than the working set",
    "below a block": "the shared prefix does not fill a block that can be cached",
    "refused admission": "requests that do not fit in the KV cache are rejected",
    "preemption": "requests are preempted and computed again",
    "queue": "requests wait longer for a place in the batch",
    "unknown": "no known mechanism explains it",
}


def cliffs_table(answer: Mapping[str, Any]) -> RenderableType:
    """Return a table with one row per cliff, and the explanations below it."""
    from rich.console import Group
    from rich.text import Text

    title = f"cliffs of {answer['option'].replace('_', '-')}, {answer['num_runs']} runs\n"
    if not answer["cliffs"]:
        return Group(Text(title, style="bold"), Text("\n".join(["none found", *_slopes(answer)])))
    headings = ["below", "above", "hits, %", "TTFT p50, ms", "TTFT p90, ms"]
    rows = [
        [
            f"{one['below']:,.10g}",
            f"{one['above']:,.10g}",
            _pair([percent(hits) for hits in one["hits"]]),
            _pair([f"{1000 * time:,.1f}" for time in one["ttft"]["p50"]]),
            _pair([f"{1000 * time:,.1f}" for time in one["ttft"]["p90"]]),
        ]
        for one in answer["cliffs"]
    ]
    lines = [line for one in answer["cliffs"] for line in _lines(one)]
    table = plain_table(headings, rows, "RRLLL", padding=(0, 1, 0, 0))
    return Group(Text(title, style="bold"), table, Text("\n".join([*lines, *_slopes(answer)])))


def _pair(texts: Sequence[str]) -> str:
    return " | ".join(texts)


def _lines(one: Mapping[str, Any]) -> list[str]:
    where = f"{one['below']:,.10g} | {one['above']:,.10g}"
    lines = [f"{where}: {one['mechanism']}: {MECHANISMS[one['mechanism']]}"]
    lines += [
        f"  request {one['request']}, {part['kind']}: lacks {part['num_missing']:,} of "
        f"{part['num_needed']:,} blocks, first block {part['block']:,} of the prompt"
        for part in one.get("missing", ())
    ]
    if one["heals"]:
        heals = one["heals"]
        name = heals["option"].replace("_", "-")
        lines += [f"  --{name} {heals['value']} removes it: {percent(heals['hits'])} % hits"]
    return lines


def _slopes(answer: Mapping[str, Any]) -> list[str]:
    return [
        f"a slope, not a cliff, between {one['below']:,.10g} and {one['above']:,.10g}"
        for one in answer["slopes"]
    ]
