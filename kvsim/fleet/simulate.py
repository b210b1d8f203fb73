"""Run a trace through one configuration, or through several allocators."""

from __future__ import annotations

import math
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.config import Config
from kvsim.cost.accuracy import accuracy_of
from kvsim.cost.efficiency import basis_of
from kvsim.engine.contents import Contents
from kvsim.engine.event_names import RunNames
from kvsim.engine.notes import notes
from kvsim.engine.refusal import refusal
from kvsim.engine.replica import Replica
from kvsim.engine.setup import Setup, resolve, with_events
from kvsim.fleet.bookkeeping import describe_replicas, describe_routing
from kvsim.fleet.gateways import Gateways
from kvsim.fleet.router import Router, make_router, make_routers
from kvsim.fleet.world import Serving
from kvsim.records.engine import VLLM
from kvsim.records.request import Request
from kvsim.results.comparison import Comparison
from kvsim.results.kv_events import batches, write_events
from kvsim.results.metrics import Pool, num_early_turns, summarize
from kvsim.results.result import Result
from kvsim.results.tables import MEMORY, REQUESTS, STEPS, FinishReason
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvsim.engine.backend import Backend
    from kvsim.engine.replica import Observer

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
    table = _new_requests(trace)
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
    admissible = _admissible(setup, trace)
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
    return _collect(setup, trace, table, replicas, reason, gateways, serving.turned_away)


def _for_routers(setup: Setup, routers: Sequence[Router]) -> Setup:
    """Let replicas tell events where a router asks for them and there is anything to tell."""
    asked = any(router.event_delay is not None for router in routers)
    has_any = setup.kv.tells_events and setup.kv_config.enable_prefix_caching
    return with_events(setup) if asked and has_any and _is_routed(setup) else setup


def _is_routed(setup: Setup) -> bool:
    """Whether there is anything for a router to choose."""
    return setup.config.data_parallel_size > 1


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


class Checker:
    """Recounts all memory of a replica after every step."""

    def scheduled(self, replica: Replica) -> None:
        """Recount after a step was scheduled."""
        self.completed(replica)

    def completed(self, replica: Replica) -> None:
        """Recount after a step has ended."""
        replica.check_integrity()
        check_no_leak(replica)


def check_no_leak(replica: Replica) -> None:
    """Compare what is held with what live requests have computed.

    Raises
    ------
    RuntimeError
        If more tokens are held than live requests have, or anything while there is none.
    """
    state, usage = replica.state, replica.kv.usage
    live = [state.requests[state.running[place]] for place in range(state.num_running)]
    num_tokens = sum(request.num_computed_tokens * request.num_samples for request in live)
    config = replica.setup.kv_config
    most = num_tokens * config.layout.bytes_per_token + len(live) * config.state_bytes
    held = usage.token_states + usage.reservation + usage.internal
    waits = state.connector.held.length + state.connector.num_kept  # for transfers of KV
    if held and not (live or state.num_swapped or state.num_retired or waits):
        raise RuntimeError(f"{held} bytes are held, and no request is alive")
    if usage.token_states > most:
        raise RuntimeError(
            f"{usage.token_states} bytes of live tokens are held, where live requests have "
            f"{num_tokens} tokens, {most} bytes: has an ended request kept its memory?"
        )


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


def _step_time_basis(setup: Setup) -> str:
    """Say what the step times rest on."""
    if setup.config.cost_model.partition("+")[0] != "roofline":
        return f"cost model {setup.config.cost_model}"
    config, memory = setup.config, setup.memory
    given = config.cost_model.partition("+")[2]
    wide = "; FP32 arithmetic at the 16-bit peak, too fast" if memory.dtype == "fp32" else ""
    if given:
        return f"{basis_of(memory.gpu.name)}{wide}; overridden: {given}"
    accuracy = accuracy_of(
        memory.model,
        memory.gpu.name,
        config.tensor_parallel_size * config.pipeline_parallel_size,
        setup.kv_config.layout,
        dtype=memory.dtype,
        quantization=memory.quantization,
    )
    return f"{basis_of(memory.gpu.name)}{wide}; {accuracy}"


def check_trace(trace: object) -> None:
    """Refuse what is no trace, with a hint.

    Raises
    ------
    ValueError
        If it is no :class:`kvsim.Trace`.
    """
    if not isinstance(trace, Trace):
        raise ValueError(
            f"trace: must be a kvsim.Trace, not {type(trace).__name__}; workloads.load reads files"
        )


