"""Traces: readers of public formats, synthetic generators, sessions, and a writer.

>>> import workloads
>>> trace = workloads.sharegpt(num_requests=2000, request_rate=8, seed=0)
>>> trace = workloads.generate("fixed+prompt=512", num_requests=10, request_rate=1.0, seed=0)

``load`` reads the trace files of Azure, BurstGPT, Mooncake, ShareGPT, Vidur and others, recognized
by their columns, and kvsim's own, which ``save`` writes.
"""

from __future__ import annotations

from kvsim.trace.files import write_trace as save
from workloads.agentic import agentic
from workloads.generators import (
    alpaca,
    azure_code,
    azure_conv,
    empirical,
    fixed,
    random,
    sharegpt,
    uniform,
)
from workloads.images import random_mm
from workloads.prefixes import shared_prefix
from workloads.readers import Loaded, formats, load, read
from workloads.registry import WORKLOADS, generate
from workloads.sessions import multi_turn

__all__ = [
    "WORKLOADS",
    "Loaded",
    "agentic",
    "alpaca",
    "azure_code",
    "azure_conv",
    "empirical",
    "fixed",
    "formats",
    "generate",
    "load",
    "multi_turn",
    "random",
    "random_mm",
    "read",
    "save",
    "shared_prefix",
    "sharegpt",
    "uniform",
]
