"""From the replicas of a run to its result."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.cost.accuracy import accuracy_of
from kvsim.cost.efficiency import basis_of
from kvsim.engine.notes import notes
from kvsim.evidence import evidence_of
from kvsim.fleet.binding import describe_load
from kvsim.fleet.bookkeeping import describe_replicas, describe_routing
from kvsim.fleet.footprint import unique_prompt_tokens
from kvsim.fleet.lock_step import independence_notes
from kvsim.fleet.notes import fleet_notes
from kvsim.results.metrics import Pool, external_hit_rate, num_early_turns, summarize
from kvsim.results.result import Result
from kvsim.results.samples import fold, samples_of
from kvsim.results.tables import MEMORY, SAMPLES, STEPS, TOKEN_GAPS, FinishReason
from kvsim.results.tenants import describe_tenants
from kvsim.results.totals import bin_middles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.config import Config
    from kvsim.engine.setup import Setup
    from kvsim.fleet.gateways import Gateways
    from kvsim.fleet.member import Member
    from kvsim.pool_config import Role
    from kvsim.results.totals import Totals
    from kvsim.trace import Trace
    from kvsim.trace.family import Family


class Part(NamedTuple):
    """The replicas of a run that are alike, in the order of their numbers.

    ``table`` holds the requests as they served them, ``num_cached_tokens`` what each prompt hit
    there.
    """

    role: Role
    name: str
    setup: Setup
    members: Sequence[Member]
    table: NDArray[Any]
    gateways: Gateways
    num_cached_tokens: NDArray[np.int64]

    def served(self) -> NDArray[Any]:
        """Return the requests with what they hit in this pool."""
        if np.array_equal(self.table["num_cached_tokens"], self.num_cached_tokens):
            return self.table
        table = self.table.copy()
        table["num_cached_tokens"] = self.num_cached_tokens
        return table


def rules_basis(setup: Setup) -> str:
    """Say what the schedules and the blocks rest on."""
    scheduler, kv = evidence_of(setup.scheduler_type), evidence_of(type(setup.kv))
    return f"scheduler {setup.scheduler}: {scheduler}; allocator {setup.config.allocator}: {kv}"


def step_time_basis(setup: Setup) -> str:
    """Say what the step times rest on."""
    if setup.config.cost_model.partition("+")[0] != "roofline":
        return f"cost model {setup.config.cost_model}"
    config, memory = setup.config, setup.memory
    given = config.cost_model.partition("+")[2]
    wide = "; FP32 arithmetic at the 16-bit peak, too fast" if memory.dtype == "fp32" else ""
    if given:
        return f"{basis_of(memory.gpu.name)}{wide}; overridden: {given}"
    accuracy = accuracy_of(
        memory.model,
        memory.gpu.name,
        config.tensor_parallel_size * config.pipeline_parallel_size,
        setup.kv_config.layout,
        dtype=memory.dtype,
        quantization=memory.quantization,
    )
    return f"{basis_of(memory.gpu.name)}{wide}; {accuracy}"


def close(parts: Sequence[Part], waited_until: float) -> tuple[float, dict[int, Totals]]:
    """Bring all replicas to the end of a run; writes down who is still served. Mutates.

    It is no earlier than requests have waited at a replica that had failed, which nobody knew. A
    step that is surplus, since it is all of requests that have ended, does not count.

    Returns
    -------
    end_time : when the last of them came to its end, seconds
    totals : of each replica, by number
    """
    members = sorted((m for part in parts for m in part.members), key=lambda m: m.number)
    states = [member.replica.state for member in members]
    end_time = max(waited_until, *(min(one.clock, one.surplus_since) for one in states))
    return end_time, {member.number: member.settle(end_time) for member in members}


def collect(
    config: Config,
    setup: Setup,
    trace: Trace,
    parts: Sequence[Part],
    end_time: float,
    totals: Mapping[int, Totals],
    backend_reason: str,
    turned_away: NDArray[np.bool_],
    transfers: dict[str, Any] | None = None,
    scaling: dict[str, Any] | None = None,
    kv_store: dict[str, Any] | None = None,
    flow_control: dict[str, Any] | None = None,
    moves: dict[str, Any] | None = None,
    ranks: dict[str, Any] | None = None,
    *,
    family: Family | None = None,
) -> Result:
    """Sum up a run whose replicas have come to their end; see :func:`close`.

    The first part answers the requests; one that follows computes prompts for it. ``transfers``
    says what went from one to the other, ``scaling`` what became of the number of replicas,
    ``kv_store`` what was read from a store, ``flow_control`` who was held back before,
    ``moves`` who moved while running, ``ranks`` what it cost that ranks step together, ``family``
    whose samples the trace's requests are.
    """
    rows = table = parts[0].table
    if family is not None:
        table, trace = fold(rows, family), family.parents
        turned_away = np.logical_or.reduceat(turned_away, family.first)
    members = sorted((m for part in parts for m in part.members), key=lambda m: m.number)
    replicas = [member.replica for member in members]
    kv = setup.kv
    pool = Pool(kv.num_gpu_blocks, kv.num_usable_blocks, kv.block_size, kv.total_bytes)
    summary = summarize(
        table,
        list(totals.values()),
        pool,
        end_time=end_time,
        goodput=config.goodput,
        front_end_latency=config.front_end_latency,
        replica_seconds=sum(m.lifetime(end_time, 0.0) for m in members) if scaling else None,
        served=None if family is None else rows,
        num_samples=trace.num_samples if (trace.num_samples > 1).any() else 1,
    )
    by_router = Counter[str]()
    for part in parts:
        refused = np.array(part.gateways.rejected, np.int64)
        if family is not None:
            refused = np.unique(family.parent_of[refused])
        sent = table["finish_reason"][refused] != FinishReason.UNSENT
        by_router[part.gateways.name] += int(sent.sum())
    summary["rejections"] = _rejections(
        setup, trace, table, turned_away, parts[1:], by_router, flow_control
    )
    early, later = num_early_turns(table, trace.session_id)
    summary |= {"num_early_turns": early, "num_later_turns": later}
    summary["load"] = describe_load(
        config, trace, table, parts, totals, summary["request_throughput"], transfers
    )
    summary |= describe_tenants(table, trace, end_time, config.front_end_latency)
    summary["routing"], summary["replicas"] = None, []
    pools, seconds, unique = [], summary["duration"], None
    start = float(trace.arrival_time[0])
    for part in parts:
        own = {number: totals[number] for number in sorted(m.number for m in part.members)}
        lives = [m.lifetime(end_time, seconds) for m in part.members]
        served = part.served()
        starts = [m.start_time - start for m in part.members]
        described = describe_replicas(served, own, lives, starts, part.role)
        routing = None
        if len(part.gateways) > 1:
            routing = describe_routing(part.gateways.decisions, served, own, lives)
            if part.setup.kv_config.enable_prefix_caching:
                sent = table["finish_reason"] != FinishReason.UNSENT
                unique = unique or unique_prompt_tokens(trace, sent)
                routing["unique_prompt_tokens"] = unique
        if part is parts[0]:
            summary["routing"] = routing
        summary["replicas"] += described
        pool_summary = _describe_pool(part, described, lives, routing, end_time)
        pool_summary["external_prefix_cache_hit_rate"] = external_hit_rate(own.values())
        pool_summary["num_preemptions"] = sum(one.num_preemptions for one in own.values())
        lived = sum(lives)
        waited = sum(one.waiting_seconds for one in own.values())
        pool_summary["mean_waiting"] = waited * len(lives) / lived if lived else None
        pools.append(pool_summary)
    summary["pools"] = pools if len(parts) > 1 else None
    summary["kv_transfers"] = transfers
    summary["kv_store"] = kv_store
    summary["flow_control"] = flow_control
    summary["num_gpus"] = most_gpus(parts, end_time)
    summary["num_clipped"] = num_clipped(table, trace)
    summary["gpu_hours"] = sum(pool["gpu_hours"] for pool in pools)
    summary["scaling"] = scaling
    summary["migration"] = moves
    summary["data_parallel"] = ranks
    try:
        installed = version("kvsim")
    except PackageNotFoundError:  # run from a checkout that is not installed
        installed = "unknown"
    return Result(
        summary=summary,
        requests=table,
        samples=np.zeros(0, SAMPLES) if family is None else samples_of(rows, family),
        memory=np.concatenate([replica.memory for replica in replicas], dtype=MEMORY),
        steps=np.concatenate([replica.steps for replica in replicas], dtype=STEPS),
        memory_map=np.concatenate([replica.memory_map for replica in replicas]),
        token_gaps=token_gaps(list(totals.items())),
        config=config,
        provenance={
            "kvsim_version": installed,
            "config_digest": config.digest,
            "trace_digest": trace.digest,
            "num_requests": len(trace),
            "seed": config.seed,
            "backend": "python" if backend_reason else "compiled",
            "backend_reason": backend_reason,
            "scheduler": setup.scheduler,
            "rules": rules_basis(setup),
            "step_time": step_time_basis(setup),
            "notes": [
                *notes(setup),
                *independence_notes(setup, ranks, changes=scaling is not None),
                *fleet_notes(
                    config,
                    summary,
                    num_readers=len(parts[-1].members),
                    apart=len(parts) > 1,
                    has_turns=_has_turns(trace),
                ),
                *clipped_notes(setup, summary["num_clipped"]),
            ],
        },
    )


def _has_turns(trace: Trace) -> bool:
    """Whether some session has a second turn."""
    sessions = trace.session_id[trace.session_id >= 0]
    return len(np.unique(sessions)) < len(sessions)


def token_gaps(totals: Sequence[tuple[int, Totals]]) -> NDArray[Any]:
    """Return the gaps between tokens of each replica, shortest first."""
    tables = []
    for number, one in totals:
        keys = np.array(sorted(one.token_gaps), np.int64)
        table = np.zeros(len(keys), TOKEN_GAPS)
        table["replica"], table["gap"] = number, bin_middles(keys)
        table["count"] = [one.token_gaps[key] for key in keys.tolist()]
        tables.append(table)
    return np.concatenate(tables) if tables else np.zeros(0, TOKEN_GAPS)


def _describe_pool(
    part: Part, rows: list[Any], lives: Sequence[float], routing: Any, end_time: float
) -> dict[str, Any]:
    """Say what a pool is and how busy it was."""
    config, kv = part.setup.config, part.setup.kv
    gpus = config.tensor_parallel_size * config.pipeline_parallel_size
    busy = [row["busy"] for row in rows if row["busy"] is not None]
    return {
        "name": part.name,
        "role": part.role,
        "num_replicas": len(part.members),
        "num_gpus": most_gpus([part], end_time),
        "gpu_hours": gpus * sum(lives) / 3600.0,
        "num_gpu_blocks": kv.num_gpu_blocks,
        "num_usable_blocks": kv.num_usable_blocks,
        "mean_busy": sum(busy) / len(busy) if busy else None,
        "routing": routing,
    }


def clipped_notes(setup: Setup, number: int) -> list[str]:
    """Say that requests got fewer tokens than they asked for, and why."""
    if not number:
        return []
    longest, settings = setup.memory.limits.max_model_len, setup.scheduler_config.sglang
    why = f"prompt and output must fit max_model_len ({longest:,})"
    if settings is not None and settings.max_total_num_tokens <= longest:
        why = f"prompt and output must fit the pool of {settings.max_total_num_tokens:,} tokens"
    return [f"of the requests, {number:,} got fewer tokens than they asked for: {why}"]


def num_clipped(table: NDArray[Any], trace: Trace) -> int:
    """Return how many requests were ended, by their length, before all tokens asked for."""
    done = table["finish_reason"] == FinishReason.FINISHED
    return int((done & (table["num_output_tokens"] < trace.num_output_tokens)).sum())


def most_gpus(parts: Sequence[Part], end_time: float) -> int:
    """Return the most GPUs that replicas had at one time, from start to end of each.

    One that ends when another one starts hands its GPUs on.
    """
    changes = []
    for part in parts:
        config = part.setup.config
        gpus = config.tensor_parallel_size * config.pipeline_parallel_size
        for member in part.members:
            changes.append((member.start_time, gpus))
            if member.end_time <= end_time:
                changes.append((max(member.end_time, member.start_time), -gpus))
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


#: How reasons begin for which no idle replica would serve a request.
HOPELESS = ("prompt not below", "more sequences than", "needs more KV memory")


def is_hopeless(reason: str) -> bool:
    """Whether a reason of ``rejections`` is one that no lower load would change."""
    return reason.startswith(HOPELESS)


def _rejections(
    setup: Setup,
    trace: Trace,
    table: NDArray[Any],
    turned_away: NDArray[np.bool_],
    others: Sequence[Part],
    by_router: Mapping[str, int],
    flow_control: dict[str, Any] | None,
) -> dict[str, int]:
    """Count rejected requests by reason."""
    rejected = (table["finish_reason"] == FinishReason.REJECTED) & ~turned_away
    longest, most = setup.memory.limits.max_model_len, setup.scheduler_config.max_num_seqs
    too_long = rejected & (table["num_prompt_tokens"] >= longest)
    too_many = rejected & ~too_long & (setup.kv_config.max_num_samples > 1)
    too_many &= trace.num_samples > most
    unfit, reasons = rejected & ~too_long & ~too_many, {}
    for part in others:  # of prompts
        own = part.setup.memory.limits.max_model_len
        too_long_there = unfit & (table["num_prompt_tokens"] >= own)
        said = f"prompt not below max_model_len ({own}) of pool {part.name}"
        reasons[said] = int(too_long_there.sum())
        unfit &= ~too_long_there
    shed, too_many_wait = 0, 0
    if flow_control is not None:
        shed, too_many_wait = flow_control["num_shed"], flow_control["num_too_many"]
    reasons |= {
        f"prompt not below max_model_len ({longest})": int(too_long.sum()),
        f"more sequences than max_num_seqs ({most})": int(too_many.sum()),
        "needs more KV memory than there is": int(unfit.sum()),
        **{f"turned away by router {name}": number for name, number in by_router.items()},
        "shed by flow control": shed,
        "more than may wait at the gateway": too_many_wait,
    }
    return {reason: count for reason, count in reasons.items() if count}
