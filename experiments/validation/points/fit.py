"""Constants that no kernel table shows, fitted on one half of the measured points of servers.

What a server does between its kernels, and kernels that its version does not share with the tables.
Each stage takes the points of one kind that `points_run.half_of` calls fitted, and the constants
that those decide; it starts from the kernels' values, or from those given here, and is held near
them: a constant that the points do not decide stays where it was.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.validation.constants import cost_model, value_of, with_values
from experiments.validation.fit import fit
from experiments.validation.points import rows as point_rows
from experiments.validation.points import run as points_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from experiments.validation.constants import Card
    from experiments.validation.points.run import Point

#: Weight of a TTFT error relative to a TPOT error, which is smaller; errors beyond a factor of two
#: count as one: they are of waits in full servers.
TTFT_WEIGHT, MOST = 0.3, 0.7
#: Regularization: the error that a constant one spread away from its start counts as.
HOLD = 0.03
#: Spreads of constants around their start, as logarithms.
SPREADS = {"weights": 0.04, "gemm": 0.3, "launch": 0.4, "power": 0.4, "quantization": 1.0}
#: Dense GEMMs are nearer to their tables than experts.
DENSE = {"gemms.fp8.gemm": 0.1, "gemms.nvfp4.gemm": 0.1}
OTHERS = 0.6
STEPS, NUDGE = 4, 0.05


class Stage(NamedTuple):
    """Points of some models, the constants they decide, and the cards that take them.

    The points are those of the last card.
    """

    cards: tuple[str, ...]
    models: tuple[str, ...]
    constants: tuple[str, ...]
    starts: Mapping[str, float] = {}


STAGES = (
    Stage(
        ("h200", "h100"),
        ("llama-3.1-70b",),
        (
            *("layer_launch_quantized", "uncaptured_layer"),
            *("gemms.fp8.weights", "gemms.fp8.gemm", "gemms.fp8.quantization"),
        ),
        {"layer_launch_quantized": 8e-6, "uncaptured_layer": 3e-4},
    ),
    Stage(
        ("h200", "h100"),
        ("gpt-oss-120b",),
        ("experts.mxfp4.launch", "experts.mxfp4.weights", "experts.mxfp4.gemm"),
        {"experts.mxfp4.launch": 3.3e-5, "experts.mxfp4.gemm": 0.25},
    ),
    Stage(
        ("h100", "h200"),
        ("minimax-m2.5",),
        ("experts.fp8-block.launch", "experts.fp8-block.gemm", "uncaptured_experts"),
        {"uncaptured_experts": 9e-4},
    ),
    Stage(
        ("b200",),
        ("llama-3.1-70b",),
        (
            *("layer_launch", "layer_launch_quantized", "sync_request", "uncaptured_layer"),
            *("gemms.fp8.weights", "gemms.fp8.gemm", "gemms.nvfp4.weights", "gemms.nvfp4.gemm"),
        ),
        {
            **{"layer_launch": 1e-5, "layer_launch_quantized": 5e-6, "sync_request": 1e-5},
            "uncaptured_layer": 7e-4,
        },
    ),
    Stage(
        ("b200",),
        ("gpt-oss-120b",),
        ("request", *(f"experts.mxfp4.{n}" for n in ("launch", "weights", "gemm", "power"))),
        {"request": 1.9e-5},
    ),
    Stage(
        ("b200",),
        ("minimax-m2.5",),
        (
            *("experts.fp8-block.launch", "experts.fp8-block.gemm"),
            *("experts.nvfp4.launch", "experts.nvfp4.gemm", "uncaptured_experts"),
        ),
        {"uncaptured_experts": 1e-4},
    ),
    Stage(("b200",), ("kimi-k2.5",), ("experts.int4.launch", "experts.int4.gemm")),
    Stage(
        ("b200",),
        ("minimax-m2.5", "kimi-k2.5"),
        ("experts.nvfp4.uncaptured",),
        {"experts.nvfp4.uncaptured": 5e-4},
    ),
)

#: Points of more clients take minutes, and are no different.
MOST_CLIENTS = 128


def decided_by_points() -> dict[str, set[str]]:
    """Return which constants of a card measured points decide."""
    found: dict[str, set[str]] = {}
    for stage in STAGES:
        for card in stage.cards:
            found.setdefault(card, set()).update(stage.constants)
    return found


def fitted_points(data: Path) -> list[Point]:
    """Return the points that constants may rest on, those of few seconds."""
    rows = point_rows.select(point_rows.read(data)).rows.to_dict("records")
    points = [points_run.point_of(row) for row in rows]
    return [
        point
        for point in points
        if point.half == "fitted"
        and point.options["data_parallel_size"] == 1
        and point.options["max_concurrency"] <= MOST_CLIENTS
    ]


def calibrate_points(data: Path, table: dict[str, Card]) -> dict[str, Card]:
    """Return a table of constants with those replaced that measured servers decide."""
    points = fitted_points(data)
    for stage in STAGES:
        own = [p for p in points if p.model in stage.models and p.card.startswith(stage.cards[-1])]
        found = fit_stage(stage, own, table)
        table = table | {card: with_values(table[card], found) for card in stage.cards}
        missed = 100 * np.median(np.expm1(np.abs(residuals(own, table)[:, 1])))
        names = " and ".join(stage.models)
        print(f"# {names} on {stage.cards[-1]}: {found}", file=sys.stderr, flush=True)
        said = f"median {missed:.1f} % of TPOT fitted on {len(own)} points of servers"
        for card in stage.cards:
            table[card] = table[card] | {
                "errors": table[card].get("errors", {}) | {f"{names} served": said}
            }
    return table


def fit_stage(stage: Stage, points: Sequence[Point], table: dict[str, Card]) -> dict[str, float]:
    card = stage.cards[-1]
    begin = with_values(table[card], stage.starts)
    start = tuple(value_of(begin, name) for name in stage.constants)
    spreads = np.array([spread_of(name) for name in stage.constants])

    def ratios(values: Any) -> Any:
        given = dict(zip(stage.constants, map(float, values), strict=True))
        errors = residuals(points, table | {card: with_values(begin, given)})
        errors[:, 0] = TTFT_WEIGHT * np.clip(errors[:, 0], -MOST, MOST)
        away = HOLD * np.log(np.asarray(values) / np.array(start)) / spreads
        return np.exp(np.concatenate([errors.ravel(), away]))

    target = np.ones(2 * len(points) + len(start))
    found = fit(ratios, start, target, steps=STEPS, nudge=NUDGE)
    return dict(zip(stage.constants, map(float, found), strict=True))


def spread_of(name: str) -> float:
    """Return how far a constant may well be from its start, as a logarithm."""
    return DENSE.get(name) or SPREADS.get(name.rpartition(".")[2], OTHERS)


def residuals(points: Sequence[Point], table: dict[str, Card]) -> Any:
    """Logarithms of simulated by measured TTFT and TPOT under constants, shape (points, 2)."""
    rows = []
    with cost_model(table) as model:
        for point in points:
            ours = points_run.simulate(point, cost_model=model).ours
            rows.append([np.log(ours[n] / point.measured[n]) for n in ("TTFT", "TPOT")])
    return np.array(rows)
