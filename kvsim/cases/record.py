"""Record the schedule of any configuration as a case, to pin it in a test suite."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.cases.case import Case, CaseConfig, CaseRequest, Group, Workload, write_case
from kvsim.cases.play import play
from kvsim.config import Config
from kvsim.engine.setup import Setup, resolve
from kvsim.fleet.simulate import serve
from kvsim.kv.paged import PagedManager
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsim.records.request import Request
    from kvsim.results.result import Result
    from kvsim.sched.scheduler import Scheduler, StepOutput, StepPlan
    from kvsim.trace import Trace

#: With more requests than this the log keeps counts and checksums.
MOST_NAMED = 256


def record(trace: Trace, path: str | Path | None = None, **options: Any) -> Case:
    """Serve a trace and record every step of the schedule.

    Parameters
    ----------
    trace : the requests, for one replica; with more than 256 the log keeps counts and checksums
    path : where to write the case, if anywhere
    **options : as for :func:`kvsim.simulate`

    Raises
    ------
    ValueError
        As for :func:`kvsim.simulate`; for several replicas or a horizon; if no request can be
        served; if the file cannot be written.

    Examples
    --------
    >>> import kvsim, workloads
    >>> trace = workloads.fixed(prompt=100, output=10, num_requests=8, request_rate=1.0)
    >>> case = kvsim.record(trace, model="llama-3-8b", gpu="l4", max_model_len=512)
    >>> case.steps[0]["new"][0]
    ['0', 0, [[1, 2, 3, 4, 5, 6, 7]]]
    """
    case = _record(Config.build(**options), trace)[1]
    if path is not None:
        write_case(case, path)
    return case


def record_run(
    config: Config,
    trace: Trace,
    path: str | Path,
    *,
    on_progress: Callable[[int], object] | None = None,
) -> Result:
    """Serve a trace by a validated configuration and write the case beside; see :func:`record`."""
    result, case = _record(config, trace, on_progress=on_progress)
    write_case(case, path)
    return result


@dataclass
class _Watch:
    """Counts steps as the engine takes them, and notes the step that first saw each request."""

    num_steps: int = 0
    seen: list[tuple[int, Request]] = field(default_factory=list)
    _scheduled: bool = False

    def attach(self, scheduler: Scheduler) -> Scheduler:
        add, schedule, complete = scheduler.add, scheduler.schedule, scheduler.complete

        def watched_add(request: Request) -> None:
            self.seen.append((self.num_steps, request))
            add(request)

        def watched_schedule(now: float) -> StepPlan:
            self.num_steps += 1
            self._scheduled = True
            return schedule(now)

        def watched_complete(plan: StepPlan, now: float) -> StepOutput:
            self.num_steps += not self._scheduled  # nothing was left to schedule in this step
            self._scheduled = False
            return complete(plan, now)

        scheduler.add = watched_add  # type: ignore[method-assign]
        scheduler.schedule = watched_schedule  # type: ignore[method-assign]
        scheduler.complete = watched_complete  # type: ignore[method-assign]
        return scheduler


@dataclass(frozen=True)
class _WatchedSetup(Setup):
    watch: _Watch

    def make_scheduler(self) -> Scheduler:
        return self.watch.attach(super().make_scheduler())


def _record(
    config: Config, trace: Trace, *, on_progress: Callable[[int], object] | None = None
) -> tuple[Result, Case]:
    if config.data_parallel_size > 1:
        raise ValueError("record: a case is one replica's schedule; data_parallel_size must be 1")
    if not math.isinf(config.horizon):
        raise ValueError("record: a case ends with its last request; leave the horizon out")
    if config.num_samples not in (None, 1) or (trace.num_samples > 1).any():
        raise ValueError("record: a case has one sequence per request; num_samples must be 1")
    setup, watch = resolve(config), _Watch()
    setup = replace(setup, config=config.model_copy(update={"backend": "python"}))
    watched = _WatchedSetup(**vars(setup), watch=watch)
    result = serve(watched, trace, on_progress=on_progress)
    if not watch.seen:
        raise ValueError(f"record: no request can be served: {'; '.join(_reasons(result))}")
    ids = np.array([request.request_id for _, request in watch.seen])
    if (result.requests["finish_reason"][ids] != FinishReason.FINISHED).any():
        raise ValueError("record: a queued request was rejected; a case cannot say that")
    case_config = _case_config(setup, summary=len(ids) > MOST_NAMED)
    workload = Workload(requests=[_case_request(trace, *one) for one in watch.seen])
    steps = list(play(case_config, workload))
    num_preemptions = sum(_count(step.get("pre")) for step in steps)
    if (len(steps), num_preemptions) != (watch.num_steps, result.summary["num_preemptions"]):
        raise RuntimeError(
            f"{setup.scheduler} took {watch.num_steps} steps with "
            f"{result.summary['num_preemptions']} preemptions, and {len(steps)} with "
            f"{num_preemptions} when played again: it depends on more than its calls"
        )
    totals = {"steps": len(steps), "preemptions": num_preemptions}
    name = f"{config.allocator} under {setup.scheduler}"
    case = Case(name=name, config=case_config, workload=workload, steps=steps, totals=totals)
    return result, case


def _reasons(result: Result) -> list[str]:
    return list(result.summary["rejections"])


def _count(names: list[object] | None) -> int:
    return len(names or ())


def _case_config(setup: Setup, *, summary: bool) -> CaseConfig:
    if setup.config.kv_offloading_size is not None:
        raise ValueError(
            "kv_offloading_size: a case names its allocator; give tiered+host-gib=GIB instead"
        )
    kv, limits, memory = setup.kv, setup.scheduler_config, setup.kv_config
    own: dict[str, Any] = vars(limits).copy()
    if type(kv) is PagedManager:
        own["groups"] = [Group.of(spec) for spec in kv.groups]
        own["eviction"] = setup.allocator.params.get("eviction", "lru")
        own["num_cpu_blocks"] = memory.swap_space_bytes // kv.bytes_per_block
    else:
        own["allocator"] = setup.config.allocator
        own["kv_cache_bytes"] = memory.num_bytes
        own["layers"] = [
            layer[:3] if layer.num_tensors == 2 else tuple(layer) for layer in memory.layout.layers
        ]
        own["swap_space_bytes"] = memory.swap_space_bytes
    return CaseConfig(
        num_gpu_blocks=kv.num_gpu_blocks,
        block_size=kv.block_size,
        enable_prefix_caching=memory.enable_prefix_caching,
        watermark=memory.watermark,
        scheduler_reserve_full_isl=memory.reserve_full_isl,
        retention_interval=memory.prefix_cache_retention_interval,
        num_lookahead_tokens=memory.num_lookahead_tokens,
        pipeline_parallel_size=setup.config.pipeline_parallel_size,
        summary=summary,
        scheduler=setup.scheduler,
        **own,
    )


def _case_request(trace: Trace, step: int, request: Request) -> CaseRequest:
    index = request.request_id
    return CaseRequest(
        id=str(index),
        arrival_step=step,
        segments=list(trace.segments_of(index)),
        max_tokens=request.max_tokens,
        priority=request.priority,
        arrival_time=request.arrival_time,
        cache_salt=request.cache_salt or None,
        out_seg=int(trace.output_content_id[index]),
    )
