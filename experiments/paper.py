"""All tables and figures of the PagedAttention paper, compared with kvsim, and one table of all.

Exits with 1 if a stated band is missed; each experiment's docstring explains its missed bands.

    python -m experiments.paper [--quick] [--out DIR]
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments._setting import save, show

NAMES = ["table1", "fig02", "fig12", "fig13", "fig14", "fig15", "fig16", "fig17", "fig18", "fig19"]


def main() -> None:
    """Run all experiments of the paper one after another."""
    parser = argparse.ArgumentParser(prog="python -m experiments.paper", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer requests, under a minute")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write CSV and pictures there")
    options = parser.parse_args()
    summary = Table(title="The paper, reproduced", title_justify="left")
    for column in ("", "bands", "hold", "missed"):
        summary.add_column(column, justify="left" if column in ("", "missed") else "right")
    missed = 0
    for name in NAMES:
        figure = importlib.import_module(f"experiments.{name}").measure(options.quick)
        show(figure)
        if options.out is not None:
            save(figure, name, options.out)
        scored = [check for check in figure.checks if check.holds is not None]
        out_of_band = [check.name for check in scored if not check.holds]
        missed += len(out_of_band)
        held = len(scored) - len(out_of_band)
        summary.add_row(figure.title, str(len(scored)), str(held), "; ".join(out_of_band))
    Console(width=110).print(summary)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
