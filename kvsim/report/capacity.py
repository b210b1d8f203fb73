"""A memory budget for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from kvsim.engines.registry import get_engine
from kvsim.report.narrow import plain_table
from kvsim.report.text import gib, percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from kvsim.budget.capacity import Capacity


def capacity_table(capacity: Capacity) -> RenderableType:
    """Return a memory budget as a table with bars, and below it the number of requests that fit."""
    c, budget = capacity, capacity.budget_bytes
    gpus = c.tensor_parallel_size * c.pipeline_parallel_size
    several = f"{gpus} x " if gpus > 1 else ""
    shares = {name: size / budget["total"] for name, size in budget.items()}
    labels = {"total": "total (utilisation x memory)"}
    rows = [
        (
            labels.get(name, name.replace("_", " ")),
            f" {gib(budget[name])}",
            f" {_bar(share)} {percent(share)} %",
        )
        for name, share in shares.items()
    ]
    table = plain_table(("memory of one GPU", "", ""), rows, "lrl")
    lines = [
        *_states(c.states),
        f"{c.bytes_per_token:,} bytes of KV per token and GPU ({c.kv_cache_dtype})",
        get_engine(c.engine).describe_pool(c),
        f"concurrent requests by length: {_by_length(c.max_concurrency)}",
    ]
    if c.max_concurrency != c.max_concurrency_decoding:
        lines[-1] = (
            "concurrent requests by length, each at the peak of its prefill (as vLLM "
            f"counts): {_by_length(c.max_concurrency)}; all in decode, the maximum of a "
            f"run: {_by_length(c.max_concurrency_decoding)}"
        )
    if c.kv_cache_bytes_interval is not None:
        lowest, highest = c.kv_cache_bytes_interval
        lines.append(
            f"{gib(lowest)} to {gib(highest)} of KV, by the logs of comparable servers; "
            "--logged PART:GIB narrows it"
        )
    if c.num_gpu_blocks_range is not None:
        fewest, most = c.num_gpu_blocks_range
        lines.append(
            f"{fewest:,} to {most:,} blocks over the default values of max_num_seqs and "
            "max_num_batched_tokens"
        )
    notes = []
    if c.scarce:
        note = (
            "KV is less than a quarter of the budget: small errors of other parts are large "
            "errors of KV."
        )
        notes.append(Text(note, style="yellow"))
    excess = sum(size for name, size in budget.items() if name != "total") - budget["total"]
    if excess > 0:
        note = f"The parts, logged and estimated, exceed the total by {gib(excess)}."
        notes.append(Text(note, style="yellow"))
    if not c.fits:
        note = (
            f"One request of max_model_len {c.max_model_len:,} does not fit: vLLM would not start."
        )
        notes.append(Text(note, style="yellow"))
    if c.assumptions:
        notes.append(Text("Assumed: " + "; ".join(c.assumptions) + ".", style="dim"))
    title = Text(f"{c.model} on {several}{c.gpu}\n", style="bold")
    return Group(title, table, Text("\n".join(lines)), *notes)


def _states(states: Mapping[str, int] | None) -> list[str]:
    if states is None:
        return []
    if "slots" in states:
        return [
            f"{states['num_layers']} layers have a state: {states['bytes_per_state']:,} bytes per "
            f"slot and GPU; {states['slots']:,} slots (max_mamba_cache_size), "
            f"{states['blocks_per_request']} per running request"
        ]
    return [
        f"{states['num_layers']} layers have a state: {states['bytes_per_state']:,} "
        f"bytes per request and GPU, {states['padding_bytes']:,} bytes of padding to the "
        f"page size of attention; {states['blocks_per_request']} blocks per request"
    ]


def _by_length(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{int(length):,}: {count:,}" for length, count in counts.items())


def _bar(share: float, width: int = 24) -> str:
    return "█" * max(round(min(max(share, 0.0), 1.0) * width), 0)
