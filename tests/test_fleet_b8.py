"""The measured fair queues: what is replayed and how it is judged, on a made-up measurement."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from experiments import _fleet_b8
from experiments._fleet_b8 import FILE, gap_from_the_start, measured, trace_of


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
    monkeypatch.setattr(_fleet_b8, "SEEDS", range(1))
    write(tmp_path, real=False)
    rows = _fleet_b8.rows(tmp_path)
    assert [row.band for row in rows] == [
        *("+-10 %", "< 15,000", "<= 40,000", "+-10 %", "+-10 %", "1 +-3 %"),
        "VTC < FCFS",
    ]
    assert "drawn" in rows[-1].what
    assert rows[2].holds
    assert all(isinstance(row.holds, bool | np.bool_) for row in rows)


def test_popularity_is_what_a_limit_per_minute_refused() -> None:
    """919 of 1,500 requests came beyond five of a client in a minute, says the artifact."""
    beyond = []
    for seed in range(20):
        trace = _fleet_b8.drawn(seed)
        minute = (trace.arrival_time // 60).astype(int)
        counts = np.zeros((_fleet_b8.NUM_CLIENTS, 10))
        np.add.at(counts, (np.asarray(trace.tenant), minute), 1)
        beyond.append(np.maximum(counts - 5, 0).sum())
    assert np.mean(beyond) == pytest.approx(919, rel=0.02)


def test_answers_are_as_long_as_a_limit_per_minute_let_through() -> None:
    """Of 581 requests that it served, at 219 tokens/s, within 600 to 640 s; 256 tokens for all."""
    for seed in range(10):
        trace = _fleet_b8.drawn(seed)
        seen: dict[tuple[int, int], int] = {}
        answers = []
        for row, (client, time) in enumerate(zip(trace.tenant, trace.arrival_time, strict=True)):
            place = int(client), int(time // 60)
            seen[place] = seen.get(place, 0) + 1
            if seen[place] <= 5:
                answers.append(int(trace.num_output_tokens[row]))
        share = np.mean(answers) / trace.num_output_tokens.mean()
        assert 226.1 / 256 < share < 241.3 / 256
        assert trace.num_output_tokens.mean() == pytest.approx(256, rel=0.005)


@pytest.mark.parametrize(("share", "holds"), [(None, True), ((1.03, 1.1), False)])
def test_the_sign_is_that_of_the_popular_clients_answers(
    monkeypatch: pytest.MonkeyPatch, share: tuple[float, float] | None, holds: bool
) -> None:
    if share:
        monkeypatch.setattr(_fleet_b8, "LIMITED_SHARE", share)
    traces = [dict.fromkeys(_fleet_b8.RUNS, _fleet_b8.drawn(seed)) for seed in range(6)]
    assert _fleet_b8.ttft_row("drawn", traces, 0.03).holds is holds


def test_the_real_trace_is_replayed_where_it_is(tmp_path: Path) -> None:
    write(tmp_path, real=True)
    assert [row.what for row in _fleet_b8.rows(tmp_path)[6:]] == [
        "mean TTFT, s, VTC and FCFS, real trace"
    ]


def test_the_gap_counts_all_that_came_before_the_last_arrival(tmp_path: Path) -> None:
    write(tmp_path, real=False)
    table = measured(tmp_path, "FCFS/overload")
    assert len(table) == len(trace_of(table)) == 40
    # Nobody has a first token before 21 s, the last request comes at 19.5 s.
    assert gap_from_the_start(table, table["replica"]) == 0.0
    table["first_token_time"] -= 20.0
    assert gap_from_the_start(table, table["replica"]) > 19 * 256
