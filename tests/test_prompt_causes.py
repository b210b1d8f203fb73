"""Causes tested on servers bound by prompts: what a verdict says."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from experiments.validation.llmd_routers import causes
from experiments.validation.llmd_routers.study import trace_of

TABLE = Path(__file__).parents[1] / "docs" / "validation" / "prompt-causes.csv"
SERVERS = causes.COLUMNS[1:-1]
SHIPPED = {"random": [15.0, -18.0, -5.0], "load": [20.0, -20.0, -5.0]}
SHIPPED |= {"precise": [8.0, -1.0, 6.0], "Qwen3-14B": [1.5, -20.0, -0.5]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "rates of random and load"),
        ({"random": [9.0, 0.0, 0.0]}, "rates of load"),
        ({"random": [9.0, 0, 0], "load": [-9.0, 0, 0]}, "accepted"),
        (
            {"random": [9.0, 0, 0], "load": [9.0, 0, 0], "precise": [0, 0, -8.1]},
            "worse: TPOT of precise",
        ),
        (
            {"random": [9.0, 0, 0], "load": [9.0, 0, 0], "Qwen3-14B": [-3.6, 0, 2.5]},
            "worse: throughput of Qwen3-14B",
        ),
    ],
)
def test_a_cause_is_accepted_if_rates_are_right_and_no_fitted_error_grows(
    changed: dict[str, list[float]], said: str
) -> None:
    assert causes.verdict(SHIPPED | changed, SHIPPED) == said


def test_the_verdicts_of_the_table_follow_from_its_errors() -> None:
    with TABLE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["cause"] for row in rows] == [cause.name for cause in causes.CAUSES]
    errors = [{name: [float(e) for e in row[name].split(",")] for name in SERVERS} for row in rows]
    told = [causes.verdict(found, errors[0]) for found in errors[1:]]
    assert told == [row["verdict"] for row in rows[1:]]


def test_bursts_keep_the_number_and_the_mean_rate_of_arrivals() -> None:
    trace = trace_of(stages=((30, 40),))
    spread = causes.spread_out(trace, 3.0)
    gaps = np.diff(spread.arrival_time[spread.session_id == 1])
    assert np.all(gaps >= 0)
    assert gaps.std() / gaps.mean() > 2
    assert gaps.mean() == pytest.approx(1 / 30, rel=0.4)
    assert causes.spread_out(trace, 1.0) is trace
