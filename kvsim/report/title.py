"""Title of a table or figure: model, GPU and requests, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.catalog import get_gpu
from kvsim.report.text import gib

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsim.config import Config
    from kvsim.results.result import Result


#: A title gives one size if the KV memory of the runs differs by at most this factor.
ALIKE = 1.005


def deployment(result: Result) -> str:
    """Name model, GPU and KV memory in a line."""
    return deployments([(result.config, result.summary)])


def deployments(runs: Sequence[tuple[Config, Mapping[str, Any]]]) -> str:
    """Name models, GPUs and KV memory of several runs in a line.

    ``runs`` are pairs of a run's configuration and summary.
    """
    models = _each(model_name(config) for config, _ in runs)
    cards = _each(_gpus(config, summary) for config, summary in runs)
    sizes = [summary["kv_cache"]["bytes"] for _, summary in runs]
    memory = gib(min(sizes))
    if max(sizes) > ALIKE * min(sizes):  # more than a block
        memory = f"{memory.removesuffix(' GiB')} to {gib(max(sizes))}"
    whose = " of decode workers" if runs[0][1].get("pools") else ""
    return f"{models} on {cards}, {memory} of KV memory per GPU{whose}"


def _each(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))


def model_name(config: Config) -> str:
    return config.model if isinstance(config.model, str) else config.model.name


def _gpus(config: Config, summary: Mapping[str, Any]) -> str:
    """Name the GPUs of a run, and the number of replicas."""
    gpus = config.tensor_parallel_size * config.pipeline_parallel_size
    several = f"{gpus} x " if gpus > 1 else ""
    replicas = len(summary.get("replicas") or (None,))
    times = f", {replicas} replicas" if replicas > 1 else ""
    if summary.get("scaling"):  # not all of the replicas ran at once
        most = summary["scaling"]["peak_replicas"]
        times = f", up to {most} replica{'s' if most > 1 else ''}"
    return f"{several}{get_gpu(config.gpu).name}{times}"


def workloads(facts: Sequence[Mapping[str, Any]]) -> str:
    """Describe the requests of several runs in a line, by the range of each number."""
    if len({tuple(one.items()) for one in facts}) == 1:
        return workload(facts[0])
    rates = {one["request_rate"] for one in facts}
    known = [rate for rate in rates if rate is not None]
    pace = f"at {_range(known, '.3g')} requests/s" if known else "all at once"
    if known and None in rates:
        pace += " or all at once"
    counts, prompts, outputs = (
        _range([one[name] for one in facts], ",.0f")
        for name in ("num_requests", "mean_prompt_tokens", "mean_output_tokens")
    )
    return f"{counts} requests {pace}, mean prompt {prompts} and output {outputs} tokens"


def _range(values: Sequence[float], how: str) -> str:
    low, high = format(min(values), how), format(max(values), how)
    return low if low == high else f"{low} to {high}"


def facts_of(result: Result) -> dict[str, Any]:
    """Return the facts for :func:`workload` from a run's table; tokens are the served ones."""
    table = result.requests
    span = float(np.ptp(table["arrival_time"]))
    return {
        "num_requests": len(table),
        "request_rate": (len(table) - 1) / span if span > 0 else None,
        "mean_prompt_tokens": float(table["num_prompt_tokens"].mean()),
        "mean_output_tokens": float(table["num_output_tokens"].mean()),
    }


def workload(facts: Mapping[str, Any]) -> str:
    rate = facts["request_rate"]
    pace = "all at once" if rate is None else f"at {rate:.3g} requests/s"
    several = facts.get("replications", 1)
    of = f"means of {several} replications, each of " if several > 1 else ""
    return (
        f"{of}{facts['num_requests']:,.0f} requests {pace}, mean prompt "
        f"{facts['mean_prompt_tokens']:,.0f} and output {facts['mean_output_tokens']:,.0f} tokens"
    )


def served(result: Result) -> str:
    """Describe the requests in the table of a run, and name their source if it is known."""
    table = result.requests
    arrivals = table["arrival_time"]
    span = float(np.ptp(arrivals)) if len(arrivals) else 0.0
    rate = f"at {(len(table) - 1) / span:.3g} requests/s" if span > 0 else "all at once"
    source = getattr(result.config, "trace", None) or getattr(result.config, "workload", "")
    return f"{len(table):,} requests {rate}{f' ({source})' if source else ''}"
