"""Speed of kvsim: requests and steps per CPU-second, and peak memory, line by line.

Every measurement is a separate process, and counts the CPU time after the rules are loaded. The
set-up counts, too, but is small in a run of a second. Figures are medians of five runs; ``--quick``
runs once. No time is a failure, since machines differ. ``--against`` measures this checkout and
another one (a folder), or another environment (its python), alternately on the same machine, and
prints the ratio of each pair.

    python -m experiments.speed [--quick] [--only NAME] [--against PATH] [--csv FILE] [--long]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from experiments import _speed_lines
from experiments._speed_lines import Line, lines
from kvsim.kv.eviction import EVICTION_POLICIES

HERE = Path(__file__).resolve().parents[1]
#: Both sides serve the smaller of their numbers of requests, unless these differ by this factor.
ALIKE = 4


class Side(NamedTuple):
    """An interpreter, and the checkout from which it imports kvsim; None: its installed kvsim."""

    python: str
    checkout: Path | None

    def measure(self, line: Line) -> dict[str, Any]:
        """Measure a line in a child process; ``error`` is the reason of a failure."""
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        if self.checkout is not None:
            environment["PYTHONPATH"] = str(self.checkout)
        done = subprocess.run(
            [self.python, "-P", _speed_lines.__file__, json.dumps(line)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return {"error": (done.stderr.strip() or "killed").splitlines()[-1]}
        found: dict[str, Any] = json.loads(done.stdout)
        if self.checkout is not None and not Path(found["package"]).is_relative_to(self.checkout):
            raise SystemExit(f"speed: {self.checkout} holds no kvsim; {found['package']} ran")
        return found


def other_side(given: str) -> Side:
    """Return the side of ``--against``: a folder that contains kvsim, or a python."""
    path = Path(given).absolute()  # not resolved: an environment's python is a link
    if (path / "kvsim").is_dir():
        return Side(sys.executable, path.resolve())
    if path.is_file():
        return Side(str(path), None)
    raise SystemExit(f"speed: --against {given}: neither a checkout nor a python")


def measured(line: Line, sides: list[Side], repeat: int) -> list[list[dict[str, Any]]]:
    """Return the measurements of each side, taken alternately; a side that fails has its error."""
    found: list[list[dict[str, Any]]] = [[] for _ in sides]
    wanted = [line.num_requests] * len(sides)
    if line.num_requests is None:
        pilots = [side.measure(line) for side in sides]
        wanted = [pilot.get("requests") for pilot in pilots]
        numbers = [n for n in wanted if n]
        if numbers and max(numbers) <= ALIKE * min(numbers):
            wanted = [min(numbers)] * len(sides)
        found = [[pilot] if "error" in pilot else [] for pilot in pilots]
    for _ in range(repeat):
        for side, number, repetitions in zip(sides, wanted, found, strict=True):
            if not any("error" in one for one in repetitions):
                repetitions.append(side.measure(line._replace(num_requests=number)))
    return [[one for one in of if "error" in one] or of for of in found]


def row_of(line: Line, found: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians of a line, and the ratio to the other side."""
    row: dict[str, Any] = {"line": line.name}
    rates: list[list[float]] = []
    for repetitions, suffix in zip(found, ("", "_against"), strict=False):
        if "error" in repetitions[0]:
            row["error" + suffix] = repetitions[0]["error"]
            continue
        rates.append([one["requests"] / one["seconds"] for one in repetitions])
        seconds = statistics.median(one["seconds"] for one in repetitions)
        row["requests" + suffix] = repetitions[0]["requests"]
        row["cpu_seconds" + suffix] = round(seconds, 4)
        row["requests_per_s" + suffix] = round(statistics.median(rates[-1]))
        row["steps_per_s" + suffix] = round(repetitions[0]["steps"] / seconds)
        row["peak_gb" + suffix] = round(max(one["peak_gb"] for one in repetitions), 3)
        row["backend" + suffix] = repetitions[0]["backend"]
    if len(rates) == 2:
        ratios = [ours / theirs for ours, theirs in zip(*rates, strict=True)]
        row |= {"ratio": round(statistics.median(ratios), 3)}
        row |= {"ratio_low": round(min(ratios), 3), "ratio_high": round(max(ratios), 3)}
    return row


def shown(row: dict[str, Any], *, paired: bool) -> list[str]:
    """Return the printed cells of a row."""

    def text(name: str, form: str = ",") -> str:
        return format(row[name], form) if name in row else ""

    cells = [
        *(row["line"], text("requests"), text("cpu_seconds", ".2f"), text("requests_per_s")),
        *(text("steps_per_s"), text("peak_gb", ".2f"), row.get("backend", row.get("error", ""))),
    ]
    if paired:
        cells.append(text("requests_per_s_against") or row.get("error_against", ""))
        spread = f"{text('ratio_low', '.2f')} to {text('ratio_high', '.2f')}"
        cells += [text("ratio", ".2f"), spread if "ratio" in row else ""]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repetition")
    parser.add_argument("--repeat", type=int, default=5, help="runs per line; the median counts")
    parser.add_argument("--only", default="", metavar="NAME", help="lines whose name has this")
    parser.add_argument("--long", action="store_true", help="also the line of minutes")
    parser.add_argument("--backend", default="auto", help="auto, python or compiled")
    parser.add_argument("--against", metavar="PATH", help="another checkout, or its python")
    parser.add_argument("--csv", metavar="FILE", help="write the rows")
    given = parser.parse_args()
    if given.repeat < 1:
        parser.error("--repeat must be at least 1")
    repeat = 1 if given.quick else given.repeat
    sides = [Side(sys.executable, HERE)] + ([other_side(given.against)] if given.against else [])
    chosen = [
        line._replace(options=line.options | {"backend": given.backend})
        for line in lines(EVICTION_POLICIES.names())
        if given.only.lower() in line.name.lower()
        and (given.long or not line.is_long or line.name.startswith(given.only or "-"))
    ]
    if not chosen:
        parser.error(f"--only {given.only}: no line has it in its name")
    headings = ["line", "requests", "CPU s", "requests/s", "steps/s", "peak GB", "backend"]
    headings += ["other requests/s", "ratio", "pairs"] if given.against else []
    table, rows = Table(*headings), []
    console = Console(width=130)
    with console.status("measuring") as status:
        for line in chosen:
            status.update(line.name)
            rows.append(row_of(line, measured(line, sides, repeat)))
            table.add_row(*shown(rows[-1], paired=bool(given.against)))
    console.print(table)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    console.print(
        f"load average {load:.1f}; python {sys.version.split()[0]}; runs per line {repeat}"
    )
    if given.csv:
        names = list(dict.fromkeys(name for row in rows for name in row))
        with Path(given.csv).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
