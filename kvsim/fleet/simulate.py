"""Run a trace through one configuration, or through several allocators."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

from kvsim.client_options import BENCHMARKS, read_start
from kvsim.config import Config
from kvsim.engine.given import given as given_by
from kvsim.engine.history.block_recorder import BlockRecorder
from kvsim.engine.observers import together
from kvsim.engine.own_parts import errors_in_parts
from kvsim.engine.refusal import check_compiled, refusal
from kvsim.engine.setup import of_engine
from kvsim.engine.warm_start import COLD, Warmth, serve_primed, serve_warm
from kvsim.engines.policies import VLLM
from kvsim.engines.registry import all_engines
from kvsim.errors import FieldError, too_large
from kvsim.fleet.admission.admissibility import check_columns, check_trace
from kvsim.fleet.checker import Checker
from kvsim.fleet.clients import Clients
from kvsim.fleet.pool_setups import resolve_fleet
from kvsim.fleet.routing.router import make_router
from kvsim.fleet.serve_fleet import serve_fleet
from kvsim.parametric import program_ttl, text_of
from kvsim.results.check import refuse_unfinished
from kvsim.results.comparison import Comparison
from kvsim.results.cost import add_cost, prices_of
from kvsim.results.notes import ASKED
from kvsim.trace.family import family_of
from kvsim.trace.gaps import start_gaps_note, with_start_gaps_cut
from kvsim.trace.plays import in_plays
from kvsim.trace.starts import Limits, begin_sessions, from_starts, warming
from kvsim.trace.turns import by_program, pauses_note, with_pauses_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvsim.engine.observers import Observer
    from kvsim.engine.replica import Replica
    from kvsim.engine.setup import Setup
    from kvsim.options import Options
    from kvsim.parametric import PartLike
    from kvsim.results.cost import Prices
    from kvsim.results.result import Result
    from kvsim.trace import Trace
    from kvsim.trace.family import Family

    OnProgress = Callable[[str, int], object]

#: The baselines of the PagedAttention paper and paging itself.
DEFAULT_ALLOCATORS = ("contiguous-max", "contiguous-pow2", "contiguous-oracle", "paged")


def simulate(
    trace: Trace,
    *,
    price: Prices | None = None,
    load_cache: str | Path | None = None,
    save_cache: str | Path | None = None,
    warmup_requests: int = 0,
    same_contents: bool = False,
    **options: Unpack[Options],
) -> Result:
    """Serve a trace by one configuration.

    Parameters
    ----------
    trace : the requests
    price : dollars per GPU-hour by GPU, ``{"h100-sxm": 2.5}``: adds ``cost`` to the summary
    load_cache : file with the content of the prefix cache at the start
    save_cache : file for its content at the end
    warmup_requests : number of first requests that fill the cache and are in no table; the other
        requests are served when these have ended
    same_contents : another trace filled ``load_cache``, and numbers the same contents alike
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
    config = Config.build(**options)
    prices = prices_of(price, [config])
    warm = Warmth(load_cache, save_cache, warmup_requests, same_contents)
    return add_cost(run(config, trace, warm=warm), prices)


@errors_in_parts()
def run(
    config: Config,
    trace: Trace,
    *,
    on_progress: Callable[[int], object] | None = None,
    warm: Warmth = COLD,
) -> Result:
    """Serve a trace by a validated configuration; see :func:`simulate`.

    ``on_progress`` is called periodically with the number of requests that have ended.
    """
    config = of_engine(config)
    setup = resolve_fleet(config)
    if config.primers and warm != COLD:
        raise FieldError("primers", "conflicts with other warm starts")
    if warm == COLD:
        return serve(setup, trace, on_progress=on_progress, config=config)
    serve_one = partial(serve, setup, on_progress=on_progress, config=config)
    return serve_warm(serve_one, setup, trace, warm)


@errors_in_parts()
def serve(
    setup: Setup,
    trace: Trace,
    *,
    on_progress: Callable[[int], object] | None = None,
    observer: Observer | None = None,
    on_start: Callable[[Replica], object] | None = None,
    config: Config | None = None,
    make_clients: Callable[..., Clients] = Clients,
    given: Trace | None = None,
) -> Result:
    """Serve a trace by a resolved configuration; see :func:`run`.

    ``observer`` is called with a replica after each of its steps, ``on_start`` before its first
    step. ``config`` is the run's configuration; give it if ``setup`` has the options of one pool.
    ``make_clients`` takes the parameters of :class:`kvsim.fleet.clients.Clients`.
    ``given`` is the trace before :func:`requests_asked` if ``trace`` is what that has returned.
    """
    check_trace(trace)
    if setup.config.primers and given is None:
        if on_start is not None:
            raise FieldError("primers", "conflicts with a recorded schedule")
        one: dict[str, Any] = {"on_progress": on_progress, "observer": observer, "config": config}
        serve_one = partial(serve, setup, make_clients=make_clients, given=trace, **one)
        return serve_primed(serve_one, setup, *parts_asked(setup.config, trace))
    if given is None:
        given, trace = trace, requests_asked(setup.config, trace)
    setup, family = with_samples(setup, trace)
    trace = trace if family is None else family.children
    check_columns(setup, trace)
    if trace.has("item_start"):
        setup = setup.for_items(int(trace.item_num_tokens.max()))
    watch = _watcher(on_progress)
    if setup.config.check_invariants and observer is None:
        observer = Checker()
    recorder = BlockRecorder() if setup.config.record_block_events else None
    try:
        result = serve_fleet(
            config or setup.config,
            setup,
            trace,
            on_end=watch,
            observer=together(observer, recorder),
            on_start=on_start,
            choose_backend=choose_backend,
            make_clients=make_clients,
            family=family,
        )
    except MemoryError as error:
        raise too_large(error) from None
    if given is not trace:
        result.provenance["trace_digest"] = given.digest
    result.provenance["notes"] = [
        *result.provenance["notes"],
        *_notes_of_clients(setup.config, given),
    ]
    refuse_unfinished(result)
    return result if recorder is None else with_block_events(result, recorder, trace)


