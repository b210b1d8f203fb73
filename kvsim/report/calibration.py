"""Result of a calibration, as lines for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def sheet(answer: Mapping[str, Any]) -> str:
    """Return the lines that ``kvsim calibrate`` prints.

    ``answer`` is the result of :func:`kvsim.calibration.answer.answer_of`.
    """
    server = answer["server"]
    engine = " ".join(filter(None, (answer["engine"], answer["version"])))
    lines = [
        f"server     {engine or 'as given'}: {server['model']} on "
        f"{server.get('tensor_parallel_size', 1)} x {server['gpu']}"
    ]
    lines += _memory(answer["memory"])
    if answer["constants"]:
        lines.append("constants  before      after       95 %")
    lines += [_constant(one) for one in answer["constants"]]
    lines += _errors(answer)
    lines += [f"unmodelled {text}" for text in answer["unmodelled"]]
    return "\n".join(lines)


def _memory(memory: Mapping[str, Any] | None) -> list[str]:
    if memory is None:
        return []
    return [
        f"overhead   {memory['overhead_gib']:.2f} GiB in addition to weights and KV "
        f"({memory['low']:.2f} to {memory['high']:.2f}); estimated "
        f"{memory['estimated_gib']:.2f}"
    ]


def _constant(one: Mapping[str, Any]) -> str:
    start = f"  {one['name']:<18}{one['default']:<8.3g}"
    if one["reason"]:
        return f"{start}  not determined: {one['reason']}"
    return f"{start}  {one['value']:<10.3g}  {one['low']:.3g} to {one['high']:.3g}  {one['what']}"


def _errors(answer: Mapping[str, Any]) -> list[str]:
    lines = []
    for title, key in (("fitted", "fitted"), ("held out", "held_out")):
        for run in answer[key]:
            told = ", ".join(
                f"{kind.upper()} {run['before'][kind]:+.1f} % -> {run['after'][kind]:+.1f} %"
                for kind in run["before"]
            )
            lines.append(f"{title:<11}{run['name']}: {told}")
    means = answer["error_percent"]
    if means and means["held_out_after"] is not None:
        lines.append(
            f"held out   {means['held_out_before']:.1f} % off on average before, "
            f"{means['held_out_after']:.1f} % after"
        )
    return lines
