"""Lock step: data-parallel ranks of a mixture of experts run their forward passes together.

Every layer's experts are spread over the ranks, so a pass begins and ends for all ranks together,
and lasts as long as the slowest rank. A rank without work runs a dummy pass. After the first pass
of a wave and after every 16th, an all-reduce checks whether any request is unfinished. If not, the
wave ends, all ranks pause, and the next request begins a wave. A request that arrives during a pass
is scheduled after it.

Source: vLLM 0.33's ``DPEngineCoreProc``, ``coordinate_batch_across_dp`` and ``dp_sync_interval``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.budget.settings import expert_replicas
from kvsim.engines.policies import VLLM
from kvsim.fleet.clock import FleetClock
from kvsim.fleet.feature import Feature
from kvsim.records.cost import CONSTANT, ROOFLINE
from kvsim.records.memory import Views
from kvsim.rules.batch import batch_at
from kvsim.rules.price import all_reduce_time, elementwise_time, gemms_time, host_time
from kvsim.rules.work import weigh_gemms

if TYPE_CHECKING:
    from kvsim.engine.replica import Replica
    from kvsim.engine.setup import Setup
    from kvsim.fleet.member import Member
    from kvsim.records.engine import Batch

#: Passes after which the ranks check together whether any request is unfinished.
SYNC_INTERVAL = 16


def shares_experts(setup: Setup) -> bool:
    """Return True if the replicas of a configuration are ranks that step for shared experts."""
    shared = setup.config.dwdp_size == 1 and expert_replicas(setup.config) > 1
    return setup.memory.model.is_moe and shared


def why_independent(setup: Setup, *, changes: bool) -> str | None:
    """Return the reason to simulate ranks that share experts independently; None for lock step.

    ``changes`` is True if replicas start, stop or fail during the run.
    """
    config = setup.config
    if setup.scheduler_type.rules_of != VLLM:
        return f"not modelled with scheduler {setup.scheduler}"
    for unlike, what in (
        (config.pipeline_parallel_size > 1, "pipeline stages"),
        (config.kv_store is not None, "a KV store"),
        (config.migration is not None, "migration"),
        (changes, "replicas that start, stop or fail"),
    ):
        if unlike:
            return f"not modelled with {what}"
    return None


def independence_notes(setup: Setup, ranks: dict[str, Any] | None, *, changes: bool) -> list[str]:
    """Return a note if ranks that share experts were simulated independently."""
    if ranks is not None or not shares_experts(setup):
        return []
    reason = why_independent(setup, changes=changes)
    return [
        f"data-parallel ranks share the experts of {setup.memory.model.name} and step together in "
        f"vLLM; each ran alone here, so waits for slower ranks are missing: {reason}"
    ]


class LockStep(Feature):
    """Ranks with passes that begin and end together.

    Attributes
    ----------
    end : end of the pass in progress, seconds; a past time while the ranks pause
    """

    def __init__(self) -> None:
        self._ranks: list[Replica] = []
        self.end = -math.inf
        self._num_of_wave = 0
        self._times: dict[int, float] = {}  # see _token_time, by number of tokens
        self._num_passes = self._num_dummies = self._num_padding = 0
        self._waited = 0.0

    def add(self, rank: Replica) -> None:
        self._ranks.append(rank)
        rank.submissions.sees_late = True

    def hold(self, rank: Replica) -> None:
        """Delay a rank's unseen arrivals to the end of the pass. Mutates."""
        rank.submissions.hold(self.end)

    @property
    def is_running(self) -> bool:
        """Return True if a wave of passes is running."""
        return self._num_of_wave > 0

    def begin(self, time: float) -> None:
        """Start a pass of all ranks at a time; each has scheduled its step. Mutates."""
        own = {rank: self._own(rank, time) for rank in self._ranks if rank.state.num_batches > 0}
        if own:
            most = max(num_tokens for num_tokens, _ in own.values())
            longest = max(seconds + self._padding(n, most) for n, seconds in own.values())
            for rank, (num_tokens, seconds) in own.items():
                self._impose(rank, time, longest)
                self._waited += longest - seconds
                self._num_padding += most - num_tokens
        elif self._num_of_wave in (0, 1) or self._num_of_wave % SYNC_INTERVAL == 0:
            self._num_of_wave = 0
            return
        else:
            longest = self._dummy_time()
        self.end = time + longest
        self._num_of_wave += 1
        self._num_passes += 1
        self._num_dummies += len(self._ranks) - len(own)
        for rank in self._ranks:
            self.hold(rank)
            if rank not in own:
                rank.state.resume_time = max(rank.state.resume_time, self.end)

    def _own(self, rank: Replica, time: float) -> tuple[int, float]:
        """Return tokens and seconds of a rank's own pass."""
        batch = batch_at(rank.state, 0)
        return num_tokens_of(batch), batch.end - time

    def _impose(self, rank: Replica, time: float, seconds: float) -> None:
        """Extend a rank's step to the end of the slowest, and shift its later steps. Mutates."""
        state = rank.state
        if state.record_steps:
            rank.passes.append((time, seconds))
        before, end = batch_at(state, 0).end, time + seconds
        batch_at(state, 0).end = end
        for k in range(1, state.num_batches):
            batch = batch_at(state, k)
            before, batch.end = batch.end, end + (batch.end - before)
            end = batch.end
        state.stage_free_time = end

    def _padding(self, num_tokens: int, most: int) -> float:
        """Return the seconds for padding a pass of ``num_tokens`` tokens to ``most`` tokens."""
        if num_tokens == most:
            return 0.0
        return max(self._token_time(most) - self._token_time(num_tokens), 0.0)

    def _token_time(self, num_tokens: int) -> float:
        """Return the part of a pass's seconds that depends on its tokens, not on their KV."""
        cost = self._ranks[0].state.cost
        if cost.price != ROOFLINE:
            return 0.0
        if num_tokens not in self._times:
            cost.work.num_tokens = num_tokens
            weigh_gemms(cost, cost.work)
            time = gemms_time(cost, cost.work) + elementwise_time(cost, cost.work)
            self._times[num_tokens] = time + all_reduce_time(cost, cost.work)
        return self._times[num_tokens]

    def _dummy_time(self) -> float:
        """Return the seconds of a dummy pass, if no rank has work."""
        cost = self._ranks[0].state.cost
        if cost.price == CONSTANT:
            return float(cost.seconds)
        time = self._token_time(1)
        cost.work.num_requests = 1
        return time + host_time(cost, cost.work)

    def describe(self) -> dict[str, Any]:
        """Return the cost of the lock step for the summary; waits in seconds."""
        described = {
            "num_ranks": len(self._ranks),
            "num_steps": self._num_passes,
            "num_dummy_steps": self._num_dummies,
            "num_padding_tokens": self._num_padding,
            "waiting_seconds": self._waited,
        }
        return {"data_parallel": described}


