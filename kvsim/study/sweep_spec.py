"""Specification of a sweep: comma-separated lists of the command line, or a TOML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.config import RunConfig
from kvsim.errors import FieldError, unknown_name
from kvsim.study.plan import Slice, Study
from kvsim.study.space import split_list

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Keys of a study's file that are not options.
ZIP, SLICES, REPLICATIONS = "zip", "slices", "replications"
#: Options whose single value is a list: pools of a fleet.
LISTS = {"pool"}


def values_of(name: str, given: object) -> list[Any]:
    """Return the values of an option from the command line.

    Raises
    ------
    ValueError
        For an empty list, or a list with an empty value.
    """
    if not isinstance(given, str):
        return [given]
    values = split_list(given)
    if "" in values:
        what = "is empty" if values == [""] else f"is {given!r}: a value is missing"
        raise FieldError(name, f"{what}; separate values by commas")
    return values


def read_study(path: str | Path) -> Study:
    """Read a study's file: options, with lists for values to cross, ``[zip]`` and ``slices``.

    Raises
    ------
    ValueError
        In one line that begins with the path, for a wrong file, key or value.
    """
    values = RunConfig.read_toml(path)
    try:
        zipped = _zipped(values.pop(ZIP, {}))
        slices = _slices(values.pop(SLICES, []))
        replications = values.pop(REPLICATIONS, 1)
        if isinstance(replications, bool) or not isinstance(replications, int) or replications < 1:
            raise ValueError(f"replications = {replications!r}: must be a whole number, at least 1")
        crossed = {name: _listed(name, value) for name, value in values.items()}
        for name, listed in [*crossed.items(), *zipped.items()]:
            if name not in RunConfig.model_fields:
                known = [*RunConfig.model_fields, ZIP, SLICES, REPLICATIONS]
                raise unknown_name("option", name, known)
            for value in listed:
                RunConfig.check_toml_type(path, name, value)
    except ValueError as error:
        said = str(error)
        raise ValueError(said if said.startswith(f"{path}: ") else f"{path}: {said}") from None
    return Study(crossed, zipped, slices, replications)


def with_options(study: Study, options: Mapping[str, list[Any]]) -> Study:
    """Replace a file's options by those of the command line.

    Raises
    ------
    ValueError
        If an option is in the file's ``[zip]``.
    """
    for name in options:
        if name in study.zipped:
            raise FieldError(name, "is in the file's [zip]; change it there")
    # Varied options are in the order of the file, then of the command line.
    crossed = dict(study.crossed) | dict(options)
    return Study(crossed, study.zipped, study.slices, study.replications)


def _listed(name: str, value: Any) -> list[Any]:
    """Return the values of a key; a list of pools is one value, a list of lists is several."""
    if not isinstance(value, list):
        return [value]
    if name in LISTS and not all(isinstance(one, list) for one in value):
        return [value]
    return value


def _zipped(table: object) -> dict[str, list[Any]]:
    if not isinstance(table, dict) or not all(isinstance(one, list) for one in table.values()):
        raise ValueError("zip must be a table of lists of equal length, e.g. block_size = [16, 32]")
    return {str(key).replace("-", "_"): value for key, value in table.items()}


def _slices(given: object) -> list[Slice]:
    wrong = ValueError(f"slices = {given!r}: must be rows, e.g. [[0, 1000], [1000, 2000]]")
    if not isinstance(given, list):
        raise wrong
    for pair in given:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(x) is int for x in pair)):
            raise wrong
        if not 0 <= pair[0] < pair[1]:
            raise ValueError(f"slices: {pair} holds no row; the first is below the last")
    return [(pair[0], pair[1]) for pair in given]
