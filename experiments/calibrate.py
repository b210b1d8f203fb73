"""Fit the roofline's constants per card on measured kernel times, and write them with their errors.

The fit minimises absolute logarithmic errors over the training half of each table; the other half
is for `experiments.validate_kernels`. What no kernel shows comes from serving runs on H100s and
holds for every card: `elementwise` and `layer_launch` from the mean TTFT and TPOT of a lightly
loaded run and the TPOT of a densely loaded one, `sync_step` and `sync_request` from the whole times
of 15 closed loops under synchronous scheduling. `step`, `request` and `mixed_decode` are kept as
they stand in the file.

    python -m experiments.calibrate [--data ../shared/data] [--write]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from experiments._kernels import GPUS, KINDS, errors, measured
from experiments._serving import (
    FITTED,
    Run,
    closed_loops,
    compare,
    constant_rates,
    qwen,
    simulate,
)
from kvsim.catalog import get_gpu
from kvsim.cost.efficiency import TABLE, read_table


def fit(
    seconds: Any, start: tuple[float, ...], target: Any, *, steps: int = 80, nudge: float = 1e-4
) -> Any:
    """Minimise the sum of absolute log errors: Levenberg-Marquardt on reweighted squares.

    ``nudge`` is the relative change that shows a slope; a simulation needs more than a formula.
    """

    def residuals(x: Any) -> Any:
        return np.log(np.asarray(seconds(np.exp(x))) / target)

    x, damping = np.log(np.array(start)), 1e-2
    r = residuals(x)
    for _ in range(steps):
        shifted = [residuals(x + nudge * unit) for unit in np.eye(len(x))]
        slope = (np.stack(shifted, axis=1) - r[:, None]) / nudge
        weight = 1 / np.maximum(np.abs(r), 0.02)
        square = slope.T @ (slope * weight[:, None])
        step = np.linalg.solve(
            square + damping * np.diag(np.diag(square) + 1e-9), -slope.T @ (r * weight)
        )
        new = residuals(x + step)
        if np.abs(new).sum() < np.abs(r).sum():
            x, r, damping = x + step, new, damping / 2
        else:
            damping *= 4
    return np.exp(x)


def fit_on_runs(
    names: tuple[str, ...], targets: list[tuple[Run, str]], table: dict[str, Any]
) -> dict[str, float]:
    """Fit constants of the H100 on figures of simulated runs, those of kernels as in ``table``."""
    start = tuple(float(read_table()["h100"][name]) for name in names)

    def ratios(values: Any) -> Any:
        given = {n: float(v) for n, v in zip(names, values, strict=True)}
        return ratios_of(targets, table["h100"] | given)

    found = fit(ratios, start, np.ones(len(targets)), steps=10, nudge=0.03)
    return {name: float(f"{value:.3g}") for name, value in zip(names, found, strict=True)}


def ratios_of(targets: list[tuple[Run, str]], card: dict[str, Any]) -> list[float]:
    """Return simulated by measured figures of runs under the constants of an H100."""
    with tempfile.NamedTemporaryFile("wb", suffix=".toml") as file:
        tomli_w.dump({"h100": card}, file)
        file.flush()
        model = f"roofline+constants={file.name}"
        found = [compare(run, simulate(run, cost_model=model))[what] for run, what in targets]
    return [1 + error / 100 for error in found]


def run_targets(serving: Path) -> dict[tuple[str, ...], list[tuple[Run, str]]]:
    """Return the constants that no kernel shows, with the figures of runs they are fitted on."""
    light = qwen(serving / "qwen3-14b_h100_vllm0.23")[0]
    (dense,) = (run for run in constant_rates(serving / "h100_vllm0.15") if run.name in FITTED)
    loops = closed_loops(serving / "measured_serving_points.csv")
    loops = [run for run in loops if run.name.startswith("qwen3-32b 2 x H100 1024+")]
    return {
        ("elementwise", "layer_launch"): [(light, "TTFT"), (light, "TPOT"), (dense, "TPOT")],
        ("sync_step", "sync_request"): [(run, "E2E") for run in loops],
    }


def calibrate(data: Path) -> dict[str, dict[str, Any]]:
    """Return the table of constants with the fitted ones replaced."""
    table = calibrate_kernels(data)
    shared: dict[str, float] = {}
    for names, targets in run_targets(data / "serving").items():
        shared |= fit_on_runs(names, targets, table)
        table["h100"] |= shared
    return {card: constants | shared for card, constants in table.items()}


def calibrate_kernels(data: Path) -> dict[str, dict[str, Any]]:
    """Do so for those that kernels show."""
    table = read_table()
    for gpu, name in GPUS.items():
        card = name.partition("-")[0]
        for kind, how in KINDS.items():
            rows = measured(data, kind, gpu)
            if rows.empty:
                table[card] |= scaled(table, card, how.constants)
                continue
            train, test = rows[~rows.test], rows[rows.test]
            spec = get_gpu(name)

            def seconds(p: Any, how: Any = how, train: Any = train, spec: Any = spec) -> Any:
                return how.seconds(p, train, spec)

            found = fit(seconds, how.start, train.seconds.to_numpy())
            rounded = [float(f"{max(value, 1e-9):.3g}") for value in found]
            table[card] |= dict(zip(how.constants, rounded, strict=True))
            median = [float(np.median(errors(kind, rounded, part, gpu))) for part in (train, test)]
            table[card]["errors"][kind] = (
                f"median {median[0]:.1f} % fitted on {len(train)} kernels, "
                f"{median[1]:.1f} % on {len(test)} others"
            )
    return table


def scaled(
    table: dict[str, dict[str, Any]], card: str, constants: tuple[str, ...]
) -> dict[str, float]:
    """Return constants of 8-bit KV, not measured on a card, in the H100's proportion to 16-bit."""
    names = {name: name.removesuffix("_8bit") for name in constants}
    h100, own = table["h100"], table[card]
    return {n: float(f"{own[wide] * h100[n] / h100[wide]:.3g}") for n, wide in names.items()}


def main() -> None:
    """Print the table, or put it in its place."""
    parser = argparse.ArgumentParser(prog="python -m experiments.calibrate")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--write", action="store_true", help=f"replace {TABLE.name}")
    options = parser.parse_args()
    if not (options.data / "kernels").is_dir():
        parser.error(f"{options.data}/kernels: no such folder; --data names the measured tables")
    lines = TABLE.read_text(encoding="utf-8").splitlines(keepends=True)
    comment = "".join(line for line in lines if line.startswith("#"))
    text = f"{comment}\n{tomli_w.dumps(calibrate(options.data))}"
    if not options.write:
        print(text)
        return
    scratch = TABLE.with_suffix(".tmp")
    scratch.write_text(text)
    scratch.replace(TABLE)


if __name__ == "__main__":
    main()
