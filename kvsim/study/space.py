"""The configurations of ``--over``, with reasons for those that cannot run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.catalog import get_gpu
from kvsim.client_options import ClientOptions
from kvsim.config import RunConfig
from kvsim.errors import unknown_name
from kvsim.fleet.admission.admissibility import admissible_requests
from kvsim.fleet.pool_setups import pool_setup, pools_of
from kvsim.fleet.simulate import requests_asked, with_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvsim.trace import Trace

#: Options that all configurations of a search share, such as its requests and recordings.
SHARED = frozenset(
    (
        *("workload", "trace", "tokenizer", "request_rate", "num_requests", "seed", "trace_digest"),
        "goodput",
        *("horizon", "max_concurrency", "kv_events_config"),
        *ClientOptions.model_fields,
        *("record_steps", "record_memory_map", "record_block_events"),
        *("pool", "logged"),
    )
)


#: Roles that an option may begin with, as in ``prefill.tensor-parallel-size``.
ROLES = ("prefill", "decode")


#: Role whose replicas each option counts.
COUNTED = {"num_prefill_workers": "prefill", "num_decode_workers": "decode"}


@dataclass(frozen=True)
class Candidate:
    """A configuration of a search.

    Parameters
    ----------
    options : its values of the ``--over`` options, by name
    config : its complete configuration; None if invalid
    num_gpus : number of GPUs of all its replicas
    reason : reason why it is excluded; empty if it is not
    num_hopeless : number of requests that never fit into its KV memory
    """

    options: dict[str, str] = field(default_factory=dict)
    config: RunConfig | None = None
    num_gpus: int = 0
    reason: str = ""
    num_hopeless: int = 0

    @property
    def title(self) -> str:
        return ", ".join(f"{k.replace('_', '-')}={v}" for k, v in self.options.items())


def read_over(texts: Sequence[str], flag: str = "--over") -> dict[str, tuple[str, ...]]:
    """Read ``OPTION=VALUE,VALUE``, one per text.

    Raises
    ------
    ValueError
        If the text is malformed, or the option is unknown, shared by all runs, or given twice.
        The message names ``flag``.

    Examples
    --------
    >>> read_over(["tensor-parallel-size=1,2", "decode.max-num-seqs=64"])
    {'tensor_parallel_size': ('1', '2'), 'decode.max_num_seqs': ('64',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        name = key.strip().lstrip("-").replace("-", "_")
        if not equals:
            raise ValueError(f"{flag} {text}: must be OPTION=VALUE,VALUE")
        role, dot, own = name.rpartition(".")
        if dot and role not in ROLES:
            raise unknown_name("role", role, ROLES)
        if own not in (*RunConfig.model_fields, "eviction"):  # a parameter of the allocator
            raise unknown_name("option", own, set(RunConfig.model_fields) - SHARED)
        if own in SHARED or (role and own in COUNTED):
            raise ValueError(f"{flag} {key}: cannot vary, as all configurations share it")
        if name in found:
            raise ValueError(f"{flag} {key}: is given twice")
        found[name] = tuple(dict.fromkeys(split_list(values)))
        if "" in found[name]:
            raise ValueError(f"{flag} {text}: a value is empty")
    return found


def read_varied(texts: Sequence[str], flag: str = "--vary") -> list[dict[str, str]]:
    """Return the combinations of ``OPTION=VALUE,VALUE``, the last option changing fastest.

    In ``OPTION:OPTION=VALUE:VALUE,...`` the options take their k-th values together.

    Raises
    ------
    ValueError
        As :func:`read_over`, and if a row lacks a value for an option.

    Examples
    --------
    >>> read_varied(["num-prefill-workers:data-parallel-size=none:4,2:1"])
    [{'num_prefill_workers': 'none', 'data_parallel_size': '4'}, \
{'num_prefill_workers': '2', 'data_parallel_size': '1'}]
    """
    axes: list[list[dict[str, str]]] = []
    for text in texts:
        key, _, values = text.partition("=")
        names = key.split(":")
        if len(names) == 1:
            ((name, found),) = read_over([text], flag).items()
            axes.append([{name: value} for value in found])
            continue
        rows = []
        for row in split_list(values):
            parts = split_list(row, ":")
            if len(parts) != len(names):
                raise ValueError(f"{flag} {text}: {row!r} must have {len(names)} values, A:B")
            pairs = zip(names, parts, strict=True)
            read = [read_over([f"{name}={part}"], flag) for name, part in pairs]
            rows.append({name: value for one in read for name, (value,) in one.items()})
        axes.append(rows)
    seen: set[str] = set()
    for rows in axes:
        if twice := seen & rows[0].keys():
            raise ValueError(f"{flag} {min(twice).replace('_', '-')}: is given twice")
        seen |= rows[0].keys()
    return [{k: v for part in parts for k, v in part.items()} for parts in product(*axes)]


def refuse_both(given: Iterable[str], varied: Iterable[str], how: str) -> None:
    """Raise ValueError for an option that is both given and varied by the flag ``how``."""
    for name in varied:
        if name in given:
            plain = name.replace("_", "-")
            raise ValueError(f"--{plain}: conflicts with {how} {plain}: give one of them")


def size_of(over: Mapping[str, Sequence[str]]) -> int:
    return math.prod(map(len, over.values()))


def combinations(over: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Yield every combination, the last option changing fastest."""
    for values in product(*over.values()):
        yield dict(zip(over, values, strict=True))


def candidate(
    given: Mapping[str, Any], options: dict[str, str], trace: Trace, max_gpus: int | None
) -> Candidate:
    """Build one configuration, with the reason if it cannot run.

    Parameters
    ----------
    given : options that all configurations share
    options : further options of this configuration
    trace : the requests
    max_gpus : most GPUs of a configuration
    """
    try:
        config = RunConfig.build(**with_pools({**given, **options}))
        gpus = num_gpus(config)
        if max_gpus is not None and gpus > max_gpus:
            return Candidate(options, None, gpus, f"takes {gpus} GPUs of {max_gpus}")
        setups = [pool_setup(config, pool) for pool in pools_of(config) if pool is not None]
        setups[0], family = with_samples(setups[0], requests_asked(config, trace))
        trace = trace if family is None else family.children
        fit = admissible_requests(setups[0], trace)
        for setup in setups[1:]:  # prefill replicas serve prompts only
            fit &= admissible_requests(setup, trace.with_single_outputs())
        if family is not None:
            fit = np.logical_and.reduceat(fit, family.first)
    except ValueError as error:
        return Candidate(options, None, 0, " ".join(str(error).split()))
    return Candidate(options, config, gpus, "", int((~fit).sum()))


def with_pools(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options, with those of a role, such as ``prefill.gpu``, moved to ``pool`` tables.

    Examples
    --------
    >>> made = with_pools({"model": "opt-13b", "prefill.tensor_parallel_size": "2"})
    >>> [(pool["role"], pool.get("tensor_parallel_size")) for pool in made["pool"]]
    [('prefill', '2'), ('decode', None)]
    """
    if not any("." in name for name in values):
        return dict(values)
    plain = {name: value for name, value in values.items() if "." not in name}
    pools = []
    for counted, role in COUNTED.items():
        number = str(plain.pop(counted, 1))
        if not number.isdecimal():
            raise ValueError(f"{counted} is {number!r}: must be a whole number")
        pool: dict[str, Any] = {"role": role, "replicas": int(number)}
        for name, value in values.items():
            if name.startswith(f"{role}."):
                pool[name.partition(".")[2]] = value
        pools.append(pool)
    return plain | {"pool": pools}


def without_rejecting(candidates: Sequence[Candidate], num_requests: int) -> list[Candidate]:
    """Exclude configurations that reject requests which other configurations can serve."""
    can = [one.num_hopeless for one in candidates if not one.reason]
    least = min(can, default=0)
    kept = []
    for one in candidates:
        reason = one.reason
        if not reason and one.num_hopeless > least:
            reason = f"{one.num_hopeless:,} of {num_requests:,} requests never fit"
        kept.append(replace(one, reason=reason))
    return kept


def gpus_by_card(config: RunConfig) -> dict[str, int]:
    """Count the GPUs of all replicas, by the catalogue's name of the GPU."""
    total: dict[str, int] = {}
    for pool in pools_of(config):
        if pool is not None:
            own = dict(pool.options)
            tensor = int(own.get("tensor_parallel_size", config.tensor_parallel_size))
            stages = int(own.get("pipeline_parallel_size", config.pipeline_parallel_size))
            name = get_gpu(own.get("gpu", config.gpu)).name
            total[name] = total.get(name, 0) + pool.replicas * tensor * stages
    return total


def num_gpus(config: RunConfig) -> int:
    return sum(gpus_by_card(config).values())


def split_list(text: str, mark: str = ",") -> list[str]:
    """Split at commas, or at another mark, outside brackets and quotations.

    Examples
    --------
    >>> split_list("2, 4,8"), split_list('{"method": "ngram", "num_speculative_tokens": 4},none')
    (['2', '4', '8'], ['{"method": "ngram", "num_speculative_tokens": 4}', 'none'])
    """
    parts, depth, quoted, begin = [], 0, False, 0
    for index, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif not quoted:
            depth += (letter in "{[(") - (letter in "}])")
            if letter == mark and depth <= 0:
                parts.append(text[begin:index].strip())
                begin = index + 1
    return [*parts, text[begin:].strip()]
