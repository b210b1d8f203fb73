"""Fit the roofline's constants per GPU to measured kernel times, and print the errors.

The fit minimises absolute logarithmic errors over the training half of each table; the other half
is for `experiments.validate_kernels`. Constants that kernels do not determine are fitted to serving
runs on H100s, and hold for every GPU: `elementwise` and `layer_launch` to the mean TTFT and TPOT of
a lightly loaded run and the TPOT of a densely loaded one, `sync_step` and `sync_request` to the E2E
times of 15 closed loops under synchronous scheduling. `step`, `request` and `mixed_decode` keep
their values in the file; so do constants without data: with the sample in tests/data,
`elementwise` and `layer_launch`.

Prints the table, and its differences from the table in the package. `--write` replaces the latter,
and needs the whole data.

`--tables` also fits other GPUs, GEMMs in fewer bits, experts and latent attention to the tables of
the package aiconfigurator-core, and then further constants to the fitted half of the measured
points of servers. Without it these constants keep their values.

    python -m experiments.calibrate [--data FOLDER] [--tables [FOLDER]] [--out DIR] [--write]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from experiments.validation.constants import cost_model, ordered
from experiments.validation.data import absent, command, opening
from experiments.validation.figures import fit_errors
from experiments.validation.fit import fit
from experiments.validation.kernels.measured import FILES, GPUS, KINDS, errors, measured
from experiments.validation.kernels.table_fit import calibrate_tables
from experiments.validation.kernels.tables import tables
from experiments.validation.points.fit import calibrate_points, decided_by_points
from experiments.validation.record import write
from experiments.validation.serving import (
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

LIGHT, DENSE = "serving/qwen3-14b_h100_vllm0.23", "serving/h100_vllm0.15"
LOOPS = "serving/measured_serving_points.csv"
SETS = (*FILES, LIGHT, DENSE, LOOPS)


def fit_on_runs(
    names: tuple[str, ...], targets: list[tuple[Run, str]], table: dict[str, Any]
) -> dict[str, float]:
    """Fit constants of the H100 to measured runs; ``table`` has the constants of kernels."""
    start = tuple(float(read_table()["h100"][name]) for name in names)

    def ratios(values: Any) -> Any:
        given = {n: float(v) for n, v in zip(names, values, strict=True)}
        return ratios_of(targets, table["h100"] | given)

    found = fit(ratios, start, np.ones(len(targets)), steps=10, nudge=0.03)
    return {name: float(f"{value:.3g}") for name, value in zip(names, found, strict=True)}


def ratios_of(targets: list[tuple[Run, str]], card: dict[str, Any]) -> list[float]:
    """Return the ratio of simulated to measured, by figure, with these constants of the H100."""
    with cost_model({"h100": card}) as model:
        found = [compare(run, simulate(run, cost_model=model))[what] for run, what in targets]
    return [1 + error / 100 for error in found]


def run_targets(data: Path) -> dict[tuple[str, ...], list[tuple[Run, str]]]:
    """Return the constants that are fitted to runs, with the figures of runs for each fit.

    Constants are left out if the folder lacks their runs.
    """
    targets: dict[tuple[str, ...], list[tuple[Run, str]]] = {}
    if not absent(data, (LIGHT, DENSE)):
        light = qwen(data / LIGHT)[0]
        (dense,) = (run for run in constant_rates(data / DENSE) if run.name in FITTED)
        of_runs = [(light, "TTFT"), (light, "TPOT"), (dense, "TPOT")]
        targets["elementwise", "layer_launch"] = of_runs
    if not absent(data, (LOOPS,)):
        loops = closed_loops(data / LOOPS)
        loops = [run for run in loops if run.name.startswith("qwen3-32b 2 x H100 1024+")]
        targets["sync_step", "sync_request"] = [(run, "E2E") for run in loops]
    return targets


def calibrate(data: Path, tables: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the table of constants, with new values for the fitted ones.

    With ``tables``, the kernel tables of aiconfigurator-core, the constants of other GPUs and
    formats are fitted, too, and then those fitted to points of servers; without, these keep their
    values.
    """
    table = calibrate_kernels(data)
    if tables is not None:
        table = calibrate_tables(tables, table)
    shared: dict[str, float] = {}
    for names, targets in run_targets(data).items():
        shared |= fit_on_runs(names, targets, table)
        table["h100"] |= shared
    decided = decided_by_points()
    for card, constants in table.items():
        own = decided.get(card, set())
        table[card] = ordered(constants | {n: v for n, v in shared.items() if n not in own})
    return table if tables is None else calibrate_points(data, table)


