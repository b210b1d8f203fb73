"""Tables for the terminal: what a person wants to know in ten seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from kvsim.kv.allocator_spec import parse_allocator
from kvsim.kv.usage import HELD
from kvsim.report.fleet import fleet_lines
from kvsim.report.narrow import NarrowTable, plain_table
from kvsim.report.tenants import tenants_table
from kvsim.report.text import gib, milliseconds, number, percent
from kvsim.report.title import deployment, workload
from kvsim.results.load import overloads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result

Row = dict[str, Any]

#: The causes of held memory, by the words of tables, figures and summaries alike.
WASTE = {cause.label: cause.summary_key for cause in HELD}

#: Columns of the comparison after the allocator's name, in the order shown.
HEADINGS = (
    "running",
    *(f"{label.replace(' ', chr(10))}\n%" for label in WASTE),
    "hit\n%",
    "preempted",
    "output\ntok/s",
    "mean\nTTFT",
    "mean\nTPOT",
)
#: What a narrow terminal does without, the first before the others.
DROPPED = (
    *("preempted", "mean\nTPOT", "hit\n%", "mean\nTTFT", "output\ntok/s"),
    *reversed(HEADINGS[2:5]),
)


def comparison_table(
    comparison: Comparison, rows: Sequence[Row] = (), facts: Mapping[str, Any] | None = None
) -> RenderableType:
    """Lay out one row per allocator, and what the most and least wasteful say about each other.

    ``rows`` and ``facts`` replace the comparison's own, e.g. by means over replications.
    """
    rows, by = rows or comparison.rows, comparison.by
    table = NarrowTable(
        (by, *HEADINGS),
        [[row[by], *comparison_cells(row)] for row in rows],
        dropped=DROPPED,
    )
    notes: list[Text | None] = [_legend()]
    notes.append(_schedulers(comparison) if by == "allocator" else _pools(rows))
    notes += [overload_text({row[by]: row for row in rows})]
    notes += [_rejections(row[by], row) for row in rows]
    notes += [_early_turns(row[by], row) for row in rows]
    notes += [_fragmentation(row[by], row) for row in rows]
    notes += [_moved(row[by], row) for row in rows]
    notes += [_spread(row[by], row) for row in rows]
    said = verdict(rows) if by == "allocator" else None
    if said:
        notes.append(Text(said, style="bold"))
    first = next(iter(comparison.results.values()))
    title = Text(f"{deployment(first)}\n{workload(facts or comparison.workload)}\n", style="bold")
    return Group(title, table, *(note for note in notes if note))


def comparison_cells(summary: Mapping[str, Any]) -> list[str]:
    """Return what stands under :data:`HEADINGS`."""
    cache = summary["kv_cache"]
    cells = [number(summary["mean_running"], 1)]
    cells += [percent(cache[key]) for key in WASTE.values()]
    cells.append(percent(summary["prefix_cache_hit_rate"]))
    cells.append(number(summary["num_preemptions"]))
    cells.append(number(summary["output_throughput"]))
    cells += [milliseconds(summary["mean_ttft_ms"]), milliseconds(summary["mean_tpot_ms"])]
    return cells


def overload_text(summaries: Mapping[str, Mapping[str, Any]]) -> Text | None:
    """Say which of several runs do not keep up with their arrivals."""
    said = overloads({name: one.get("load") for name, one in summaries.items()})
    return Text("\n".join(said), style="bold yellow") if said else None


def _legend() -> Text:
    return Text(
        "running: requests, on average. % of the KV memory held: token states, KV of live tokens; "
        "reservation, used later; internal, asked for and never used; external, rounding and "
        "whatever is free while the queue's head is refused. hit: % of the prompt tokens found in "
        "the prefix cache. preempted: how often.",
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


def _pools(rows: Sequence[Row]) -> Text:
    """Say how much KV memory each engine takes."""
    sizes = ", ".join(f"{row['engine']} {gib(row['kv_cache']['bytes'])}" for row in rows)
    return Text(
        f"KV memory by each engine's own rule: {sizes}; --kv-cache-memory-bytes pins it. "
        "Preempted: under sglang retracted, too. Step times are vLLM's for both: what differs is "
        "who is scheduled when.",
        style="dim",
    )


def _spread(name: str, summary: Row) -> Text | None:
    """Say how sure the means over replications are."""
    if "replications" not in summary:
        return None
    width = summary["ci95"]
    parts = (
        f"mean TTFT +- {milliseconds(width.get('mean_ttft_ms'))}",
        f"mean TPOT +- {milliseconds(width.get('mean_tpot_ms'))}",
        f"output tokens/s +- {number(width.get('output_throughput'), 1)}",
        f"running +- {number(width.get('mean_running'), 1)}",
    )
    return Text(f"{name}: 95 % confidence intervals: {', '.join(parts)}.", style="dim")


def _rejections(name: str, summary: Row) -> Text | None:
    parts = [f"{number(count)} ({reason})" for reason, count in summary["rejections"].items()]
    said = [f"rejected {', '.join(parts)}"] if parts else []
    if summary.get("num_failed"):  # earlier versions did not count them
        said.append(f"{number(summary['num_failed'])} failed")
    return Text(f"{name}: {'; '.join(said)}", style="yellow") if said else None


def _early_turns(name: str, summary: Row) -> Text | None:
    """Say how far a session's planned arrivals are from what a user could do."""
    early = summary.get("num_early_turns")
    if not early:
        return None
    return Text(
        f"{name}: {number(early)} of {number(summary['num_later_turns'])} later turns came before "
        "the answer they follow: arrivals are planned, and no session waits.",
        style="yellow",
    )


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


