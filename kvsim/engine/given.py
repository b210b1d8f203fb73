"""The options that the user set, and options that only an output file needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kvsim.config import Config

AnyConfig = TypeVar("AnyConfig", bound="Config")


def recording(config: AnyConfig, *names: str) -> AnyConfig:
    """Return a configuration with more records for an output file, not counted as set by users."""
    copy = config.model_copy(update=dict.fromkeys(names, True))
    object.__setattr__(copy, "__pydantic_fields_set__", set(config.model_fields_set))
    return copy


def given(config: Config) -> dict[str, Any]:
    """Return the options that the user set, and the recording options of output files."""
    names = {name for name in type(config).model_fields if name.startswith("record_")}
    recorded = {name for name in names if getattr(config, name)}
    return {name: getattr(config, name) for name in config.model_fields_set | recorded}
