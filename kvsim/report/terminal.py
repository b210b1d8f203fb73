"""Tables for the terminal: the main results at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from kvsim.kv.allocator_spec import parse_allocator
from kvsim.kv.usage import HELD
from kvsim.report.fleet import fleet_lines
from kvsim.report.moved import value_of
from kvsim.report.narrow import NarrowTable, plain_table
from kvsim.report.tenants import tenants_table
from kvsim.report.text import costs, filled, gib, milliseconds, number, percent
from kvsim.report.title import deployment, facts_of, workload
from kvsim.results.cost import RULE
from kvsim.results.load import overloads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result

Row = dict[str, Any]

#: Key in the summary of each cause of held memory, by its label in tables and figures.
WASTE = {cause.label: cause.summary_key for cause in HELD}

#: Columns of the comparison after the allocator's name, each with its format, in the order shown.
COLUMNS = {
    "running": "{mean_running:n1}",
    **{
        f"{label.replace(' ', chr(10))}\n%": f"{{kv_cache[{key}]:p}}"
        for label, key in WASTE.items()
    },
    "hit\n%": "{prefix_cache_hit_rate:p}",
    "preempted": "{num_preemptions:n}",
    "output\ntok/s": "{output_throughput:n}",
    "mean\nTTFT": "{mean_ttft_ms:ms}",
    "mean\nTPOT": "{mean_tpot_ms:ms}",
}
HEADINGS = tuple(COLUMNS)
SPREAD = (
    "95 % confidence intervals: mean TTFT +- {mean_ttft_ms:ms}, mean TPOT +- {mean_tpot_ms:ms}, "
    "output tokens/s +- {output_throughput:n1}, running +- {mean_running:n1}."
)
EARLY_TURNS = (
    "{num_early_turns:n} of {num_later_turns:n} later turns arrived before the answer "
    "to the turn before: arrivals are planned; --session-think-time makes sessions wait."
)
OF_MEMORY = (
    "running: requests, on average. % of the KV memory held: token states, KV of live "
    "tokens; reservation, used later; internal, reserved and never used; external, "
    "rounding and all free memory while the head of the queue is refused."
)
LEGEND = f"{OF_MEMORY} hit: % of the prompt tokens found in the prefix cache. preempted: how often."
#: Columns that a narrow terminal omits, in the order of omission.
DROPPED = (
    *("preempted", "mean\nTPOT", "hit\n%", "mean\nTTFT", "output\ntok/s"),
    *reversed(HEADINGS[2:5]),
)


def comparison_table(
    comparison: Comparison, rows: Sequence[Row] = (), facts: Mapping[str, Any] | None = None
) -> RenderableType:
    """Return a table of one row per compared run; compare the most and the least wasteful one.

    ``rows`` and ``facts`` replace the comparison's own, e.g. by means over replications.
    """
    rows, by = rows or comparison.rows, comparison.by
    table = NarrowTable(
        (by, *HEADINGS), [[row[by], *comparison_cells(row)] for row in rows], dropped=DROPPED
    )
    notes: list[Text | None] = [Text(LEGEND, style="dim")]
    notes.append(_schedulers(comparison) if by == "allocator" else _pools(rows))
    notes.append(overload_text({row[by]: row for row in rows}))
    notes += [note(row[by], row) for note in NOTES for row in rows]
    notes.append(_cost_rule(rows))
    said = verdict(rows) if by == "allocator" else None
    if said:
        notes.append(Text(said, style="bold"))
    first = next(iter(comparison.results.values()))
    title = Text(f"{deployment(first)}\n{workload(facts or comparison.workload)}\n", style="bold")
    return Group(title, table, *(note for note in notes if note))


def comparison_cells(summary: Mapping[str, Any]) -> list[str]:
    """Return the cells under :data:`HEADINGS`."""
    return [filled(how, summary) for how in COLUMNS.values()]


def overload_text(summaries: Mapping[str, Mapping[str, Any]]) -> Text | None:
    """Name the runs that do not keep up with their arrivals."""
    said = overloads({name: one.get("load") for name, one in summaries.items()})
    return Text("\n".join(said), style="bold yellow") if said else None


def _schedulers(comparison: Comparison) -> Text | None:
    """Name the scheduler of each row, where they differ."""
    rows_of: dict[str, list[str]] = {}
    for name, result in comparison.results.items():
        rows_of.setdefault(result.provenance["scheduler"], []).append(name)
    if len(rows_of) < 2:
        return None
    parts = (f"{', '.join(names)} under {scheduler}" for scheduler, names in rows_of.items())
    return Text(
        f"{'; '.join(parts)}: each allocator runs under its usual scheduler; --scheduler "
        "NAME runs all under one.",
        style="yellow",
    )


def _pools(rows: Sequence[Row]) -> Text:
    sizes = ", ".join(f"{row['engine']} {gib(row['kv_cache']['bytes'])}" for row in rows)
    return Text(
        f"KV memory by the rule of each engine: {sizes}; --kv-cache-memory-bytes fixes "
        "it. Preempted includes retractions. Step times are those of vLLM for "
        "both engines: only scheduling differs.",
        style="dim",
    )


def _spread(name: str, summary: Row) -> Text | None:
    """Describe the confidence intervals of means over replications."""
    if "replications" not in summary:
        return None
    keys = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput", "mean_running")
    widths = {key: summary["ci95"].get(key) for key in keys}
    return Text(f"{name}: {filled(SPREAD, widths)}", style="dim")


def _rejections(name: str, summary: Row) -> Text | None:
    parts = [f"{number(count)} ({reason})" for reason, count in summary["rejections"].items()]
    said = [f"rejected {', '.join(parts)}"] if parts else []
    if summary.get("num_failed"):  # earlier versions did not count them
        said.append(f"{number(summary['num_failed'])} failed")
    return Text(f"{name}: {'; '.join(said)}", style="yellow") if said else None


def _early_turns(name: str, summary: Row) -> Text | None:
    """Warn about turns of a session that arrive before the answer to the previous turn."""
    if not summary.get("num_early_turns"):
        return None
    said = filled(EARLY_TURNS, summary)
    return Text(f"{name}: {said}", style="yellow")


def _moved(name: str, summary: Row) -> Text | None:
    """Describe the bytes copied between GPU and host, for managers with host memory."""
    cache, words = summary["kv_cache"], ("fetched", "stored", "paged in", "paged out")
    parts = [(word, cache.get(f"{word.replace(' ', '_')}_bytes")) for word in words]
    shown = [f"{gib(size)} {word}" for word, size in parts if size]
    return Text(f"{name}: {', '.join(shown)} over PCIe.", style="dim") if shown else None


def _fragmentation(name: str, summary: Row) -> Text | None:
    fragmentation = summary["kv_cache"].get("fragmentation")
    if fragmentation is None:
        return None
    return Text(
        f"{name}: its caching allocator's fragmentation, 1 - active/reserved, is "
        f"{percent(fragmentation)} % on average.",
        style="dim",
    )


def _cost(name: str, summary: Row) -> Text | None:
    said = costs(summary)
    return Text(f"{name}: {said}", style="dim") if said else None


def _cost_rule(rows: Sequence[Row]) -> Text | None:
    return Text(f"dollars: {RULE}.", style="dim") if any("cost" in row for row in rows) else None


#: Notes below the comparison, a line per row that has one.
NOTES = (_rejections, _early_turns, _fragmentation, _moved, _cost, _spread)


def waste(summary: Mapping[str, Any]) -> float | None:
    """Return the share of KV memory in use that is waste, None if none was in use."""
    tokens: float | None = summary["kv_cache"]["token_states"]
    return None if tokens is None else 1.0 - tokens


def verdict(rows: Sequence[Row]) -> str | None:
    """Compare the most and the least wasteful of the allocators with equal KV bytes per token."""
    known = [row for row in rows if waste(row) is not None and row["completed"]]
    known = [row for row in known if _what_ifs(row) == _what_ifs(known[0])]
    if len(known) < 2:
        return None
    worst = max(known, key=lambda row: waste(row) or 0.0)
    best = min(known, key=lambda row: waste(row) or 0.0)
    if worst is best:
        return None
    running = best["mean_running"] / worst["mean_running"]
    rate = best["output_throughput"] / worst["output_throughput"]
    wasted = (
        f"{best['allocator']} wastes {percent(waste(best))} % of the KV memory it holds, "
        f"{worst['allocator']} {percent(waste(worst))} %"
    )
    if not any(row["kv_cache"]["num_allocation_failures"] for row in known):
        return (
            f"{wasted}. No request waited for memory at this rate, so waste has no "
            "effect, and times differ by scheduling only; a higher --request-rate shows "
            "its effect."
        )
    return (
        f"{wasted}: {running:.1f}x the requests in flight, "
        f"{rate:.1f}x the output tokens per second."
    )


def _what_ifs(row: Row) -> tuple[object, ...]:
    """Return the modifiers of a row's allocator that change the KV bytes of a token."""
    spec = parse_allocator(row["allocator"])
    return (spec.kv_cache_dtype, spec.num_kv_heads, spec.window, spec.kv_lora_rank)


METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
KINDS = ("mean", "median", "p90", "p99")
#: Lines about a run, each by the key of a value; without the value, the line is omitted.
LINES = {
    "max_itl_ms": (
        "the longest gap between two tokens takes {max_itl_ms:ms}; 99.9 % of the gaps "
        "take at most {p999_itl_ms:ms}"
    ),
    "completed": (
        "completed {completed:n} in {duration:n1} s: {request_throughput:n2} requests/s, "
        "{output_throughput:n} output tokens/s"
    ),
    "peak": (
        "running {mean_running:n1} on average, {peak} at most; waiting {mean_waiting:n1}"
        "{waits_for}; {num_preemptions:n} preemptions ({num_recomputed_tokens:n} tokens computed "
        "again)"
    ),
    "kv_cache": (
        "KV memory {kv_cache[mean_usage]:p} % used on average, {kv_cache[peak_usage]:p} "
        "% at most; of the memory held: "
        + ", ".join(f"{{kv_cache[{key}]:p}} % {label}" for label, key in WASTE.items())
    ),
    "waits_for": "prefix cache hit rate {prefix_cache_hit_rate:p} %",
    "external": "external prefix cache: {external}",
    "num_encoded_items": (
        "encoder: {num_encoded_items:n} items of {num_encoded_tokens:n} tokens "
        "computed; encoder cache hit rate {encoder_cache_hit_rate:p} %"
    ),
    "kv_cache.saved_by_sharing": (
        "forked sequences share blocks: {kv_cache[saved_by_sharing]:p} % of the entries "
        "of their block tables are saved; {kv_cache[num_copied_blocks]:n} blocks were "
        "copied on write"
    ),
}
LINES_AFTER_FLEET = {
    "acceptance_rate": (
        "drafts: {acceptance_rate:p} % accepted, {mean_acceptance_length:n2} tokens per "
        "verification"
    ),
    "num_adapter_switches": "adapters: {num_adapter_switches:n} times an adapter joined the batch",
    "sessions.mean_duration": (
        "sessions: {sessions[completed]:n} of {sessions[num]:n} completed, in "
        "{sessions[mean_duration]:n1} s on average; TTFT of a turn "
        "{sessions[p50_turn_ttft_ms]:ms} at the median"
    ),
    "sessions.hit_rate": (
        "of their prompt tokens {sessions[hit_rate]:p} % were cached; an infinite cache would have "
        "{sessions[optimal_hit_rate]:p} %"
    ),
    "request_goodput": (
        "goodput {request_goodput:n2} requests/s over the whole run; {goodput_attainment:p} % of "
        "all requests meet every target"
    ),
}


