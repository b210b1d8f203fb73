"""Measured points of vLLM servers: the table, which of its rows are taken, the split in halves.

The table is ``serving/inferencex/points.csv.gz``: package aiconfigurator-core 0.12.0,
``silicon_sample.csv``, joined with the server flags that InferenceX's scripts passed on the day of
a row. Nothing here knows which models, cards and rows it holds: another folder has others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

FILE = "serving/inferencex/points.csv.gz"

#: Runs of a pull request that was never merged: their script may have been another one.
UNMERGED = "unmerged PR run"
#: Criteria of a repeated row: the same server and clients, and both times equal as far as a copy of
#: two decimals shows. Two runs of one configuration are 0.4 % apart at the median, or 0.02 ms.
SERVER = ("model", "gpu", "weights", "gpus", "isl", "osl", "concurrency")
SAME_MS = 0.006
#: Models that the table has under two names: the second is the same weights (trap 3).
SAME_MODEL = {"deepseek-ai/DeepSeek-V3": "deepseek-ai/DeepSeek-R1"}
#: Columns of a server that one script launched on one day.
LAUNCHED = ("engine", "version", "date", "gpu", "weights", "gpus", "ep", "mode")
#: GPUs of the largest machine; rows with more are totals of several machines' jobs.
ONE_MACHINE = 8


#: Engines of the simulated servers, and their names.
ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}


class Rows(NamedTuple):
    """Rows of one kind; empty fields match anything.

    Attributes
    ----------
    why : what is wrong with them
    model : part of the model's name
    gpu, version : how they begin
    concurrency : the smallest that is concerned
    """

    why: str
    model: str
    gpu: str = ""
    version: str = ""
    concurrency: int = 0

    def have(self, row: Mapping[str, str]) -> bool:
        """Return True if a row is one of these points."""
        return (
            self.model.lower() in row["model"].lower()
            and row["gpu"].startswith(self.gpu)
            and row["version"].startswith(self.version)
            and float(row["concurrency"]) >= self.concurrency
        )


#: Rows that were found not to be what they say; numbered as in the table's README.
TRAPS = (
    Rows("trap 6: 52 ms per token whatever the batch", "Qwen3-235B", "h200", "0.12"),
    Rows("trap 6: faster than without hits", "Llama-3.1-8B-Instruct-FP8", "h200", "0.12"),
    Rows("trap 7: more in flight than a server can have held", "gpt-oss-120b", "h100", "", 512),
)


class Selection(NamedTuple):
    """Rows that are simulated, and how many of the table are not, by reason."""

    rows: pd.DataFrame
    left_out: dict[str, int]


def read(data: Path) -> pd.DataFrame:
    """Return the table with every cell as text; an absent one is empty."""
    return with_flags(pd.read_csv(data / FILE, dtype=str, keep_default_na=False))


def with_flags(table: pd.DataFrame) -> pd.DataFrame:
    """Give rows under a model's second name the flags of its server under the first, if one has."""
    rows = table.to_dict("records")
    told = {
        tuple(row[name] for name in LAUNCHED): row["flags"]
        for row in rows
        if row["model"] in SAME_MODEL.values() and row["flags"]
    }
    for row in rows:
        if row["model"] in SAME_MODEL and not row["flags"]:
            row["flags"] = told.get(tuple(row[name] for name in LAUNCHED), "")
    return table.assign(flags=[row["flags"] for row in rows])


def select(table: pd.DataFrame, engine: str = "vllm") -> Selection:
    """Keep an engine's rows that one server measured, once each, and nothing speaks against."""
    rows = table.to_dict("records")
    reasons = [why_not(row, engine) for row in rows]
    for index in repeats(rows, [i for i, reason in enumerate(reasons) if not reason]):
        reasons[index] = "the same measurement as another row"
    kept = table[[not reason for reason in reasons]].reset_index(drop=True)
    return Selection(kept, dict(Counter(reason for reason in reasons if reason).most_common()))


def repeats(rows: Sequence[Mapping[str, str]], places: Iterable[int]) -> list[int]:
    """Return the row indices that hold a copy of another row's measurement.

    Three source files have some measurements twice or three times; a copy in the half that
    constants are fitted on would give its twin away. The copy with known flags stays.
    """
    seen: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    found = []
    for place in sorted(places, key=lambda place: rows[place]["flags_status"] == "unknown"):
        row = rows[place]
        ttft, tpot = float(row["ttft_ms"]), float(row["tpot_ms"])
        model = SAME_MODEL.get(row["model"], row["model"])
        others = seen.setdefault((model, *(row[name] for name in SERVER[1:])), [])
        if any(abs(ttft - a) < SAME_MS and abs(tpot - b) < SAME_MS for a, b in others):
            found.append(place)
        else:
            others.append((ttft, tpot))
    return found


def why_not(row: Mapping[str, str], engine: str = "vllm") -> str:
    """Say why a row is left out; empty if it is taken."""
    if row["engine"] != engine:
        return f"another engine than {ENGINES[engine]}"
    if row["mode"] != "agg":
        return "prefill and decode apart"
    if not row["concurrency"]:
        return "no concurrency"
    if not (row["ttft_ms"] and row["tpot_ms"]):
        return "no times"
    if row["spec_decoding"] not in ("none", ""):
        return "speculative decoding, or perhaps"
    if not row["version"]:
        return "no version, so no script that is known to be its"
    for trap in TRAPS:
        if trap.have(row):
            return trap.why
    if row["suspicious"] not in ("", UNMERGED):
        return row["suspicious"]
    if float(row["gpus"]) > ONE_MACHINE:
        return "totals of several machines"
    return ""


def is_fitted(identifier: str) -> bool:
    """Return True if a point is in the half that constants may be fitted on.

    The lowest bit of its id's SHA-256: the same on every machine, independent of the other rows.
    """
    return hashlib.sha256(identifier.encode()).digest()[-1] % 2 == 0


def decided_constants(row: Mapping[str, str]) -> bool:
    """Return True if a point was used to fit constants before the split, in either half.

    Closed loops of Qwen3-32B on two H100s with prompts of 1,024 tokens stand in an older table as
    well, from which ``experiments.calibrate`` takes ``sync_step`` and ``sync_request``.
    """
    return (
        row["model"].endswith("Qwen3-32B")
        and row["gpu"].startswith("h100")
        and row["version"].startswith("0.12")
        and (float(row["tp"]), float(row["isl"])) == (2, 1024)
    )
