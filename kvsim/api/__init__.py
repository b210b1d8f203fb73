"""Functions of the Python API that simulate many times, each with a command of the same name."""
