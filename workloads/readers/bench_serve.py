"""Results of ``vllm bench serve --save-detailed``, and of SGLang's bench with its details.

vLLM writes one object (vllm/benchmarks/serve.py); SGLang appends a line per run
(python/sglang/bench_serving.py) where ``--output-details`` is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.readers.formats import reader
from workloads.readers.runs import chosen, draft_of, drawn_times, number

if TYPE_CHECKING:
    from workloads.draft import Draft
    from workloads.readers.table import Table

_DETAILS = ("input_lens", "output_lens", "ttfts")
_LENGTHS = "a list of whole numbers"
_OPTIONAL = (
    *("start_times", "errors", "request_rate", "burstiness", "max_concurrency", "itls"),
    *("generated_texts", "duration", "completed", "backend"),
)


@reader("vllm-bench-serve", _DETAILS, _OPTIONAL)
def read_bench_serve(table: Table, *, run: int | None = None) -> Draft:
    """Read sent requests with their times and lengths; failed requests are dropped.

    If a result lacks send times, they are drawn at its request rate, as its client draws them.

    Parameters
    ----------
    table : of the keys input_lens, output_lens, ttfts, and start_times if there are any
    run : which one, from 1, of a file that holds several
    """
    limits = table.columns.get("max_concurrency", [None] * len(table))
    rates = table.columns.get("request_rate", [None] * len(table))
    titles = [
        f"rate {'inf' if rate is None else rate}" + (f", {limit} at once" if limit else "")
        for rate, limit in zip(rates, limits, strict=True)
    ]
    row = chosen(table, titles, run)
    only = table.keep([place == row for place in range(len(table))])
    prompts, outputs = (
        only.convert(name, _lengths, _LENGTHS)[0] for name in ("input_lens", "output_lens")
    )
    if len(prompts) != len(outputs):
        what = f"input_lens has {len(prompts)} entries, output_lens {len(outputs)}"
        raise only.error(0, what)
    cells: dict[str, Any] = {name: column[0] for name, column in only.columns.items()}
    errors = cells.get("errors") or [""] * len(prompts)
    told = cells.get("start_times")
    starts, notes = (told, []) if told else _drawn(cells, len(prompts))
    if limits[row]:
        notes.append(f"the client had {limits[row]} requests at once: --max-concurrency does so")
    times = starts or [None] * len(prompts)
    kept = [
        (time, prompt, output)
        for time, prompt, output, error in zip(times, prompts, outputs, errors, strict=False)
        if not error and output > 0
    ]
    return draft_of(only, kept, len(prompts) - len(kept), notes)


def _drawn(cells: dict[str, Any], count: int) -> tuple[Any, list[str]]:
    """Return send times drawn at the rate of a result, and a note; None if all are sent at once."""
    rate, burstiness = number(cells.get("request_rate")), number(cells.get("burstiness"))
    starts = drawn_times(count, float("inf") if rate is None else rate, burstiness or 1)
    if starts is None:
        return None, []
    return starts, [f"the file has no send times: drawn at {rate:g} requests/s"]


@reader(
    "sglang-bench",
    [*_DETAILS, "sharegpt_output_len", "random_input_len"],
    [*_OPTIONAL, "dataset_name", "random_output_len", "random_range_ratio", "server_info", "tag"],
)
def read_sglang_bench(table: Table, *, run: int | None = None) -> Draft:
    """Read as ``vllm-bench-serve``: a run's lengths, its times drawn at its request rate.

    Parameters
    ----------
    table : of the keys input_lens, output_lens, ttfts, sharegpt_output_len, random_input_len
    run : which one, from 1, of a file that holds several
    """
    return read_bench_serve(table, run=run)


def _lengths(cell: Any) -> list[int]:
    if type(cell) is not list or not all(type(n) is int and n >= 0 for n in cell):
        raise ValueError
    return cell
