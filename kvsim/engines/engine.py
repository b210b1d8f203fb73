"""The interface of an engine: one class per engine; a method imports its modules when called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from kvsim.budget.capacity import Capacity, Memory
    from kvsim.budget.layout import KVLayout
    from kvsim.calibration.startup import Startup
    from kvsim.catalog.spec import ModelSpec
    from kvsim.config import Config
    from kvsim.engine.history.block_watch import Watch
    from kvsim.engine.setup import Setup
    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.feature import Feature
    from kvsim.fleet.kv_store.store import Store
    from kvsim.fleet.pool import Pool
    from kvsim.kv.allocator_spec import AllocatorSpec
    from kvsim.kv.manager import KVCacheConfig
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory as StateMemory
    from kvsim.sched.scheduler import Scheduler, SchedulerConfig


class Variants(NamedTuple):
    """Compilation of an engine's rules.

    ``constants`` holds the fixed settings of each variant, by name and "Record.field";
    ``has_rule(variant, module)`` returns True if it contains the rules of a module;
    ``variant_of(state)`` names the variant that runs a replica.
    """

    constants: dict[str, dict[str, int]]
    has_rule: Callable[[str, str], bool]
    variant_of: Callable[[Replica], str]


class EngineSettings:
    """Settings of an engine's scheduler, in addition to those of all schedulers."""

    #: Tokens of the pool if it bounds the length of a request, else None.
    max_total_num_tokens: int | None

    def init_state(self, state: Replica, memory: StateMemory) -> None:
        """Write the settings into an empty state, and allocate the lists of running requests."""

    def init_rows(self, state: Replica, memory: StateMemory, num_rows: int) -> None:
        """Allocate the engine's lists with an entry for each request of a trace."""

    def check_open_trace(self) -> None:
        """Raise ValueError if the engine must know all requests before the run starts."""


