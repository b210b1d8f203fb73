"""Assembly of a run's result from its replicas."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.cost.accuracy import accuracy_of
from kvsim.cost.efficiency import basis_of
from kvsim.engine.notes import notes
from kvsim.engine.own_parts import check_parts
from kvsim.entry_points import kvsim_version
from kvsim.evidence import evidence_of
from kvsim.fleet.binding import describe_load
from kvsim.fleet.lock_step import independence_notes
from kvsim.fleet.notes import fleet_notes
from kvsim.fleet.prefix_index.seen_before import tokens_seen_before
from kvsim.fleet.prefix_index.working_set import unique_prompt_tokens
from kvsim.fleet.tracking.bookkeeping import describe_replicas, describe_routing
from kvsim.fleet.waits import previous_turns
from kvsim.results.metrics import Pool as Memory
from kvsim.results.metrics import external_hit_rate, num_early_turns, summarize
from kvsim.results.result import Result
from kvsim.results.samples import fold, samples_of
from kvsim.results.sessions import describe_sessions
from kvsim.results.tables import MEMORY, SAMPLES, STEPS, TOKEN_GAPS, FinishReason
from kvsim.results.tenants import describe_tenants
from kvsim.results.totals import bin_middles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.engine.setup import Setup
    from kvsim.fleet.member import Member
    from kvsim.fleet.plan import Plan
    from kvsim.fleet.pool import Pool
    from kvsim.results.totals import Totals
    from kvsim.trace import Trace
    from kvsim.trace.family import Family


#: Entries of the summary that features add; None if the feature is off.
OF_FEATURES = (
    *("kv_transfers", "kv_store", "flow_control"),
    *("scaling", "migration", "data_parallel"),
)


def rules_basis(setup: Setup) -> str:
    scheduler, kv = evidence_of(setup.scheduler_type), evidence_of(type(setup.kv))
    return f"scheduler {setup.scheduler}: {scheduler}; allocator {setup.config.allocator}: {kv}"


def step_time_basis(setup: Setup) -> str:
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


def close(pools: Sequence[Pool], waited_until: float) -> tuple[float, dict[int, Totals]]:
    """Advance all replicas to the end of a run, and write the rows of requests in flight. Mutates.

    The run ends no earlier than ``waited_until``, since requests may have waited at a failed
    replica until the failure was detected. A step that computes only ended requests does not count.

    Returns
    -------
    end_time : end of the run, seconds
    totals : totals of each replica, by number
    """
    members = _by_number(pools)
    states = [member.replica.state for member in members]
    for member, state in zip(members, states, strict=True):
        check_parts(state, member.replica.setup)
    end_time = max(waited_until, *(min(one.clock, one.surplus_since) for one in states))
    return end_time, {member.number: member.settle(end_time) for member in members}


def _by_number(pools: Sequence[Pool]) -> list[Member]:
    return sorted((m for pool in pools for m in pool.members), key=lambda m: m.number)


def collect(
    plan: Plan,
    trace: Trace,
    pools: Sequence[Pool],
    end_time: float,
    totals: Mapping[int, Totals],
    backend_reason: str,
    turned_away: NDArray[np.bool_],
    described: Mapping[str, Any],
    family: Family | None = None,
) -> Result:
    """Summarize a run after all its replicas have ended; see :func:`close`.

    The first pool answers the requests; a second pool computes their prompts. ``described`` has the
    features' entries of the summary, ``family`` the requests that the trace's samples belong to.
    """
    config = plan.config
    entries = dict.fromkeys(OF_FEATURES) | dict(described)
    rows = table = pools[0].table
    if family is not None:
        table, trace = fold(rows, family), family.parents
        turned_away = np.logical_or.reduceat(turned_away, family.first)
    replicas = [member.replica for member in _by_number(pools)]
    summary = _summarize_requests(plan, trace, pools, table, end_time, totals, entries, family)
    summary["rejections"] = _rejections(
        trace, table, turned_away, pools, _num_rejected(pools, table, family), entries, totals
    )
    early, later = num_early_turns(table, trace.session_id)
    early = 0 if trace.has("after") else early  # such a turn waits for its answer
    summary |= {"num_early_turns": early, "num_later_turns": later}
    rate = summary["request_throughput"]
    summary["load"] = describe_load(
        config, trace, table, pools, totals, rate, entries["kv_transfers"]
    )
    summary |= describe_tenants(table, trace, end_time, config.front_end_latency)
    summary["sessions"] = _sessions(table, trace, config.front_end_latency)
    summary |= _describe_pools(pools, trace, table, totals, end_time, summary["duration"])
    summary |= {name: entries[name] for name in OF_FEATURES[:3]}
    summary["num_gpus"] = most_gpus(pools, end_time)
    summary["num_clipped"] = num_clipped(table, trace)
    summary["gpu_hours"] = summary.pop("gpu_hours")  # the keys keep their order
    summary |= {name: entries[name] for name in OF_FEATURES[3:]}
    return Result(
        summary=summary,
        requests=table,
        samples=np.zeros(0, SAMPLES) if family is None else samples_of(rows, family),
        memory=np.concatenate([replica.memory for replica in replicas], dtype=MEMORY),
        steps=np.concatenate([replica.steps for replica in replicas], dtype=STEPS),
        memory_map=np.concatenate([replica.memory_map for replica in replicas]),
        token_gaps=token_gaps(list(totals.items())),
        config=config,
        provenance=_provenance(plan, trace, pools, summary, backend_reason),
    )


def _sessions(table: NDArray[Any], trace: Trace, latency: float) -> dict[str, Any] | None:
    if not trace.has("session_id"):
        return None
    return describe_sessions(table, trace, tokens_seen_before(trace), latency)


def _summarize_requests(
    plan: Plan,
    trace: Trace,
    pools: Sequence[Pool],
    table: NDArray[Any],
    end_time: float,
    totals: Mapping[int, Totals],
    entries: Mapping[str, Any],
    family: Family | None,
) -> dict[str, Any]:
    """Return the summary's entries that every run has."""
    config, kv = plan.config, pools[0].setup.kv
    seconds = None
    if entries["scaling"]:
        seconds = sum(m.lifetime(end_time, 0.0) for m in _by_number(pools))
    return summarize(
        table,
        list(totals.values()),
        Memory(kv.num_gpu_blocks, kv.num_usable_blocks, kv.block_size, kv.total_bytes),
        end_time=end_time,
        goodput=config.goodput,
        front_end_latency=config.front_end_latency,
        replica_seconds=seconds,
        served=None if family is None else pools[0].table,
        num_samples=trace.num_samples if (trace.num_samples > 1).any() else 1,
    )


