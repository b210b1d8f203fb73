"""Indices of the prefixes that replicas hold, and the events that fill them."""
