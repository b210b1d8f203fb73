"""Limits of a step: its arithmetic intensity, and the bounds that apply to it."""