def check_columns(setup: Setup, trace: Trace) -> None:
    """Refuse a trace whose requests ask for what the configuration does not serve.

    Raises
    ------
    ValueError
        With the row and what serves it.
    """
    if trace.has("lora_id") and not setup.scheduler_config.max_loras:
        row = int(np.argmax(trace.lora_id > 0))
        raise ValueError(f"trace: request {row} asks for an adapter, and enable_lora is off")
    if trace.has("grammar_time") and setup.scheduler_type.rules_of != VLLM:
        raise ValueError(
            f"trace: requests wait for grammars, and scheduler {setup.scheduler!r} knows none; "
            "vllm does"
        )


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

    A prompt of max_model_len or more leaves no room for an output; a request's sequences run
    together; anything else must fit into an empty KV memory.
    """
    longest, kv = setup.memory.limits.max_model_len, setup.kv
    admissible = trace.num_prompt_tokens < longest
    admissible &= trace.num_samples <= setup.scheduler_config.max_num_seqs
    if admissible.any() and trace.num_samples.max() == 1:
        # What fits still fits with fewer tokens, so the worst case often answers for all; not so
        # with several sequences, which share more of a longer prompt.
        prompts = trace.num_prompt_tokens[admissible]
        prompt = int(prompts.max())
        outputs = np.minimum(trace.num_output_tokens[admissible], longest - prompts)
        output = min(int(outputs.max()), longest)
        worst = Request(0, 0.0, prompt, output)
        if kv.fits(worst):
            return admissible
    contents = Contents.of(trace)
    for index in np.flatnonzero(admissible).tolist():
        admissible[index] = kv.fits(contents.request(index, 0.0, longest))
    return admissible


def _collect(
    setup: Setup,
    trace: Trace,
    table: NDArray[Any],
    replicas: Sequence[Backend],
    backend_reason: str,
    gateways: Gateways,
    turned_away: NDArray[np.bool_],
) -> Result:
    config = setup.config
    end_time = max(replica.clock for replica in replicas)
    totals = [replica.settle(end_time) for replica in replicas]
    kv = setup.kv
    pool = Pool(kv.num_gpu_blocks, kv.block_size, kv.total_bytes)
    summary = summarize(
        table,
        totals,
        pool,
        end_time=end_time,
        goodput=config.goodput,
        front_end_latency=config.front_end_latency,
    )
    summary["rejections"] = _rejections(setup, trace, table, turned_away)
    early, later = num_early_turns(table, trace.session_id)
    summary |= {"num_early_turns": early, "num_later_turns": later}
    summary["routing"] = (
        describe_routing(gateways.decisions, table, totals) if _is_routed(setup) else None
    )
    summary["replicas"] = describe_replicas(table, totals, summary["duration"])
    try:
        installed = version("kvsim")
    except PackageNotFoundError:  # run from a checkout that is not installed
        installed = "unknown"
    return Result(
        summary=summary,
        requests=table,
        memory=np.concatenate([replica.memory for replica in replicas], dtype=MEMORY),
        steps=np.concatenate([replica.steps for replica in replicas], dtype=STEPS),
        memory_map=np.concatenate([replica.memory_map for replica in replicas]),
        config=config,
        provenance={
            "kvsim_version": installed,
            "config_digest": config.digest,
            "trace_digest": trace.digest,
            "num_requests": len(trace),
            "seed": config.seed,
            "backend": "python" if backend_reason else "compiled",
            "backend_reason": backend_reason,
            "scheduler": setup.scheduler,
            "step_time": _step_time_basis(setup),
            "notes": notes(setup),
        },
    )


def _rejections(
    setup: Setup, trace: Trace, table: NDArray[Any], turned_away: NDArray[np.bool_]
) -> dict[str, int]:
    """Count rejected requests by reason."""
    rejected = (table["finish_reason"] == FinishReason.REJECTED) & ~turned_away
    longest, most = setup.memory.limits.max_model_len, setup.scheduler_config.max_num_seqs
    too_long = rejected & (table["num_prompt_tokens"] >= longest)
    too_many = rejected & ~too_long & (trace.num_samples > most)
    reasons = {
        f"prompt not below max_model_len ({longest})": int(too_long.sum()),
        f"more sequences than max_num_seqs ({most})": int(too_many.sum()),
        "needs more KV memory than there is": int((rejected & ~too_long & ~too_many).sum()),
        f"turned away by router {setup.config.router.partition('+')[0]}": int(turned_away.sum()),
    }
    return {reason: count for reason, count in reasons.items() if count}


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
