"""Files of a run for other programs: metrics and a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kvsim.cli.answers import check_single
from kvsim.engine.given import recording

if TYPE_CHECKING:
    from kvsim.config import RunConfig
    from kvsim.results.result import Result

METRICS = click.option(
    "--metrics", "metrics_file", metavar="FILE", help="file for OpenMetrics text, with vLLM's names"
)
TIMELINE = click.option(
    "--timeline",
    "timeline_file",
    metavar="FILE.json.gz",
    help="file for trace events, for ui.perfetto.dev and chrome://tracing",
)
WINDOW = click.option("--window", metavar="FROM:TO", help="seconds that the timeline shows [all]")
REQUESTS_DRAWN = click.option(
    "--requests", type=click.IntRange(1), help="maximum number of requests in the timeline [10000]"
)


class Exports(NamedTuple):
    """The requested files, and the part of a run that the timeline shows."""

    metrics: str | None
    timeline: str | None
    window: str | None
    num_requests: int | None

    def check(self, replications: int) -> None:
        """Refuse files that cannot be written, before anything runs."""
        from kvsim.report.timeline import Window

        for option, file in (("--metrics", self.metrics), ("--timeline", self.timeline)):
            if file is not None:
                check_single(option, file, replications)
        if self.timeline is None:
            for option, value in (("--window", self.window), ("--requests", self.num_requests)):
                if value is not None:
                    raise ValueError(f"{option}: needs --timeline FILE.json.gz")
        elif not self.timeline.endswith(".json.gz"):
            raise ValueError(f"--timeline {self.timeline}: must end with .json.gz")
        Window.of(self.window, self.num_requests)

    def records(self, config: RunConfig) -> RunConfig:
        """Return the configuration, set to record the tables that the requested files need."""
        if self.metrics is None and self.timeline is None:
            return config
        return recording(config, "record_steps", "record_block_events")

    def write(self, result: Result) -> list[str]:
        """Write the files, and return notes on how to open them."""
        said = []
        if self.metrics is not None:
            from kvsim.report.metrics import write_metrics

            write_metrics(result, Path(self.metrics))
            said.append(f"{self.metrics} holds the metrics, times as seconds of the simulation")
        if self.timeline is not None:
            from kvsim.report.timeline import Window, write_timeline

            window = Window.of(self.window, self.num_requests)
            write_timeline(result, Path(self.timeline), window)
            said.append(f"{self.timeline} opens in ui.perfetto.dev and chrome://tracing")
            duration = result.summary["duration"]
            if window.start >= duration:
                said.append(
                    f"--window {self.window}: contains nothing, as the run takes {duration:.6g} s"
                )
        return said
