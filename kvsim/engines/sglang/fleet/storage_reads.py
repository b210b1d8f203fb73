"""HiCache's third level: SGLang's replicas read from a store into their host memory.

An arriving request is offered the part of its prompt that the store has and both tiers of its
replica lack. The replica itself reads that part while the request waits; see
:mod:`kvsim.engines.sglang.rules.host.storage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.engines.sglang.fleet.storage_reader import StorageReader
from kvsim.engines.sglang.sched.settings import SglangSettings
from kvsim.fleet.disaggregation.transfer_size import transfer_bytes
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.feature import Feature
from kvsim.fleet.member import Life

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.kv_store.store import Portion, Store
    from kvsim.fleet.member import Member
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.prefix_index.prompt_keys import PromptKeys


class StorageReads(Feature):
    """Offers the store's pages to arriving requests, and the hosts' pages to the store.

    Parameters
    ----------
    pool : the pool of the replicas that read, each over its own link
    store : the store they read
    fabric : default fabric of the fleet
    keys : keys of the trace
    """

    def __init__(self, pool: Pool, store: Store, fabric: Fabric, keys: PromptKeys) -> None:
        settings = pool.setup.scheduler_config.engine_settings
        assert isinstance(settings, SglangSettings)
        assert settings.storage is not None
        self.pool, self._store, self._fabric = pool, store, fabric
        self._gateways = pool.gateways
        self._tokens = pool.setup.kv.block_size
        self._least = settings.storage.least
        self._num_found = 0
        replicas = [member.replica for member in pool.members]
        self._reader = StorageReader(replicas, keys, self._tokens)
        self._page_bytes = transfer_bytes(pool.setup, self._tokens)
        store.start(self._reader, self._page_bytes)  # type: ignore[arg-type] # it only listens

    def on_submit(self, member: Member, row: int, now: float) -> None:
        if member.role == self.pool.role and member.life is not Life.FAILED:
            self._offer(row, member, now)

    def _offer(self, row: int, target: Member, now: float) -> None:
        """Offer a replica the pages it may read for an arriving request. Mutates."""
        request = self._gateways.request(row, now)
        self._reader.update(now)
        target.replica.num_cached_tokens(request)
        state = target.replica.state
        held = state.kv.radix.num_walked  # on its GPU and its host
        keys: list[int] = self._reader.entry_path(request).tolist()
        portions = self._store.look_up(keys[held // self._tokens :], target.place, now)
        number = sum(portion.num_entries for portion in portions)
        storage = state.storage
        storage.offered[row] = held + number * self._tokens if number else 0
        storage.held[row] = held
        if number:
            base, seconds = self._times(portions)
            storage.base[row] = base
            storage.token_time[row] = seconds / (number * self._tokens)
        self._num_found += number * self._tokens >= self._least

    def _times(self, portions: Sequence[Portion]) -> tuple[float, float]:
        """Return the fixed seconds of a read, and the seconds of its pages."""
        base = seconds = 0.0
        for portion in portions:
            own = self._store.fabrics.get(portion.tier)
            fabric = self._fabric if own is None else fabric_of(own)
            base = max(base, fabric.base)
            page = self._page_bytes / fabric.bandwidth + fabric.per_descriptor
            seconds += portion.num_entries * page
        return base, seconds

    def describe(self) -> dict[str, Any]:
        read = [member.replica.state.storage for member in self.pool.members]
        tokens, number = (sum(getattr(s, n) for s in read) for n in ("num_tokens", "num_reads"))
        seconds = sum(one.seconds for one in read)
        described = {
            "num_found": self._num_found,
            "num_declined": sum(one.num_refused for one in read),
            "num_gone": 0,
            "num_fetches": number,
            "num_tokens": tokens,
            "bytes": {"storage": tokens // self._tokens * self._page_bytes},
            "num_evicted": self._store.num_evicted,
            "mean_ms": 1e3 * seconds / number if number else None,
            "p99_ms": None,
        }
        return {"kv_store": described}
