"""Eviction policies of the literature, in addition to those of :mod:`kvsim.kv.eviction`."""

from kvsim.kv.policies import arc, gdsf, hpt, slru

__all__ = ["arc", "gdsf", "hpt", "slru"]
