"""An engine of its own, for tests: a fixed batch over equal pieces of memory, without a cache.

``--engine toy_engine:Toy+batch=4`` admits up to four requests when none runs. All compute their
prompts in one step, then a token each per step until the last of them has ended. Each request has
one block of ``max_model_len`` tokens from first to last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kvsim.cases.part import RecordedCase
from kvsim.engines.engine import Engine
from kvsim.kv.manager import NO_HIT, Hit, KVCacheConfig, KVCacheManager
from kvsim.kv.usage import KVUsage
from kvsim.sched.scheduler import Scheduler, SchedulerConfig, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvsim.budget.capacity import Capacity
    from kvsim.calibration.startup import Startup
    from kvsim.config import Config
    from kvsim.records.request import Request


class EqualBlocks(KVCacheManager):
    """Gives every request one block, of ``max_model_len`` tokens."""

    has_block_table = False
    default_scheduler = "toy_engine:FixedBatch"

    def __init__(self, config: KVCacheConfig) -> None:
        self.block_size = config.max_model_len
        self._token_bytes = config.layout.bytes_per_token
        self.num_gpu_blocks = config.num_bytes // (self._token_bytes * self.block_size)
        self.total_bytes = self.num_gpu_blocks * self.block_size * self._token_bytes
        self._held: dict[int, tuple[int, int]] = {}  # block and tokens, by request
        self._free = list(range(self.num_gpu_blocks))[::-1]

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        """Take the block of a new request; one that has it has room for all."""
        if request.request_id not in self._held:
            if not self._free:
                return False
            self._held[request.request_id] = self._free.pop(), 0
        block, _ = self._held[request.request_id]
        self._held[request.request_id] = block, request.num_computed_tokens + num_new_tokens
        return True

    def free(self, request: Request) -> None:
        """Take back a block."""
        self._free.append(self._held.pop(request.request_id)[0])

    def fits(self, request: Request) -> bool:
        """Every request fits that may be as long."""
        return self.num_gpu_blocks > 0

    @property
    def usage(self) -> KVUsage:
        """Written slots, and the rest of the blocks that are held."""
        live = sum(num_tokens for _, num_tokens in self._held.values()) * self._token_bytes
        held = len(self._held) * self.block_size * self._token_bytes
        return KVUsage(live, held - live, 0, 0, self.total_bytes - held, 0)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that are held."""
        return len(self._held) / self.num_gpu_blocks if self.num_gpu_blocks else 0.0

    def block_ids(self, request: Request) -> list[list[int]]:
        """Return the block of a request."""
        held = self._held.get(request.request_id)
        return [[] if held is None else [held[0]]]

    def check_integrity(self) -> None:
        """Count the blocks."""
        if len(self._free) + len(self._held) != self.num_gpu_blocks:
            raise RuntimeError("invariant 2: blocks are lost, or held twice")


class FixedBatch(Scheduler):
    """Admits a batch when none runs, and runs it to its end."""

    looks_up_prefix = False
    whole_prompts = True

    def __init__(self, kv: KVCacheManager, config: SchedulerConfig, *, batch: int = 8) -> None:
        super().__init__(kv, config)
        self.batch = batch

    def schedule(self, now: float) -> StepPlan:
        """Decode the batch, or admit another one."""
        self.state.clock = now
        plan = self.begin()
        if self.running:
            self.grow_running(plan)
            return plan.close()
        budget = self.config.max_num_batched_tokens
        while self.waiting and len(self.running) < self.batch:
            head = next(iter(self.waiting))
            if head.num_tokens > budget or not self.kv.allocate_slots(head, head.num_tokens):
                break
            budget -= head.num_tokens
            self.admit(plan, head, head.num_tokens, NO_HIT)
        return plan.close()


class ToyCase(RecordedCase):
    """The requests of a trace by batch."""

    engine: ClassVar[str] = "Toy"
    toy: str
    num_requests: int
    steps: list[dict[str, Any]]


class Toy(Engine):
    """The engine: ``batch`` requests at once."""

    title = "Toy"
    allocator = "toy_engine:EqualBlocks"
    launchers = ("toy serve",)

    def __init__(self, *, batch: int = 8) -> None:
        self.batch = batch
        self.scheduler = f"toy_engine:FixedBatch+batch={batch}"

    @property
    def log_mark(self) -> str:
        """The first words of a log."""
        return "^toy engine starts"

    def capacity(self, config: Config) -> Capacity:
        """Refuse: its blocks follow from ``max_model_len`` alone."""
        raise ValueError(f"engine toy: a batch has {self.batch} requests, whatever the memory")

    def startup_of(self, text: str) -> Startup:
        """Read the batch."""
        from kvsim.calibration.startup import Startup

        return Startup("toy", args={"max_num_seqs": int(text.rsplit(maxsplit=1)[-1])})

    def case_kind(self, content: Mapping[str, Any]) -> type[Any] | None:
        """Its cases say how many requests a batch has, and the sizes of the batches."""
        return ToyCase if "toy" in content else None

    def play(self, case: Any, *, check: bool, compiled: bool) -> Iterator[dict[str, Any]]:
        """Yield a batch per step."""
        rows = list(range(case.num_requests))
        for number, first in enumerate(range(0, case.num_requests, self.batch)):
            yield {"s": number, "batch": rows[first : first + self.batch]}
