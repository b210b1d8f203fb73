"""Replay a case and find the first step that differs from the record."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from kvsim.cases.case import Case
from kvsim.cases.events import without_tokens
from kvsim.cases.part import RecordedCase
from kvsim.cases.play import parts_of as vllm_parts
from kvsim.cases.play import play
from kvsim.cases.recorded import read_case
from kvsim.engine.refusal import refusal
from kvsim.engines.registry import get_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvsim.cases.player import Entry

#: Columns of vLLM's log that a step omits if they are empty, in the order of comparison.
EVENTS = (
    *("abt", "sch", "sd", "new", "res", "pre", "nb", "enc", "encf", "cow", "ld", "lj", "sj", "fl"),
    *("acc", "jc", "rcv", "bad", "bad_req", "snt", "fin", "h", "df", "ev"),
)
#: Columns that every step has, if the allocator has them, in the order of comparison.
STATES = (
    *("s", "reset", "ks", "ecf", "free", "r", "w", "free2", "fql", "fq", "nh", "hc", "ecf2"),
    *("ecb2", "bt", "addr", "cpu", "co"),
)
#: Meanings of the columns in cases that users record.
MEANINGS = {
    "sch": "scheduled, in order: [request, tokens]",
    "new": "admitted: [request, tokens hit, blocks by group]",
    "res": "admitted again after a preemption: [request, tokens hit, blocks by group]",
    "pre": "preempted requests",
    "nb": "new blocks of running requests",
    "cow": "blocks in which a hit ends: [source, copy]",
    "fin": "finished requests",
    "free": "free blocks",
    "free2": "free blocks after the step",
    "r": "running requests",
    "w": "waiting requests",
    "fq": "checksum of the free queue",
    "fql": "the free queue",
    "nh": "number of blocks with a key",
    "hc": "checksum of the blocks' keys",
    "bt": "checksum of all block tables",
    "addr": "allocations: [request, start, size]",
}
#: Longest value that is shown whole.
MOST_SHOWN = 160


@dataclass(frozen=True)
class Difference:
    """First difference between a replay and the record.

    ``step`` is the step's number ``s``, ``field`` the log's field with the indices inside it, such
    as ``new[0][2][0][3]``, ``meaning`` the field's meaning, or empty.
    """

    step: int
    field: str
    expected: Any
    got: Any
    meaning: str = ""

    def __str__(self) -> str:
        field = f"{self.field} ({self.meaning})" if self.meaning else self.field
        return (
            f"step {self.step}: {field}: expected {_shown(self.expected)}, got {_shown(self.got)}"
        )


def replay(
    case: str | Path | RecordedCase, *, check_invariants: bool = False, backend: str = "python"
) -> Difference | None:
    """Replay a recorded schedule.

    Parameters
    ----------
    case : file, or a case that was read or recorded
    check_invariants : recount all memory after every step
    backend : ``python`` or ``compiled``

    Returns
    -------
    Difference or None
        The first difference; None if every logged field of every step is identical. Fields that
        the record does not have are not compared.

    Raises
    ------
    ValueError
        If the file cannot be read or is not a case, or the compiled engine cannot run it.

    Examples
    --------
    >>> import kvsim, workloads
    >>> trace = workloads.fixed(prompt=100, output=10, num_requests=8, request_rate=float("inf"))
    >>> case = kvsim.record(trace, model="llama-3-8b", gpu="l4", max_model_len=512)
    >>> print(kvsim.replay(case))
    None
    """
    if not isinstance(case, RecordedCase):
        case = read_case(case)
    recorded = set().union(*case.steps)
    events = [field for field in EVENTS if field in recorded]
    played = play_case(case, check=check_invariants, compiled=backend == "compiled")
    for expected, got in zip_longest(case.steps, played):
        if expected is None:
            if isinstance(case, Case) and case.totals.get("stalled"):
                return None  # the record stops where the real engine made no more progress
            return Difference(got["s"], "steps", "the end", "one more step")
        if got is None:
            return Difference(expected["s"], "steps", "this step", "the end")
        of_vllm = isinstance(case, Case)
        difference = _compare(expected, got, events) if of_vllm else _compare_all(expected, got)
        if difference is not None:
            return difference
    return None


def play_case(
    case: RecordedCase, *, check: bool = False, compiled: bool = False
) -> Iterator[Entry]:
    """Yield the log entry of every step of a case, of any engine."""
    if isinstance(case, Case):
        return play(case.config, case.workload, check=check, compiled=compiled)
    return get_engine(case.engine).play(case, check=check, compiled=compiled)


def refuses(case: RecordedCase) -> str:
    """Return the reason why the compiled engine cannot play a case; empty if it can."""
    if isinstance(case, Case):
        return refusal(vllm_parts(case.config)) or ""
    return refusal(get_engine(case.engine).parts_of(case)) or ""


def _compare_all(expected: Entry, got: Entry) -> Difference | None:
    for name in expected | got:
        a, b = expected.get(name), got.get(name)
        if a != b:
            return Difference(expected["s"], *_narrow(name, a, b))
    return None


def _compare(expected: Entry, got: Entry, events: list[str]) -> Difference | None:
    pairs = [(name, expected.get(name), got.get(name)) for name in STATES if name in expected]
    # A missing event has not happened.
    pairs[1:1] = [(name, _event(expected, name), _event(got, name)) for name in events]
    for name, a, b in pairs:
        if a != b and not (a is None and b == [0, 0, 0]):  # no request was scheduled, in a summary
            return Difference(expected["s"], *_narrow(name, a, b), MEANINGS.get(name, ""))
    return None


def _event(entry: Entry, name: str) -> Any:
    value = entry.get(name) or None
    return without_tokens(value) if name == "ev" and value else value


def _narrow(field: str, expected: Any, got: Any) -> tuple[str, Any, Any]:
    """Follow equal-shaped lists and tables down to the first part that differs."""
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        index = next(i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b)
        return _narrow(f"{field}[{index}]", expected[index], got[index])
    if isinstance(expected, dict) and isinstance(got, dict) and expected.keys() == got.keys():
        key = next(key for key in expected if expected[key] != got[key])
        return _narrow(f"{field}[{key}]", expected[key], got[key])
    return field, expected, got


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