class Engine:
    """An engine: its scheduler, its KV-cache manager, and other differences from vLLM.

    A subclass overrides what its engine does differently from vLLM. Its keyword parameters with
    defaults become ``--engine NAME+KEY=VALUE``.

    Attributes
    ----------
    title : the engine's name in prose
    scheduler, allocator : names of the engine's default parts; None for vLLM's
    policies : numbers of the schedulers with rules of this engine
    launchers : modules and commands that start its server, as on a command line
    flags : file with the table of its server's flags, None for vLLM's
    has_own_loop : its own rules schedule and complete steps, :mod:`kvsim.engines.rules.own_loop`
    has_auto_length : takes ``max_model_len`` auto
    has_context_parallel : takes ``decode_context_parallel_size``
    has_compressed_kv : its pools for compressed attention are known
    offloads_weights : use of the weights of ``cpu_offload_gb``: kernels read them in host memory,
        or the weights of each layer are copied before it runs
    shares_experts : the replicas of a server share the routed experts of each layer
    checks_block_size : its kernels serve only some block sizes
    basis : source of its rules, for the notes of every run; None for no note
    reads_store_itself : a replica itself reads a KV store into its host tier while requests wait
    """

    title: ClassVar[str] = ""
    scheduler: str | None = None
    allocator: str | None = None
    policies: ClassVar[frozenset[int]] = frozenset()
    launchers: ClassVar[tuple[str, ...]] = ()
    flags: Path | None = None
    basis: str | None = None
    has_own_loop = False
    has_auto_length = False
    has_context_parallel = False
    has_compressed_kv = False
    offloads_weights: Literal["read", "copied"] | None = None
    shares_experts = False
    checks_block_size = False
    reads_store_itself = False

    @property
    def options(self) -> tuple[str, ...]:
        """Configuration fields that only this engine has."""
        return ()

    @property
    def log_mark(self) -> str | None:
        """A pattern that occurs only in the engine's start-up log; None if kvsim reads none."""
        return None

    def _lacks(self, method: str) -> ValueError:
        """Return the error for a missing method that another attribute or method requires."""
        return ValueError(f"engine {self.title or type(self).__name__}: has no method {method}")

    # -- configuration ----------------------------------------------------------------------------

    def runs(self, scheduler: str, policy: int) -> bool:
        """Return True if a scheduler, or its rules, belong to this engine."""
        return scheduler == self.scheduler or policy in self.policies

    def choices(self, config: Config) -> dict[str, Any]:
        """Return the engine's values for fields that a configuration does not set, by name."""
        parts = {"scheduler": self.scheduler, "allocator": self.allocator}
        return {name: part for name, part in parts.items() if part is not None}

    def check(
        self, config: Config, allocator: AllocatorSpec, kind: type[Scheduler], scheduler: str
    ) -> None:
        """Raise ValueError for a setting or a part that this engine does not support.

        It is called on every engine, for every configuration.
        """

    def is_asynchronous(self, config: Config, kind: type[Scheduler]) -> bool:
        """Return the engine's default for asynchronous scheduling."""
        return kind.supports_async and config.pipeline_parallel_size == 1

    def resolve(
        self,
        config: Config,
        memory: Memory,
        layout: KVLayout,
        allocator: AllocatorSpec,
        kv_config: KVCacheConfig,
        scheduler_config: SchedulerConfig,
    ) -> tuple[KVCacheConfig, SchedulerConfig]:
        """Derive the settings of the KV-cache manager and the scheduler from vLLM's."""
        return kv_config, scheduler_config

    # -- memory -----------------------------------------------------------------------------------

    def offloaded_in_groups(self, model: ModelSpec) -> Literal["layers", "experts"] | None:
        """Return the weights that ``offload_group_size`` moves to host memory; None for none."""
        return None

    def capacity(self, config: Config) -> Capacity:
        """Compute how many blocks, tokens and requests fit."""
        from kvsim.engine.capacity import paged_capacity

        return paged_capacity(config)

    def describe_pool(self, capacity: Capacity) -> str:
        """Describe the size of the KV pool as the engine's log does."""
        return (
            f"{capacity.num_gpu_blocks:,} blocks of {capacity.block_size} tokens and "
            f"{capacity.bytes_per_block:,} bytes: {capacity.num_tokens:,} tokens, "
            f"{capacity.logged_concurrency:,.2f} requests of max_model_len, as vLLM logs them"
        )

    # -- the state of a replica -------------------------------------------------------------------

    def grow(self, state: Replica, memory: StateMemory, first: int, count: int) -> None:
        """Add the engine's own records for ``count`` more requests, from index ``first`` on."""

    def block_table(self, state: Replica, place: int) -> list[int] | None:
        """Return the blocks of a request; None if the KV-cache manager has them."""

    def variants(self, specialized: Mapping[str, int]) -> Variants | None:
        """Return the engine's compiled variants; None if its replicas use the common variants.

        Parameters
        ----------
        specialized : the constants of the specialized variant, by "Record.field"
        """

    def copied_tokens(self, state: Replica) -> list[int]:
        """Return the number of tokens of each copy in flight between GPU and host that locks KV."""
        return []

    def watch(self, state: Replica) -> Watch | None:
        """Return an observer of a replica's blocks; None if its allocator has no blocks."""
        from kvsim.engine.history.pool_watch import PoolWatch
        from kvsim.rules.kv import has_pool

        return PoolWatch(state) if has_pool(state.kv) else None

    def held(self, state: Replica) -> list[int]:
        """Return the indices of the running requests."""
        return [state.running[k] for k in range(state.num_running)]

    # -- fleets -----------------------------------------------------------------------------------

    def with_store(self, setup: Setup, config: Config, store: Store) -> Setup:
        """Return a setup of replicas that read a store; see ``reads_store_itself``."""
        raise self._lacks("with_store, which reads_store_itself needs")

    def store_reads(self, reader: Pool, store: Store, fabric: Fabric) -> Feature:
        """Return the fleet feature by which a pool reads a store; see ``reads_store_itself``."""
        raise self._lacks("store_reads, which reads_store_itself needs")

    # -- files ------------------------------------------------------------------------------------

    def is_log(self, text: str) -> bool:
        """Return True if a text is a start-up log of the engine."""
        return self.log_mark is not None and re.search(self.log_mark, text) is not None

    def startup_of(self, text: str) -> Startup:
        """Read a start-up log that :func:`kvsim.calibration.text.plain` has cleaned."""
        raise self._lacks("startup_of, which log_mark needs")

    def case_kind(self, content: Mapping[str, Any]) -> type[Any] | None:
        """Return the class that reads a recorded case; None if it is not the engine's."""
        return None

    def play(self, case: Any, *, check: bool, compiled: bool) -> Iterator[dict[str, Any]]:
        """Yield the log entry of every step of a recorded case."""
        raise self._lacks("play, which case_kind needs")

    def parts_of(self, case: Any) -> Any:
        """Return the parts of a replica that plays a recorded case."""
        raise self._lacks("parts_of, which case_kind needs")
