"""The measured fair queues: what is replayed and how it is judged, on a made-up measurement."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from experiments.validation.fleets import fair_queues
from experiments.validation.fleets.fair_queues import FILE, gap_from_the_start, measured, trace_of
from kvsim.trace import Trace


def write(folder: Path, *, real: bool) -> None:
    """Write runs in which client 0 is served whole before client 1."""
    lines = ["run,client,arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s"]
    for run in ("FCFS/overload", "VTC/overload", *(("FCFS/real", "VTC/real") if real else ())):
        for k in range(40):
            first = 0.5 * (k % 2) * 40 + k // 2 + 1.0
            lines.append(f"{run},{k % 2},{0.5 * k},256,256,{first - 0.5 * k + 20},{first + 40}")
        lines.append(f"{run},0,30.0,256,256,-1,-1")  # aborted
    (folder / FILE).parent.mkdir(parents=True)
    (folder / FILE).write_bytes(gzip.compress("\n".join(lines).encode()))


def test_rows_of_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queues, "SEEDS", range(1))
    write(tmp_path, real=False)
    rows = fair_queues.rows(tmp_path)
    assert [row.band for row in rows] == [
        *("+-10 %", "< 15,000", "<= 40,000", "+-10 %", "+-10 %", "1 +-3 %"),
        "VTC < FCFS",
    ]
    assert rows[2].holds
    assert all(isinstance(row.holds, bool | np.bool_) for row in rows[:-1])


def test_what_is_drawn_for_the_real_trace_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_queues, "SEEDS", range(1))
    write(tmp_path, real=False)
    row = fair_queues.real_row(tmp_path, 0.03)
    assert "drawn" in row.what
    assert row.holds is None
    assert "not judged" in row.note


def served(trace: Trace) -> list[int]:
    """Rows that a limit of five served in any sixty seconds lets through."""
    rows: list[int] = []
    for row, (client, time) in enumerate(zip(trace.tenant, trace.arrival_time, strict=True)):
        before = [k for k in rows if trace.tenant[k] == client]
        if sum(time - trace.arrival_time[k] < 60 for k in before) < 5:
            rows.append(row)
    return rows


@pytest.mark.long
def test_popularity_is_what_a_limit_per_minute_refused() -> None:
    """919 of 1,500 requests came beyond five of a client in any minute, says the artifact."""
    beyond = [1500 - len(served(fair_queues.drawn(seed))) for seed in range(10)]
    assert np.mean(beyond) == pytest.approx(919, rel=0.02)


@pytest.mark.long
def test_answers_are_as_long_as_a_limit_per_minute_let_through() -> None:
    """Of 581 requests that it served, at 219 tokens/s, within 600 to 640 s; 256 tokens for all."""
    for seed in range(5):
        trace = fair_queues.drawn(seed)
        share = trace.num_output_tokens[served(trace)].mean() / trace.num_output_tokens.mean()
        assert 226.1 / 256 < share < 241.3 / 256
        assert trace.num_output_tokens.mean() == pytest.approx(256, rel=0.005)


def test_a_limit_looks_back_sixty_seconds_at_who_was_served() -> None:
    times = [0.0, 1.0, 2.0, 3.0, 4.0, 59.9, 60.0, 60.5, 61.0, 61.0]
    trace = Trace.from_arrays(times, [8] * 10, [8] * 10, tenant=[0] * 9 + [1])
    assert np.flatnonzero(~fair_queues.within_limit(trace)).tolist() == [5, 7]


@pytest.mark.long
@pytest.mark.parametrize(("share", "holds"), [(None, True), ((1.03, 1.1), False)])
def test_the_sign_is_that_of_the_popular_clients_answers(
    monkeypatch: pytest.MonkeyPatch, share: tuple[float, float] | None, holds: bool
) -> None:
    if share:
        monkeypatch.setattr(fair_queues, "LIMITED_SHARE", share)
    traces = [dict.fromkeys(fair_queues.RUNS, fair_queues.drawn(seed)) for seed in range(6)]
    vtc, fcfs = fair_queues.mean_ttfts(traces, 0.03).mean(axis=0)
    assert (vtc < fcfs) == holds


def test_the_real_trace_is_replayed_where_it_is(tmp_path: Path) -> None:
    write(tmp_path, real=True)
    (row,) = fair_queues.rows(tmp_path)[6:]
    assert row.what == "mean TTFT, s, VTC and FCFS, real trace"
    assert isinstance(row.holds, bool)
    assert row.band == "VTC < FCFS"


def test_the_gap_counts_all_that_came_before_the_last_arrival(tmp_path: Path) -> None:
    write(tmp_path, real=False)
    table = measured(tmp_path, "FCFS/overload")
    assert len(table) == len(trace_of(table)) == 40
    # Nobody has a first token before 21 s, the last request comes at 19.5 s.
    assert gap_from_the_start(table, table["replica"]) == 0.0
    table["first_token_time"] -= 20.0
    assert gap_from_the_start(table, table["replica"]) > 19 * 256
