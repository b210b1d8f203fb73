"""Measured kernels compared with the roofline's formulas, on the half held out from the fit.

Bands: the median absolute error of GEMMs within 6 %, of decode attention and all-reduces within
8 %, of prefill attention within 10 %; exits with 1 if a band is missed. The sample in tests/data
contains the whole tables.

    python -m experiments.validate_kernels [--data FOLDER] [--out DIR]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console

from experiments.validation.data import absent, command, opening
from experiments.validation.figures import kernel_errors_by_size, kernels_against_measured
from experiments.validation.kernels.measured import FILES, GPUS, KINDS, measured
from experiments.validation.record import headed, write
from kvsim.catalog import get_gpu
from kvsim.cost.efficiency import efficiency_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

BANDS = {
    "GEMM": 6.0,
    "decode attention": 8.0,
    "prefill attention": 10.0,
    "decode attention, FP8 KV": 8.0,
    "prefill attention, FP8 KV": 10.0,
    "all-reduce": 8.0,
}


class Held(NamedTuple):
    """Held-out kernels of one kind on one GPU; times in seconds."""

    card: str
    kind: str
    table: Any
    ours: Any

    @property
    def errors(self) -> Any:
        """Return the absolute errors, percent."""
        return 100 * np.abs(self.ours / self.table.seconds.to_numpy() - 1)


def held_out(data: Path) -> list[Held]:
    """Predict the held-out kernels; kinds that were not measured on a GPU are absent."""
    found = []
    for gpu, card in GPUS.items():
        rate = efficiency_of(card)
        for kind in BANDS:
            rows = measured(data, kind, gpu)
            if rows.empty:
                continue
            table = rows[rows.test]
            constants = [getattr(rate, name) for name in KINDS[kind].constants]
            ours = np.asarray(KINDS[kind].seconds(constants, table, get_gpu(card)))
            found.append(Held(card, kind, table, ours))
    return found


def judged(held: Held) -> dict[str, Any]:
    """Return the error of a kind of kernels, its band, and the verdict."""
    median, band = float(np.median(held.errors)), BANDS[held.kind]
    return {
        "card": held.card,
        "kernels": held.kind,
        "held_out": len(held.table),
        "median_percent": float(median),
        "mean_percent": float(held.errors.mean()),
        "p90_percent": float(np.quantile(held.errors, 0.9)),
        "band_percent": band,
        "holds": median <= band,
    }


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Lay out the judged rows."""
    columns = ("held out", "median", "mean", "p90", "band", "")
    table = headed("Absolute errors of held-out kernels, %", ("card", "kernels"), columns)
    for row in rows:
        figures = (row[f"{name}_percent"] for name in ("median", "mean", "p90"))
        verdict = "holds" if row["holds"] else "MISSED"
        table.add_row(
            *(row["card"], row["kernels"], str(row["held_out"])),
            *(f"{x:.1f}" for x in figures),
            *(f"{row['band_percent']:.0f}", verdict),
        )
    return table


def main() -> None:
    """Print one table; exits 1 if a band is missed."""
    parser = command("validate_kernels", __doc__)
    options = parser.parse_args()
    lacking = absent(options.data, FILES)
    if lacking:
        parser.error(f"{options.data}: no {', '.join(lacking)}; --data names the measurements")
    print(opening(options.data, FILES))
    found = held_out(options.data)
    rows = [judged(held) for held in found]
    Console(width=100).print(table_of(rows))
    if options.out is not None:
        pictures = {
            "validate_kernels": lambda figure: kernels_against_measured(figure, found),
            "validate_kernels_by_size": lambda figure: kernel_errors_by_size(figure, found),
        }
        write(
            options.out,
            "validate_kernels",
            {"kernels": rows},
            pictures,
            data=options.data,
            sets=FILES,
        )
    raise SystemExit(0 if all(row["holds"] for row in rows) else 1)


if __name__ == "__main__":
    main()
