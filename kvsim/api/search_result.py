"""The answer of a search: attributes, tables, a figure and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.display import Tabular, in_seconds, structured
from kvsim.files import whole_folder, write_json, writing
from kvsim.report.search import sheet
from kvsim.results.flat import squared
from kvsim.results.result import make_directory
from kvsim.study.table import save_csv

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Row = dict[str, Any]

#: Keys of a configuration that are not columns of the table.
NESTED = ("options", "runs")
#: Files of :meth:`Search.save`.
FILES = ("search.json", "table.csv", "runs.csv")


@dataclass(frozen=True, eq=False, repr=False)
class Search(Tabular):
    """Answer of a search.

    Attributes
    ----------
    answer : output of ``kvsim search --json``
    """

    answer: dict[str, Any]

    @property
    def request_rate(self) -> float:
        """The highest rate that meets the targets (requests/s); 0 if no rate does."""
        return float(self.answer["request_rate"])

    @property
    def num_gpus(self) -> int:
        """The GPUs of the best configuration."""
        return int(self.answer["num_gpus"])

    @property
    def options(self) -> dict[str, Any]:
        """The varied options of the best configuration, for ``kvsim.simulate``."""
        return {name: _value(text) for name, text in (self.answer["options"] or {}).items()}

    @property
    def binding(self) -> str | None:
        """The resource that limits the best configuration; None if nothing does."""
        found: str | None = self.answer["binding"]
        return found

    @property
    def command(self) -> str | None:
        """The best configuration as a ``vllm serve`` line; None if there is none."""
        found: str | None = self.answer["command"]
        return found

    @property
    def table(self) -> NDArray[Any]:
        """One row per configuration: options, requests/s, GPUs, cost, reason of a rejection."""
        return structured(self._configurations())

    @property
    def runs(self) -> NDArray[Any]:
        """One row per run: options, rate, seed, whether it met the targets, values in seconds."""
        return structured([in_seconds(row) for row in self._runs()])

    def plot(self) -> Figure:
        """Return a figure: requests/s by configuration, or the Pareto front."""
        from kvsim.report.plots.search import search as draw

        return draw(self.answer)

    def save(self, directory: str | Path) -> None:
        """Write ``search.json``, ``table.csv`` and ``runs.csv``, all of them or nothing.

        Raises
        ------
        ValueError
            If the directory cannot be written.
        """
        folder = make_directory(directory)
        with writing(directory), whole_folder(folder, FILES) as new:
            write_json(new / "search.json", self.answer)
            save_csv(self._configurations(), new / "table.csv")
            if runs := self._runs():
                save_csv(runs, new / "runs.csv")

    def to_dict(self) -> dict[str, Any]:
        """Return what ``kvsim search --json`` prints."""
        return self.answer

    def _configurations(self) -> list[Row]:
        rows = []
        for one in self.answer["evaluated"]:
            own = {name: value for name, value in one.items() if name not in NESTED}
            rows.append(_options(one) | own)
        return squared(rows, last=("reason",))

    def _runs(self) -> list[Row]:
        rows = []
        for one in self.answer["evaluated"]:
            for run in one.get("runs", ()):
                missed = "; ".join(run["missed"])
                own = {name: value for name, value in run.items() if name != "values"}
                rows.append(_options(one) | own | {"missed": missed} | run["values"])
        return squared(rows)

    def _shown(self) -> str:
        return sheet(self.answer)


def _options(one: Mapping[str, Any]) -> Row:
    return {name: _value(text) for name, text in one["options"].items()}


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
