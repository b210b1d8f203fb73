"""Functions of the Python API that simulate many times, each behind a command of its name."""