def num_tokens_of(batch: Batch) -> int:
    entries = batch.entries
    if isinstance(entries, Views):
        return int(entries.array["num_tokens"][: batch.size].sum())
    return sum(entries[at].num_tokens for at in range(batch.size))


class LockStepClock(FleetClock):
    """Advances ranks pass by pass."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.lock_step = LockStep()

    def add(self, member: Member) -> None:
        self.lock_step.add(member.replica)
        super().add(member)

    def touch(self, member: Member) -> None:
        """Update a rank's next event time after an outside event. Mutates."""
        if self.lock_step.is_running:
            self.lock_step.hold(member.replica)
        super().touch(member)

    def _reach(self, target: float) -> bool:
        """Advance all ranks to ``target``; False if the world gets an event before ``target``.

        At one instant passes end, then requests are sent, then passes are scheduled.
        """
        ranks = self.lock_step
        while True:
            time = (
                ranks.end
                if ranks.is_running
                else float(self.replica_set.times.min(initial=math.inf))
            )
            if time > target or time == math.inf:
                return True
            self._advance_all(time)
            if self._world.peek() < target:
                return False
            if time >= target:
                return True
            self._advance_all(math.nextafter(time, math.inf))
            ranks.begin(time)
            for place, member in enumerate(self._members):
                next_time = member.replica.next_event_time()
                self.replica_set.times[place] = ranks.end if ranks.is_running else next_time
            if self._world.peek() < target:
                return False

    def _advance_all(self, horizon: float) -> None:
        for place in range(len(self._members)):
            self._notify(place, self.replica_set.advance_one(place, horizon))
