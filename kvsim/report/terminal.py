"""Tables for the terminal: what a person wants to know in ten seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvsim.catalog import get_gpu
from kvsim.kv.allocator_spec import parse_allocator
from kvsim.kv.usage import HELD
from kvsim.report.text import gib, milliseconds, number, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result

Row = dict[str, Any]

#: Columns of the comparison: heading, then how to read it off a summary.
HEADINGS = ("tokens", "reserved", "internal", "external")
WASTE = {heading: cause.summary_key for heading, cause in zip(HEADINGS, HELD, strict=True)}


def comparison_table(comparison: Comparison, rows: Sequence[Row] = ()) -> RenderableType:
    """Lay out one row per allocator, and what the most and least wasteful say about each other.

    ``rows`` replaces the comparison's own, e.g. by means over replications.
    """
    rows = rows or comparison.rows
    table = plain_table()
    table.add_column("allocator", no_wrap=True)
    for heading in (
        "run-\nning",
        "live\n%",
        "re-\nserved",
        "inter-\nnal",
        "exter-\nnal",
        "hit\n%",
        "pre-\nempt",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("output\ntok/s", "mean\nTTFT", "mean\nTPOT"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["allocator"], *_cells(row))
    notes: list[Text | None] = [_legend(), _schedulers(comparison)]
    notes += [_rejections(row["allocator"], row) for row in rows]
    notes += [_fragmentation(row["allocator"], row) for row in rows]
    notes += [_moved(row["allocator"], row) for row in rows]
    notes += [_spread(rows[0], "output_throughput", "output tokens/s")]
    verdict = _verdict(rows)
    if verdict:
        notes.append(Text(verdict, style="bold"))
    return Group(_title(comparison), table, *(note for note in notes if note))


def plain_table() -> Table:
    """Return an empty table with a line under its headings and no other."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0), show_edge=False)


def _title(comparison: Comparison) -> Text:
    result = next(iter(comparison.results.values()))
    return Text(f"{deployment(result)}\n{workload(comparison.workload)}\n", style="bold")


def deployment(result: Result) -> str:
    """Name model, GPU and KV memory in a line."""
    config, cache = result.config, result.summary["kv_cache"]
    model = config.model if isinstance(config.model, str) else config.model.name
    gpu = get_gpu(config.gpu).name
    gpus = config.tensor_parallel_size * config.pipeline_parallel_size
    several = f"{gpus} x " if gpus > 1 else ""
    replicas = config.data_parallel_size
    times = f", {replicas} replicas" if replicas > 1 else ""
    return f"{model} on {several}{gpu}{times}, {gib(cache['bytes'])} of KV memory per GPU"


def workload(facts: Mapping[str, Any]) -> str:
    """Describe a workload in a line."""
    rate = facts["request_rate"]
    pace = "all at once" if rate is None else f"{rate:.3g} requests/s"
    return (
        f"{facts['num_requests']:,} requests at {pace}, mean prompt "
        f"{facts['mean_prompt_tokens']:,.0f} and output {facts['mean_output_tokens']:,.0f} tokens"
    )


def _cells(summary: Mapping[str, Any]) -> list[str]:
    cache = summary["kv_cache"]
    cells = [number(summary["mean_running"], 1)]
    cells += [percent(cache[key]) for key in WASTE.values()]
    cells.append(percent(summary["prefix_cache_hit_rate"]))
    cells.append(number(summary["num_preemptions"]))
    cells.append(number(summary["output_throughput"]))
    cells += [milliseconds(summary["mean_ttft_ms"]), milliseconds(summary["mean_tpot_ms"])]
    return cells


def _legend() -> Text:
    return Text(
        "% of the KV memory held: live tokens; reserved, used later; internal, asked for and never "
        "used; external, rounding and whatever is free while the queue's head is refused. hit: % "
        "of the prompt tokens found in the prefix cache.",
        style="dim",
    )


def _schedulers(comparison: Comparison) -> Text | None:
    """Say which rows run under which scheduler, where it is not the same for all."""
    rows_of: dict[str, list[str]] = {}
    for name, result in comparison.results.items():
        rows_of.setdefault(result.provenance["scheduler"], []).append(name)
    if len(rows_of) < 2:
        return None
    parts = (f"{', '.join(names)} under {scheduler}" for scheduler, names in rows_of.items())
    return Text(
        f"{'; '.join(parts)}: --scheduler NAME changes the allocator alone.", style="yellow"
    )