def run_table(
    result: Result, facts: Mapping[str, Any] | None = None, summary: Row | None = None
) -> RenderableType:
    """Return the table and lines of a run, or of the means over replications of a run.

    ``facts`` describe the requests; by default they are taken from the run.
    """
    s = summary or result.summary
    load = s.get("load")  # earlier versions had none
    scheduler = result.provenance.get("scheduler", "")
    title = (
        f"{result.config.allocator} under {scheduler}: {deployment(result)}\n"
        f"{workload(facts or facts_of(result))}\n"
    )
    rows = [
        [label, *(milliseconds(s[f"{kind}_{metric}_ms"]) for kind in KINDS)]
        for metric, label in METRICS.items()
    ]
    table = plain_table(("", "mean", "p50", "p90", "p99"), rows)
    peak = number(s["peak_running"])
    if s["replicas"] is None or len(s["replicas"]) > 1:  # None: their number changed
        peak += " on one replica"
        title = f"{title}router {result.config.router}\n"
    values = {**s, "peak": peak, "waits_for": _waits_for(load), "external": _external(s)}
    lines = [*_filled(LINES, values), *fleet_lines(s), *_filled(LINES_AFTER_FLEET, values)]
    name = result.config.allocator
    extra = [overload_text({"": s}), _rejections("requests", s), _early_turns("requests", s)]
    extra += [note(name, s) for note in (_fragmentation, _moved, _cost, _spread)]
    extra.append(_cost_rule([s]))
    notes = [note for note in (*extra, tenants_table(s)) if note]
    return Group(Text(title, style="bold"), table, Text("\n".join(lines)), *notes)


def _filled(lines: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    known = (line for key, line in lines.items() if value_of(values, key) is not None)
    return [filled(line, values) for line in known]


def _external(s: Row) -> str | None:
    """Describe the hits and loads of an external prefix cache."""
    said = []
    if s["external_prefix_cache_hit_rate"] is not None and not s["pools"]:  # a line per pool
        said.append("{external_prefix_cache_hit_rate:p} % of the tokens looked up")
    if s["mean_kv_load_ms"] is not None:
        said.append("{num_kv_loads:n} loads, {mean_kv_load_ms:n1} ms of waiting on average")
    return filled("; ".join(said), s) if said else None


def _waits_for(load: Mapping[str, Any] | None) -> str:
    """Name the bottleneck if clients set the rate, or all requests arrive at once."""
    if not load or load["saturated"] is not None or load["binding"] == "arrivals":
        return ""
    return f" (bottleneck: {load['binding']})"
