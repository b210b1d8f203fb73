"""Experiments, one per file: ``python -m experiments.NAME [--quick]`` prints and draws one."""
