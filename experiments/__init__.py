"""One question, one grid, one figure per file: ``python -m experiments.NAME [--quick]``."""
