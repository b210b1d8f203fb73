"""The lines that ``kvsim search`` prints; the last one is a command line for ``vllm serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.report.text import costs
from kvsim.results.cost import RULE

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Maximum number of configurations in a table; the JSON has all.
MOST_ROWS = 12


def sheet(answer: Mapping[str, Any]) -> str:
    """Return the lines that ``kvsim search`` prints.

    ``answer`` is the result of :func:`kvsim.study.search_report.answer_of`.
    """
    lines = [f"SLO        {answer['slo']}"]
    if not answer["request_rate"]:
        lines.append(f"best       none: {answer['reason']}")
        return "\n".join([*lines, *_tried(answer), *_ignored_modules(answer)])
    lines.append(f"best       {_carries(answer)}{_with(answer['options'])}")
    lines += _cost(answer)
    found = answer["interval"]
    seeds = found["replications"]
    high = "any rate" if found["high"] is None else f"{found['high']:.3g}"
    from_seeds = f"{seeds} seeds" if seeds > 1 else "the bracket of one run"
    lines.append(f"interval   {found['low']:.3g} to {high} requests/s ({from_seeds})")
    nearest = answer["nearest"]
    if nearest["margin_percent"] is not None:
        lines.append(f"margin     {nearest['margin_percent']:.1f} % left to {nearest['target']}")
    second = answer["runner_up"]
    if second is not None:
        lead = f", {answer['lead']:.1f} % behind" if answer["lead"] is not None else ""
        lines.append(f"runner-up  {_carries(second)}{_with(second['options'])}{lead}")
    lines.append(f"bottleneck {answer['binding'] or 'nothing'}: {answer['evidence']}")
    lines.append(f"changes    {answer['change']}")
    lines += _front(answer) if answer["objective"] == "pareto" else _tried(answer)
    lines += _ignored_modules(answer)
    return "\n".join([*lines, "", answer["command"]])


def _carries(entry: Mapping[str, Any]) -> str:
    gpus = entry["num_gpus"]
    return f"{entry['request_rate']:.3g} requests/s on {gpus} GPU{'s' if gpus != 1 else ''}"


def _with(options: Mapping[str, str]) -> str:
    told = ", ".join(f"{name.replace('_', '-')}={value}" for name, value in options.items())
    return f" with {told}" if told else ""


def _cost(answer: Mapping[str, Any]) -> list[str]:
    if "cost_per_hour" not in answer:
        return []
    hourly, each = answer["cost_per_hour"], answer["cost_per_1000_requests"]
    asked = answer["asked_rate"]
    at = f" at {asked:g} requests/s" if answer["objective"] == "cost" and asked else ""
    lines = [f"cost       {each:.4g} per 1,000 requests{at}, {hourly:.4g} per hour"]
    return [
        *lines,
        f"dollars    at {answer['request_rate']:.3g} requests/s {costs(answer)} ({RULE})",
    ]


def _tried(answer: Mapping[str, Any]) -> list[str]:
    """Return the searched configurations, the best first, with reasons for rejections."""
    rows = [one for one in answer["evaluated"] if "request_rate" in one]
    if len(answer["evaluated"]) < 2 or not rows:
        return []
    priced = any("cost_per_hour" in one for one in rows)
    lines = [f"tried      requests/s  GPUs  {'cost/1,000  ' if priced else ''}with"]
    order = sorted(rows, key=lambda one: ("reason" in one, one.get("cost_per_1000_requests", 0.0),
                                          -one["request_rate"]))  # fmt: skip
    for one in order[:MOST_ROWS]:
        cost = one.get("cost_per_1000_requests")
        told = f"{'-' if cost is None else f'{cost:.4g}':>10}  " if priced else ""
        why = f": {one['reason']}" if "reason" in one else ""
        options = _with(one["options"]).removeprefix(" with ") or "as given"
        lines.append(
            f"           {one['request_rate']:10.3g}  {one['num_gpus']:4d}  {told}{options}{why}"
        )
    return lines


def _front(answer: Mapping[str, Any]) -> list[str]:
    """Return the runs that no other run dominates, in descending order of tokens/s per user."""
    rows = [
        (run["output_tokens_per_second_per_user"], run["output_tokens_per_second_per_gpu"], one)
        for one in answer["evaluated"]
        for run in one.get("runs", ())
        if run.get("dominated") is False
    ]
    lines = ["front      tokens/s/user  tokens/s/GPU"]
    for user, gpu, one in sorted(rows, key=lambda row: -row[0])[:MOST_ROWS]:
        lines.append(f"           {user:13.1f}  {gpu:12.1f} {_with(one['options'])}")
    return lines


def _ignored_modules(answer: Mapping[str, Any]) -> list[str]:
    """List the reasons why configurations could not run, each once."""
    reasons: dict[str, int] = {}
    for one in answer["evaluated"]:
        if "reason" in one and "request_rate" not in one:
            reasons[one["reason"]] = reasons.get(one["reason"], 0) + 1
    shown = list(reasons.items())[:MOST_ROWS]
    total = len(answer["evaluated"])
    return [f"omitted    {number} of {total}: {reason}" for reason, number in shown]
