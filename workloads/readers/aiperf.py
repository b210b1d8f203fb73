"""aiperf's ``profile_export.jsonl``, a record per request (github.com/ai-dynamo/aiperf).

Its fields are in docs/tutorials/working-with-profile-exports.md there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.readers.formats import reader
from workloads.readers.runs import draft_of, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.draft import Draft
    from workloads.readers.table import Table


@reader("aiperf", ["metadata", "metrics"], ["error"])
def read_aiperf(table: Table) -> Draft:
    """Read when requests were sent, their lengths and sessions; warm-up and failures are dropped.

    Parameters
    ----------
    table : of the keys metadata, metrics, error
    """
    metadata = table.convert("metadata", _metadata, "an object with request_start_ns")
    lengths = table.convert("metrics", _lengths, "an object of metrics")
    errors = table.columns.get("error", [None] * len(table))
    kept, places, sessions, num_failed, num_warm = [], [], [], 0, 0
    numbers: dict[str, int] = {}
    first = min(start for start, _, _ in metadata)
    for row, (start, phase, session) in enumerate(metadata):
        prompt, output = lengths[row]
        if phase == "warmup":
            num_warm += 1
        elif errors[row] or not prompt or not output:
            num_failed += 1
        else:
            kept.append(((start - first) / 1e9, prompt, output))
            places.append(table.places[row])
            sessions.append(numbers.setdefault(session, len(numbers)))
    several = len(set(sessions)) < len(sessions)
    notes = [f"dropped requests of the warm-up: {num_warm:,}"] if num_warm else []
    session_id = sessions if several else None
    return draft_of(table, kept, num_failed, notes, places=places, session_id=session_id)


def _metadata(cell: Mapping[str, Any]) -> tuple[int, str, str]:
    start = cell["request_start_ns"]
    if type(start) is not int:
        raise TypeError
    session = cell.get("x_correlation_id") or cell.get("conversation_id") or cell["session_num"]
    return start, str(cell.get("benchmark_phase")), str(session)


def _lengths(cell: Mapping[str, Any] | None) -> tuple[int, int]:
    """Return tokens of prompt and output, 0 if none are recorded."""
    found = []
    for name in ("input_sequence_length", "output_sequence_length"):
        metric = (cell or {}).get(name)
        value = number(metric["value"] if isinstance(metric, dict) else metric)
        found.append(int(value or 0))
    return found[0], found[1]
