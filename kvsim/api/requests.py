"""The requests to serve: a trace that is given, read or generated, and notes on its origin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.config import RunConfig
    from kvsim.study.trial import Requests
    from kvsim.trace import Trace

    #: Returns the requests of a configuration, and notes on their origin.
    Source = Callable[[RunConfig], tuple[Trace, Sequence[str]]]

#: Default number of requests of a generated workload, and their rate.
NUM_REQUESTS = 1000
REQUEST_RATE = 2.0
#: First rate of a search when none is given, requests per second.
GUESS = 1.0
#: Workloads that arrive all at once, as ``vllm bench serve`` sends them.
AT_ONCE = ("random",)

#: Options that select the requests.
REQUESTS = {"workload", "trace", "tokenizer", "request_rate", "num_requests", "seed"}


def requests_of(config: RunConfig) -> tuple[Trace, Sequence[str]]:
    """Load or generate the requests of a configuration, with notes on their origin."""
    if config.trace is not None:
        how = (config.request_rate, config.num_requests, config.seed, config.tokenizer)
        requests, notes = load(config.trace, *how)
        _check_digest(config, requests)
        return requests, notes
    import workloads

    asked = config.request_rate or usual_rate(config.workload)
    made = workloads.generate(
        config.workload,
        num_requests=config.num_requests or NUM_REQUESTS,
        request_rate=asked,
        seed=config.seed,
    )
    _check_digest(config, made)
    said = ["--tokenizer has no effect: workloads have their lengths in tokens"]
    return made, _rate_note(made, asked) + (said if config.tokenizer else [])


def source_of(
    requests: Trace | str | None, options: Mapping[str, object]
) -> tuple[Source, dict[str, Any]]:
    """Return the requests of a call in Python, and the options that name them.

    Parameters
    ----------
    requests : a trace; a workload's text; or None, if options name a workload or a trace file
    options : options of the call

    Raises
    ------
    ValueError
        If both ``requests`` and an option name the requests.
    """
    if requests is None:
        return requests_of, {}
    for name in ("workload", "trace", "tokenizer"):
        if name in options:
            raise FieldError(name, "conflicts with the argument requests: give one of them")
    if isinstance(requests, str):
        return requests_of, {"workload": requests}

    def reshaped(config: RunConfig) -> tuple[Trace, Sequence[str]]:
        first = requests[: config.num_requests]
        rate = config.request_rate
        return first if rate is None else first.with_request_rate(rate), []

    return reshaped, {}


def usual_rate(workload: str) -> float:
    return math.inf if workload.partition("+")[0] in AT_ONCE else REQUEST_RATE


def _check_digest(config: RunConfig, requests: Trace) -> None:
    """Raise ValueError if the requests are not those that a saved run served."""
    if config.trace_digest not in (None, requests.digest):
        where = f"trace {config.trace}" if config.trace else f"workload {config.workload}"
        raise ValueError(
            f"trace_digest {config.trace_digest}: the saved run served other requests "
            f"than those of {where}; give its requests with --trace or --workload"
        )


def _rate_note(trace: Trace, asked: float) -> list[str]:
    """Return a note if a workload arrives at another rate than requested."""
    last = float(trace.arrival_time[-1])
    if math.isinf(asked) or not last or abs(len(trace) / last / asked - 1) <= 0.05:
        return []
    said = f"{asked:g} requests/s requested, {len(trace) / last:.3g} arrive over the whole trace"
    if (trace.session_id >= 0).any():
        said += ": sessions begin at the requested rate, and their later turns follow"
    return [said]


def load(
    file: str,
    request_rate: float | None,
    num_requests: int | None,
    seed: int,
    tokenizer: str | None = None,
) -> tuple[Trace, Sequence[str]]:
    """Read a trace, take its first ``num_requests``, and scale their gaps to a rate."""
    import workloads

    path, options, said = named_trace(file, tokenizer)
    loaded = workloads.read(path, **options)
    requests = loaded.trace[:num_requests]
    if request_rate is not None and not loaded.has_times:
        drawn = workloads.read(path, request_rate=request_rate, seed=seed, **options)
        loaded, requests = drawn, drawn.trace[:num_requests]
        if len(requests) < len(drawn.trace):  # a trace of sessions starts at a lower rate
            requests = requests.with_request_rate(request_rate)
    elif request_rate is not None:
        requests = requests.with_request_rate(request_rate)
    notes = [note for note in (*loaded.notes, *said) if not note.startswith("not used")]
    drawn_rate = None if loaded.has_times else request_rate
    return requests, notes + ([] if drawn_rate is None else _rate_note(requests, drawn_rate))


def named_trace(text: str, tokenizer: str | None) -> tuple[str, dict[str, Any], list[str]]:
    """Return a trace's file, the options of its format, and notes on options without effect."""
    from workloads.readers import options_of, split_options

    path, options = split_options(text)
    if tokenizer is None:
        return path, options, []
    if "tokenizer" not in options_of(path):
        return path, options, [f"--tokenizer has no effect: {path} has its lengths in tokens"]
    return path, {"tokenizer": tokenizer, **options}, []


def rates_of(config: RunConfig, source: Source, *, has_seeds: bool) -> tuple[Requests, list[str]]:
    """Return a function that makes the requests for a rate and a seed, and notes on their origin.

    For one seed, a workload generator draws the same lengths and gaps at every rate, and scales the
    gaps. So the requests at a rate are those of ``kvsim run --request-rate``; the times between the
    turns of a session are not scaled. A trace is read once, and its gaps are scaled.
    """
    if has_seeds:
        made: dict[tuple[float, int], Trace] = {}

        def generated(rate: float, seed: int) -> Trace:
            if (rate, seed) not in made:
                if len(made) > 8:  # many configurations need the same few rates one after another
                    made.pop(next(iter(made)))
                update = {"request_rate": rate, "seed": config.seed + seed, "trace_digest": None}
                made[rate, seed] = source(config.model_copy(update=update))[0]
            return made[rate, seed]

        return generated, []
    rate = config.request_rate or GUESS
    trace, notes = source(config.model_copy(update={"request_rate": rate}))
    return (lambda rate, seed: trace.with_request_rate(rate)), list(notes)
