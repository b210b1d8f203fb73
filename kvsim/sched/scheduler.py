"""The base of all schedulers: schedule a step, and process its output.

The rules are in :mod:`kvsim.rules`; these classes hold a replica's state and call the rules.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from kvsim.engines import policies
from kvsim.engines.engine import EngineSettings  # noqa: TC001 - a field of a dataclass
from kvsim.engines.registry import engine_by_policy
from kvsim.features.feature import Feature  # noqa: TC001 - a field of a dataclass
from kvsim.kv.manager import NO_TRANSFERS, Hit, Transfers
from kvsim.kv.rule_manager import RuleManager
from kvsim.lora import LoRAConfig  # noqa: TC001 - a field of a dataclass
from kvsim.parametric import Parametric
from kvsim.records import engine as records
from kvsim.records.connector import Connector  # noqa: TC001 - a field of a dataclass
from kvsim.records.growth import adopt
from kvsim.records.memory import Objects, Scrap, Zeros, assign
from kvsim.records.offloading import Offloading  # noqa: TC001 - a field of a dataclass
from kvsim.records.request import FINISHED, Request
from kvsim.registry import Registry, overridden, parse_spec
from kvsim.rules import batch as rules
from kvsim.rules import engine
from kvsim.rules.kv import take_transfers
from kvsim.rules.output import process_output
from kvsim.rules.recorder import num_waiting
from kvsim.rules.usage import is_refused
from kvsim.sched.acceptance import init_drafts
from kvsim.sched.encoder import EncoderConfig  # noqa: TC001 - a field of a dataclass
from kvsim.sched.fairness import fairness_of, init_shares
from kvsim.sched.features import init_features
from kvsim.sched.queue import WaitingQueue
from kvsim.sched.scheduler_rules import SchedulerRules
from kvsim.speculation import SpeculativeConfig  # noqa: TC001 - a field of a dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.kv.manager import KVCacheManager
    from kvsim.records.memory import Memory


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits and switches of a scheduler; a field with a name of vLLM's has vLLM's meaning."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_active_seqs: int | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    policy: Literal["fcfs", "priority", "vtc", "dlpm"] = "fcfs"
    dlpm_quantum: int = 4096
    async_scheduling: bool = False
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    max_num_scheduled_tokens: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    lora: LoRAConfig | None = None
    speculation: SpeculativeConfig | None = None
    completes_all: bool = False
    chunk_unit: int = 0
    seed: int = 0
    kv_transfer: Connector | None = None
    offloading: Offloading | None = None
    encoder_inputs: EncoderConfig | None = None
    engine_settings: EngineSettings | None = None
    order: SchedulerRules | None = None
    features: tuple[Feature, ...] = ()

    @property
    def max_active(self) -> int:
        """Largest number of requests that scheduler ``vllm`` runs at once."""
        return self.max_num_active_seqs or self.max_num_seqs

    @property
    def max_running(self) -> int:
        """Largest number of requests that any scheduler runs at once."""
        return max(self.max_active, self.max_num_seqs)


class Admission(NamedTuple):
    """A request that joined the batch in this step: new, or resumed after a preemption."""

    request: Request
    hit: Hit
    resumed: bool


class StepPlan:
    """Work of one step: the next ``num_tokens[i]`` tokens of ``requests[i]``.

    ``unfinished`` has the ids of requests with known tokens left after the step; all others sample
    one token. ``swapped_bytes`` bytes of KV move between GPU and host before the step starts, and
    ``transfers`` while it runs. The requests use ``num_adapters`` different LoRA adapters.
    """

    def __init__(self, state: records.Replica, batch: records.Batch) -> None:
        self.state, self.batch = state, batch
        self.admitted: list[Admission] = []
        self.preempted: list[Request] = []
        self.swapped_bytes = 0
        self.num_adapters = 0
        self.transfers = NO_TRANSFERS

    @classmethod
    def of(cls, scheduled: Sequence[tuple[Request, int]], unfinished: int = 0) -> StepPlan:
        """Make a plan of requests; their ``num_computed_tokens`` already include the step.

        The first ``unfinished`` requests sample no token.
        """
        plan = cls(records.Replica(), records.Batch())
        for place, (request, num_tokens) in enumerate(scheduled):
            plan.state.requests.append(request)
            plan.batch.entries.append(
                records.Entry(
                    place, num_tokens, request.num_computed_tokens, int(place < unfinished)
                )
            )
        plan.batch.size = len(scheduled)
        return plan

    def add(self, request: Request, num_tokens: int) -> None:
        """Schedule the next tokens of a request, in each of its sequences."""
        rules.plan(self.state, self.batch, request.place, num_tokens)

    def close(self) -> StepPlan:
        """Complete the plan with the other results of the step; return it."""
        state, requests = self.state, self.state.requests
        for k in range(state.num_admitted):
            admission = state.admissions[k]
            hit = Hit(admission.hit, (), 0)
            self.admitted.append(Admission(requests[admission.request], hit, admission.resumed))
        self.preempted = [requests[state.preempted[k]] for k in range(state.num_preempted)]
        self.swapped_bytes, moved = state.swapped_bytes, state.kv.moved
        self.num_adapters = state.num_loras
        self.transfers = Transfers(
            moved.fetched, moved.stored, moved.paged_in, moved.paged_out, moved.num_faults
        )
        return self

    def _entries(self) -> list[records.Entry]:
        return [self.batch.entries[k] for k in range(self.batch.size)]

    @property
    def requests(self) -> list[Request]:
        """Scheduled requests, in order."""
        return [self.state.requests[entry.request] for entry in self._entries()]

    @property
    def num_tokens(self) -> list[int]:
        """Scheduled tokens of each request."""
        return [entry.num_tokens for entry in self._entries()]

    @property
    def ends(self) -> list[int]:
        """Computed tokens of each request after the step."""
        return [entry.end for entry in self._entries()]

    @property
    def unfinished(self) -> set[int]:
        """Ids of requests that sample no token in this step."""
        found = [entry.request for entry in self._entries() if entry.unfinished]
        return {self.state.requests[k].request_id for k in found}

    @property
    def has_samples(self) -> bool:
        """True if any request has several sequences."""
        return any(request.num_samples > 1 for request in self.requests)


class StepOutput(NamedTuple):
    """Requests that sampled a token, and those of them that have ended."""

    sampled: list[Request]
    finished: list[Request]


def init_scheduler(
    state: records.Replica, memory: Memory, config: SchedulerConfig, scheduler: int
) -> None:
    """Fill an empty state with a scheduler's limits and queues."""
    init_limits(state, config, scheduler)
    init_shares(state, memory, 1)
    active = config.max_running + 1
    state.running, state.preempted = memory.ints(active), memory.ints(active)
    state.ended, state.swapped = memory.ints(active), memory.ints(active)
    if config.lora is not None:
        config.lora.init_state(state, memory)
    init_drafts(state, memory, config.speculation)
    init_features(state, memory, config.features)
    state.admissions = memory.room(records.Admission, active)
    if config.order is not None:
        config.order.attach(state, memory)
    if config.engine_settings is not None:
        config.engine_settings.init_state(state, memory)


