"""Record the schedule of any configuration as a case, to pin it in a test suite."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.cases.case import Case, CaseConfig, CaseRequest, Workload, write_case
from kvsim.cases.encoder import EncoderLog
from kvsim.cases.group import Group
from kvsim.cases.log import StepLog
from kvsim.cases.player import Feature
from kvsim.config import Config
from kvsim.engine.setup import Setup, resolve
from kvsim.fleet.simulate import requests_asked, serve, with_samples
from kvsim.kv.paged import PagedManager
from kvsim.records.samples import EOS
from kvsim.results.tables import FinishReason
from kvsim.sched.queue import WaitingQueue
from kvsim.speculation import Lookahead
from kvsim.trace.family import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kvsim.cases.player import Entry
    from kvsim.engine.replica import Replica
    from kvsim.results.result import Result
    from kvsim.trace import Trace

#: With more requests than this the log keeps counts and checksums.
MOST_NAMED = 256


def record(trace: Trace, path: str | Path | None = None, **options: Any) -> Case:
    """Serve a trace and record every step of the schedule.

    Parameters
    ----------
    trace : the requests, for one replica; with more than 256 the log keeps counts and checksums
    path : file for the case, optional
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
    """Serve a trace by a validated configuration and record the case; see :func:`record`."""
    result, case = _record(config, trace, on_progress=on_progress)
    write_case(case, path)
    return result


#: Options of fleets with more than one kind of replica, or with a changing number of them.
OF_FLEETS = ("pool", "num_prefill_workers", "autoscaler", "failures")


@dataclass
class Recording:
    """Observes a replica after every step, and logs its state as a case's steps."""

    steps: list[Entry] = field(default_factory=list)
    seen: list[tuple[int, int, float]] = field(default_factory=list)
    _entry: Entry = field(default_factory=dict)
    _log: StepLog | None = None
    _encoder: Feature = field(default_factory=Feature)
    _known: set[int] = field(default_factory=set)

    def begin(self, replica: Replica, names: dict[int, str | int], *, summary: bool) -> None:
        """Attach to a replica that has not run a step."""
        self._log = StepLog(replica, names, summary=summary)
        if replica.state.limits.has_encoder:
            self._encoder = EncoderLog(replica.state, names)
        self._log.before()

    def scheduled(self, replica: Replica) -> None:
        """Log the decisions of a step."""
        self._see(replica)
        self._entry = {"s": len(self.steps)}
        self.log.scheduled(self._entry)
        self._encoder.scheduled(self._entry)
        if not replica.state.must_complete:
            self._close()

    def completed(self, replica: Replica) -> None:
        """Log the end of a step."""
        if not self._entry:  # nothing was left to schedule in this step
            self._see(replica)
            self._entry = {"s": len(self.steps)}
        self.log.completed(self._entry)
        self._close()

    @property
    def log(self) -> StepLog:
        assert self._log is not None
        return self._log

    def _close(self) -> None:
        self.log.processed(self._entry)
        self._encoder.processed(self._entry)
        self.steps.append(self._entry)
        self._entry = {}
        self.log.before()

    def _see(self, replica: Replica) -> None:
        """Record the step at which each request first appeared."""
        state = replica.state
        places = [state.admissions[k].request for k in range(state.num_admitted)]
        here = [*(state.requests[place] for place in places), *WaitingQueue(state)]
        new = {r.request_id: r.arrival_time for r in here if r.request_id not in self._known}
        self.seen += [(len(self.steps), row, new[row]) for row in sorted(new)]
        self._known.update(new)


def _check_config(config: Config) -> None:
    if config.data_parallel_size > 1:
        raise ValueError("record: a case is one replica's schedule; data_parallel_size must be 1")
    for name in OF_FLEETS:
        if getattr(config, name) is not None:
            raise ValueError(f"record: a case is one replica's schedule; leave {name} out")
    if not math.isinf(config.horizon):
        raise ValueError("record: a case ends with its last request; leave the horizon out")


