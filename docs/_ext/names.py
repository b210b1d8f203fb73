"""Columns and keys that the reference explains, by kind: name to type, in the code's order."""

from __future__ import annotations

import csv
import json
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Names = dict[str, str]


#: A table per kind, ``name,meaning``.
FIELDS = Path(__file__).resolve().parents[1] / "reference" / "fields"


def table(kind: str, known: Names) -> str:
    """Return the names of a kind in the code's order, with their meanings.

    Neighbours with one meaning share a row.

    Raises
    ------
    ValueError
        If the table of meanings has other names than the code, or a meaning is cut at a comma.
    """
    with (FIELDS / f"{kind}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    where, meanings = f"docs/reference/fields/{kind}.csv", {r["name"]: r["meaning"] for r in rows}
    if cut := [row["name"] for row in rows if None in row]:
        raise ValueError(f"{where}: meanings with a comma need quotes: {cut}")
    missing, unknown = known.keys() - {n for n in meanings if meanings[n]}, meanings.keys() - known
    if missing or unknown:
        raise ValueError(f"{where}: no meaning {sorted(missing)}, unknown {sorted(unknown)}")
    typed = any(known.values())
    head = ("name", "type", "meaning") if typed else ("name", "meaning")
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for (meaning, type_), group in groupby(known, key=lambda name: (meanings[name], known[name])):
        cells = [", ".join(f"`{name}`" for name in group), *([type_] if typed else []), meaning]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _columns(table: str) -> Names:
    from kvsim.results.result import TABLES

    dtype = TABLES[table]
    return {name: str(dtype[name]) for name in dtype.names or ()}


@cache
def _result() -> Any:
    """Run something tiny, to see what a summary holds."""
    import kvsim
    import workloads

    trace = workloads.fixed(prompt=20, output=4, num_requests=3, request_rate=1.0)
    return kvsim.simulate(trace, price={"l4": 1.0}, model="llama-3-8b", gpu="l4", backend="python")


def _summary() -> Names:
    return {name: "" for name in _result().summary if name != "kv_cache"}


def _load() -> Names:
    return dict.fromkeys(_result().summary["load"], "")


def _kv_cache() -> Names:
    return dict.fromkeys(_result().summary["kv_cache"], "")


def _provenance() -> Names:
    return dict.fromkeys(_result().provenance, "")


def _capacity() -> Names:
    import kvsim

    answer = kvsim.capacity(model="nemotron-h-8b", gpu="a100-80gb").to_dict()
    return dict.fromkeys(json.loads(json.dumps(answer)), "")


def _train_memory() -> Names:
    import kvsim

    return dict.fromkeys(kvsim.train_memory(model="llama-3-8b").to_dict(), "")


def _trace() -> Names:
    from kvsim.trace.files import OPTIONAL, REQUEST_ID, REQUIRED

    return dict.fromkeys((*REQUIRED, *OPTIONAL, REQUEST_ID), "")


def _case() -> Names:
    from kvsim.cases.case import CaseConfig

    return {name: _default(field) for name, field in CaseConfig.model_fields.items()}


def _case_request() -> Names:
    from kvsim.cases.case import CaseRequest

    return {name: _default(field) for name, field in CaseRequest.model_fields.items()}


def _default(field: Any) -> str:
    return "required" if field.is_required() else f"`{json.dumps(field.default)}`"


#: By the name that a page uses.
NAMES: dict[str, Callable[[], Names]] = {
    **{table: partial(_columns, table) for table in ("requests", "memory", "steps")},
    "summary": _summary,
    "load": _load,
    "kv_cache": _kv_cache,
    "provenance": _provenance,
    "capacity": _capacity,
    "train-memory": _train_memory,
    "trace": _trace,
    "case-config": _case,
    "case-request": _case_request,
}
