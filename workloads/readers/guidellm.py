"""Reports of GuideLLM, ``benchmarks.json`` (github.com/vllm-project/guidellm).

Requests are its ``GenerativeRequestStats`` (src/guidellm/schemas/base/request_stats.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.readers.formats import reader
from workloads.readers.runs import chosen, draft_of, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.draft import Draft
    from workloads.readers.table import Table


@reader("guidellm", ["benchmarks"], ["metadata", "args"])
def read_guidellm(table: Table, *, run: int | None = None) -> Draft:
    """Read when requests were sent, and their lengths; those that failed are dropped.

    Parameters
    ----------
    table : of the key benchmarks
    run : which one, from 1, of a report with several
    """
    benchmarks = table.convert("benchmarks", _benchmarks, "a list of objects with requests")[0]
    strategies = [_strategy(benchmark) for benchmark in benchmarks]
    place = chosen(table, [_title(strategy) for strategy in strategies], run)
    rows, num_failed = _rows(benchmarks[place]["requests"])
    kept = []
    for row in rows:
        prompt, output = number(row.get("prompt_tokens")), number(row.get("output_tokens"))
        if prompt and output:
            start = row.get("request_start_time", row.get("start_time"))
            kept.append((number(start), int(prompt), int(output)))
    notes = []
    streams = strategies[place].get("streams", strategies[place].get("max_concurrency"))
    if strategies[place].get("type_") == "concurrent" and streams:
        notes.append(f"the client had {streams} requests at once: --max-concurrency does so")
    return draft_of(table, kept, num_failed + len(rows) - len(kept), notes)


def _benchmarks(cell: Any) -> list[dict[str, Any]]:
    if not cell or not all(isinstance(one["requests"], dict | list) for one in cell):
        raise ValueError
    return list(cell)


def _rows(requests: Any) -> tuple[list[Mapping[str, Any]], int]:
    """Return the requests that succeeded, and the number that failed."""
    if isinstance(requests, list):
        return requests, 0
    return requests.get("successful") or [], len(requests.get("errored") or [])


def _strategy(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how requests were sent; versions of GuideLLM store it in different places."""
    for place in ("config", "scheduler", "args"):
        inner = benchmark.get(place)
        strategy = inner.get("strategy") if isinstance(inner, dict) else None
        if isinstance(strategy, dict):
            return strategy
    return {}


def _title(strategy: Mapping[str, Any]) -> str:
    rate = strategy.get("rate") or strategy.get("streams")
    return f"{strategy.get('type_', 'run')}" + (
        f" {rate:g}" if isinstance(rate, int | float) else ""
    )
