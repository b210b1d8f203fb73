"""inference-perf's ``per_request_lifecycle_metrics.json``.

As github.com/kubernetes-sigs/inference-perf writes it, old versions and new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.readers.formats import reader
from workloads.readers.runs import draft_of, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.draft import Draft
    from workloads.readers.table import Table


@reader(
    "inference-perf",
    ["start_time", "end_time", "info"],
    ["error", "stage_id", "request", "response", "scheduled_time"],
)
def read_inference_perf(table: Table) -> Draft:
    """Read when requests were sent, and their lengths; those that failed are dropped.

    The server's count of tokens wins over the client's.

    Parameters
    ----------
    table : of the keys start_time (seconds), end_time, info, and error
    """
    starts = table.floats("start_time")
    lengths = table.convert("info", _lengths, "an object with input_tokens and output_tokens")
    errors = table.columns.get("error", [None] * len(table))
    kept, places = [], []
    for row, (start, (prompt, output)) in enumerate(zip(starts, lengths, strict=True)):
        if not errors[row] and prompt and output:
            kept.append((start, prompt, output))
            places.append(table.places[row])
    return draft_of(table, kept, len(table) - len(kept), places=places)


def _lengths(info: Mapping[str, Any]) -> tuple[int, int]:
    """Return tokens of prompt and output, 0 if none are recorded."""
    request, response = info.get("request_metrics") or {}, info.get("response_metrics") or info
    usage = response.get("server_usage") or {}
    text = request.get("text") or {}
    prompts = (usage.get("prompt_tokens"), info.get("input_tokens"), text.get("input_tokens"))
    outputs = (usage.get("completion_tokens"), response.get("output_tokens"))
    prompt, output = (next((n for n in map(number, ns) if n), 0) for ns in (prompts, outputs))
    return int(prompt), int(output or len(response.get("output_token_times") or ()))