def _limits(config: Config) -> Limits:
    given = config.max_think_time, config.tree_idle_cap, config.idle_cap
    return Limits(*(math.inf if one is None else one for one in given))


def _notes_of_clients(config: Config, trace: Trace) -> list[str]:
    """Return notes on the benchmark of the clients, and on what limits of pauses cut."""
    notes = []
    if config.clients is not None:
        settings = (f"{name} = {getattr(config, name)}" for name in BENCHMARKS[config.clients])
        notes.append(f"clients = {config.clients}: {', '.join(settings)}")
    if config.start_gap_cap is not None:
        notes.append(start_gaps_note(trace, config.start_gap_cap))
    if config.max_think_time is not None and trace.has("think_time"):
        notes.append(pauses_note(trace, config.max_think_time))
    return notes


def requests_asked(config: Config, trace: Trace) -> Trace:
    """Return a trace with the request settings of a configuration."""
    return parts_asked(config, trace)[1]


def parts_asked(config: Config, trace: Trace) -> tuple[Trace | None, Trace]:
    """Return the requests that warm the cache, if any, and a trace with the request settings."""
    first = None
    if config.start_gap_cap is not None:
        trace = with_start_gaps_cut(trace, config.start_gap_cap)
    if config.max_think_time is not None and trace.has("think_time"):
        trace = with_pauses_cut(trace, config.max_think_time)
    if config.lanes is not None:
        seed = config.seed if config.shuffle_sessions else None
        shared = config.shared_prefix_tokens
        given = config.lanes, config.horizon, seed, shared, min(_limits(config)[1:])
        is_begun = config.session_start is not None
        trace = in_plays(trace, *given, is_begun=is_begun)
    if config.lanes is not None and config.session_start is not None:
        part = read_start(config.session_start)
        begun = begin_sessions(trace, config.lanes, part, config.seed, config.primer_requests)
        first = warming(trace, begun) if config.primers else None
        trace = from_starts(trace, begun, _limits(config))
    return None if first is None else _with_settings(config, first), _with_settings(config, trace)


def _with_settings(config: Config, trace: Trace) -> Trace:
    """Return a trace with the samples, priorities and ends of outputs of a configuration."""
    if config.num_samples is not None:
        trace = trace.with_num_samples(config.num_samples)
    ttl = program_ttl(config.session_policy)
    if ttl is not None and not trace.has("priority"):
        trace = by_program(trace, ttl)
    return trace if config.ends_by is None else trace.with_ends_by(config.ends_by)


def with_samples(setup: Setup, trace: Trace) -> tuple[Setup, Family | None]:
    """Return the setup for a trace's samples; if they are separate requests, also their Family.

    Raises
    ------
    ValueError
        If several sequences per request cannot be served, or beam search has only one sequence.
    """
    if not (trace.num_samples > 1).any():
        if setup.config.use_beam_search:
            raise ValueError(
                "use_beam_search: needs num_samples, as every request has one sequence"
            )
        return setup, None
    if setup.config.max_num_queued_reqs or setup.config.max_num_queued_tokens:
        raise ValueError(
            "num_samples: max_num_queued_reqs and max_num_queued_tokens would turn away single "
            "samples, but vLLM turns away requests; give one sample per request"
        )
    if setup.scheduler_type.rules_of == VLLM and not setup.config.use_beam_search:
        return setup, family_of(trace)
    if trace.has("sample_output_tokens"):
        raise ValueError(
            f"sample_output_tokens: under scheduler {setup.scheduler!r} all samples of a "
            "request have one length; under vllm each has its own"
        )
    return setup.for_samples(int(trace.num_samples.max())), None


