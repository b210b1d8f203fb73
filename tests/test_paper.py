"""What the experiments on the PagedAttention paper must meet exactly; the bands are theirs."""

from __future__ import annotations

import csv

import matplotlib.image
import numpy as np
import pytest

import workloads
from experiments import fig15, fig17, fig19, table1
from experiments._setting import (
    ORCAS,
    Check,
    Figure,
    near,
    save,
    serve,
    sustained_rate,
    while_arrivals_last,
    within,
)
from kvsim.testing import equal_tables
from kvsim.trace import Trace


def test_table_1() -> None:
    assert all(check.holds for check in table1.measure(quick=True).checks)


def test_orca_max_runs_exactly_seven_while_somebody_is_refused() -> None:
    trace = workloads.sharegpt(num_requests=400, request_rate=2.0, seed=3)
    summary = while_arrivals_last("Orca (Max)", trace)
    assert summary["mean_running_while_refused"] == pytest.approx(7, abs=1e-9)
    assert serve("Orca (Max)", trace).memory["num_running"].max() == 7


def test_the_orca_variants_coincide_on_full_prompts_and_not_on_short_ones() -> None:
    full = fig17.full_prompts(120)
    tables = [serve(system, full).requests for system in ORCAS]
    assert equal_tables(tables[0], tables[1])
    assert equal_tables(tables[0], tables[2])
    short = workloads.sharegpt(num_requests=120, request_rate=2.0, seed=0)
    assert not equal_tables(*(serve(system, short).requests for system in ORCAS[::2]))


@pytest.mark.parametrize("n", [2, 6])
def test_samples_save_what_their_lengths_say(n: int) -> None:
    trace = workloads.alpaca(num_requests=20, request_rate=1.0, seed=1)
    assert fig15.saving(trace, n, 0.0) == pytest.approx(fig15.closed_form(trace, n), abs=1e-12)


def test_recomputing_is_flat_in_block_size_and_swapping_is_not() -> None:
    times = np.array([fig19.bring_back(size) for size in (1, 16, 256)])
    assert len(set(times[:, 0])) == 1
    assert times[0, 1] > 5 * times[1, 1] > 5 * times[2, 1]
    copies = 2 * 2 * 40 * 256  # both ways, keys and values, layers, blocks of one token
    bytes_over_pcie = 2 * 256 * 819_200 / 25e9
    assert times[0, 1] == pytest.approx(copies * 1e-5 + bytes_over_pcie, rel=0.3)


def test_the_sustained_rate_is_what_a_saturated_server_finishes() -> None:
    trace = Trace.from_arrays(np.arange(200.0), [64] * 200, [100] * 200)
    alone = sustained_rate("vLLM", trace, max_num_seqs=1, cost_model="constant+seconds=0.01")
    assert alone == pytest.approx(1.0, rel=1e-9)  # 100 steps of 10 ms each


def test_a_missed_band_stays_missed() -> None:
    assert near("", 5.0, 4.0, points=0.5).holds is False
    assert near("", 4.4, 4.0, points=0.5).holds is True
    assert within("", 1.1, 1.0, percent=5).holds is False
    assert Check("", 1.0).holds is None


def test_an_experiment_writes_its_rows_and_its_picture(tmp_path) -> None:
    figure = Figure("t", [], [{"a": 1, "b": 2.5}], lambda picture: picture.subplots().plot([1, 2]))
    save(figure, "fig00", tmp_path / "out")
    with (tmp_path / "out" / "fig00.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": "2.5"}]
    assert matplotlib.image.imread(tmp_path / "out" / "fig00.png").shape[:2] == (480, 960)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["fig00.csv", "fig00.png"]
