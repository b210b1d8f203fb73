"""Measured and published figures against simulated ones, a folder per study."""