def with_block_events(result: Result, recorder: BlockRecorder, trace: Trace) -> Result:
    """Return the result with its recorded block events, and a note if the record is incomplete."""
    said = dict(result.provenance)
    if recorder.full_since is not None:
        until = f"{recorder.full_since:.6g} s, {len(recorder.table()):,} events"
        said["notes"] = [*said["notes"], f"record_block_events: the record ends at {until}"]
    seen = replace(result, block_events=recorder.table(), provenance=said)
    return replace(seen, tenant=trace.tenant) if trace.has("tenant") else seen


def choose_backend(setup: Setup) -> str:
    """Return the reason why plain Python runs a configuration; empty if the compiled engine does.

    Raises
    ------
    ValueError
        If the compiled engine is requested and cannot run it.
    """
    if setup.config.backend == "python":
        return ASKED
    if setup.config.backend == "compiled":
        check_compiled(setup)
    return refusal(setup) or ""


def _watcher(on_progress: Callable[[int], object] | None) -> Callable[[], object] | None:
    """Return a function that counts ended requests and reports every 64th count."""
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
    allocators: Sequence[PartLike] = DEFAULT_ALLOCATORS,
    *,
    engines: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
    price: Prices | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Serve one trace by several allocators; all other options and the KV bytes are equal.

    With ``engines``, serve it by several engines instead, each with its own defaults, settings and
    KV memory.

    Parameters
    ----------
    trace : the requests
    allocators : names with modifiers, e.g. ``"contiguous-max"``, ``"paged+int8"``, or objects
    engines : names of engines
    on_progress : called periodically as ``on_progress(allocator, num_ended)``
    price : see :func:`simulate`
    **options : see :func:`simulate`

    Raises
    ------
    ValueError
        See :func:`simulate`; raised before the first run. Also if an allocator is given twice.

    Examples
    --------
    >>> import kvsim, workloads
    >>> trace = workloads.sharegpt(num_requests=50, request_rate=4, seed=0)
    >>> rows = kvsim.compare(trace, ["contiguous-max", "paged"]).rows
    >>> [row["allocator"] for row in rows]
    ['contiguous-max', 'paged']
    """
    config = Config.build(**options)
    prices = prices_of(price, [config])
    if engines is not None:
        found = compare_engines(config, trace, engines, on_progress=on_progress)
    else:
        names = allocators if isinstance(allocators, str) else [text_of(one) for one in allocators]
        found = run_comparison(config, trace, names, on_progress=on_progress)
    for result in found.results.values():
        add_cost(result, prices)
    return found


def run_comparison(
    config: Config,
    trace: Trace,
    allocators: Sequence[str],
    *,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Compare allocators under a validated configuration; see :func:`compare`."""
    check_names("allocators", allocators)
    configs = [config.model_copy(update={"allocator": name}) for name in allocators]
    results = serve_each(configs, trace, allocators, on_progress)
    return Comparison(describe(trace), results)


def compare_engines(
    config: Config, trace: Trace, engines: Sequence[str], *, on_progress: OnProgress | None = None
) -> Comparison:
    """Serve one trace by several engines; see :func:`compare`.

    An engine receives its own settings, and none of another engine's.

    Raises
    ------
    ValueError
        See :func:`simulate`; also if an allocator or a scheduler is given with engines.
    """
    check_names("engines", engines)
    for field in ("allocator", "scheduler", "engine"):
        if field in config.model_fields_set:
            raise ValueError(f"{field}: conflicts with engines; each engine has its own")
    configs = []
    for name in engines:
        given = given_by(config)
        foreign = [one.options for other, one in all_engines().items() if other != name]
        kept = given.keys() - set(chain(*foreign))
        configs.append(type(config).build(**{k: given[k] for k in kept}, engine=name))
    return Comparison(describe(trace), serve_each(configs, trace, engines, on_progress), "engine")


def check_names(what: str, names: Sequence[str]) -> None:
    """Refuse anything but a list of different names.

    Raises
    ------
    ValueError
        If ``names`` is no list of names, is empty, or has a name twice.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{what}: must be a list of names")
    if not names:
        raise ValueError(f"{what}: name at least one")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{what}: {min(twice)} is given twice")


def serve_each(
    configs: Sequence[Config], trace: Trace, names: Sequence[str], on_progress: OnProgress | None
) -> dict[str, Result]:
    """Serve a trace under each configuration; all are resolved before the first run."""
    check_trace(trace)
    make_router(configs[0].router)
    setups = [resolve_fleet(one) for one in configs]
    results = {}
    for name, setup in zip(names, setups, strict=True):
        report = None if on_progress is None else partial(on_progress, name)
        results[name] = serve(setup, trace, on_progress=report)
    return results


def describe(trace: Trace) -> dict[str, Any]:
    """Return statistics of a trace; an infinite rate is None."""
    rate = trace.request_rate
    return {
        "num_requests": len(trace),
        "duration": trace.duration,
        "request_rate": rate if math.isfinite(rate) else None,
        "mean_prompt_tokens": float(trace.num_prompt_tokens.mean()),
        "mean_output_tokens": float(trace.num_output_tokens.mean()),
        "digest": trace.digest,
    }
