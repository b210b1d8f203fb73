"""The pools of a configuration, and the setups of their replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.client_options import ClientOptions
from kvsim.config import Config
from kvsim.engine.given import given
from kvsim.engine.setup import resolve
from kvsim.errors import unknown_name
from kvsim.fleet.routing.router import make_routers
from kvsim.pool_config import PoolConfig

if TYPE_CHECKING:
    from kvsim.engine.setup import Setup

#: Options of the whole fleet, which a pool cannot set.
OF_THE_FLEET = frozenset(
    (
        *("pool", "num_prefill_workers", "num_decode_workers", "prefill_router", "router"),
        *("disaggregation", "kv_transfer_protocol", "kv_transfer_fabric", "proxy_latency"),
        "first_token_from",
        *("autoscaler", "cold_start", "failures", "flow_control", "migration"),
        *("kv_store", "kv_recompute_threshold", "session_think_time", "data_parallel_size", "seed"),
        *("max_concurrency", "horizon", "goodput", "front_end_latency", "backend"),
        *("kv_events_config", "record_steps", "record_memory_map", "record_block_events"),
        *("check_invariants", "tenant_weights"),
        *ClientOptions.model_fields,
    )
)


def pools_of(config: Config) -> tuple[PoolConfig, PoolConfig | None]:
    """Return the main pool, and the prefill pool, if any.

    Raises
    ------
    ValueError
        If the pools are inconsistent: names, roles or numbers of replicas.
    """
    if config.pool is None:
        return _counted_pools(config)
    if config.num_prefill_workers or config.num_decode_workers or config.data_parallel_size > 1:
        raise ValueError(
            "pool: each [[pool]] has its own number of replicas; omit the other options that set it"
        )
    if config.prefill_router is not None:
        raise ValueError("prefill_router: conflicts with pool; set router in a [[pool]]")
    names = [pool.name for pool in config.pool]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"pool: two have the name {twice!r}: names must differ")
    roles = [pool.role for pool in config.pool]
    if roles == ["mixed"]:
        return config.pool[0], None
    if sorted(roles) != ["decode", "prefill"]:
        raise ValueError(
            f"pool: has the roles {', '.join(roles)}: must have mixed, or prefill and decode"
        )
    first, second = config.pool
    return (second, first) if first.role == "prefill" else (first, second)


def _counted_pools(config: Config) -> tuple[PoolConfig, PoolConfig | None]:
    """Return the pools of a configuration that gives only numbers of replicas."""
    prefill, decode = config.num_prefill_workers, config.num_decode_workers
    if not (prefill or decode):
        return PoolConfig("mixed", config.data_parallel_size, "mixed"), None
    if not (prefill and decode):
        raise ValueError("num_prefill_workers and num_decode_workers: give both or neither")
    if config.data_parallel_size > 1:
        raise ValueError("data_parallel_size: conflicts with num_prefill_workers; omit it")
    return (
        PoolConfig("decode", decode, "decode"),
        PoolConfig("prefill", prefill, "prefill", config.prefill_router),
    )


def resolve_fleet(config: Config) -> Setup:
    """Return the setup of the replicas that answer requests.

    Raises
    ------
    ValueError
        See :func:`kvsim.engine.setup.resolve` and :func:`pools_of`.
    """
    if config.prefill_router is not None:  # a wrong one is refused, used or not
        make_routers(config.prefill_router)
    return pool_setup(config, pools_of(config)[0])


def pool_setup(config: Config, pool: PoolConfig) -> Setup:
    """Return the setup of a pool's replicas.

    Raises
    ------
    ValueError
        For options that a pool cannot set, or that are invalid.
    """
    if not pool.options:
        return resolve(config)
    own = [name for name in Config.model_fields if name not in OF_THE_FLEET]
    for name, _ in pool.options:
        if name not in own:
            raise unknown_name(f"option of pool {pool.name!r}", name, own)
    try:
        return resolve(type(config).build(**{**given(config), **dict(pool.options)}))
    except ValueError as error:
        raise ValueError(f"pool {pool.name!r}: {error}") from None


def check_alike(decode: Setup, prefill: Setup) -> None:
    """Refuse pools that cannot read each other's KV.

    Raises
    ------
    ValueError
        If they differ in model, block size or data type; the message says in which.
    """
    for what, one, other in (
        ("model", decode.memory.model.name, prefill.memory.model.name),
        ("block_size", decode.kv.block_size, prefill.kv.block_size),
        ("kv_cache_dtype", decode.kv_config.layout.dtype.name, prefill.kv_config.layout.dtype.name),
    ):
        if one != other:
            raise ValueError(
                f"pool: {what} is {other} in prefill replicas and {one} in decode "
                "replicas: must be equal"
            )
