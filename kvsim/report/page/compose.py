"""The pages: of a run, a comparison, a sweep, a search."""

from __future__ import annotations

import math
import tomllib
from typing import TYPE_CHECKING, Any

import tomli_w

from kvsim.kv.usage import WHOLE, Cause
from kvsim.report.colours import CAUSES
from kvsim.report.page.document import Cell, Document, Table
from kvsim.report.page.explorer import Scope, explorer
from kvsim.report.page.words import of_comparison, of_differences, of_run, trust
from kvsim.report.paired import caption, overload_lines, paired_rows, title_of
from kvsim.report.search import sheet
from kvsim.report.terminal import HEADINGS, OF_MEMORY, comparison_cells
from kvsim.report.text import milliseconds, number
from kvsim.report.title import deployment, served
from kvsim.results.load import overloads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result

#: Maximum number of characters of a page.
MOST_CHARACTERS = 4_900_000
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "end to end"}
#: Words for the compared parts, by the option that distinguishes the runs.
COMPARED = {"allocator": "KV-cache managers", "engine": "engines"}
PROVENANCE = ("kvsim_version", "seed", "num_requests", "trace_digest", "scheduler", "engine")
KINDS = {
    **{"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"},
    **{"p999": "p99.9", "max": "max"},
}


def run_page(result: Result) -> str:
    page = Document(f"{result.config.allocator}: {deployment(result)}", served(result))
    page.words(of_run(result.summary), "lead")
    page.table(_latency_table(result.summary))
    _fleet_tables(page, result)
    return _with_memory(page, {result.config.allocator: result})


def comparison_page(comparison: Comparison) -> str:
    first, by = next(iter(comparison.results.values())), comparison.by
    again = f"kvsim compare CONFIG.toml --{by}s {','.join(comparison.results)} runs them again"
    compared = (by,) if by == "allocator" else ("engine", "allocator", "scheduler")
    page = Document(f"{len(comparison)} {COMPARED[by]} on {deployment(first)}", served(first))
    page.words(of_comparison(comparison.rows, by), "lead")
    for said in overloads({row[by]: row.get("load") for row in comparison.rows}):
        page.words(said, "note")
    rows = [[row[by], *comparison_cells(row)] for row in comparison.rows]
    page.table(Table("comparison", (by, *HEADINGS), rows))
    page.words(OF_MEMORY, "note")
    return _with_memory(page, dict(comparison.results), again, compared)


def varied_page(answer: Mapping[str, Any], runs: Mapping[str, Result]) -> str:
    """Return the page that compares values of options, with the run of each for the first seed."""
    first = next(iter(runs.values()))
    names = " and ".join(name.replace("_", "-") for name in answer["rows"][0]["options"])
    shown = answer.get("deployment") or deployment(first)
    page = Document(f"{names}: {len(runs)} values on {shown}", served(first))
    page.words(of_differences(answer), "lead")
    for said in overload_lines(answer):
        page.words(said, "note")
    headings, rows = paired_rows(answer)
    page.table(Table("comparison", headings, [list(row) for row in rows]))
    page.words(
        f"{caption(answer)}. The rest of this page shows the run of each with the first seed.",
        "note",
    )
    seeds = f" --replications {answer['replications']}" if answer["replications"] > 1 else ""
    again = f"kvsim compare CONFIG.toml --vary {_varied_flags(answer)}{seeds} runs them again"
    compared = [*answer["rows"][0]["options"]]
    if "engine" in compared:
        compared += ["allocator", "scheduler"]
    return _with_memory(page, runs, again, compared, answer.get("notes"))


def _varied_flags(answer: Mapping[str, Any]) -> str:
    """Return the values of options of a comparison as ``--vary`` takes them."""
    values: dict[str, dict[str, None]] = {}
    for row in answer["rows"]:
        for name, value in row["options"].items():
            values.setdefault(name, {})[value] = None
    if math.prod(map(len, values.values())) != len(answer["rows"]):  # varied together
        walked = ",".join(":".join(row["options"].values()) for row in answer["rows"])
        return f"{':'.join(values).replace('_', '-')}={walked}"
    return " ".join(f"{k.replace('_', '-')}={','.join(v)}" for k, v in values.items())


