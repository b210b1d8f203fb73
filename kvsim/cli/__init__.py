"""The command line: one file per group of commands."""

import gc
import sys

try:
    gc.disable()  # imports leave little garbage; looking for it would take a tenth of their time
    from kvsim.cli.main import main
except KeyboardInterrupt:
    sys.stderr.write("kvsim: interrupted; no file is incomplete\n")
    sys.exit(130)
finally:
    gc.enable()

__all__ = ["main"]
