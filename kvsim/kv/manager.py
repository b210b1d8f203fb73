"""The protocol by which schedulers use KV-cache managers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.attention.mamba import StateCache
from kvsim.budget.planner import plan_groups
from kvsim.parametric import Parametric
from kvsim.registry import Registry
from kvsim.speculation import DraftSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.attention.spec import AttentionSpec
    from kvsim.budget.layout import KVLayout
    from kvsim.budget.planner import KVPlan
    from kvsim.kv.usage import KVUsage
    from kvsim.records.request import Request


class Hit(NamedTuple):
    """A reusable prefix. It is valid only until the pool changes, as its blocks are not pinned.

    ``blocks`` holds one list per KV-cache group. ``shared_prefix_boundary`` is the length of a
    longer prefix that only some groups hold, 0 if there is none.
    """

    num_tokens: int
    blocks: Sequence[list[int]]
    shared_prefix_boundary: int


NO_HIT = Hit(0, (), 0)


class Transfers(NamedTuple):
    """KV bytes that a step moves between host and GPU.

    ``fetched`` (to the GPU) and ``stored`` (to the host) are copied while the step computes.
    ``paged_in`` and ``paged_out`` are moved by ``num_faults`` page faults, while the step waits.
    """

    fetched: int = 0
    stored: int = 0
    paged_in: int = 0
    paged_out: int = 0
    num_faults: int = 0


NO_TRANSFERS = Transfers()


#: The settings that a manager without a prefix cache ignores, with the reason.
KEEPS_NO_PREFIXES = MappingProxyType({"enable_prefix_caching": "it keeps no prefixes"})


@dataclass(frozen=True)
class KVCacheConfig(DraftSlots):
    """The memory and the settings of a KV-cache manager; the base class has the slots for drafts.

    Parameters
    ----------
    layout : KV bytes of every layer, per GPU
    num_bytes : KV memory of one GPU, the same for every allocator under comparison
    block_size : tokens per block
    max_model_len : most tokens of a request, prompt and output
    max_in_flight_tokens : most tokens scheduled and not yet processed, summed over all steps
    enable_prefix_caching : keep the content of freed blocks for later requests
    watermark : share of the blocks that an admission must leave free while other requests run
    reserve_full_isl : admit a request only if slots for all its known tokens are free
    reserve_output : allocate the slots of the whole output at admission, for a scheduler that
        never preempts
    prefix_cache_retention_interval : as in vLLM; 0 keeps the fewest sliding-window blocks, None all
    swap_space_bytes : host memory for swapped-out KV
    max_num_samples : most sequences of a request
    use_beam_search, beam_switch : sequences are beams; at every step, each beam continues another
        one with probability ``beam_switch``
    hybrid : separate groups for sliding-window layers; else these count as full attention
    packed : group layers of different sizes by bytes, as vLLM does if the block is the outermost
        dimension of the KV tensors
    events : publish changes of cached content (vLLM's KV cache events)
    window_slots : tokens of a pool of sliding windows; by default its share of the memory
    host_slots, write_policy : tokens of host memory behind a radix tree, and when to write to it
    plan : the groups, if they do not follow from the layout (recorded cases, tests)
    specs : attention of the groups, if it does not follow from the plan
    prefix_match_unit : tokens that a block's key covers, by default the gcd of all block sizes
    mamba_shared_prefix_checkpoint : cache states where shared prefixes end, also inside a block
    num_cache_shards : ranks of decode context parallelism, which split the tokens of each block
    """

    layout: KVLayout
    num_bytes: int
    block_size: int
    max_model_len: int
    max_in_flight_tokens: int = 2048
    enable_prefix_caching: bool = False
    watermark: float = 0.0
    reserve_full_isl: bool = True
    reserve_output: bool = False
    prefix_cache_retention_interval: int | None = 0
    swap_space_bytes: int = 0
    max_num_samples: int = 1
    use_beam_search: bool = False
    beam_switch: float = 0.0
    hybrid: bool = True
    packed: bool = False
    events: bool = False
    window_slots: int | None = None
    host_slots: int = 0
    write_policy: str = "write_through"
    plan: KVPlan | None = None
    specs: tuple[AttentionSpec, ...] = ()
    prefix_match_unit: int | None = None
    mamba_shared_prefix_checkpoint: bool = False
    num_cache_shards: int = 1

    @cached_property
    def state_bytes(self) -> int:
        """Most bytes of states that a request holds, 0 without states."""
        if all(layer.kind != "mamba" for layer in self.layout.layers):
            return 0
        groups = self.grouping().groups
        return sum(g.used_bytes * g.state.num_blocks for g in groups if g.state is not None)

    def spared(self, capacity: int) -> int:
        """Return the part of a capacity that admissions leave free while other requests run."""
        return int(self.watermark * capacity)

    def grouping(self, block_size: int | None = None) -> KVPlan:
        """Return the groups of layers; ``block_size`` overrides the configured one."""
        if self.plan is not None:
            return self.plan
        return plan_groups(
            self.layout,
            block_size or self.block_size,
            hybrid=self.hybrid,
            packed=self.packed,
            state=StateCache(
                "align" if self.enable_prefix_caching else "none", self.num_draft_tokens
            ),
            max_model_len=self.max_model_len,
            num_shares=self.num_cache_shards,
        ).of_all_ranks


class KVCacheManager(Parametric, ABC):
    """Base of KV-cache managers, which allocate memory for the KV of each request.

    A refused call must leave the state unchanged. Subclasses implement the abstract methods; the
    other ones suit a manager without a prefix cache. A manager is constructed from a
    :class:`KVCacheConfig` and its own keyword parameters. It must apply the configuration itself:
    leave the watermark free, add lookahead slots, and allocate the whole output under
    ``reserve_output``. :func:`kvsim.testing.check_allocator` checks a manager, except for these
    settings. A manager may contain other managers and pass each request to one of them.

    Attributes
    ----------
    total_bytes : all KV memory that it manages (paged: without the null block)
    num_gpu_blocks, block_size : blocks, and tokens per block, as reported in results
    default_scheduler : name of the scheduler under which it runs by default
    needs_scheduler : the only scheduler under which it runs, None for any
    has_block_table : its attention kernel reads a block table, which costs time
    has_null_block : ``num_gpu_blocks`` includes a block that no request gets, as in vLLM
    evidence : its comparison with the real system, in words; not inherited
    serves_samples : serves requests with several sequences
    speculates : allocates slots for drafts, and rolls back those of rejected drafts
    tells_events : its rules emit vLLM's KV cache events
    keeps_states : keeps the states of Mamba and linear attention in a separate pool
    keeps_unpublished : caches prefixes for later requests, but emits no events
    can_swap : :meth:`swap_out` and :meth:`swap_in` move KV to host memory and back
    foresees : uses :meth:`foresee`
    tracks_sessions : its eviction policy uses whether a session continues
    ignores : configuration fields without effect on it, each with the reason
    piece_bytes : bytes of all layers that one round of copies to the host moves, one copy per
        tensor; None if copies are so long that their fixed time does not matter
    """

    NEEDS = 1  # its configuration
    default_scheduler = "vllm"
    needs_scheduler: str | None = None
    has_block_table = True
    has_null_block = False
    serves_samples = False
    can_swap = False
    speculates = False
    tells_events = False
    keeps_states = False
    keeps_unpublished = False
    foresees = False
    tracks_sessions = False
    ignores: Mapping[str, str] = MappingProxyType({})
    piece_bytes: int | None = None
    total_bytes: int
    num_gpu_blocks: int
    block_size: int

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can use."""
        return self.num_gpu_blocks - self.has_null_block

    @abstractmethod
    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        """Allocate slots for the next tokens of a request. Mutates, unless it returns False.

        The first call for a request admits it, and reuses ``hit``: the new tokens follow those of
        the hit. In later calls they follow the first ``request.num_computed_tokens``.
        """

    @abstractmethod
    def free(self, request: Request) -> None:
        """Free all KV memory of a request. Mutates."""

    @property
    @abstractmethod
    def usage(self) -> KVUsage:
        """Bytes of KV memory by cause. Does not mutate."""

    @property
    @abstractmethod
    def kv_usage(self) -> float:
        """Share of the blocks (or slots) in use, 0 to 1. Does not mutate."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Recount memory and sums. Does not mutate.

        Raises
        ------
        RuntimeError
            Naming the broken invariant and both of its sides.
        """

    def lookup(self, request: Request) -> Hit:
        """Return the reusable prefix of a waiting request. Does not mutate."""
        return NO_HIT

    def fits(self, request: Request) -> bool:
        """Return True if an empty memory is large enough for a request. Does not mutate.

        If a request of one sequence fits, it must also fit with fewer prompt or output tokens.
        """
        return True

    def foresee(self, requests: Iterable[Request]) -> None:
        """Receive the trace's requests, in order of arrival, for an optimal policy. Mutates."""

    def set_time(self, clock: Callable[[], float]) -> None:
        """Set the replica's clock, in seconds, for policies that use the time."""

    def swap_out(self, request: Request) -> int:
        """Move a request's KV to host memory; return the bytes moved, 0 if impossible. Mutates."""
        return 0

    def swap_in(self, request: Request) -> int:
        """Move a request's KV back; return the bytes moved, 0 if there is no room. Mutates."""
        return 0

    def take_transfers(self, requests: Sequence[Request]) -> Transfers:
        """Return the bytes that a step of these requests moves to and from the host. Mutates."""
        return NO_TRANSFERS

    def retire(self, request: Request) -> None:
        """Record that a request of a static batch has ended; its slots stay. Mutates.

        :meth:`free` follows when the batch ends.
        """

    def cache_computed(self, request: Request, num_tokens: int) -> None:
        """Record that the first ``num_tokens`` tokens are computed and known. Mutates.

        Only asynchronous scheduling calls it: there, slots are allocated before their token is
        known. Otherwise all tokens are known when their slots are allocated.
        """

    @property
    def heap_bytes(self) -> tuple[int, int] | None:
        """Active and reserved bytes of its caching allocator, None without. Does not mutate."""
        return None

    @property
    def num_free(self) -> int:
        """Free blocks (or slots), cached ones included. Does not mutate.

        The scheduler vllm-v0 lets requests with a block table grow only while this is not 0.
        """
        return round((1 - self.kv_usage) * self.num_gpu_blocks)

    def block_ids(self, request: Request) -> list[list[int]]:
        """Return the block table of a running request in every group, for reading only."""
        return []

    def address(self, request: Request) -> tuple[int, int] | None:
        """Return (first slot, slots) of a running request's extent, None if it has none."""
        return None

    def memory_map(self, num_bins: int) -> NDArray[np.uint8]:
        """Return the cause at the middle of each of ``num_bins`` equal address ranges.

        The codes are those of :class:`~kvsim.kv.usage.Cause`. Unallocated memory is FREE or CACHED;
        the caller turns it into EXTERNAL while the head of the queue is refused. Does not mutate.
        """
        return np.zeros(num_bins, dtype=np.uint8)


#: Factories take a :class:`KVCacheConfig` and keyword parameters.
ALLOCATORS: Registry[KVCacheManager] = Registry(
    "allocator", "kvsim.kv", KVCacheManager, "kvsim.allocators"
)
