"""Run a trace through one configuration, or through several allocators."""

from __future__ import annotations

import math
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.config import Config
from kvsim.engine.replica import Replica, make_request
from kvsim.engine.router import ROUTERS
from kvsim.engine.setup import Setup, resolve
from kvsim.engine.world import Serving
from kvsim.results.metrics import Pool, summarize
from kvsim.results.result import Result
from kvsim.results.tables import REQUESTS, FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvsim.engine.backend import Backend
    from kvsim.trace import Trace


def simulate(trace: Trace, **options: Any) -> Result:
    """Serve a trace by one configuration.

    Parameters
    ----------
    trace : the requests
    **options : fields of :class:`kvsim.config.Config`, which are ``vllm serve``'s flags with
        underscores; ``model`` may also be a ModelSpec and ``gpu`` a GpuSpec

    Returns
    -------
    Result
        Tables and summary.

    Raises
    ------
    ValueError
        For unknown names, wrong values and configurations that cannot run.

    Examples
    --------
    >>> import kvsim, workloads
    >>> trace = workloads.fixed(prompt=100, output=10, num_requests=8, request_rate=1.0)
    >>> result = kvsim.simulate(trace, model="llama-3-8b", gpu="a100-80gb")
    >>> result.summary["completed"]
    8
    """
    return run(Config.build(**options), trace)


def run(config: Config, trace: Trace) -> Result:
    """Serve a trace by a validated configuration; see :func:`simulate`."""
    setup = resolve(config)
    table = _new_requests(trace)
    start = float(trace.arrival_time[0])
    end = start + config.horizon
    replicas: list[Backend] = [
        Replica(index, setup, trace, table, start_time=start, end_time=end)
        for index in range(config.data_parallel_size)
    ]
    admissible = _admissible(setup, trace)
    arrival_time = table["arrival_time"].copy()
    router = ROUTERS.create(config.router)
    Serving(arrival_time, admissible, replicas, router, config.max_concurrency).run()
    rejected = ~admissible
    table["arrival_time"][rejected] = arrival_time[rejected]
    table["finish_reason"][rejected] = FinishReason.REJECTED
    return _collect(setup, trace, table, replicas)


def _new_requests(trace: Trace) -> NDArray[Any]:
    """Return the requests table before anything has happened."""
    table = np.zeros(len(trace), dtype=REQUESTS)
    table["request_id"] = np.arange(len(trace))
    table["arrival_time"] = trace.arrival_time
    for name in ("first_scheduled_time", "first_token_time", "finish_time"):
        table[name] = math.nan
    table["num_prompt_tokens"] = trace.num_prompt_tokens
    table["finish_reason"] = FinishReason.IN_FLIGHT
    return table


def _admissible(setup: Setup, trace: Trace) -> NDArray[np.bool_]:
    """Mark the requests that an idle replica could serve.

    A prompt of max_model_len or more leaves no room for an output; anything else must fit into an
    empty KV memory.
    """
    longest, kv = setup.limits.max_model_len, setup.make_kv()
    admissible = trace.num_prompt_tokens < longest
    for index in np.flatnonzero(admissible).tolist():
        admissible[index] = kv.fits(make_request(trace, index, 0.0, longest))
    return admissible


def _collect(
    setup: Setup, trace: Trace, table: NDArray[Any], replicas: Sequence[Backend]
) -> Result:
    config = setup.config
    end_time = max(replica.clock for replica in replicas)
    totals = [replica.settle(end_time) for replica in replicas]
    kv = setup.make_kv()
    pool = Pool(kv.num_gpu_blocks, kv.block_size, kv.total_bytes)
    summary = summarize(table, totals, pool, end_time=end_time, goodput=config.goodput)
    summary["rejections"] = _rejections(setup, table)
    try:
        installed = version("kvsim")
    except PackageNotFoundError:  # run from a checkout that is not installed
        installed = "unknown"
    return Result(
        summary=summary,
        requests=table,
        memory=np.concatenate([replica.memory for replica in replicas]),
        steps=np.concatenate([replica.steps for replica in replicas]),
        memory_map=np.concatenate([replica.memory_map for replica in replicas]),
        config=config,
        provenance={
            "kvsim_version": installed,
            "config_digest": config.digest,
            "trace_digest": trace.digest,
            "num_requests": len(trace),
            "seed": config.seed,
            "backend": "python",
            "scheduler": setup.scheduler,
        },
    )


def _rejections(setup: Setup, table: NDArray[Any]) -> dict[str, int]:
    """Count rejected requests by reason."""
    rejected = table[table["finish_reason"] == FinishReason.REJECTED]
    longest = setup.limits.max_model_len
    too_long = int((rejected["num_prompt_tokens"] >= longest).sum())
    reasons = {
        f"prompt not below max_model_len ({longest})": too_long,
        "needs more KV memory than there is": len(rejected) - too_long,
    }
    return {reason: count for reason, count in reasons.items() if count}


def compare_results(
    config: Config,
    trace: Trace,
    allocators: Sequence[str],
    on_row: Callable[[str, Result], object] | None = None,
) -> list[Result]:
    """Serve one trace by several allocators, all other things equal.

    ``on_row`` is called after each.
    """
    setups = [config.model_copy(update={"allocator": name}) for name in allocators]
    for one in setups:
        resolve(one)  # every mistake shows before the first long run
    results = []
    for one in setups:
        results.append(run(one, trace))
        if on_row is not None:
            on_row(one.allocator, results[-1])
    return results
