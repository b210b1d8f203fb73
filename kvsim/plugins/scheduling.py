"""Names for authors of schedulers: base classes, declarations, a check."""

from kvsim.own_rules.part import per_replica
from kvsim.records.request import Request
from kvsim.sched.scheduler import SCHEDULERS, Scheduler, SchedulerConfig, StepOutput, StepPlan
from kvsim.sched.scheduler_rules import SchedulerRules
from kvsim.testing.scheduler import check_scheduler

__all__ = [
    "SCHEDULERS",
    "Request",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerRules",
    "StepOutput",
    "StepPlan",
    "check_scheduler",
    "per_replica",
]
