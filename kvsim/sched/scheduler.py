"""What every scheduler does: decide a step, and take in what the step produced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvsim.kv.manager import NO_TRANSFERS
from kvsim.registry import Registry
from kvsim.request import Request, Status
from kvsim.sched.queue import FcfsQueue, PriorityQueue, WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.kv.manager import Hit, KVCacheManager


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits and switches of a scheduler; names and meanings are vLLM's."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_active_seqs: int | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = False
    preemption_mode: Literal["recompute", "swap"] = "recompute"


class Admission(NamedTuple):
    """A request that joined the batch in this step: new, or resumed after a preemption."""

    request: Request
    hit: Hit
    resumed: bool


class StepPlan:
    """What one step computes: ``num_tokens[i]`` next tokens of ``requests[i]``.

    ``unfinished`` holds the ids of requests whose known tokens the step does not complete; all
    others sample one token. ``swapped_bytes`` of KV move between GPU and host before it starts,
    ``transfers`` while it runs.
    """

    __slots__ = (
        "admitted",
        "has_samples",
        "num_tokens",
        "preempted",
        "requests",
        "swapped_bytes",
        "transfers",
        "unfinished",
    )

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.num_tokens: list[int] = []
        self.unfinished: set[int] = set()
        self.admitted: list[Admission] = []
        self.preempted: list[Request] = []
        self.swapped_bytes = 0
        self.transfers = NO_TRANSFERS
        self.has_samples = False

    def add(self, request: Request, num_tokens: int) -> None:
        """Schedule the next tokens of a request, in each of its sequences."""
        self.has_samples |= request.num_samples > 1
        self.requests.append(request)
        self.num_tokens.append(num_tokens)

    def drop(self, request: Request) -> int:
        """Take a request out again; returns the tokens it gives back, 0 if it was not in."""
        if request not in self.requests:
            return 0
        index = self.requests.index(request)
        del self.requests[index]
        return self.num_tokens.pop(index)


class StepOutput(NamedTuple):
    """Requests that got a token, and those of them that have ended."""

    sampled: list[Request]
    finished: list[Request]


def _urgency(request: Request) -> tuple[int, float, int]:
    # The id: vLLM's clock never ties, and preempting the oldest of equals could go round for ever.
    return request.priority, request.arrival_time, request.request_id


class Scheduler(ABC):
    """Owns the waiting queue and the running list; decides who computes what in each step.

    Attributes
    ----------
    reserves_output : the scheduler preempts only as a last resort, so a KV-cache manager that can
        takes a request's whole output at admission
    looks_up_prefix : admissions reuse cached prefixes
    whole_prompts : computes a prompt in one step, so a step must have room for the longest
    watermark : share of the blocks that admissions leave free, unless configured
    takes_samples : serves requests of several sequences
    can_swap : may preempt by swapping to host memory
    supports_async : can schedule a step before the last one's tokens are known
    head_refused : the last admission attempt failed for lack of KV room
    num_allocation_failures, num_preemptions, num_recomputed_tokens : counts so far
    """

    reserves_output = False
    looks_up_prefix = True
    supports_async = False
    whole_prompts = False
    watermark = 0.0
    can_swap = False
    takes_samples = False

    def __init__(self, kv: KVCacheManager, config: SchedulerConfig) -> None:
        self.kv = kv
        self.config = config
        self.running: list[Request] = []
        self.waiting: WaitingQueue = PriorityQueue() if config.policy == "priority" else FcfsQueue()
        self.num_allocation_failures = 0
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self._refused = False

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.running) or len(self.waiting) > 0

    @property
    def num_running_seqs(self) -> int:
        """Sequences of the running requests."""
        return sum(request.num_samples for request in self.running)

    @property
    def num_waiting(self) -> int:
        """Requests that have arrived, are unfinished and not running."""
        return len(self.waiting)

    @property
    def head_refused(self) -> bool:
        """Whether the head of the queue stands refused for lack of KV room.

        Set by the last admission attempt and kept until the next; limits other than memory do not
        refuse.
        """
        return self._refused and len(self.waiting) > 0

    def add(self, request: Request) -> None:
        """Queue a new arrival. Mutates."""
        self.waiting.append(request)

    @abstractmethod
    def schedule(self, now: float) -> StepPlan:
        """Decide the next step and take its KV slots. Mutates.

        The plan is empty only if no request can compute anything now.
        """

    def complete(self, plan: StepPlan, now: float) -> StepOutput:
        """Take in the tokens of a finished step, in schedule order. Mutates."""
        del now
        sampled, finished = [], []
        unfinished, asynchronous = plan.unfinished, self.config.async_scheduling
        for request, num_tokens in zip(plan.requests, plan.num_tokens, strict=True):
            request.num_in_flight_tokens -= num_tokens
            stale = request.num_stale_tokens > 0
            if stale:
                request.num_stale_tokens -= num_tokens
            if request.status is Status.FINISHED or request.request_id in unfinished:
                continue
            request.num_tokens += 1  # also when stale: the token was delivered and is kept
            sampled.append(request)
            if not stale and request.num_placeholders > 0:
                request.num_placeholders -= 1
                if asynchronous and request.status is Status.RUNNING:
                    known = request.num_computed_tokens - request.num_in_flight_tokens
                    self.kv.cache_computed(request, known)
            if request.num_tokens >= request.num_prompt_tokens + request.max_tokens:
                self._finish(request)
                finished.append(request)
        if finished:
            self.running = [r for r in self.running if r.status is not Status.FINISHED]
        return StepOutput(sampled, finished)

    def _finish(self, request: Request) -> None:
        if request.status is Status.RUNNING:
            self.kv.free(request)
        else:  # preempted while its last token was in flight
            self.waiting.remove(request)
        request.status = Status.FINISHED

    def reject_head(self) -> Request:
        """Remove the head of the queue: it cannot be served even by an idle replica. Mutates."""
        return self.waiting.pop()

    def _admit(self, plan: StepPlan, request: Request, num_tokens: int, hit: Hit) -> None:
        """Move the head of the queue, whose slots are taken, into the running list."""
        self.waiting.pop()
        resumed = request.status is Status.PREEMPTED
        plan.admitted.append(Admission(request, hit, resumed))
        plan.add(request, num_tokens)
        request.status = Status.RUNNING
        request.num_computed_tokens = hit.num_tokens
        self.running.append(request)

    def _grow_running(self, plan: StepPlan) -> None:
        """Give every running request its next tokens; one that cannot grow preempts others.

        Only managers that take memory as a request grows, whatever ``reserves_output`` says, ever
        refuse here. The request preempted may be the one that asked.
        """
        for request in list(self.running):
            num_tokens = request.num_tokens - request.num_computed_tokens
            if not num_tokens or request.status is not Status.RUNNING:
                continue
            while not self.kv.allocate_slots(request, num_tokens):
                self.num_allocation_failures += 1
                _, victim = self._pop_victim()
                plan.drop(victim)
                self._preempt(plan, victim)
                if victim is request:
                    break
            else:
                plan.add(request, num_tokens)

    def _pop_victim(self) -> tuple[int, Request]:
        """Take whom to preempt off the running list; returns its position there too."""
        position = len(self.running) - 1
        if self.config.policy == "priority":
            position = max(range(len(self.running)), key=lambda i: _urgency(self.running[i]))
        return position, self.running.pop(position)

    def _preempt(self, plan: StepPlan, victim: Request) -> None:
        """Give up a request's KV: it will be computed again, output so far included."""
        self.kv.free(victim)
        victim.status = Status.PREEMPTED
        victim.max_computed_tokens = max(victim.max_computed_tokens, victim.num_computed_tokens)
        victim.num_computed_tokens = 0
        victim.num_stale_tokens = victim.num_in_flight_tokens
        victim.num_placeholders = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.push_front(victim)
        self._refused = False  # the new head has not been tried
        plan.preempted.append(victim)

    def _commit(self, plan: StepPlan) -> StepPlan:
        """Advance the counts of all scheduled requests. Mutates."""
        asynchronous = self.config.async_scheduling
        for request, num_tokens in zip(plan.requests, plan.num_tokens, strict=True):
            computed = request.num_computed_tokens
            end = computed + num_tokens
            if computed < request.max_computed_tokens:
                self.num_recomputed_tokens += min(end, request.max_computed_tokens) - computed
            request.num_computed_tokens = end
            request.num_in_flight_tokens += num_tokens
            if end < request.num_tokens + request.num_placeholders:
                plan.unfinished.add(request.request_id)
            elif asynchronous:
                request.num_placeholders += 1
        plan.transfers = self.kv.take_transfers(plan.requests)
        return plan


#: Factories take a KVCacheManager and a :class:`SchedulerConfig`.
SCHEDULERS: Registry[Scheduler] = Registry("scheduler", "kvsim.sched")


def scheduler_type(
    name: str, make_kv: Callable[[], KVCacheManager], config: SchedulerConfig
) -> type[Scheduler]:
    """Return the class of a scheduler; its attributes say what the scheduler is like.

    A factory function is called once, over a manager of ``make_kv``, to see what it makes.

    Raises
    ------
    ValueError
        For an unknown name.
    """
    factory = SCHEDULERS.get(name)
    if isinstance(factory, type):
        return factory
    return type(factory(make_kv(), config))
