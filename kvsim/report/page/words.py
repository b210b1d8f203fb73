"""Text of a page: the result in one or two sentences, and the evidence for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.paired import signed, title_of
from kvsim.report.terminal import verdict, waste
from kvsim.report.text import milliseconds, number, percent
from kvsim.results.load import overload
from kvsim.results.notes import notes_of, shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvsim.results.result import Result


def of_comparison(rows: Sequence[dict[str, Any]], by: str = "allocator") -> str:
    """Compare the most and the least wasteful allocator; if impossible, describe each run."""
    found = verdict(rows) if by == "allocator" else None
    if found is not None:
        return found if found.endswith(".") else f"{found}."
    return " ".join(f"{row[by]}: {of_run(row)}" for row in rows)


def of_differences(answer: Mapping[str, Any]) -> str:
    """Describe the changes in latency and throughput for each value of the varied options."""
    against = f"Against {title_of(answer['differences'][0]['against'])}. "
    return against + " ".join(
        f"{title_of(one['options'])}: {', '.join(_changes(one['metrics']))}."
        for one in answer["differences"]
    )


def _changes(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield the change of each metric, with ``(n.s.)`` if its interval includes zero."""
    for name, label in {"mean_ttft_ms": "TTFT", "mean_tpot_ms": "TPOT"}.items():
        if name in metrics:
            gap = metrics[name]
            yield f"mean {label} {signed(gap['mean'])} ms{_sure(gap)}"
    if "output_throughput" in metrics:
        gap = metrics["output_throughput"]
        yield f"output tokens per second {signed(gap['mean'])}{_sure(gap)}"


def _sure(gap: Mapping[str, Any]) -> str:
    return " (n.s.)" if gap["low"] is not None and not gap["is_certain"] else ""


def of_run(summary: Mapping[str, Any]) -> str:
    s = summary
    parts = [
        f"{number(s['completed'])} requests completed in {number(s['duration'], 1)} s, "
        f"{number(s['output_throughput'])} output tokens per second"
    ]
    if s["mean_ttft_ms"] is not None:
        parts.append(
            f"The first token takes {milliseconds(s['mean_ttft_ms'])} on average and "
            f"{milliseconds(s['p99_ttft_ms'])} at the 99th percentile"
        )
    said = overload(s.get("load"))
    if said is not None:
        parts.append(f"The run does not keep up with arrivals: {said}")
    lost = waste(s)
    if lost is not None:
        parts.append(f"{percent(lost)} % of the KV memory held is wasted")
    if s["num_preemptions"]:
        parts.append(
            f"{number(s['num_preemptions'])} preemptions recomputed "
            f"{number(s['num_recomputed_tokens'])} tokens"
        )
    if s["num_rejected"]:
        parts.append(f"{number(s['num_rejected'])} requests were rejected")
    return ". ".join(parts) + "."


def trust(named: Mapping[str, Result], notes: Sequence[str] | None = None) -> list[str]:
    """Describe the evidence for the numbers; ``notes`` are the runs' own by default."""
    results = list(named.values())
    if notes is None:
        notes = shared({name: notes_of(one.provenance) for name, one in named.items()})
    said = [
        *(f"Rules: {one}." for one in unique(r.provenance.get("rules") for r in results) if one),
        *(f"Step times: {one}." for one in unique(r.provenance["step_time"] for r in results)),
        *(f"{one}." for one in notes),
    ]
    return unique(said)


def unique(texts: Any) -> list[str]:
    """Return the texts in order, without duplicates."""
    return list(dict.fromkeys(texts))