def sweep_page(
    rows: Sequence[Mapping[str, Any]],
    varied: Sequence[str],
    notes: Sequence[str] = (),
    served_by: str = "",
) -> str:
    """Return the page of a sweep: its table, and the figure if there is one.

    ``served_by`` names the deployment and the requests.
    """
    page = Document(
        f"A sweep of {', '.join(name.replace('_', ' ') for name in varied) or 'one cell'}",
        f"{len(rows):,} cells{served_by and ': '}{served_by}",
    )
    _best_cell(page, rows, varied)
    failed = [row for row in rows if row.get("error")]
    if failed:
        page.words(f"{len(failed):,} cells failed, the first: {failed[0]['error']}", "note")
    if (drawn := _drawn_sweep(rows, varied)) is not None:
        page.figure(drawn)
    keys = [
        key for key in (rows[0] if rows else {}) if any(row.get(key) is not None for row in rows)
    ]
    page.heading("All cells")
    page.table(Table("cells", keys, [[_exact(row.get(key)) for key in keys] for row in rows]))
    if notes:
        page.heading("How far to trust it")
        for note in notes:
            page.words(f"{note}.")
    return page.html()


def _best_cell(page: Document, rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> None:
    done = [row for row in rows if row.get("output_throughput") is not None]
    if not done:
        return
    best = max(done, key=lambda row: row["output_throughput"])
    told = ", ".join(f"{name.replace('_', '-')} {best[name]}" for name in varied)
    page.words(
        f"The most output tokens per second, {number(best['output_throughput'])}, come with "
        f"{told or 'the one configuration'}; its mean TTFT is "
        f"{milliseconds(best.get('mean_ttft_ms'))}.",
        "lead",
    )


def _drawn_sweep(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> str | None:
    """Draw a sweep; None if more than two options, or none, are varied."""
    from kvsim.report.page.svg import inline_svg
    from kvsim.report.plots.sweep import axes_of, sweep

    try:
        x, lines = axes_of(rows, list(varied))
    except ValueError:
        return None
    return inline_svg(sweep(rows, x, lines), "sweep", f"Cells by {x}")


def search_page(answer: Mapping[str, Any]) -> str:
    """Return the page of a search: the answer, its command line, and all tried configurations."""
    page = Document("The best configuration within targets", str(answer["slo"]))
    if answer["request_rate"]:
        gpus = answer["num_gpus"]
        page.words(
            f"{answer['request_rate']:.3g} requests per second on {gpus} "
            f"GPU{'s' if gpus != 1 else ''}. Bottleneck: {answer['binding'] or 'none'}; "
            f"{answer['evidence']}.",
            "lead",
        )
        page.command(str(answer["command"]), "command")
    else:
        page.words(f"None: {answer['reason']}", "lead")
    page.heading("Result")
    page.command(sheet(answer), "sheet")
    page.heading("All configurations tried")
    rows = [
        [
            title_of(one["options"]) or "as given",
            _exact(one.get("request_rate")),
            _exact(one.get("num_gpus")),
            str(one.get("reason", "")),
        ]
        for one in answer["evaluated"]
    ]
    page.table(Table("evaluated", ("options", "requests/s", "GPUs", "omitted because"), rows))
    page.heading("How far to trust it")
    for note in answer["notes"]:
        page.words(note)
    return page.html()


# -- parts -----------------------------------------------------------------------------------------


def _with_memory(
    page: Document,
    named: Mapping[str, Result],
    again: str = "kvsim run CONFIG.toml runs it again",
    compared: Sequence[str] = (),
    notes: Sequence[str] | None = None,
) -> str:
    """Add charts, explorer and provenance; shrink the explorer's data until the page fits.

    ``again`` is the command that repeats the runs from the page's configuration, which lacks the
    ``compared`` options; ``notes`` are by default those of the runs.
    """
    from kvsim.report.page.charts import charts

    head = list(page.parts)
    scope = Scope()
    drawn = charts(named)
    while True:
        page.parts = list(head)
        data = explorer(named, scope)
        page.explorer(data | looks())
        page.heading("Charts")
        for one in drawn:
            page.figure(one)
        page.heading("All numbers")
        page.table(_summary_table([(name, one.summary) for name, one in named.items()]))
        _provenance(page, named, notes)
        page.words(f"The configuration; {again}.", "note")
        page.command(_toml(list(named.values()), compared), "configuration")
        text = page.html()
        if len(text) <= MOST_CHARACTERS:
            return text
        share = 0.8 * MOST_CHARACTERS / len(text)
        scope = Scope(int(scope.most_events * share), int(scope.most_requests * share))


def looks() -> dict[str, Any]:
    """Return the causes' colours and labels, and the causes by memory-map code."""
    words = {cause: CAUSES[cause][1] for cause in (*WHOLE, Cause.CACHED)}
    return {
        "palette": {_column(cause): CAUSES[cause][0] for cause in words},
        "labels": {_column(cause): text for cause, text in words.items()},
        "codes": [_column(Cause(code)) for code in range(len(Cause))],
    }


def _column(cause: Cause) -> str:
    return str(cause.column)


def _latency_table(summary: Mapping[str, Any]) -> Table:
    rows: list[list[Cell]] = [
        [label, *((milliseconds(value), value) for value in _values(summary, metric))]
        for metric, label in METRICS.items()
    ]
    return Table("latencies", ("", *KINDS.values()), rows)


def _values(summary: Mapping[str, Any], metric: str) -> list[Any]:
    return [summary.get(f"{kind}_{metric}_ms") for kind in KINDS]


def _summary_table(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Lay out all plain numbers of summaries, one column per run."""
    flat = [_flat(summary) for _, summary in summaries]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [[key, *(_exact(one.get(key)) for one in flat)] for key in keys]
    return Table("summary", ("", *(name for name, _ in summaries)), rows)


def _flat(summary: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in summary.items():
        if isinstance(value, dict) and key in ("kv_cache", "kv_transfers", "load"):
            found |= _flat(value, f"{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[before + key] = value
    return found


def _exact(value: Any) -> str | tuple[str, Any]:
    """Return a number as shown, and its exact value."""
    if value is None:
        return ("-", None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return (f"{value:,}", value)
    return (f"{value:,.5g}" if abs(value) < 1e5 else f"{value:,.0f}", repr(value))


def _fleet_tables(page: Document, result: Result) -> None:
    """Add a table of the replicas, if there are several."""
    replicas = result.summary["replicas"]
    if len(replicas) < 2:
        return
    page.heading("Replicas")
    keys = [key for key, value in replicas[0].items() if not isinstance(value, dict | list)]
    rows = [[_exact(row.get(key)) for key in keys] for row in replicas]
    page.table(Table("replicas", keys, rows))


def _provenance(page: Document, named: Mapping[str, Result], notes: Sequence[str] | None) -> None:
    results = list(named.values())
    page.heading("How far to trust it")
    for text in trust(named, notes):
        page.words(text)
    page.heading("Provenance")
    told: dict[str, Any] = {}
    for result in results:
        for key in PROVENANCE:
            told.setdefault(key, []).append(result.provenance.get(key))
    rows = [
        [key.replace("_", " "), ", ".join(dict.fromkeys(map(str, v)))] for key, v in told.items()
    ]
    page.table(Table("provenance", ("what", "value"), rows))


def _toml(results: Sequence[Result], left_out: Sequence[str]) -> str:
    """Return the options of the runs' configurations as TOML, without those in ``left_out``.

    Options that only some runs have, such as those of one engine, are included.
    """
    if len(results) == 1:
        return results[0].config.to_toml()
    made: dict[str, Any] = {}
    for result in results:
        for name, value in tomllib.loads(result.config.to_toml()).items():
            if name not in left_out:
                made.setdefault(name, value)
    return tomli_w.dumps(made)
