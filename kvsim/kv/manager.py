"""The protocol of KV-cache managers, between schedulers and memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.budget.pages import StateCache
from kvsim.budget.planner import plan_groups
from kvsim.parametric import Parametric
from kvsim.registry import Registry
from kvsim.speculation import DraftSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.budget.layout import KVLayout
    from kvsim.budget.planner import KVPlan
    from kvsim.kv.attention import AttentionSpec
    from kvsim.kv.usage import KVUsage
    from kvsim.records.request import Request


class Hit(NamedTuple):
    """A reusable prefix; valid until the pool changes, since nothing is pinned.

    ``blocks`` holds one list per KV-cache group. ``shared_prefix_boundary`` is the longer prefix
    that some groups still hold, 0 if none.
    """

    num_tokens: int
    blocks: Sequence[list[int]]
    shared_prefix_boundary: int


NO_HIT = Hit(0, (), 0)


class Transfers(NamedTuple):
    """KV bytes that a step moves between host and GPU.

    ``fetched`` (to the GPU) and ``stored`` (to the host) are copied while the step computes.
    ``paged_in`` and ``paged_out`` move page by page while the step waits, in ``num_faults`` page
    faults.
    """

    fetched: int = 0
    stored: int = 0
    paged_in: int = 0
    paged_out: int = 0
    num_faults: int = 0


NO_TRANSFERS = Transfers()


#: What a manager of contiguous pieces ignores.
KEEPS_NO_PREFIXES = MappingProxyType({"enable_prefix_caching": "it keeps no prefixes"})


@dataclass(frozen=True)
class KVCacheConfig(DraftSlots):
    """Memory and use of a KV-cache manager, drafts included.

    Parameters
    ----------
    layout : KV bytes of every layer, per GPU
    num_bytes : KV memory of one GPU, the same for every allocator under comparison
    block_size : tokens per block
    max_model_len : tokens
    max_in_flight_tokens : most tokens scheduled and not yet processed, all steps together
    enable_prefix_caching : keep the content of freed blocks for later requests
    watermark : share of the blocks that an admission must leave free while others run
    reserve_full_isl : admit only what fits with its full current length
    reserve_output : take the whole output's slots at admission, because the scheduler never
        preempts
    prefix_cache_retention_interval : vLLM's; 0 keeps the fewest sliding-window blocks, None all
    swap_space_bytes : host memory for swapped-out KV
    max_num_samples : most sequences of a request
    use_beam_search, beam_switch : sequences are beams; each one continues another one with
        probability ``beam_switch`` per step
    hybrid : keep sliding and full layers apart; else all are treated as full attention
    packed : group layers of different sizes by bytes (the block outermost in the KV tensors)
    events : publish changes of cached content (vLLM's KV cache events)
    window_slots : tokens of a pool of sliding windows; by default its share of the memory
    host_slots, write_policy : tokens of host memory behind a tree, and when nodes are copied to it
    plan : the groups, if they do not follow from the layout (recorded cases, tests)
    specs : rules of the groups, if they do not follow from the plan
    prefix_match_unit : tokens that a block's key covers, by default the gcd of all block sizes
    mamba_shared_prefix_checkpoint : states are kept where a shared prefix ends, in a block or not
    num_cache_shards : ranks of decode context parallelism that share out each block of tokens
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
        """Largest bytes of states that a request holds, 0 without states."""
        if all(layer.kind != "mamba" for layer in self.layout.layers):
            return 0
        groups = self.grouping().groups
        return sum(g.used_bytes * g.state.num_blocks for g in groups if g.state is not None)

    def spared(self, capacity: int) -> int:
        """Return the part of a capacity that an admission must leave free while others run."""
        return int(self.watermark * capacity)

    def grouping(self, block_size: int | None = None) -> KVPlan:
        """Return the groups of layers, with blocks of the given or else the configured size."""
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
        )


