"""The answer of a calibration: constants, errors, a figure, and the file of constants for runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.calibration.answer import constants_file
from kvsim.config import RunConfig
from kvsim.display import Tabular, structured
from kvsim.files import write_whole, writing
from kvsim.report.calibration import sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, repr=False)
class Calibrated(Tabular):
    """Answer of a calibration.

    Attributes
    ----------
    answer : output of ``kvsim calibrate --json``, without its keys ``out``, ``use`` and ``line``
    values : the constants that the data determine, by name: factors, or seconds
    server : options of the server, as ``kvsim.simulate`` takes them
    """

    answer: dict[str, Any]
    values: dict[str, float]
    server: dict[str, Any]

    @property
    def table(self) -> NDArray[Any]:
        """One row per constant: default, value, 95 % interval; a reason if undetermined."""
        return structured(self.answer["constants"])

    @property
    def errors(self) -> NDArray[Any]:
        """One row per run and latency: simulated over measured, %, before and after the fit."""
        rows = []
        for kind in ("fitted", "held_out"):
            for run in self.answer[kind]:
                for name, before in run["before"].items():
                    row = {"run": run["name"], "is_held_out": kind == "held_out", "latency": name}
                    rows.append(row | {"before": before, "after": run["after"][name]})
        return structured(rows)

    def plot(self) -> Figure:
        """Return a figure: errors of each run before and after the fit.

        Raises
        ------
        ValueError
            Without benchmarks.
        """
        from kvsim.report.plots.calibration import calibration as draw

        return draw(self.answer)

    def save(self, file: str | Path) -> None:
        """Write the constants as TOML; :meth:`options` makes a run use the file.

        Raises
        ------
        ValueError
            If the file cannot be written.
        """
        text = constants_file(self.answer, self.values)
        with writing(file):
            write_whole(Path(file), lambda out: out.write(text.encode()))

    def options(self, file: str | Path) -> dict[str, Any]:
        """Return options that simulate the server with its constants.

        Call ``kvsim.simulate(trace, **found.options(file))`` after ``found.save(file)``.
        """
        memory, default = self.answer["memory"], RunConfig.model_fields
        options = {
            name: value for name, value in self.server.items() if value != default[name].default
        }
        if self.values:
            options["cost_model"] = f"roofline+constants={file}"
        if "front_end_latency" in self.values:
            options["front_end_latency"] = self.values["front_end_latency"]
        if memory is not None:  # the number of blocks follows from it, even with other options
            options.pop("num_gpu_blocks_override", None)
            options["logged"] = memory["logged"]
        return options

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON types."""
        return self.answer

    def _shown(self) -> str:
        return sheet(self.answer)
