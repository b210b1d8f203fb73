"""The command line: one file per group of commands."""

from kvsim.cli.main import main

__all__ = ["main"]
