"""The engines by name, and the look-up of an engine by configuration or rules."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kvsim.engines.engine import Engine
from kvsim.registry import Registry

if TYPE_CHECKING:
    from kvsim.config import Config

#: Engine of a configuration that names none.
DEFAULT = "vllm"

#: Factories of engines by name; they take keyword parameters.
ENGINES: Registry[Engine] = Registry("engine", "kvsim.engines", Engine, "kvsim.engines")


@cache
def get_engine(text: str | None) -> Engine:
    """Return the engine ``NAME[+KEY=VALUE]...``, vLLM for None.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    return ENGINES.make(text or DEFAULT)


def all_engines() -> dict[str, Engine]:
    """Return every named engine with its defaults; vLLM first."""
    names = sorted(ENGINES.names(), key=lambda name: (name != DEFAULT, name))
    return {name: get_engine(name) for name in names}


@cache
def engine_name(policy: int) -> str:
    """Return the name of the engine to which a scheduler's rules belong; by default vLLM."""
    found = [name for name, one in all_engines().items() if policy in one.policies]
    return found[0] if found else DEFAULT


@cache
def engine_by_policy(policy: int) -> Engine:
    """Return the engine to which a scheduler's rules belong; by default vLLM."""
    return get_engine(engine_name(policy))


def engine_for(config: Config) -> Engine:
    """Return the engine that a configuration names, possibly by its scheduler only."""
    if config.engine is None:
        for engine in all_engines().values():
            if config.scheduler is not None and engine.scheduler == config.scheduler:
                return engine
    return get_engine(config.engine)
