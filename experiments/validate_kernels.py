"""Measured kernels beside the roofline's formulas, on the half that no constant was fitted on.

Bands: the median absolute error of GEMMs within 6 %, of decode attention within 8 %, of prefill
attention within 10 %.

    python -m experiments.validate_kernels [--data ../shared/data]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments._kernels import GPUS, KINDS, errors, measured
from kvsim.cost.efficiency import efficiency_of

BANDS = {"GEMM": 6.0, "decode attention": 8.0, "prefill attention": 10.0}


def main() -> None:
    """Print one table; exits 1 if a band is missed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.validate_kernels")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    if not (options.data / "kernels").is_dir():
        parser.error(f"{options.data}/kernels: no such folder; --data names the measured tables")
    table = Table(title="Absolute errors of held-out kernels, %", title_justify="left")
    for column in ("card", "kernels", "held out", "median", "mean", "p90", "band", ""):
        table.add_column(column, justify="left" if column in ("card", "kernels") else "right")
    held = True
    for gpu, name in GPUS.items():
        rate = efficiency_of(name)
        for kind, band in BANDS.items():
            rows = measured(options.data, kind, gpu)
            test = rows[rows.test]
            found = errors(kind, [getattr(rate, c) for c in KINDS[kind].constants], test, gpu)
            median = float(np.median(found))
            held &= median <= band
            figures = (median, found.mean(), np.quantile(found, 0.9))
            verdict = "holds" if median <= band else "MISSED"
            table.add_row(
                name, kind, str(len(test)), *(f"{x:.1f}" for x in figures), f"{band:.0f}", verdict
            )
    Console(width=100).print(table)
    raise SystemExit(0 if held else 1)


if __name__ == "__main__":
    main()