def verdict(rows: Sequence[Row]) -> str | None:
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
    wasted = (
        f"{best['allocator']} wastes {percent(waste(best))} % of the KV memory it holds, "
        f"{worst['allocator']} {percent(waste(worst))} %"
    )
    if not any(row["kv_cache"]["num_allocation_failures"] for row in known):
        return (
            f"{wasted}. No request waited for memory at this rate, so waste costs nothing here and "
            "times differ by scheduling alone; a higher --request-rate shows what it costs."
        )
    return (
        f"{wasted}: {running:.1f}x the requests in flight, "
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
    cache, load = s["kv_cache"], s.get("load")  # earlier versions had no load
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
    if s["replicas"] is None or len(s["replicas"]) > 1:  # None: they came and went
        peak += " on one replica"
        title = f"{title}router {result.config.router}\n"
    lines = [
        f"completed {number(s['completed'])} in {number(s['duration'], 1)} s: "
        f"{number(s['request_throughput'], 2)} requests/s, "
        f"{number(s['output_throughput'])} output tokens/s",
        f"running {number(s['mean_running'], 1)} on average, {peak} at most; "
        f"waiting {number(s['mean_waiting'], 1)}{_waits_for(load)}; "
        f"{number(s['num_preemptions'])} preemptions "
        f"({number(s['num_recomputed_tokens'])} tokens computed again)",
        f"KV memory {percent(cache['mean_usage'])} % used on average, "
        f"{percent(cache['peak_usage'])} % at most; of what is held: "
        + ", ".join(f"{percent(cache[key])} % {label}" for label, key in WASTE.items()),
        f"prefix cache hit rate {percent(s['prefix_cache_hit_rate'])} %",
    ]
    if s.get("max_itl_ms") is not None:
        lines.insert(
            0,
            f"the longest gap between two tokens takes {milliseconds(s['max_itl_ms'])}; of all, "
            f"99.9 % take at most {milliseconds(s['p999_itl_ms'])}",
        )
    loads = []
    if s["external_prefix_cache_hit_rate"] is not None and not s["pools"]:  # those tell their own
        loads.append(f"{percent(s['external_prefix_cache_hit_rate'])} % of what was asked of it")
    if s["mean_kv_load_ms"] is not None:
        wait = number(s["mean_kv_load_ms"], 1)
        loads.append(f"{number(s['num_kv_loads'])} loads, awaited for {wait} ms on average")
    if loads:
        lines.append(f"external prefix cache: {'; '.join(loads)}")
    if s["num_encoded_items"] is not None:
        lines.append(
            f"encoder: {number(s['num_encoded_items'])} items of "
            f"{number(s['num_encoded_tokens'])} tokens; "
            f"{percent(s['encoder_cache_hit_rate'])} % of all items were in its cache"
        )
    if cache.get("saved_by_sharing") is not None:  # earlier versions had none
        lines.append(
            f"sequences that fork share blocks: {percent(cache['saved_by_sharing'])} % of what "
            f"their tables name is saved; {number(cache['num_copied_blocks'])} blocks were copied "
            "on write"
        )
    lines += fleet_lines(s)
    if s["acceptance_rate"] is not None:
        lines.append(
            f"drafts: {percent(s['acceptance_rate'])} % accepted, "
            f"{number(s['mean_acceptance_length'], 2)} tokens per verification"
        )
    if s["num_adapter_switches"] is not None:
        lines.append(f"adapters: {number(s['num_adapter_switches'])} times one joined the batch")
    if s["request_goodput"] is not None:
        lines.append(
            f"goodput {number(s['request_goodput'], 2)} requests/s over the whole run; "
            f"{percent(s['goodput_attainment'])} % of all requests meet every target"
        )
    extra = [
        overload_text({"": s}),
        _rejections("requests", s),
        _early_turns("requests", s),
        _fragmentation(result.config.allocator, s),
    ]
    extra.append(_moved(result.config.allocator, s))
    extra += [_spread(result.config.allocator, s)]
    notes: list[RenderableType] = [note for note in extra if note]
    tenants = tenants_table(s)
    if tenants is not None:
        notes.append(tenants)
    return Group(Text(title, style="bold"), table, Text("\n".join(lines)), *notes)


def _waits_for(load: Mapping[str, Any] | None) -> str:
    """Say what requests wait for where clients, or requests that come all at once, set the pace."""
    if not load or load["saturated"] is not None or load["binding"] == "arrivals":
        return ""
    return f" ({load['binding']} binds)"
