"""SGLang's scheduler: prefills first, and decodes that are retracted when they do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.policies import SGLANG
from kvsim.engines.sglang.kv.radix import RadixManager
from kvsim.sched.scheduler import SCHEDULERS, Scheduler

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheManager
    from kvsim.records.request import Request
    from kvsim.sched.scheduler import SchedulerConfig


@SCHEDULERS.register("sglang")
class SglangScheduler(Scheduler):
    """Prefills the requests it can admit, in chunks, while decodes wait; else decodes all.

    A request is admitted if its prompt and its longest possible output fit, together with the
    expected need of the running requests. When decodes do not fit, those with the fewest outputs
    are retracted. It needs ``radix``. The rules are in :mod:`kvsim.engines.sglang.rules`.
    """

    rules_of = SGLANG
    evidence = "recorded schedules of SGLang 0.5.23 come out identical"
    needs_allocator = "radix"
    supports_async = serves_adapters = speculates = True

    def __init__(self, kv: KVCacheManager, config: SchedulerConfig) -> None:
        if not isinstance(kv, RadixManager):
            raise ValueError("scheduler 'sglang': needs allocator 'radix'")
        super().__init__(kv, config)

    @property
    def running(self) -> list[Request]:
        """The requests of the running batch, in order."""
        scheduler = self.state.engines.sglang
        return [self.state.requests[scheduler.running[k]] for k in range(scheduler.num_running)]
