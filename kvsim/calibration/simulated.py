"""Simulated latencies of measured runs, under given constants."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tomli_w

from kvsim.calibration.parameters import constants
from kvsim.catalog import get_gpu
from kvsim.config import RunConfig
from kvsim.fleet.simulate import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.calibration.bench import Measured

#: Compared figures, in this order for every run.
FIGURES = ("ttft", "tpot")


class Simulator:
    """Simulates measured runs under trial constants.

    Parameters
    ----------
    options : options of the server
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.config = RunConfig.build(**options)
        self.card = get_gpu(self.config.gpu).name

    def figures(self, runs: Sequence[Measured], values: Mapping[str, float]) -> list[list[float]]:
        """Return mean TTFT and mean TPOT of each run, seconds."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "constants.toml")
            own = constants(self.card, values)
            file.write_text(tomli_w.dumps({self.card: own}), encoding="utf-8")
            update: dict[str, Any] = {}
            if own:
                update["cost_model"] = f"{self.config.cost_model}+constants={file}"
            if "front_end_latency" in values:
                update["front_end_latency"] = values["front_end_latency"]
            config = self.config.model_copy(update=update)
            return [self._of(config, one) for one in runs]

    def _of(self, config: RunConfig, measured: Measured) -> list[float]:
        config = config.model_copy(update={"max_concurrency": measured.max_concurrency})
        found = []
        for trace in measured.traces:
            summary = run(config, trace).summary
            if not summary["completed"]:
                raise ValueError(f"{measured.name}: none of its requests fits the server's memory")
            found.append([(summary[f"mean_{name}_ms"] or np.nan) / 1e3 for name in FIGURES])
        return [float(np.mean(column)) for column in zip(*found, strict=True)]


class Targets(NamedTuple):
    """The recorded figures of measured runs, and their (run, figure) indices."""

    values: NDArray[np.float64]
    places: tuple[tuple[int, int], ...]

    @property
    def kinds(self) -> list[str]:
        return [FIGURES[figure] for _, figure in self.places]

    def errors(self, figures: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """Return the logarithms of simulated over measured values."""
        ours = np.array([figures[run][figure] for run, figure in self.places])
        return np.log(ours / self.values)


def targets_of(runs: Sequence[Measured]) -> Targets:
    """Return the recorded figures of runs."""
    told = [
        (place, figure, value)
        for place, one in enumerate(runs)
        for figure, value in enumerate((one.ttft, one.tpot))
        if value is not None and value > 0
    ]
    places = tuple((place, figure) for place, figure, _ in told)
    return Targets(np.array([value for _, _, value in told]), places)
