"""Measured points of servers, compared with simulations of the same servers and clients.

Each point is the mean TTFT and the mean TPOT of one run of InferenceX's benchmark: a closed loop of
clients, random prompts, and a server with the flags of that day's script. The simulation uses this
client and these flags, and no other fact of the point. Half of the points, chosen by a hash of
their ids, may be used to fit constants; bands are judged on the other half, and the script exits
with 1 if a band is missed. Errors are given by group of points: median and mean of the absolute
errors, and median of the signed errors. Throughput is per GPU, by Little's law as in the table.
With `--engine sglang` the points are those of SGLang's servers, under its scheduler; they have no
bands, and causes are printed of groups whose TPOT is more than 6 or TTFT more than 15 % off.

    python -m experiments.validate_points [--data FOLDER] [--out DIR] [--csv FILE]
        [--engine sglang] [--model NAME]... [--gpu NAME]... [--limit N] [--workers N]
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console

from experiments.validation.data import command, opening, require
from experiments.validation.points import rows as point_rows
from experiments.validation.points.causes import misses
from experiments.validation.points.errors import (
    by_concurrency,
    by_parallel,
    group_of,
    grouped,
    verdicts,
)
from experiments.validation.points.figures import by_clients, predicted
from experiments.validation.points.peer import ALL, PEER
from experiments.validation.points.run import MEASURES, Found, Pair, point_of, simulate
from experiments.validation.points.tables import errors_table, peer_table, verdicts_table
from experiments.validation.record import write
from kvsim.catalog import get_gpu, get_model

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from experiments.validation.points.errors import Key
    from experiments.validation.points.run import Point

SETS = (point_rows.FILE,)
HALVES = ("fitted", "held out", "all", "unmerged")


def points_of(table: pd.DataFrame) -> tuple[list[Point], dict[str, str]]:
    """Return the points of a table, and by id the reason of those that kvsim cannot simulate."""
    points, refused = [], {}
    for row in table.to_dict("records"):
        try:
            points.append(point_of(row))
        except ValueError as error:
            refused[row["id"]] = str(error)
    return points, refused


def chosen(
    points: Iterable[Point], models: Sequence[str], gpus: Sequence[str], limit: int | None
) -> list[Point]:
    """Return the points of the given models and GPUs, of each group at most the shortest N."""
    names = {get_model(name).name for name in models}
    cards = {get_gpu(name).name for name in gpus}
    groups: dict[Key, list[Point]] = {}
    for point in points:
        if (not names or point.model in names) and (not cards or point.card in cards):
            groups.setdefault(group_of(point), []).append(point)

    def tokens(point: Point) -> int:
        return point.concurrency * int(point.row["osl"])

    return [point for of in groups.values() for point in sorted(of, key=tokens)[:limit]]


def simulated(points: Sequence[Point], workers: int) -> list[Pair]:
    """Simulate points, in this process or in several processes."""
    if workers == 1:
        return [Pair(point, simulate(point)) for point in points]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        found: list[Found] = list(pool.map(simulate, points, chunksize=4))
    return [Pair(point, one) for point, one in zip(points, found, strict=True)]


def effort(pairs: Sequence[Pair]) -> str:
    """Return a line on the backends that ran, and their CPU time."""
    seconds = [pair.found.cpu_seconds for pair in pairs]
    backends = pd.Series([pair.found.backend or "refused" for pair in pairs]).value_counts()
    text = ", ".join(f"{count} {name}" for name, count in backends.items())
    slowest = max(pairs, key=lambda pair: pair.found.cpu_seconds)
    return (
        f"{len(pairs)} points ({text}) in {sum(seconds):.0f} CPU-seconds, {max(seconds):.1f} at "
        f"most ({slowest.point.identifier})"
    )


def flat(pair: Pair) -> dict[str, Any]:
    """Return a point as a row of a table: group, options, measured and simulated figures."""
    point, found = pair
    row: dict[str, Any] = {"id": point.identifier}
    row |= {name: getattr(point, name) for name in ("model", "weights", "card", "parallel")}
    row |= {name: point.row[name] for name in ("isl", "osl", "concurrency", "gpus", "version")}
    row["half"] = point.half
    row |= {f"option_{name}": value for name, value in point.options.items()}
    for name in MEASURES:
        row |= {f"{name}_measured": point.measured[name], f"{name}_simulated": found.ours.get(name)}
        row[f"{name}_error_percent"] = pair.errors.get(name)
    return row | {name: value for name, value in found._asdict().items() if name != "ours"}


def record(
    out: Path,
    data: Path,
    pairs: Sequence[Pair],
    left_out: dict[str, int],
    only: dict[str, Any],
    engine: str = "vllm",
) -> None:
    """Write all results as JSON, and the figures; only vLLM's points are compared to others."""
    name = "validate_points" if engine == "vllm" else f"validate_points_{engine}"
    peers = PEER if engine == "vllm" else {}

    def rows(half: str, key: Callable[[Point], Key]) -> list[dict[str, Any]]:
        return [
            {"points": " ".join(name), "half": half}
            | {of: v._asdict() if of != "number" else v for of, v in errors.items()}
            for name, errors in grouped(pairs, half, key)
        ]

    found = {
        "only": only,
        "left_out": left_out,
        "bands": judged(pairs, engine),
        "groups": [row for half in HALVES for row in rows(half, group_of)],
        "by_gpus": rows("all", by_parallel),
        "by_clients": rows("all", by_concurrency),
        "aiconfigurator": {" ".join(group): peer._asdict() for group, peer in peers.items()}
        | ({"all": ALL._asdict()} if peers else {}),
        "points": {
            pair.point.identifier: [pair.point.half, pair.found.backend or pair.found.refused]
            + [pair.errors.get(name) for name in MEASURES]
            for pair in pairs
        },
    }
    pictures = {
        name: lambda figure: predicted(figure, pairs),
        f"{name}_by_clients": lambda figure: by_clients(figure, pairs),
    }
    write(out, name, found, pictures, data=data, sets=SETS)


