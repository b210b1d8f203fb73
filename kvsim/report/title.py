"""What a table or figure shows: model, GPU and requests, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.catalog import get_gpu
from kvsim.report.text import gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.results.result import Result


def deployment(result: Result) -> str:
    """Name model, GPU and KV memory in a line."""
    config, cache = result.config, result.summary["kv_cache"]
    model = config.model if isinstance(config.model, str) else config.model.name
    gpu = get_gpu(config.gpu).name
    gpus = config.tensor_parallel_size * config.pipeline_parallel_size
    several = f"{gpus} x " if gpus > 1 else ""
    replicas = len(result.summary.get("replicas", (None,)))
    times = f", {replicas} replicas" if replicas > 1 else ""
    if result.summary.get("scaling"):  # one after the other, too
        times = f", up to {result.summary['scaling']['peak_replicas']} replicas"
    whose = " of those that decode" if result.summary.get("pools") else ""
    return f"{model} on {several}{gpu}{times}, {gib(cache['bytes'])} of KV memory per GPU{whose}"


def workload(facts: Mapping[str, Any]) -> str:
    """Describe a workload in a line."""
    rate = facts["request_rate"]
    pace = "all at once" if rate is None else f"at {rate:.3g} requests/s"
    several = facts.get("replications", 1)
    of = f"means of {several} replications, each of " if several > 1 else ""
    return (
        f"{of}{facts['num_requests']:,.0f} requests {pace}, mean prompt "
        f"{facts['mean_prompt_tokens']:,.0f} and output {facts['mean_output_tokens']:,.0f} tokens"
    )


def served(result: Result) -> str:
    """Describe the requests of a run by its table, and name where they come from if it knows."""
    table = result.requests
    arrivals = table["arrival_time"]
    span = float(np.ptp(arrivals)) if len(arrivals) else 0.0
    rate = f"at {(len(table) - 1) / span:.3g} requests/s" if span > 0 else "all at once"
    source = getattr(result.config, "trace", None) or getattr(result.config, "workload", "")
    return f"{len(table):,} requests {rate}{f' ({source})' if source else ''}"
