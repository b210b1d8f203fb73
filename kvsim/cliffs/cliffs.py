"""Cliffs of a deployment: where a small change of one option loses hits or delays first tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.cliffs.finder import Found, Jump, Point, find_jumps
from kvsim.cliffs.missing import missing_blocks
from kvsim.config import RunConfig
from kvsim.errors import unknown_name
from kvsim.fleet.simulate import run
from kvsim.results.notes import add_notes, merged, notes_of
from kvsim.results.tables import FinishReason
from kvsim.study.space import SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.api.requests import Source
    from kvsim.results.result import Result
    from kvsim.trace import Trace

#: Seeds on which a jump of generated requests is checked, and its least size in standard errors.
SEEDS, ERRORS = 3, 3.0
#: Pool of the run that shows if more memory removes a jump, as a multiple of the measured pool.
LARGER_POOL = 4
#: Largest difference in hit rate between a run without the jump and the better side.
HEALED = 0.02
#: Options that may keep the blocks of windows and states in the cache, in the order in which they
#: are tried.
KEEPING = (("prefix_cache_retention_interval", 4096), ("prefix_cache_retention_interval", 0))
#: Option whose parameters may vary, too, as ``workload.prefix``.
WORKLOAD = "workload"


class Range(NamedTuple):
    """The parts of ``OPTION=LO:HI[:STEP]``; ``step`` is None for real numbers."""

    option: str
    low: float
    high: float
    step: float | None

    def text(self, value: float) -> str:
        return f"{value:.10g}" if self.step is None else f"{round(value)}"

    def options(self, value: float, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given options with the varied one set to a value."""
        name, dot, parameter = self.option.partition(".")
        if not dot:
            return {**given, name: self.text(value)}
        parts = str(given[WORKLOAD]).split("+")
        kept = [part for part in parts if part.partition("=")[0] != parameter]
        return {**given, WORKLOAD: "+".join([*kept, f"{parameter}={self.text(value)}"])}


def read_range(text: str, given: Mapping[str, Any]) -> Range:
    """Read ``OPTION=LO:HI[:STEP]``.

    Raises
    ------
    ValueError
        If the text is malformed, or the option is unknown or also given directly.
    """
    key, equals, values = text.partition("=")
    parts = values.split(":")
    if not equals or len(parts) not in (2, 3):
        raise ValueError(f"--vary {text}: must be OPTION=LO:HI or OPTION=LO:HI:STEP")
    option = _option(key, given)
    try:
        low, high, *steps = map(float, parts)
    except ValueError:
        raise ValueError(f"--vary {text}: LO, HI and STEP must be numbers") from None
    is_whole = all(part.strip().lstrip("-").isdigit() for part in parts)
    step = steps[0] if steps else 1.0 if is_whole else None
    if not -np.inf < low < high < np.inf or (step is not None and not 0 < step < np.inf):
        raise ValueError(f"--vary {text}: LO must be less than HI, and STEP more than 0")
    return Range(option, low, high, step)


def _option(key: str, given: Mapping[str, Any]) -> str:
    """Read the name of the option, or of the workload's parameter, that varies."""
    option = key.strip().lstrip("-").replace("-", "_")
    name, dot, parameter = option.partition(".")
    if dot and name != WORKLOAD:
        raise ValueError(f"--vary {key}: must be an option, or workload.PARAMETER")
    if dot and WORKLOAD not in given:
        raise ValueError(f"--vary {key}: needs --workload")
    if name not in RunConfig.model_fields:
        raise unknown_name("option", name, set(RunConfig.model_fields) - SHARED)
    if not dot and name in given:
        raise ValueError(f"--{name.replace('_', '-')}: conflicts with --vary: give one of them")
    return f"{WORKLOAD}.{parameter.replace('_', '-')}" if dot else name


class _Served:
    """Runs at values of the varied option; keeps the result and trace of each."""

    def __init__(self, vary: Range, given: Mapping[str, Any], requests: Source) -> None:
        self.vary, self._given, self._requests = vary, given, requests
        self.results: dict[float, Result] = {}
        self.traces: dict[float, Trace] = {}
        self.notes: list[list[str]] = []

    def at(self, value: float) -> Point:
        result = self.run({}, value)
        self.results[value] = result
        return _point(value, result)

    def run(self, more: Mapping[str, Any], value: float) -> Result:
        """Serve the requests at a value, with further options."""
        try:
            config = RunConfig.build(**{**self.vary.options(value, self._given), **more})
            trace, said = self._requests(config)
            result = run(config, trace)
        except ValueError as error:
            option = self.vary.option.replace("_", "-")
            raise ValueError(f"--vary {option}: at {self.vary.text(value)}: {error}") from None
        add_notes(result.provenance, said)
        self.notes.append(notes_of(result.provenance))
        self.traces[value] = trace
        return result