def _num_rejected(
    pools: Sequence[Pool], table: NDArray[Any], family: Family | None
) -> dict[str, int]:
    """Count the requests that the gateways of each router have rejected."""
    counts = Counter[str]()
    for pool in pools:
        refused = np.array(pool.gateways.rejected, np.int64)
        if family is not None:
            refused = np.unique(family.parent_of[refused])
        sent = table["finish_reason"][refused] != FinishReason.UNSENT
        counts[pool.gateways.name] += int(sent.sum())
    return counts


def _describe_pools(
    pools: Sequence[Pool],
    trace: Trace,
    table: NDArray[Any],
    totals: Mapping[int, Totals],
    end_time: float,
    seconds: float,
) -> dict[str, Any]:
    """Return the entries on routing, replicas and pools; the run lasted ``seconds``."""
    unique = None
    start = float(trace.arrival_time[0])
    replicas, described = [], []
    for pool in pools:
        own = {number: totals[number] for number in sorted(m.number for m in pool.members)}
        lives = [m.lifetime(end_time, seconds) for m in pool.members]
        served = pool.served()
        starts = [m.start_time - start for m in pool.members]
        rows = describe_replicas(served, own, lives, starts, pool.role)
        routing = None
        if len(pool.gateways) > 1:
            routing = describe_routing(pool.gateways.decisions, served, own, lives)
            if pool.setup.kv_config.enable_prefix_caching:
                sent = table["finish_reason"] != FinishReason.UNSENT
                unique = unique or unique_prompt_tokens(trace, sent)
                routing["unique_prompt_tokens"] = unique
        replicas += rows
        described.append(_describe_pool(pool, rows, own, lives, routing, end_time))
    return {
        "routing": described[0]["routing"],
        "replicas": replicas,
        "pools": described if len(pools) > 1 else None,
        "gpu_hours": sum(pool["gpu_hours"] for pool in described),
    }


def _provenance(
    plan: Plan, trace: Trace, pools: Sequence[Pool], summary: Mapping[str, Any], reason: str
) -> dict[str, Any]:
    """Return the provenance of the results; ``reason`` is why plain Python ran, else empty."""
    config, setup = plan.config, pools[0].setup
    ranks, changes = summary["data_parallel"], plan.changes
    readers, sent = len(pools[-1].members), {"has_waits": trace.has("after")}
    sent["has_turns"] = bool((previous_turns(trace.session_id) >= 0).any())
    return {
        "engine": "python" if reason else "compiled",
        "reason": reason,
        "kvsim_version": kvsim_version(),
        "config_digest": config.digest,
        "trace_digest": trace.digest,
        "num_requests": len(trace),
        "seed": config.seed,
        "scheduler": setup.scheduler,
        "rules": rules_basis(setup),
        "step_time": step_time_basis(setup),
        "notes": [
            *notes(setup),
            *independence_notes(setup, ranks, changes=changes),
            *fleet_notes(plan, summary, num_readers=readers, **sent),
            *clipped_notes(setup, summary["num_clipped"]),
        ],
    }