def _check_setup(setup: Setup, trace: Trace) -> None:
    limits = setup.scheduler_config
    if setup.kv_config.max_num_samples > 1:
        raise ValueError(
            "record: a case has one sequence per request; num_samples must be 1, or scheduler vllm"
        )
    if limits.speculation is not None or limits.lora or trace.has("grammar_time"):
        raise ValueError(
            "record: drafts, adapters and grammars are replayed, not recorded; leave them out"
        )
    if limits.engine_settings is not None or limits.policy not in ("fcfs", "priority"):
        raise ValueError(
            f"record: schedules under {setup.scheduler}, or fair to tenants, are not recorded; "
            "scheduler vllm with policy fcfs or priority is"
        )


def _record(
    config: Config, trace: Trace, *, on_progress: Callable[[int], object] | None = None
) -> tuple[Result, Case]:
    _check_config(config)
    setup, recording = resolve(config), Recording()
    given, trace = trace, requests_asked(config, trace)
    setup, family = with_samples(setup, trace)
    _check_setup(setup, trace)
    summary = len(trace) > MOST_NAMED
    served = trace if family is None else family.children
    names: dict[int, str | int] = dict(enumerate(names_of(served)))

    def begin(replica: Replica) -> None:
        recording.begin(replica, names, summary=summary)

    result = serve(setup, given, on_progress=on_progress, observer=recording, on_start=begin)
    if not recording.seen:
        reasons = "; ".join(result.summary["rejections"])
        raise ValueError(f"record: no request can be served: {reasons}")
    ids = np.array([row for _, row, _ in recording.seen])
    if (result.served["finish_reason"][ids] != FinishReason.FINISHED).any():
        raise ValueError("record: a queued request was rejected; a case has no such entry")
    longest = setup.scheduler_config.max_model_len
    requests = [_case_request(served, longest, names, *one) for one in recording.seen]
    num_preemptions = int(result.summary["num_preemptions"])
    case = Case(
        name=f"{config.allocator} under {setup.scheduler}",
        config=_case_config(setup, summary=summary),
        workload=Workload(requests=requests),
        steps=recording.steps,
        totals={"steps": len(recording.steps), "preemptions": num_preemptions},
    )
    return result, case


def _case_config(setup: Setup, *, summary: bool) -> CaseConfig:
    if setup.config.kv_offloading_size is not None:
        raise ValueError(
            "kv_offloading_size: a case names its allocator; give tiered+host-gib=GIB instead"
        )
    kv, limits, memory = setup.kv, setup.scheduler_config, setup.kv_config
    own: dict[str, Any] = vars(limits).copy()
    for name in ("speculation", "seed"):
        del own[name]
    for name in ("enable_prefix_caching", "watermark", *Lookahead.model_fields):
        own[name] = getattr(memory, name)
    if type(kv) is PagedManager:
        own["groups"] = [Group.of(spec) for spec in kv.groups]
        own["eviction"] = setup.allocator.params.get("eviction", "lru")
        own["num_cpu_blocks"] = memory.swap_space_bytes // kv.bytes_per_block
    else:
        own["allocator"] = setup.config.allocator
        own["kv_cache_bytes"] = memory.num_bytes
        layers = memory.layout.layers
        own["layers"] = [layer[: 3 if layer.num_tensors == 2 else 4] for layer in layers]
        own["swap_space_bytes"] = memory.swap_space_bytes
    return CaseConfig(
        num_gpu_blocks=kv.num_gpu_blocks,
        block_size=kv.block_size,
        scheduler_reserve_full_isl=memory.reserve_full_isl,
        retention_interval=memory.prefix_cache_retention_interval,
        pipeline_parallel_size=setup.config.pipeline_parallel_size,
        summary=summary,
        scheduler=setup.scheduler,
        clock_ties=False,
        **own,
    )


def _case_request(
    trace: Trace,
    max_model_len: int,
    names: Mapping[int, str | int],
    step: int,
    row: int,
    arrival_time: float,
) -> CaseRequest:
    longest = max_model_len - int(trace.num_prompt_tokens[row])
    tokens = min(int(trace.num_output_tokens[row]), longest)
    by_eos = trace.ends_by[row] == EOS and tokens < longest
    return CaseRequest(
        id=names[row],
        arrival_step=step,
        segments=list(trace.segments_of(row)),
        max_tokens=longest if by_eos else tokens,
        stop_at=tokens if by_eos else 0,
        priority=int(trace.priority[row]),
        arrival_time=arrival_time,
        cache_salt=int(trace.cache_salt[row]) or None,
        out_seg=int(trace.output_content_id[row]),
    )