def find_cliffs(
    vary: str,
    given: Mapping[str, Any],
    requests: Source,
    *,
    most: int = 60,
    on_progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Find the values of an option between which hits or first tokens jump.

    Parameters
    ----------
    vary : ``OPTION=LO:HI[:STEP]``
    given : the other options, as of :class:`kvsim.config.RunConfig`
    requests : returns the requests of a configuration, with notes
    most : largest number of runs of the search; each jump takes up to eight more, four with other
        seeds and four to explain it

    Returns
    -------
    The object that ``kvsim cliffs --json`` writes: ``cliffs``, ``slopes``, ``points`` and more.

    Raises
    ------
    ValueError
        For a wrong range, or a value at which the deployment cannot run.
    """
    asked = read_range(vary, given)
    served = _Served(asked, given, requests)

    def measure(value: float) -> Point:
        point = served.at(value)
        if on_progress is not None:
            on_progress(len(served.results))
        return point

    found = find_jumps(measure, asked.low, asked.high, step=asked.step, most=most)
    cliffs, noise = [], 0
    for jump in found.jumps:
        if _is_noise(served, jump):
            noise += 1
        else:
            cliffs.append(_described(served, jump))
    return {
        "option": asked.option,
        "cliffs": cliffs,
        "slopes": [_ends(asked, one) for one in found.slopes],
        "points": [one._asdict() for one in found.points],
        "num_runs": len(served.notes),
        "notes": [*merged(served.notes), *_said(found, noise, most)],
    }


def _said(found: Found, noise: int, most: int) -> list[str]:
    notes = []
    if noise:
        notes.append(
            f"{noise} jump(s) omitted: smaller than {ERRORS:.0f} standard errors over {SEEDS} seeds"
        )
    if any(not one.is_narrow for one in found.jumps):
        notes.append(f"the search ended after {most} runs: some intervals are wider than the step")
    return notes


def _point(value: float, result: Result) -> Point:
    summary = result.summary
    hits = float(summary["prefix_cache_hit_rate"] or 0.0)
    times = [summary[f"{name}_ttft_ms"] for name in ("median", "p90")]
    p50, p90 = (0.0 if one is None else float(one) / 1000 for one in times)
    return Point(value, hits, p50, p90)


def _is_noise(served: _Served, jump: Jump) -> bool:
    """Return True if the results differ between seeds so much that the jump may be chance."""
    first = served.results[jump.below.value].config
    if getattr(first, "trace", None) is not None:
        return False
    sides = []
    for side in (jump.below, jump.above):
        seeds = [first.seed + k for k in range(1, SEEDS)]
        others = [_point(side.value, served.run({"seed": s}, side.value)) for s in seeds]
        sides.append(np.array([one[1:] for one in (side, *others)]))
    errors = np.hypot(*(side.std(axis=0, ddof=1) / np.sqrt(SEEDS) for side in sides))
    gaps = np.abs(sides[1].mean(axis=0) - sides[0].mean(axis=0))
    return bool((gaps <= ERRORS * errors).all())


def _ends(vary: Range, jump: Jump) -> dict[str, Any]:
    return {
        "option": vary.option,
        "below": float(vary.text(jump.below.value)),
        "above": float(vary.text(jump.above.value)),
        "hits": [jump.below.hits, jump.above.hits],
        "ttft": {
            "p50": [jump.below.p50_ttft, jump.above.p50_ttft],
            "p90": [jump.below.p90_ttft, jump.above.p90_ttft],
        },
    }


def _described(served: _Served, jump: Jump) -> dict[str, Any]:
    """Return the ends of a jump, its mechanism, and an option that removes it, if any."""
    answer = {**_ends(served.vary, jump), "is_narrow": jump.is_narrow}
    worse, better = sorted((jump.below, jump.above), key=lambda one: one.hits)
    if better.hits - worse.hits < 0.01:
        return {**answer, "mechanism": _of_time(served, jump), "group": None, "heals": None}
    return {**answer, **_of_hits(served, worse, better)}


def _of_time(served: _Served, jump: Jump) -> str:
    """Return the mechanism that delays first tokens at nearly equal hits."""
    sides = [served.results[one.value].summary for one in (jump.below, jump.above)]
    if sides[0]["num_rejected"] != sides[1]["num_rejected"]:
        return "refused admission"
    if sides[0]["num_preemptions"] != sides[1]["num_preemptions"]:
        return "preemption"
    return "queue"


def _of_hits(served: _Served, worse: Point, better: Point) -> dict[str, Any]:
    rows, good = served.results[worse.value].requests, served.results[better.value].requests
    result: dict[str, Any] = {"mechanism": "unknown", "group": None, "heals": None}
    ended = rows["finish_reason"] == int(FinishReason.REJECTED)
    if ended.sum() > (good["finish_reason"] == int(FinishReason.REJECTED)).sum():
        return {**result, "mechanism": "refused admission"}
    config = served.results[worse.value].config
    num_bytes = served.results[worse.value].summary["kv_cache"]["bytes"]
    pool = {"kv_cache_memory_bytes": num_bytes * LARGER_POOL}
    if config.num_gpu_blocks_override:
        pool = {"num_gpu_blocks_override": config.num_gpu_blocks_override * LARGER_POOL}
    larger = _point(worse.value, served.run(pool, worse.value))
    if larger.hits < better.hits - HEALED:
        return {**result, "mechanism": "below a block"}
    lost = np.flatnonzero(rows["num_cached_tokens"] < good["num_cached_tokens"])
    first = int(lost[np.argmin(rows["first_scheduled_time"][lost])])
    time, hit = float(rows["first_scheduled_time"][first]), int(good["num_cached_tokens"][first])
    missing = missing_blocks(config, served.traces[worse.value], first, time, hit)
    if missing:
        cut = missing[-1] if len(missing) > 1 else missing[0]
        result |= {"group": cut.kind, "request": first, "missing": [m._asdict() for m in missing]}
    result["mechanism"] = _mechanism(result["group"], missing[0].block if missing else 0)
    if result["mechanism"] in ("window", "state"):
        result["heals"] = _healing(served, worse, better)
    return result


def _mechanism(kind: str | None, block: int) -> str:
    if kind == "sliding window":
        return "window"
    if kind == "state":
        return "state"
    return "head" if block == 0 else "whole path"


def _healing(served: _Served, worse: Point, better: Point) -> dict[str, Any] | None:
    """Return the first option that brings the hits back, with the hits of its run."""
    for name, value in KEEPING:
        if served.vary.option == name:
            continue
        hits = _point(worse.value, served.run({name: value}, worse.value)).hits
        if hits >= better.hits - HEALED:
            return {"option": name, "value": value, "hits": hits}
    return None