def _spread(summary: Row, key: str, unit: str) -> Text | None:
    """Say how sure a mean over replications is."""
    if "replications" not in summary:
        return None
    width = summary["ci95"].get(key)
    return Text(
        f"Means of {summary['replications']} replications; 95 % confidence interval of the first "
        f"row's {unit}: +- {number(width, 1)}.",
        style="dim",
    )


def _rejections(name: str, summary: Row) -> Text | None:
    reasons = summary["rejections"]
    if not reasons:
        return None
    parts = ", ".join(f"{number(count)} ({reason})" for reason, count in reasons.items())
    return Text(f"{name}: rejected {parts}", style="yellow")


def _moved(name: str, summary: Row) -> Text | None:
    """Say what passed between GPU and host, of managers with host memory behind them."""
    cache, words = summary["kv_cache"], ("fetched", "stored", "paged in", "paged out")
    parts = [(word, cache.get(f"{word.replace(' ', '_')}_bytes")) for word in words]
    shown = [f"{gib(size)} {word}" for word, size in parts if size]
    return Text(f"{name}: {', '.join(shown)} over PCIe.", style="dim") if shown else None


def _fragmentation(name: str, summary: Row) -> Text | None:
    """Give PyTorch's figure for a caching allocator."""
    fragmentation = summary["kv_cache"].get("fragmentation")
    if fragmentation is None:
        return None
    return Text(
        f"{name}: its caching allocator's fragmentation, 1 - active/reserved, is "
        f"{percent(fragmentation)} % on average.",
        style="dim",
    )


def waste(summary: Mapping[str, Any]) -> float | None:
    """Return the share of held KV memory that is no token's, or None if none was held."""
    tokens: float | None = summary["kv_cache"]["token_states"]
    return None if tokens is None else 1.0 - tokens


def _verdict(rows: Sequence[Row]) -> str | None:
    """Compare the most with the least wasteful allocator of those whose tokens are as large."""
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
    return (
        f"{best['allocator']} wastes {percent(waste(best))} % of the KV memory it holds, "
        f"{worst['allocator']} {percent(waste(worst))} %: {running:.1f}x the requests in flight, "
        f"{rate:.1f}x the output tokens per second."
    )


def _what_ifs(row: Row) -> tuple[object, ...]:
    """Return the modifiers of a row that change what the KV of a token is."""
    spec = parse_allocator(row["allocator"])
    return (spec.kv_cache_dtype, spec.num_kv_heads, spec.window, spec.kv_lora_rank)


def run_table(
    result: Result, facts: Mapping[str, Any], summary: Row | None = None
) -> RenderableType:
    """Lay out one run, or the means of several like it."""
    s = summary or result.summary
    cache = s["kv_cache"]
    scheduler = result.provenance.get("scheduler", "")
    title = (
        f"{result.config.allocator} under {scheduler}: {deployment(result)}\n{workload(facts)}\n"
    )
    table = plain_table()
    for heading in ("", "mean", "p50", "p90", "p99"):
        table.add_column(heading, justify="left" if not heading else "right")
    for metric, label in {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}.items():
        kinds = ("mean", "median", "p90", "p99")
        table.add_row(label, *(milliseconds(s[f"{kind}_{metric}_ms"]) for kind in kinds))
    peak = number(s["peak_running"])
    if result.config.data_parallel_size > 1:
        peak += " on one replica"
    lines = [
        f"completed {number(s['completed'])} in {number(s['duration'], 1)} s: "
        f"{number(s['request_throughput'], 2)} requests/s, "
        f"{number(s['output_throughput'])} output tokens/s",
        f"running {number(s['mean_running'], 1)} on average, {peak} at most; "
        f"waiting {number(s['mean_waiting'], 1)}; {number(s['num_preemptions'])} preemptions "
        f"({number(s['num_recomputed_tokens'])} tokens computed again)",
        f"KV memory {percent(cache['mean_usage'])} % used on average, "
        f"{percent(cache['peak_usage'])} % at most; of what is held: "
        + ", ".join(f"{percent(cache[key])} % {label}" for label, key in WASTE.items()),
        f"prefix cache hit rate {percent(s['prefix_cache_hit_rate'])} %",
    ]
    if s["request_goodput"] is not None:
        lines.append(
            f"goodput {number(s['request_goodput'], 2)} requests/s over the whole run; "
            f"{percent(s['goodput_attainment'])} % of all requests meet every target"
        )
    extra = [_rejections("requests", s), _fragmentation(result.config.allocator, s)]
    extra.append(_moved(result.config.allocator, s))
    extra += [_spread(s, "output_throughput", "output tokens/s")]
    notes = [note for note in extra if note]
    return Group(Text(title, style="bold"), table, Text("\n".join(lines)), *notes)
