"""The positional argument of a command: a configuration file, or a model."""

from __future__ import annotations

from typing import Any

from kvsim.api.requests import REQUESTS


def with_beginning(what: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Add the options of a file, or a model, to those of the flags; flags take precedence.

    Raises
    ------
    ValueError
        If the file is wrong, or a second model is given.
    """
    from kvsim.config import RunConfig

    if what is not None and what.lower().endswith(".toml"):
        RunConfig.from_toml(what)  # errors name the file
        saved = RunConfig.read_toml(what)
        if REQUESTS & given.keys():  # other requests than the saved ones
            saved.pop("trace_digest", None)
        return saved | given
    return with_model(what, given)


def with_model(what: str | None, given: dict[str, Any]) -> dict[str, Any]:
    if what is not None and given.setdefault("model", what) != what:
        raise ValueError(f"{what}: conflicts with --model {given['model']}")
    return given
