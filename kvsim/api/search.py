"""``kvsim.search``: the highest rate, or the best configuration, that meets latency targets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from kvsim.api.progress import progress_bar
from kvsim.api.requests import GUESS, rates_of, source_of
from kvsim.api.search_result import Search
from kvsim.config import RunConfig
from kvsim.parametric import IN_ONE_PROCESS, is_part, only_here, text_of
from kvsim.study.choose import FEW, choose
from kvsim.study.search_report import answer_of
from kvsim.study.slo import read_slo
from kvsim.study.space import read_over, refuse_both
from kvsim.study.wish import wish_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kvsim.api.requests import Source
    from kvsim.options import RunOptions
    from kvsim.results.cost import Prices
    from kvsim.trace import Trace


def search(
    requests: Trace | str | None = None,
    *,
    slo: str | Sequence[str] = (),
    attain: float | None = None,
    trim: float = 0.0,
    over: Mapping[str, Sequence[Any]] | None = None,
    max_gpus: int | None = None,
    objective: str = "rate",
    price: Prices | None = None,
    replications: int = 3,
    workers: int | None = None,
    **options: Unpack[RunOptions],
) -> Search:
    """Find the highest request rate that meets latency targets, or the best configuration.

    Parameters
    ----------
    requests : a trace, with its gaps scaled; a workload, ``"sharegpt"``; or None, if options
        name a workload or a trace file
    slo : bounds on the summary, in its units: ``"p99_ttft_ms<=1000"``, ``"mean_tpot_ms<=30"``
    attain : share of requests that meet the targets of the option ``goodput`` [0.95]
    trim : seconds at both ends of a run; requests that arrive in them do not count
    over : values by option, ``{"tensor_parallel_size": [1, 2]}``: all combinations are tried; a
        part is a name or an object
    max_gpus : most GPUs of a configuration
    objective : rate, gpus, cost or pareto
    price : dollars per GPU-hour by GPU, ``{"h100-sxm": 2.5}``: adds the cost of the run at the
        highest rate; needed for the objective cost
    replications : number of seeds from which the interval is computed
    workers : number of processes; None: one per core if there are more than 8 configurations, else
        one
    **options : options of all configurations

    Raises
    ------
    ValueError
        For unknown names, wrong values, and if no configuration can run.

    Examples
    --------
    >>> import kvsim
    >>> found = kvsim.search("fixed+prompt=100+output=10", slo="mean_ttft_ms<=300",
    ...                      num_requests=50, cost_model="constant+seconds=0.1", max_num_seqs=4,
    ...                      model="opt-125m", backend="python", replications=1)
    >>> found.request_rate, found.command.split()[:3]
    (1.96875, ['vllm', 'serve', 'facebook/opt-125m'])
    """
    source, named = source_of(requests, options)
    return find(
        named | {**options},
        source,
        flags=options,
        slo=[slo] if isinstance(slo, str) else slo,
        attain=attain,
        trim=trim,
        over=[_text(name, *values) for name, values in (over or {}).items()],
        max_gpus=max_gpus,
        objective=objective,
        price=() if price is None else price,
        replications=replications,
        workers=workers,
        has_seeds=requests is None or isinstance(requests, str),
    )


def _text(name: str, *values: Any) -> str:
    """Return an option with its values as a text of the command line."""
    words = {None: "none", True: "true", False: "false"}
    named = (text_of(one) if is_part(one) else one for one in values)
    texts = (words[one] if one is None or isinstance(one, bool) else str(one) for one in named)
    return f"{name}={','.join(texts)}"


def find(
    given: dict[str, Any],
    source: Source,
    *,
    flags: Collection[str],
    slo: Sequence[str],
    attain: float | None,
    trim: float,
    over: Sequence[str],
    max_gpus: int | None,
    objective: str,
    price: Prices,
    replications: int,
    workers: int | None,
    has_seeds: bool = True,
    silent: bool = False,
) -> Search:
    """Search with the texts of the command line; see :func:`search`.

    Parameters
    ----------
    given : the options that all configurations share
    source : returns the requests of a configuration
    flags : options that may not also be varied
    slo, over, price : texts of the command line
    has_seeds : False if no seed changes the requests
    silent : show no progress
    """
    config = RunConfig.build(**given)
    target = replace(read_slo(slo, config.goodput, attain), trim=trim)
    space = read_over(over)
    refuse_both(flags, space, "--over")
    wish = wish_of(config, given, space, objective, price)
    guess = config.request_rate or GUESS
    has_seeds = has_seeds and config.trace is None
    requests, notes = rates_of(config, source, has_seeds=has_seeds)
    number = len(requests(guess, 0))
    varied = [value for values in space.values() for value in values]
    local = [name for text in (*vars(config).values(), *varied) for name in only_here(text)]
    with progress_bar("searching", 1, silent=silent) as tick:
        candidates, outcomes = choose(
            *(given, space, requests, target, wish),
            guess=guess,
            max_gpus=max_gpus,
            workers=1 if local else workers,
            on_progress=lambda done, total: tick(int(done == total)),
        )
        seeds = replications if has_seeds else 1
        answer = answer_of(candidates, outcomes, target, wish, num_requests=number, seeds=seeds)
    answer["notes"] = notes + answer["notes"]
    if local and workers != 1 and (workers or len(candidates) > FEW):
        answer["notes"].append(f"{IN_ONE_PROCESS}: {', '.join(dict.fromkeys(local))}")
    if not has_seeds and replications > 1:
        answer["notes"].append("a trace has no seed: the interval is the bracket of one run")
    return Search(answer)