def judged(pairs: Sequence[Pair], engine: str) -> list[dict[str, Any]]:
    """Return the verdicts of groups with bands; only vLLM's points have any."""
    return verdicts(pairs) if engine == "vllm" else []


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = command("validate_points", __doc__)
    made.add_argument("--csv", type=Path, metavar="FILE", help="a row per point, with CPU seconds")
    made.add_argument("--engine", choices=point_rows.ENGINES, default="vllm", help="[vllm]")
    made.add_argument("--model", action="append", default=[], metavar="NAME", help="only these")
    made.add_argument("--gpu", action="append", default=[], metavar="NAME", help="only these")
    made.add_argument("--limit", type=int, metavar="N", help="the N shortest points of each group")
    made.add_argument("--workers", type=int, default=1, metavar="N", help="processes [1]")
    return made


def main() -> None:
    """Print the errors by group, GPUs and clients, those of the other simulator, and the bands."""
    command = parser()
    options = command.parse_args()
    require(command, options.data, SETS)
    print(opening(options.data, SETS))
    selection = point_rows.select(point_rows.read(options.data), options.engine)
    told = ", ".join(f"{count} {reason}" for reason, count in selection.left_out.items())
    print(f"{len(selection.rows)} points; left out: {told or 'none'}.")
    points, refused = points_of(selection.rows)
    if options.workers < 1:
        command.error(f"--workers is {options.workers}: must be at least 1")
    try:
        taken = chosen(points, options.model, options.gpu, options.limit)
    except ValueError as error:
        command.error(str(error))
    pairs = simulated(taken, options.workers)
    if not pairs:
        command.error("no such point")
    refused |= {pair.point.identifier: pair.found.refused for pair in pairs if pair.found.refused}
    for identifier, why in refused.items():
        print(f"REFUSED {identifier}: {why}")
    console = Console(width=126)
    console.print(errors_table("Simulated over measured", pairs, HALVES, group_of))
    console.print(errors_table("By GPUs, both halves", pairs, ("all",), by_parallel))
    console.print(errors_table("By clients, both halves", pairs, ("all",), by_concurrency))
    bands = judged(pairs, options.engine)
    if options.engine == "vllm":
        console.print(peer_table(pairs))
        console.print(verdicts_table(bands))
    else:
        print("\n".join(misses(pairs)))
    print(effort(pairs))
    if options.csv is not None:
        pd.DataFrame([flat(pair) for pair in pairs]).to_csv(options.csv, index=False)
    if options.out is not None:
        only = {name: value for name in ("model", "gpu", "limit") if (value := vars(options)[name])}
        record(options.out, options.data, pairs, selection.left_out, only, options.engine)
    if any(row.get("holds") is False for row in bands):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
