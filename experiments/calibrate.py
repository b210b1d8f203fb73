"""Fit the roofline's constants per card on measured kernel times, and write them with their errors.

The fit minimises absolute logarithmic errors over the training half of each table; the other half
is for `experiments.validate_kernels`. Constants that no kernel shows (host work, launches per
layer, links, mixed steps) are kept as they stand in the file.

    python -m experiments.calibrate [--data ../shared/data] [--write]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from experiments._kernels import GPUS, KINDS, errors, measured
from kvsim.catalog import get_gpu
from kvsim.cost.efficiency import TABLE, read_table


def fit(seconds: Any, start: tuple[float, ...], target: Any, steps: int = 80) -> Any:
    """Minimise the sum of absolute log errors: Levenberg-Marquardt on reweighted squares."""

    def residuals(x: Any) -> Any:
        return np.log(np.asarray(seconds(np.exp(x))) / target)

    x, damping = np.log(np.array(start)), 1e-2
    r = residuals(x)
    for _ in range(steps):
        shifted = [residuals(x + 1e-4 * unit) for unit in np.eye(len(x))]
        slope = (np.stack(shifted, axis=1) - r[:, None]) / 1e-4
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


def calibrate(data: Path) -> dict[str, dict[str, Any]]:
    """Return the table of constants with the fitted ones replaced."""
    table = read_table()
    for gpu, name in GPUS.items():
        card = name.partition("-")[0]
        for kind, how in KINDS.items():
            rows = measured(data, kind, gpu)
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