def init_limits(state: records.Replica, config: SchedulerConfig, scheduler: int) -> None:
    limits, spec = state.limits, config.speculation
    assign(limits, config)
    limits.scheduler = scheduler
    limits.has_own_loop = engine_by_policy(scheduler).has_own_loop
    limits.adaptive = config.long_prefill_token_threshold_adaptive
    limits.by_priority = config.policy == "priority"
    if config.order is not None:
        limits.by_priority = limits.has_own_priority = config.order.has_priority
        limits.reranks, limits.has_own_victim = config.order.moves, config.order.has_victim
    limits.fairness = fairness_of(config.policy)
    state.shares.quantum = config.dlpm_quantum
    limits.swaps = config.preemption_mode == "swap"
    limits.asynchronous = config.async_scheduling
    limits.max_num_scheduled_tokens = (
        config.max_num_scheduled_tokens or config.max_num_batched_tokens
    )
    if spec is not None:
        assign(limits, spec)
        limits.num_drafts = spec.num_speculative_tokens
        limits.draw_seed = config.seed
        limits.num_draft_rows = len(spec.num_speculative_tokens_per_batch_size)


def init_batch(memory: Memory, batch: records.Batch, config: SchedulerConfig) -> None:
    """Lay out the entries of a batch for the largest number of requests."""
    batch.entries = memory.room(records.Entry, config.max_running + 1)


