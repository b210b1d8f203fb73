"""The command line: one file per group of commands."""

import sys

try:
    from kvsim.cli.main import main
except KeyboardInterrupt:
    sys.stderr.write("kvsim: interrupted; no file is incomplete\n")
    sys.exit(130)

__all__ = ["main"]
