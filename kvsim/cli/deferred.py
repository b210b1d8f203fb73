"""The commands by name; each is imported when it is used, so that ``kvsim --help`` is fast."""

from __future__ import annotations

import gc
from importlib import import_module

import click

#: Module of each command in this folder, and the first sentence of its help.
COMMANDS = {
    "calibrate": ("calibrate", "Fit step times and memory to the logs of your server."),
    "capacity": ("budgets", "Compute the memory budget and the requests that fit."),
    "cliffs": ("cliffs", "Find option values between which the hit rate or the TTFT jumps."),
    "compare": ("runs", "Serve one trace under several allocators or engines."),
    "hits": ("hits", "Compute hit rates over the size of a prefix cache."),
    "replay-case": ("replays", "Replay recorded schedules under both backends, or one."),
    "replay-live": ("replays", "Serve a record of kvsim serve again, and compare both runs."),
    "report": ("report", "Make one HTML page of a finished run, comparison or sweep."),
    "roofline": (
        "budgets",
        "Compute whether memory or arithmetic limits prefill and decode on a GPU.",
    ),
    "run": ("runs", "Serve a trace under one configuration."),
    "search": (
        "search",
        "Find the highest request rate, or the best deployment, within latency targets.",
    ),
    "serve": ("serve", "Serve a model over vLLM's HTTP protocol, without a GPU."),
    "sweep": ("sweep", "Run every combination of option values."),
    "trace": ("traces", "Inspect, convert and generate traces."),
    "train-memory": (
        "budgets",
        "Compute the memory of training, and the changes that would make it fit.",
    ),
}
#: Commands that accept a pasted server command.
PASTED = ("run", "compare", "sweep", "search", "calibrate", "capacity", "roofline", "serve")


class Deferred(click.Command):
    """A command that is not imported yet, with the first sentence of its help.

    Parameters
    ----------
    name : name of the command
    module : its module in this folder
    line : first sentence of its help
    """

    def __init__(self, name: str, module: str, line: str) -> None:
        super().__init__(name, help=line)
        self.module = module

    def imported(self) -> click.Command:
        """Import the command's module and return the command."""
        gc.disable()  # imports leave little garbage, and the search takes time
        try:
            module = import_module(f"kvsim.cli.{self.module}")
        finally:
            gc.enable()
        command: click.Command = getattr(module, str(self.name).replace("-", "_"))
        return command
