"""Admission to a fleet: flow control and validation."""