class KVCacheManager(Parametric, ABC):
    """Assigns memory to the KV of each request.

    A refused call leaves the state unchanged. Subclasses implement the abstract part; the rest has
    defaults that suit a manager without prefix cache. A manager is made of a :class:`KVCacheConfig`
    and keyword parameters of its own. Only the manager applies the settings in it: it keeps the
    watermark, adds lookahead slots, and allocates the whole output under ``reserve_output``. A
    manager may be made of others and pass each request to one of them.
    :func:`kvsim.testing.check_allocator` checks the other properties of a manager, not these
    settings.

    Attributes
    ----------
    total_bytes : all KV memory it manages (paged: without the null block)
    num_gpu_blocks, block_size : as reported in results
    default_scheduler : name of the scheduler that serves it by default
    needs_scheduler : the one scheduler that it runs under, None for any
    has_block_table : its attention kernel reads a block table, which costs time
    has_null_block : ``num_gpu_blocks`` counts a block that no request gets, as vLLM's does
    evidence : the comparison with the real system, in words; not inherited
    serves_samples : serves requests of several sequences
    speculates : keeps slots for drafts, and takes back those of rejected ones
    tells_events : its rules emit vLLM's KV cache events
    keeps_states : keeps the states of Mamba and linear attention in a pool of their own
    keeps_unpublished : it caches prefixes for later requests, and emits no events
    can_swap : :meth:`swap_out` and :meth:`swap_in` move KV to host memory and back
    foresees : makes use of :meth:`foresee`
    tracks_sessions : its eviction policy reads whether a session goes on
    ignores : configuration fields that change nothing here, each with the reason
    piece_bytes : bytes of all layers that are copied to the host at once, in a copy per tensor;
        None if pieces are so long that a copy's fixed time does not matter
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
        """Make room for the next tokens of a request. Mutates, unless it returns False.

        The first call for a request admits it, reusing ``hit``; later ones let it grow. Before the
        new tokens come those of the hit at first, ``request.num_computed_tokens`` later.
        """

    @abstractmethod
    def free(self, request: Request) -> None:
        """Free all KV memory of a request. Mutates."""

    @property
    @abstractmethod
    def usage(self) -> KVUsage:
        """Bytes by cause, now. Does not mutate."""

    @property
    @abstractmethod
    def kv_usage(self) -> float:
        """Share of the blocks (or slots) in use, 0 to 1. Does not mutate."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Recount everything. Does not mutate.

        Raises
        ------
        RuntimeError
            Naming the broken invariant and both sides of it.
        """

    def lookup(self, request: Request) -> Hit:
        """Find a reusable prefix of a waiting request. Does not mutate."""
        del request
        return NO_HIT

    def fits(self, request: Request) -> bool:
        """Return True if an empty memory could serve the request to its end. Does not mutate.

        A request that fits with one sequence must also fit with fewer prompt or output tokens.
        """
        del request
        return True

    def foresee(self, requests: Iterable[Request]) -> None:
        """Receive every request of the trace, in order of arrival, for optimal bounds. Mutates."""
        del requests

    def tell_time(self, clock: Callable[[], float]) -> None:
        """Set the replica's clock, in seconds, for policies that use the time."""
        del clock

    def swap_out(self, request: Request) -> int:
        """Move a request's KV to host memory; returns bytes moved, 0 if it cannot. Mutates."""
        del request
        return 0

    def swap_in(self, request: Request) -> int:
        """Bring a request's KV back; returns bytes moved, 0 if there is no room. Mutates."""
        del request
        return 0

    def take_transfers(self, requests: Sequence[Request]) -> Transfers:
        """Return the bytes that a step of these requests moves to and from the host. Mutates."""
        del requests
        return NO_TRANSFERS

    def retire(self, request: Request) -> None:
        """Record that a request has ended while its batch keeps its slots. Mutates.

        Under ``static`` only; ``free`` comes when the batch ends.
        """
        del request

    def cache_computed(self, request: Request, num_tokens: int) -> None:
        """Record that the first ``num_tokens`` tokens are computed and known. Mutates.

        Only called with asynchronous scheduling, when a token that ``allocate_slots`` has made
        room for gets known. Without it, all tokens are known when their slots are taken.
        """
        del request, num_tokens

    @property
    def heap_bytes(self) -> tuple[int, int] | None:
        """Bytes active and reserved in a caching allocator, if it has one. Does not mutate."""
        return None

    @property
    def num_free(self) -> int:
        """Blocks (or slots) that no request holds, cached ones included. Does not mutate.

        vllm-v0 grows a request with a block table only while there are some.
        """
        return round((1 - self.kv_usage) * self.num_gpu_blocks)

    def block_ids(self, request: Request) -> list[list[int]]:
        """Return a running request's block table in every group, read-only."""
        del request
        return []

    def address(self, request: Request) -> tuple[int, int] | None:
        """Return first slot and number of slots of a running request, if it has one piece."""
        del request
        return None

    def memory_map(self, num_bins: int) -> NDArray[np.uint8]:
        """Return the cause at the middle of each of ``num_bins`` equal address ranges.

        The codes are those of :class:`~kvsim.kv.usage.Cause`.
        Unallocated memory is FREE or CACHED; whether it counts as external is the scheduler's
        knowledge. Does not mutate.
        """
        return np.zeros(num_bins, dtype=np.uint8)


#: Factories take a :class:`KVCacheConfig` and keyword parameters.
ALLOCATORS: Registry[KVCacheManager] = Registry(
    "allocator", "kvsim.kv", KVCacheManager, "kvsim.allocators"
)