def calibrate_kernels(data: Path) -> dict[str, dict[str, Any]]:
    """Return the table of constants, with those of kernels fitted anew."""
    table = read_table()
    for gpu, name in GPUS.items():
        card = name.partition("-")[0]
        for kind, how in KINDS.items():
            rows = measured(data, kind, gpu)
            if rows.empty:
                table[card] |= scaled(table, card, how.constants)
                continue
            train, test = rows[~rows.test], rows[rows.test]
            spec, columns = get_gpu(name), train.to_records(index=False)  # much faster arithmetic

            def seconds(p: Any, how: Any = how, d: Any = columns, spec: Any = spec) -> Any:
                return how.seconds(p, d, spec)

            found = fit(seconds, how.start, train.seconds.to_numpy())
            few_digits = [float(f"{max(value, 1e-9):.3g}") for value in found]
            table[card] |= dict(zip(how.constants, few_digits, strict=True))
            median = [
                float(np.median(errors(kind, few_digits, part, gpu))) for part in (train, test)
            ]
            table[card]["errors"][kind] = (
                f"median {median[0]:.1f} % fitted on {len(train)} kernels, "
                f"{median[1]:.1f} % on {len(test)} others"
            )
    return table


def scaled(
    table: dict[str, dict[str, Any]], card: str, constants: tuple[str, ...]
) -> dict[str, float]:
    """Return constants of 8-bit KV for a GPU without data: 16-bit ones, scaled as on the H100."""
    names = {name: name.removesuffix("_8bit") for name in constants}
    h100, own = table["h100"], table[card]
    return {n: float(f"{own[wide] * h100[n] / h100[wide]:.3g}") for n, wide in names.items()}


def fits(data: Path, table: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the median absolute errors of a table's constants on both halves, percent."""
    rows = []
    for gpu, name in GPUS.items():
        for kind, how in KINDS.items():
            kernels = measured(data, kind, gpu)
            if kernels.empty:
                continue
            constants = [table[name.partition("-")[0]][constant] for constant in how.constants]
            halves = {"fitted": kernels[~kernels.test], "held_out": kernels[kernels.test]}
            row: dict[str, Any] = {"card": name, "kernels": kind}
            for half, part in halves.items():
                row[f"{half}_on"] = len(part)
                row[f"{half}_percent"] = float(np.median(errors(kind, constants, part, gpu)))
            rows.append(row)
    return rows


def differences(table: dict[str, dict[str, Any]]) -> list[str]:
    """Return the constants that differ from those in the package, as texts."""
    shipped = read_table()
    return [
        f"{card}.{name}: {value}, in the package {shipped.get(card, {}).get(name)}"
        for card, constants in table.items()
        for name, value in constants.items()
        if shipped.get(card, {}).get(name) != value
    ]


def main() -> None:
    """Print the table; with ``--write``, replace the one in the package."""
    parser = command("calibrate", __doc__)
    parser.add_argument(
        "--tables",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="also fit other GPUs and formats to the tables of aiconfigurator-core (its "
        "systems/data; default: where it is installed), then on measured points; half an hour",
    )
    parser.add_argument("--write", action="store_true", help=f"replace {TABLE.name}")
    options = parser.parse_args()
    lacking = absent(options.data, SETS)
    if any(name in lacking for name in FILES):
        parser.error(f"{options.data} lacks kernel tables; --data names the measurements")
    if options.write and lacking:
        parser.error(f"--write needs the whole data; absent: {', '.join(lacking)}")
    folder = None
    if options.tables is not None:
        folder = Path(options.tables) if options.tables else tables()
        if folder is None or not folder.is_dir():
            parser.error('no tables: pip install "aiconfigurator-core>=0.12", or --tables FOLDER')
    print(f"# {opening(options.data, SETS)}", flush=True)
    table = calibrate(options.data, folder)
    changed = differences(table)
    lines = TABLE.read_text(encoding="utf-8").splitlines(keepends=True)
    comment = "".join(line for line in lines if line.startswith("#"))
    text = f"{comment}\n{tomli_w.dumps(table)}"
    print(text)
    for difference in changed:
        print(f"# differs: {difference}")
    if not changed:
        print("# The same as in the package.")
    if options.out is not None:
        rows = fits(options.data, table)
        found = {"fits": rows, "differs_from_the_package": changed, "constants": table}
        pictures = {"calibrate": lambda figure: fit_errors(figure, rows)}
        write(options.out, "calibrate", found, pictures, data=options.data, sets=SETS)
    if options.write:
        scratch = TABLE.with_suffix(".tmp")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(TABLE)


if __name__ == "__main__":
    main()
