"""The configurations that the compiled engine leaves to plain Python, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.rule_manager import RuleManager
from kvsim.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from kvsim.engine.setup import Parts


def refusal(setup: Parts) -> str | None:
    """Return the reason why the compiled engine cannot run these parts; None if it can.

    The compiled engine runs rules only; a part that overrides any of them is plain Python (D56).
    """
    kv, kind = setup.kv, setup.scheduler_type
    if not isinstance(kv, RuleManager) or not kv.runs_by_rules:
        return f"allocator {setup.allocator.base} is plain Python"
    if kv.python_parts:
        return f"{kv.python_parts} is plain Python"
    if not _runs_by_rules(kind):
        return f"scheduler {setup.scheduler} is plain Python"
    if not getattr(setup.cost, "runs_by_rules", False):
        return f"cost model {setup.cost_model} is plain Python"
    return None


def check_compiled(setup: Parts) -> None:
    """Refuse parts that the compiled engine cannot run."""
    reason = refusal(setup)
    if reason is not None:
        raise ValueError(f"backend: compiled cannot run this: {reason}")


def _runs_by_rules(kind: type[Scheduler]) -> bool:
    base = next(c for c in kind.__mro__ if "rules_of" in c.__dict__)
    same = all(getattr(kind, name) is getattr(base, name) for name in Scheduler.STEPS)
    return bool(kind.rules_of) and same
