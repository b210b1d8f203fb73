"""Plan of a sweep: crossed options, zipped options, slices of a trace, seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from kvsim.config import RunConfig
from kvsim.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Maximum number of cells of a sweep; more are taken for a mistake.
MOST_CELLS = 100_000
#: Options of recording, which are off, as a cell does not store these tables.
_NOT_KEPT: dict[str, Any] = dict.fromkeys(
    ("record_steps", "record_memory_map", "record_block_events"), False
)

#: Rows of a trace: the first row, and one past the last row.
Slice = tuple[int, int]


@dataclass(frozen=True)
class Study:
    """Specification of a sweep.

    Parameters
    ----------
    crossed : values per option; all combinations run
    zipped : lists of equal length per option; their k-th values run together
    slices : rows of the trace; each slice is a separate cell
    replications : number of runs, with seed, seed + 1, ...
    """

    crossed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    zipped: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    slices: Sequence[Slice] = ()
    replications: int = 1


@dataclass(frozen=True)
class Point:
    """One run of a plan, and the values that distinguish it from the others.

    Parameters
    ----------
    config : configuration of the run
    rows : rows of the trace that are served; None: all
    varied : option -> its value, for the options that have several; then ``slice`` and ``seed``
    """

    config: RunConfig
    rows: Slice | None
    varied: Mapping[str, Any]


def plan(study: Study) -> list[Point]:
    """Return the runs of a study; the first option changes slowest, the seed fastest.

    Raises
    ------
    ValueError
        For values that are not allowed, lists of different lengths, and too many cells.
    """
    _check(study)
    axes: list[list[dict[str, Any]]] = [
        [{name: value} for value in values] for name, values in study.crossed.items()
    ]
    if study.zipped:
        columns = list(study.zipped.values())
        axes.append(
            [dict(zip(study.zipped, row, strict=True)) for row in zip(*columns, strict=True)]
        )
    number = math.prod(map(len, axes)) * max(len(study.slices), 1) * study.replications
    if number > MOST_CELLS:
        raise ValueError(f"a sweep of {number:,} cells: at most {MOST_CELLS:,}; vary fewer options")
    points = []
    for parts in product(*axes):
        given = {name: value for part in parts for name, value in part.items()}
        config = _config(given)
        seeds = seeded(config, study.replications)
        points += [_point(study, given, *one) for one in product(study.slices or (None,), seeds)]
    return points


def _point(study: Study, given: Mapping[str, Any], rows: Slice | None, config: RunConfig) -> Point:
    both = {**study.crossed, **study.zipped}
    # The eviction policy is a parameter of the configuration's allocator.
    varied = {n: getattr(config, n, given[n]) for n, values in both.items() if len(values) > 1}
    if len(study.slices) > 1 and rows is not None:
        varied["slice"] = f"{rows[0]}:{rows[1]}"
    if study.replications > 1:
        varied["seed"] = config.seed
    return Point(config, rows, varied)


def _check(study: Study) -> None:
    for name, values in [*study.crossed.items(), *study.zipped.items()]:
        if not values:
            raise FieldError(name, "has no value: give at least one")
        twice = [value for index, value in enumerate(values) if value in values[:index]]
        if twice and name not in study.zipped:
            raise FieldError(name, f"has the value {twice[0]} twice")
    both = study.crossed.keys() & study.zipped.keys()
    if both:
        raise FieldError(min(both), "is crossed and zipped: choose one")
    lengths = {name: len(values) for name, values in study.zipped.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"zip: lists must have equal lengths; {said}")
    if study.replications > 1 and len(study.crossed.get("seed", study.zipped.get("seed", ()))) > 1:
        raise ValueError("replications: the seed is varied already; give only one of the two")


def _config(values: Mapping[str, Any]) -> RunConfig:
    config = RunConfig.build(**values)
    if config.kv_events_config is not None:
        raise FieldError("kv_events_config", "writes a file per run; a sweep keeps summaries only")
    return config.model_copy(update=_NOT_KEPT)


def seeded(config: RunConfig, replications: int) -> list[RunConfig]:
    """Return the configuration once per replication, each with its own seed."""
    if replications > 1 and config.trace is not None:
        raise ValueError("replications: a trace has no seed; replicate a generated workload")
    return [
        config.model_copy(update={"seed": config.seed + i, "trace_digest": None}) if i else config
        for i in range(replications)
    ]