class Scheduler(Parametric, ABC):
    """Owns the waiting queue and the running list; schedules the tokens of each step.

    A user's scheduler overrides :meth:`schedule`, which begins a plan, adds requests to it, and
    moves requests by the methods of this class. Keyword parameters with defaults, after ``kv`` and
    ``config``, become ``--scheduler NAME+KEY=VALUE``.

    Attributes
    ----------
    reserves_output : to avoid preemptions, admission allocates a request's whole output, if the
        KV-cache manager supports this
    looks_up_prefix : admitted requests reuse cached prefixes
    whole_prompts : a prompt is computed in one step, which must have room for the longest prompt
    watermark : share of the blocks that admissions leave free, unless configured
    takes_samples : requests may have several sequences
    can_swap : preemptions may swap KV to host memory
    supports_async : a step can be scheduled before the tokens of the previous step are known
    serves_adapters : requests may use LoRA adapters, in limited number per batch
    speculates : the scheduler's own settings plan drafts
    needs_allocator : the only allocator with which the scheduler runs, None for any
    evidence : a sentence on how well the scheduler agrees with the real system; not inherited
    rules_of : the policy with the rules of this scheduler, a :class:`kvsim.engines.policies.Policy`
    """

    NEEDS = 2  # manager and configuration
    reserves_output = False
    looks_up_prefix = True
    supports_async = False
    serves_adapters = False
    speculates = False
    whole_prompts = False
    watermark = 0.0
    can_swap = False
    takes_samples = False
    needs_allocator: ClassVar[str | None] = None
    rules_of: ClassVar[int] = policies.SCHEDULED_IN_PYTHON

    #: Methods that a subclass may override; without these overrides it can run compiled.
    STEPS = ("add", "schedule", "complete", "has_work")

    def __init__(self, kv: KVCacheManager, config: SchedulerConfig) -> None:
        self.kv = kv
        self.state = records.Replica()
        if isinstance(kv, RuleManager):
            if kv.runs_by_rules:
                self.state = kv.state
            else:
                kv.state.requests = self.state.requests
        if self.state.kv is not getattr(kv, "kv", None):
            self.state.kv.manager, self.state.kv.python = 0, kv
        init_scheduler(self.state, Objects(), config, self.rules_of)
        if isinstance(kv, RuleManager) and kv.runs_by_rules:
            missing = config.max_running + 1 - kv.kv.num_request_blocks
            if missing > 0:
                kv.add_request_blocks(kv.kv, Objects(), missing)
        self.state.limits.in_python, self.state.scheduler = not self.runs_by_rules, self
        self.state.cost.has_samples = True  # until a cost model says otherwise
        self.state.rows = Scrap(records.RequestRow)
        gaps: Any = Zeros()
        self.state.gaps = gaps
        self._config = config
        self._batch: records.Batch | None = None

    @property
    def runs_by_rules(self) -> bool:
        """True if the rules alone decide the scheduler's behaviour."""
        return self.rules_of != policies.SCHEDULED_IN_PYTHON and not overridden(self, self.STEPS)

    @property
    def config(self) -> SchedulerConfig:
        """Limits and switches."""
        return self._config

    @config.setter
    def config(self, config: SchedulerConfig) -> None:
        self._config = config
        init_limits(self.state, config, self.rules_of)

    # -- state --------------------------------------------------------------------------------

    @property
    def running(self) -> list[Request]:
        """Running requests, in order."""
        state = self.state
        return [state.requests[state.running[k]] for k in range(state.num_running)]

    @property
    def waiting(self) -> WaitingQueue:
        """Requests without KV memory: new or preempted ones."""
        return WaitingQueue(self.state)

    @property
    def has_work(self) -> bool:
        """Return True if any request is unfinished."""
        state = self.state
        return state.num_running > 0 or state.waiting.length > 0 or state.num_swapped > 0

    @property
    def num_running_seqs(self) -> int:
        """Number of sequences of the running requests."""
        return rules.num_running_seqs(self.state)

    @property
    def num_waiting(self) -> int:
        """Number of requests that have arrived, are unfinished and not running."""
        return num_waiting(self.state)

    @property
    def head_refused(self) -> bool:
        """Return True if the head of the queue is refused for lack of KV memory."""
        return is_refused(self.state)

    @property
    def num_allocation_failures(self) -> int:
        """Number of refused allocations so far."""
        return self.state.totals.num_allocation_failures

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions so far."""
        return self.state.totals.num_preemptions

    @property
    def num_recomputed_tokens(self) -> int:
        """Number of tokens computed again so far."""
        return self.state.totals.num_recomputed_tokens

    # -- a step -------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a new arrival. Mutates."""
        self.place(request)
        engine.add_request(self.state, request.place)
        engine.recheck_queue(self.state)

    def place(self, request: Request) -> None:
        """Assign an index on the replica to a request, if it has none."""
        if request.place < 0:
            adopt(self.state, request)

    def begin(self) -> StepPlan:
        """Begin an empty plan."""
        batch, self._batch = self._batch, None
        if batch is None:
            batch = records.Batch()
            init_batch(Objects(), batch, self._config)
        engine.begin_step(self.state, batch)
        return StepPlan(self.state, batch)

    def schedule(self, now: float) -> StepPlan:
        """Schedule the next step and allocate its KV slots. Mutates.

        The plan is empty only if no request can compute anything now.
        """
        plan = self.begin()
        self.state.clock = now
        engine.decide_by_rules(self.state, plan.batch)
        take_transfers(self.state, plan.batch)
        return plan.close()

    def complete(self, plan: StepPlan, now: float) -> StepOutput:
        """Process the tokens of a finished step, in schedule order. Mutates."""
        given = zip(plan.requests, plan._entries(), strict=True)
        sampled = [r for r, e in given if r.status != FINISHED and not e.unfinished]
        plan.batch.end = now
        process_output(self.state, plan.batch)
        return StepOutput(sampled, [r for r in sampled if r.status == FINISHED])

    # -- for users' schedulers ----------------------------------------------------------------

    def admit(self, plan: StepPlan, request: Request, num_tokens: int, hit: Hit) -> None:
        """Move the head of the queue into the running list; its slots are allocated already."""
        rules.admit(self.state, plan.batch, request.place, num_tokens, hit.num_tokens)

    def grow_running(self, plan: StepPlan) -> None:
        """Schedule the running requests' next tokens, with preemptions if blocks are short."""
        rules.grow_running(self.state, plan.batch)

    def preempt(self, plan: StepPlan, victim: Request) -> None:
        """Preempt a running request: the KV of its prompt and output is computed again."""
        place = [self.state.running[k] for k in range(self.state.num_running)].index(victim.place)
        rules.preempt_at(self.state, plan.batch, place)

    # -- for the engine -----------------------------------------------------------------------

    def run_step(self, batch: records.Batch) -> None:
        """Schedule a step, and write it into the engine's ``batch``."""
        self._batch = batch
        plan = self.schedule(self.state.clock)
        if plan.batch is not batch:
            raise RuntimeError(f"{type(self).__name__}.schedule must begin its plan with begin()")

    def update_from_output(self, batch: records.Batch) -> Any:
        """Process the output of the engine's ``batch``."""
        return self.complete(StepPlan(self.state, batch), batch.end)


