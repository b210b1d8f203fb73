"""Options that a stepped engine refuses: it has one replica, and does not know later requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import FieldError
from kvsim.fleet.pool_setups import OF_THE_FLEET

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.engine.setup import Setup

#: Options of fleets that one replica accepts, too.
OF_ONE = frozenset(
    (
        *("seed", "horizon", "goodput", "front_end_latency", "backend", "router"),
        *("record_steps", "record_memory_map", "record_block_events", "check_invariants"),
        "kv_events_config",
    )
)
#: Options for all requests of a trace, with the arguments of add_request that replace them.
OF_REQUESTS = {"num_samples": "num_samples", "ends_by": "stop_after"}


def check_options(config: Config) -> None:
    """Refuse options of fleets, clients and whole traces.

    Raises
    ------
    ValueError
        The message names the first such option.
    """
    for name in sorted(config.model_fields_set):
        default = type(config).model_fields[name].default
        if getattr(config, name) == default:
            continue
        if name in OF_THE_FLEET - OF_ONE:
            raise FieldError(name, "is for a run over a trace; an engine to step is one replica")
        if name in OF_REQUESTS:
            raise FieldError(name, f"is given per request: {OF_REQUESTS[name]} of add_request")


def check_setup(setup: Setup) -> None:
    """Refuse parts that must know all requests before the run starts.

    Raises
    ------
    ValueError
        The message names the part.
    """
    if setup.kv.foresees:
        raise ValueError("eviction: a policy that foresees requests needs a trace; use simulate")
    if setup.kv.tracks_sessions:
        raise ValueError("session_policy: needs a trace with the sessions' ends; use simulate")
    own = setup.scheduler_config.engine_settings
    if setup.scheduler_config.kv_transfer is not None:
        raise ValueError("kv connectors and offloading need a trace; use simulate")
    if own is not None:
        own.check_open_trace()
