"""A check of a cost model, for authors of cost models."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

from kvsim.config import Config
from kvsim.cost.model import COST_MODELS
from kvsim.engine.setup import resolve
from kvsim.records.request import Request
from kvsim.sched.scheduler import StepPlan
from kvsim.testing.serving import Run, check_runs, checked, pool_of_any_size, random_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from kvsim.cost.model import CostModel, StepCost

#: Steps whose time is computed in one run.
NUM_STEPS = 20


def check_cost_model(
    model: str | Callable[..., CostModel], *, num_runs: int = 20, seed: int = 0, **options: Any
) -> None:
    """Check a cost model on random steps, and on random small traces.

    The time of a step must be finite, above 0, and equal in a second call; FLOPs and bytes must not
    be negative; a call must change no request; every request of a trace must be served.
    :mod:`kvsim.testing` has the parameters.

    Examples
    --------
    >>> from kvsim.testing import check_cost_model
    >>> check_cost_model("constant+seconds=0.02", num_runs=2)
    """
    check_runs(COST_MODELS, model, pool_of_any_size, _check, num_runs, seed, options)


def _check(run: Run) -> None:
    options = run.options | {"cost_model": run.name}
    cost = resolve(Config.build(**options)).cost
    for _ in range(NUM_STEPS):
        _check_step(cost, _draw_step(run.rng))
    checked(random_trace(run.rng), options)


def _draw_step(rng: np.random.Generator) -> StepPlan:
    """Draw decodes, whole prompts and chunks of prompts, few or many, short or long."""
    scheduled, unfinished = [], 0
    for k in range(int(2 ** rng.uniform(0, 7))):
        before, num_tokens = (int(n) for n in 2 ** rng.uniform(0, 12, 2))
        kind = int(rng.integers(3))
        num_tokens = 1 if kind == 0 else num_tokens
        request = Request(k, 0.0, before + num_tokens, 1, [], before + num_tokens + 1)
        request.num_computed_tokens = num_tokens if kind == 1 else before + num_tokens
        unfinished += kind == 2 and unfinished == k
        scheduled.append((request, num_tokens))
    return StepPlan.of(scheduled, unfinished)


def _check_step(model: CostModel, plan: StepPlan) -> None:
    before = _seen(plan)
    first, second = model.step(plan), model.step(plan)
    if _seen(plan) != before:
        _fail(plan, "step() changes its requests")
    if first != second:
        _fail(plan, f"it takes {first.time:g} s, and {second.time:g} s in a second call")
    if not (0.0 < first.time < math.inf):
        _fail(plan, f"it takes {first.time:g} s, must be above 0 s and finite")
    _check_count(plan, first)


def _seen(plan: StepPlan) -> list[list[str]]:
    """Return the fields of a step and its requests as texts, which compare equal also for NaN."""
    rows: list[Any] = [*plan.state.requests, *plan.batch.entries]
    return [[str(getattr(row, name)) for name in row.kinds()] for row in rows]


def _check_count(plan: StepPlan, cost: StepCost) -> None:
    for what, number in (("FLOPs", cost.flops), ("bytes", cost.bytes)):
        if not 0.0 <= number < math.inf:
            _fail(plan, f"it has {number:g} {what}, must be at least 0 and finite")


def _fail(plan: StepPlan, what: str) -> NoReturn:
    decodes = sum(n == 1 for n in plan.num_tokens)
    raise AssertionError(
        f"a step of {len(plan.num_tokens)} requests and {sum(plan.num_tokens):,} tokens, "
        f"{decodes} of them decodes, over {sum(plan.ends):,} tokens of KV: {what}"
    )