def token_gaps(totals: Sequence[tuple[int, Totals]]) -> NDArray[Any]:
    """Return the histograms of the gaps between tokens, by replica; shortest gap first."""
    tables = []
    for number, one in totals:
        keys = np.array(sorted(one.token_gaps), np.int64)
        table = np.zeros(len(keys), TOKEN_GAPS)
        table["replica"], table["gap"] = number, bin_middles(keys)
        table["count"] = [one.token_gaps[key] for key in keys.tolist()]
        tables.append(table)
    return np.concatenate(tables) if tables else np.zeros(0, TOKEN_GAPS)


def _describe_pool(
    pool: Pool,
    rows: list[Any],
    totals: Mapping[int, Totals],
    lives: Sequence[float],
    routing: Any,
    end_time: float,
) -> dict[str, Any]:
    """Return a pool's size, load and routing."""
    kv, lived = pool.setup.kv, sum(lives)
    busy = [row["busy"] for row in rows if row["busy"] is not None]
    waited = sum(one.waiting_seconds for one in totals.values())
    return {
        "name": pool.name,
        "role": pool.role,
        "num_replicas": len(pool.members),
        "num_gpus": most_gpus([pool], end_time),
        "gpu_hours": pool.gpus_per_replica * lived / 3600.0,
        "num_gpu_blocks": kv.num_gpu_blocks,
        "num_usable_blocks": kv.num_usable_blocks,
        "mean_busy": sum(busy) / len(busy) if busy else None,
        "routing": routing,
        "external_prefix_cache_hit_rate": external_hit_rate(totals.values()),
        "num_preemptions": sum(one.num_preemptions for one in totals.values()),
        "mean_waiting": waited * len(lives) / lived if lived else None,
    }


def clipped_notes(setup: Setup, number: int) -> list[str]:
    """Return a note with the reason if requests received fewer tokens than requested."""
    if not number:
        return []
    longest, settings = setup.memory.limits.max_model_len, setup.scheduler_config.engine_settings
    why = f"prompt and output must fit max_model_len ({longest:,})"
    tokens = None if settings is None else settings.max_total_num_tokens
    if tokens is not None and tokens <= longest:
        why = f"prompt and output must fit the pool of {tokens:,} tokens"
    return [f"{number:,} requests received fewer tokens than requested: {why}"]


def num_clipped(table: NDArray[Any], trace: Trace) -> int:
    """Count the requests that the length limit ended before their requested output."""
    done = table["finish_reason"] == FinishReason.FINISHED
    return int((done & (table["num_output_tokens"] < trace.num_output_tokens)).sum())


def most_gpus(pools: Sequence[Pool], end_time: float) -> int:
    """Return the largest number of GPUs in use at one time.

    A replica uses its GPUs from its start to its end. A replica that starts at the time when
    another one ends uses the same GPUs.
    """
    changes = []
    for pool in pools:
        gpus = pool.gpus_per_replica
        for member in pool.members:
            changes.append((member.start_time, gpus))
            if member.end_time <= end_time:
                changes.append((max(member.end_time, member.start_time), -gpus))
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


#: Prefixes of the reasons for which even an idle replica rejects a request.
HOPELESS = ("prompt not below", "more sequences than", "needs more KV memory")


def is_hopeless(reason: str) -> bool:
    """Return True if a request would be rejected for this reason even by an idle replica."""
    return reason.startswith(HOPELESS)


def _rejections(
    trace: Trace,
    table: NDArray[Any],
    turned_away: NDArray[np.bool_],
    pools: Sequence[Pool],
    by_router: Mapping[str, int],
    entries: Mapping[str, Any],
    totals: Mapping[int, Totals],
) -> dict[str, int]:
    """Count rejected requests by reason."""
    setup = pools[0].setup
    rejected = (table["finish_reason"] == FinishReason.REJECTED) & ~turned_away
    longest, most = setup.memory.limits.max_model_len, setup.scheduler_config.max_num_seqs
    too_long = rejected & (table["num_prompt_tokens"] >= longest)
    too_many = rejected & ~too_long & (setup.kv_config.max_num_samples > 1)
    too_many &= trace.num_samples > most
    unfit, reasons = rejected & ~too_long & ~too_many, {}
    for pool in pools[1:]:  # prefill pools
        own = pool.setup.memory.limits.max_model_len
        too_long_there = unfit & (table["num_prompt_tokens"] >= own)
        said = f"prompt not below max_model_len ({own}) of pool {pool.name}"
        reasons[said] = int(too_long_there.sum())
        unfit &= ~too_long_there
    held = entries["flow_control"] or {}
    num_queued = min(sum(one.num_turned_away for one in totals.values()), int(unfit.sum()))
    reasons |= {
        f"prompt not below max_model_len ({longest})": int(too_long.sum()),
        f"more sequences than max_num_seqs ({most})": int(too_many.sum()),
        "needs more KV memory than there is": int(unfit.sum()) - num_queued,
        "more than may wait at the server": num_queued,
        **{f"turned away by router {name}": number for name, number in by_router.items()},
        "shed by flow control": held.get("num_shed", 0),
        "more than may wait at the gateway": held.get("num_too_many", 0),
    }
    return {reason: count for reason, count in reasons.items() if count}