#: Factories take a KVCacheManager and a :class:`SchedulerConfig`, and keyword parameters.
SCHEDULERS: Registry[Scheduler] = Registry(
    "scheduler", "kvsim.sched", Scheduler, "kvsim.schedulers"
)

Scheduler.register(SchedulerRules)  # OwnOrderScheduler applies it


def scheduler_factory(text: str) -> Callable[..., Scheduler]:
    """Return the class or function behind ``NAME[+KEY=VALUE]...``."""
    return SCHEDULERS.get(parse_spec(text)[0])


def make_scheduler(text: str, kv: KVCacheManager, config: SchedulerConfig) -> Scheduler:
    """Return the scheduler ``NAME[+KEY=VALUE]...`` with a KV-cache manager.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, params = parse_spec(text)
    order = order_of(text)
    if order is not None:
        return own_order_scheduler()(kv, replace(config, order=order))
    return SCHEDULERS.create(name, kv, config, **params)


def order_of(text: str) -> SchedulerRules | None:
    """Return the user's rules ``NAME[+KEY=VALUE]...``; None for another kind of scheduler."""
    name, params = parse_spec(text)
    if not is_rules(SCHEDULERS.get(name)):
        return None
    made: Any = SCHEDULERS.create(name, **params)
    return made  # type: ignore[no-any-return]


def is_rules(factory: Any) -> bool:
    """Return True if a factory is a subclass of :class:`SchedulerRules`."""
    return isinstance(factory, type) and issubclass(factory, SchedulerRules)


def own_order_scheduler() -> type[Scheduler]:
    """Return the class of schedulers with a user's order."""
    from kvsim.sched.vllm import OwnOrderScheduler

    return OwnOrderScheduler


def scheduler_type(
    text: str, make_kv: Callable[[], KVCacheManager], config: SchedulerConfig
) -> type[Scheduler]:
    """Return the class of a scheduler; its attributes describe it.

    A factory function is called once, with a manager of ``make_kv``, to get its result's class.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, params = parse_spec(text)
    factory = SCHEDULERS.get(name)
    if isinstance(factory, type):
        SCHEDULERS.check_params(name, params)
        return own_order_scheduler() if is_rules(factory) else factory
    return type(SCHEDULERS.create(name, make_kv(), config, **params))
