"""Run a trace through one configuration, or through several allocators."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from kvsim.config import Config
from kvsim.engine.contents import Contents
from kvsim.engine.event_names import RunNames
from kvsim.engine.refusal import refusal
from kvsim.engine.replica import Replica
from kvsim.engine.setup import Setup, resolve, with_events
from kvsim.fleet.checker import Checker
from kvsim.fleet.gateways import Gateways
from kvsim.fleet.intake import admissible_requests, check_columns, check_trace, new_requests
from kvsim.fleet.outcome import collect, is_routed
from kvsim.fleet.router import Router, make_router, make_routers
from kvsim.fleet.world import Serving
from kvsim.results.comparison import Comparison
from kvsim.results.kv_events import batches, write_events
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.engine.replica import Observer
    from kvsim.results.result import Result
    from kvsim.trace import Trace

    OnProgress = Callable[[str, int], object]

#: The baselines of the PagedAttention paper and paging itself.
DEFAULT_ALLOCATORS = ("contiguous-max", "contiguous-pow2", "contiguous-oracle", "paged")


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


def run(
    config: Config, trace: Trace, *, on_progress: Callable[[int], object] | None = None
) -> Result:
    """Serve a trace by a validated configuration; see :func:`simulate`.

    ``on_progress`` is called with the number of requests that have ended, now and then.
    """
    return serve(resolve(config), trace, on_progress=on_progress)


def serve(
    setup: Setup,
    trace: Trace,
    *,
    on_progress: Callable[[int], object] | None = None,
    observer: Observer | None = None,
    on_start: Callable[[Replica], object] | None = None,
) -> Result:
    """Serve a trace by a resolved configuration; see :func:`run`.

    ``observer`` looks at every replica after each of its steps, ``on_start`` before the first.
    """
    check_trace(trace)
    config = setup.config
    if config.num_samples is not None:
        trace = trace.with_num_samples(config.num_samples)
    if (trace.num_samples > 1).any():
        setup = setup.for_samples(int(trace.num_samples.max()))
    elif config.use_beam_search:
        raise ValueError("use_beam_search: every request has one sequence; give num_samples")
    check_columns(setup, trace)
    table = new_requests(trace)
    start = float(trace.arrival_time[0])
    end = start + config.horizon
    watch = _watcher(on_progress)
    routers = make_routers(config.router)
    setup = _for_routers(setup, routers)
    reason = choose_backend(setup)
    if config.check_invariants and observer is None:
        observer = Checker()
    replicas = [
        Replica(
            index,
            setup,
            Contents.of(trace),
            table,
            start_time=start,
            end_time=end,
            on_end=watch,
            observer=observer,
            compiled=not reason,
        )
        for index in range(config.data_parallel_size)
    ]
    if on_start is not None:
        for replica in replicas:
            on_start(replica)
    admissible = admissible_requests(setup, trace)
    arrival_time = table["arrival_time"].copy()
    gateways = Gateways(routers, setup, trace, table, replicas, start)
    serving = Serving(arrival_time, admissible, replicas, gateways, config.max_concurrency)
    serving.run()
    if config.kv_events_config is not None and config.kv_events_config.writes:
        _write_events(setup, trace, replicas, gateways)
    rejected = ~admissible | serving.turned_away
    table["arrival_time"][rejected] = arrival_time[rejected]
    table["finish_reason"][rejected] = FinishReason.REJECTED
    sent = (table["request_id"] < serving.num_sent) & (arrival_time < end)
    table["finish_reason"][~sent] = FinishReason.UNSENT
    return collect(setup, trace, table, replicas, reason, gateways, serving.turned_away)


def _for_routers(setup: Setup, routers: Sequence[Router]) -> Setup:
    """Let replicas tell events where a router asks for them and there is anything to tell."""
    asked = any(router.event_delay is not None for router in routers)
    has_any = setup.kv.tells_events and setup.kv_config.enable_prefix_caching
    return with_events(setup) if asked and has_any and is_routed(setup) else setup


def _write_events(
    setup: Setup, trace: Trace, replicas: Sequence[Replica], gateways: Gateways
) -> None:
    """Write the KV cache events of all replicas into one file."""
    config = setup.config.kv_events_config
    assert config is not None
    names = RunNames(setup, trace, Contents.of(trace), token_ids=config.token_ids)
    streams = [
        # What was read for a router comes before what nobody has read.
        batches([*gateways.events_read(rank), *one.take_events()], names, rank)
        for rank, one in enumerate(replicas)
    ]
    write_events(str(config.path), streams)


def choose_backend(setup: Setup) -> str:
    """Say why plain Python runs a configuration; empty if the compiled engine does.

    Raises
    ------
    ValueError
        If the compiled engine is asked for and cannot.
    """
    if setup.config.backend == "python":
        return "asked for"
    reason = refusal(setup)
    if reason and setup.config.backend == "compiled":
        raise ValueError(f"backend: compiled cannot run this: {reason}")
    return reason or ""


def _watcher(on_progress: Callable[[int], object] | None) -> Callable[[], object] | None:
    """Count ended requests and pass every 64th count on."""
    if on_progress is None:
        return None
    num_ended = 0

    def on_end() -> None:
        nonlocal num_ended
        num_ended += 1
        if num_ended % 64 == 0:
            on_progress(num_ended)

    return on_end


def compare(
    trace: Trace,
    allocators: Sequence[str] = DEFAULT_ALLOCATORS,
    *,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Comparison:
    """Serve one trace by several allocators, all other things equal, KV bytes included.

    Parameters
    ----------
    trace : the requests
    allocators : names with modifiers, e.g. ``"contiguous-max"``, ``"paged+int8"``
    on_progress : called as ``on_progress(allocator, num_ended)`` now and then
    **options : as for :func:`simulate`

    Raises
    ------
    ValueError
        As for :func:`simulate`, before anything runs; or if an allocator is given twice.

    Examples
    --------
    >>> import kvsim, workloads
    >>> trace = workloads.sharegpt(num_requests=50, request_rate=4, seed=0)
    >>> rows = kvsim.compare(trace, ["contiguous-max", "paged"]).rows
    >>> [row["allocator"] for row in rows]
    ['contiguous-max', 'paged']
    """
    return run_comparison(Config.build(**options), trace, allocators, on_progress=on_progress)


def run_comparison(
    config: Config,
    trace: Trace,
    allocators: Sequence[str],
    *,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Compare allocators under a validated configuration; see :func:`compare`."""
    check_trace(trace)
    if isinstance(allocators, str) or not all(isinstance(name, str) for name in allocators):
        raise ValueError("allocators: must be a list of names")
    if not allocators:
        raise ValueError("allocators: name at least one")
    twice = {name for name in allocators if allocators.count(name) > 1}
    if twice:
        raise ValueError(f"allocators: {min(twice)} is given twice")
    configs = [config.model_copy(update={"allocator": name}) for name in allocators]
    make_router(config.router)
    setups = [resolve(one) for one in configs]  # every mistake shows before the first long run
    results = {}
    for name, setup in zip(allocators, setups, strict=True):
        report = None if on_progress is None else partial(on_progress, name)
        results[name] = serve(setup, trace, on_progress=report)
    return Comparison(describe(trace), results)


def describe(trace: Trace) -> dict[str, Any]:
    """Return what there is to say about a trace in a few numbers; None for an infinite rate."""
    rate = trace.request_rate
    return {
        "num_requests": len(trace),
        "duration": trace.duration,
        "request_rate": rate if math.isfinite(rate) else None,
        "mean_prompt_tokens": float(trace.num_prompt_tokens.mean()),
        "mean_output_tokens": float(trace.num_output_tokens.mean()),
        "digest": trace.digest,
    }
