"""Transfers of KV from and to memory other than the GPU's: vLLM's KVTransferConfig."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from kvsim.errors import unknown_name
from kvsim.json_object import read_object

Role = Literal["kv_producer", "kv_consumer", "kv_both"]
FailurePolicy = Literal["recompute", "fail"]

#: The connector behind ``--kv-offloading-backend native``.
OFFLOADING = "OffloadingConnector"
#: Texts of errors: the name of a key, an example of a connector, and one of its settings.
WHAT = "setting of a connector"
EXAMPLE = f'{{"kv_connector": "{OFFLOADING}", ...}}'
EXTRA = '{"cpu_bytes_to_use": 34359738368, ...}'
#: Keys of vLLM's object that change no number here.
WITHOUT_EFFECT = frozenset(
    """engine_id kv_buffer_device kv_buffer_size kv_rank kv_parallel_size kv_ip kv_port
    kv_connector_module_path enable_permute_local_kv""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class OffloadingOptions:
    """Settings of the native connector; names and defaults are vLLM's.

    Parameters
    ----------
    cpu_bytes_to_use : host memory, bytes, all ranks together
    blocks_per_chunk : GPU blocks that are copied together
    eviction_policy : order in which chunks are evicted from host memory
    store_threshold : number of times that a chunk is offered for storing until it is stored; below
        2: at once
    offload_prompt_only : do not store chunks that hold output tokens
    sync_load_budget_bytes : bytes of loads per step that the step itself waits for
    """

    cpu_bytes_to_use: float = 0
    blocks_per_chunk: int = 1
    eviction_policy: str = "lru"
    store_threshold: int = 0
    offload_prompt_only: bool = True
    sync_load_budget_bytes: int = 0

    def check(self) -> None:
        """Raise ValueError for the first wrong value, with its key and what is allowed."""
        if self.eviction_policy not in ("lru", "arc"):
            raise unknown_name("eviction_policy", str(self.eviction_policy), ("lru", "arc"))
        for name, least in (
            ("cpu_bytes_to_use", 0),
            ("blocks_per_chunk", 1),
            ("store_threshold", 0),
            ("sync_load_budget_bytes", 0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise ValueError(f"{name} is {value!r}: must be a number of at least {least}")
        if not isinstance(self.offload_prompt_only, bool):
            raise ValueError(
                f"offload_prompt_only is {self.offload_prompt_only!r}: must be true or false"
            )


#: KV stores that model a connector's storage, by the beginning of the connector's name.
STORES = {"LMCache": "lmcache+gib=5", "MooncakeStore": "mooncake+gib=100"}


def _why_not(connector: str) -> str:
    """Return the reason why a connector is not supported, and the supported ones."""
    own = f"vLLM's own host memory is {OFFLOADING}, or kv_offloading_size"
    store = next((store for name, store in STORES.items() if connector.startswith(name)), None)
    if store is not None:
        return f"give kv_store {store} instead, which models its tiers; {own}"
    return (
        "not modelled; num_prefill_workers and num_decode_workers move KV between servers as NIXL "
        f"and Mooncake do; {own}"
    )


@dataclass(frozen=True)
class KVTransferConfig:
    """A connector; names and defaults are vLLM's.

    Parameters
    ----------
    kv_connector : name of the connector, which determines the protocol
    kv_role : whether the engine produces KV for others, consumes KV of others, or both
    kv_load_failure_policy : treatment of a request after a failed KV load
    kv_connector_extra_config : settings of the connector
    """

    kv_connector: str = OFFLOADING
    kv_role: Role = "kv_both"
    kv_load_failure_policy: FailurePolicy = "fail"
    kv_connector_extra_config: OffloadingOptions = field(default_factory=OffloadingOptions)

    @classmethod
    def of(cls, given: object) -> KVTransferConfig:
        """Read vLLM's JSON object, as text or as a dict.

        Raises
        ------
        ValueError
            If the object is malformed, or has unknown keys or wrong values.
        """
        if isinstance(given, KVTransferConfig):
            return given
        values = read_object(given, cls, WHAT, EXAMPLE, WITHOUT_EFFECT)
        connector = values.get("kv_connector", OFFLOADING)
        if connector != OFFLOADING:
            raise ValueError(f"kv_connector is {connector!r}: {_why_not(str(connector))}")
        for name, allowed in (("kv_role", Role), ("kv_load_failure_policy", FailurePolicy)):
            if name in values and values[name] not in get_args(allowed):
                raise unknown_name(name, str(values[name]), get_args(allowed))
        extra = values.get("kv_connector_extra_config", {})
        if not isinstance(extra, OffloadingOptions):
            extra = OffloadingOptions(**read_object(extra, OffloadingOptions, WHAT, EXTRA))
        extra.check()
        return cls(**{**values, "kv_connector_extra_config": extra})
