"""Results of several allocators or engines on one trace: rows, JSON, files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kvsim.display import Tabular, in_seconds, structured
from kvsim.files import whole_folder, write_json, writing
from kvsim.results.flat import flat, squared
from kvsim.results.result import make_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from kvsim.results.result import Result


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabular):
    """Results by allocator or by engine, in the requested order.

    Attributes
    ----------
    workload : facts of the trace: number of requests, mean lengths, rate, digest
    results : the run of each name
    by : kind of the names, "allocator" or "engine"
    """

    shown_by: ClassVar[str] = "kvsim.report.terminal.comparison_table"
    plotted_by: ClassVar[str] = "kvsim.report.plot.waste"

    workload: dict[str, Any]
    results: Mapping[str, Result]
    by: Literal["allocator", "engine"] = "allocator"

    def __getitem__(self, name: str) -> Result:
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One summary per name, with the name; in a comparison of engines also the allocator."""
        return [
            {self.by: name, "allocator": result.config.allocator, **result.summary}
            if self.by != "allocator"
            else {"allocator": name, **result.summary}
            for name, result in self.results.items()
        ]

    @property
    def table(self) -> NDArray[Any]:
        """One row per name as a structured array: the numbers of its summary, times in seconds."""
        return structured(squared([in_seconds(flat(row)) for row in self.rows]))

    def to_dict(self) -> dict[str, Any]:
        """Return what ``kvsim compare --json`` writes."""
        return {"workload": self.workload, "rows": self.rows}

    def save(self, directory: str | Path) -> None:
        """Write ``comparison.json`` and one run directory per name, all of it or nothing.

        Raises
        ------
        ValueError
            If the directory cannot be written.
        """
        folder = make_directory(directory)
        with writing(directory), whole_folder(folder) as new:
            for name, result in self.results.items():
                result.save(new / directory_name(name))
            write_json(new / "comparison.json", self.to_dict())


def directory_name(allocator: str) -> str:
    """Return an allocator's name as a directory name: ``my.module:Pool`` has a colon."""
    return "".join(c if c.isalnum() or c in "+-=._" else "_" for c in allocator)
