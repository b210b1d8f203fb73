"""SGLang, version 0.5.23."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvsim.engines.engine import Engine, Variants
from kvsim.engines.policies import SGLANG
from kvsim.engines.registry import ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvsim.budget.capacity import Capacity, Memory
    from kvsim.budget.layout import KVLayout
    from kvsim.calibration.startup import Startup
    from kvsim.catalog.spec import ModelSpec
    from kvsim.config import Config
    from kvsim.engine.setup import Parts, Setup
    from kvsim.engines.sglang.fleet.storage_reads import StorageReads
    from kvsim.engines.sglang.history import RadixWatch
    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.kv_store.store import Store
    from kvsim.fleet.pool import Pool
    from kvsim.kv.allocator_spec import AllocatorSpec
    from kvsim.kv.manager import KVCacheConfig
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory as StateMemory
    from kvsim.sched.scheduler import Scheduler, SchedulerConfig


@ENGINES.register("sglang")
class Sglang(Engine):
    """SGLang: a radix tree, and prefills before decodes."""

    title = "SGLang"
    scheduler = "sglang"
    policies = frozenset((SGLANG,))
    launchers = ("sglang.launch_server", "sglang serve")
    has_context_parallel = True
    offloads_weights = "copied"
    flags = Path(__file__).parent / "flags.tsv"
    has_own_loop = True
    reads_store_itself = True

    @property
    def options(self) -> tuple[str, ...]:
        from kvsim.engines.sglang.server_options import SglangOptions

        return tuple(SglangOptions.model_fields)

    @property
    def log_mark(self) -> str:
        from kvsim.engines.sglang.calibration import MARK

        return MARK

    def choices(self, config: Config) -> dict[str, Any]:
        from kvsim.engines.sglang.drafting import speculative_config_of

        found = super().choices(config)
        if config.enable_lora:
            found |= {"max_loras": config.max_loras_per_batch}
        speculation = speculative_config_of(config)
        return found if speculation is None else found | {"speculative_config": speculation}

    def check(
        self, config: Config, allocator: AllocatorSpec, kind: type[Scheduler], scheduler: str
    ) -> None:
        from kvsim.engines.sglang.setup import check_pair

        check_pair(config, allocator, kind, scheduler)

    def is_asynchronous(self, config: Config, kind: type[Scheduler]) -> bool:
        from kvsim.engines.sglang.setup import overlaps

        return overlaps(config)

    def resolve(
        self,
        config: Config,
        memory: Memory,
        layout: KVLayout,
        allocator: AllocatorSpec,
        kv_config: KVCacheConfig,
        scheduler_config: SchedulerConfig,
    ) -> tuple[KVCacheConfig, SchedulerConfig]:
        from kvsim.engines.sglang.server_options import EVICTION_NUMBERS
        from kvsim.engines.sglang.setup import with_sglang

        allocator.params.setdefault("eviction", config.radix_eviction_policy)
        for name, value in json.loads(config.radix_eviction_policy_config or "{}").items():
            allocator.params.setdefault(EVICTION_NUMBERS.get(name, name), value)
        return with_sglang(config, memory, layout, kv_config, scheduler_config)

    def offloaded_in_groups(self, model: ModelSpec) -> Literal["layers", "experts"] | None:
        """Return "experts" for DeepSeek's models: only their code names weights to move."""
        own = model.is_mla and model.is_moe and not model.num_state_layers
        return "experts" if own else None

    def capacity(self, config: Config) -> Capacity:
        from kvsim.engines.sglang.capacity import capacity_of

        return capacity_of(config)

    def describe_pool(self, capacity: Capacity) -> str:
        return (
            f"{capacity.num_tokens:,} tokens (max_total_num_tokens) in pages of "
            f"{capacity.block_size}: {capacity.logged_concurrency:,.2f} requests of the context "
            "length"
        )

    def grow(self, state: Replica, memory: StateMemory, first: int, count: int) -> None:
        from kvsim.engines.sglang.records.growth import more_progress

        more_progress(state, memory, first, count)

    def block_table(self, state: Replica, place: int) -> list[int]:
        from kvsim.engines.sglang.history import pages_of

        return pages_of(state, place)

    def variants(self, specialized: Mapping[str, int]) -> Variants:
        from kvsim.engines.sglang.variants import variants

        return variants(specialized)

    def copied_tokens(self, state: Replica) -> list[int]:
        from kvsim.engines.sglang.kv.radix_check import nodes_of_copies

        tree = state.kv.radix
        return [tree.nodes[k].end for k in nodes_of_copies(tree)]

    def watch(self, state: Replica) -> RadixWatch:
        from kvsim.engines.sglang.history import RadixWatch

        return RadixWatch(state)

    def held(self, state: Replica) -> list[int]:
        from kvsim.engines.sglang.kv.radix_check import holders

        return holders(state)

    def with_store(self, setup: Setup, config: Config, store: Store) -> Setup:
        from kvsim.engines.sglang.fleet.setup import with_storage

        return with_storage(setup, config, store)

    def store_reads(self, reader: Pool, store: Store, fabric: Fabric) -> StorageReads:
        from kvsim.engines.sglang.fleet.storage_reads import StorageReads

        return StorageReads(reader, store, fabric, reader.gateways.prompt_keys)

    def startup_of(self, text: str) -> Startup:
        from kvsim.engines.sglang.calibration import startup_of

        return startup_of(text)

    def case_kind(self, content: Mapping[str, Any]) -> type[Any] | None:
        from kvsim.engines.sglang.cases.case import RadixCase, SglangCase

        if "sglang" not in content:
            return None
        return RadixCase if "ops" in content else SglangCase

    def play(self, case: Any, *, check: bool, compiled: bool) -> Iterator[dict[str, Any]]:
        from kvsim.engines.sglang.cases.case import RadixCase
        from kvsim.engines.sglang.cases.player import SglangPlayer
        from kvsim.engines.sglang.cases.radix import RadixPlayer

        if isinstance(case, RadixCase):
            return RadixPlayer(case, compiled=compiled).play()
        return SglangPlayer(case, compiled=compiled).play(check=check)

    def parts_of(self, case: Any) -> Parts:
        from kvsim.engines.sglang.cases.case import RadixCase, parts_of

        return parts_of(case.config.schedule if isinstance(case, RadixCase) else case.config)
