"""Random small runs of every kind: none is lost, none hangs, both engines agree to the bit.

``-m slow`` runs 2,000 of them by both engines, and again with every access to a list checked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from random_runs import KINDS, Drawn, drawn

import kvsim
from kvsim.testing import check_result, equal_tables

#: Runs of a kind, always and in the long test: 28 kinds make 2,968.
FEW, MANY = 4, 106
#: Most seconds of a run.
LIMIT = 120


@contextmanager
def watchdog(one: Drawn) -> Iterator[None]:
    """Fail a run that does not end."""

    def bark(*_: object) -> None:
        raise TimeoutError(f"no end within {LIMIT} s: {one}")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_of(one: Drawn, backend: str, *, checked: bool = False) -> kvsim.Result | str:
    """Return a run whose requests have all ended, or why the configuration is refused."""
    with watchdog(one):
        try:
            result = kvsim.simulate(
                one.trace, **one.options, backend=backend, check_invariants=checked
            )
        except ValueError as error:
            return str(error)
    check_result(result)
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_all_requests_of_random_runs_end(kind: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(FEW):
        result = run_of(drawn(kind, seed), "python", checked=seed % 2 == 0)
        if isinstance(result, str):
            seen["refused"] += 1
        else:
            seen["served"] += result.summary["completed"] > 0
    assert seen["served"] >= FEW // 3, seen  # else nothing was tested
    assert seen["refused"] <= FEW // 3, seen


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_agree_on_random_runs(kind: str) -> None:
    for seed in range(MANY):
        one = drawn(kind, seed)
        python, compiled = run_of(one, "python"), run_of(one, "auto")
        if isinstance(python, str) or isinstance(compiled, str):
            assert python == compiled, one
            continue
        for table in ("requests", "memory", "token_gaps"):
            assert equal_tables(getattr(python, table), getattr(compiled, table)), (one, table)
        assert np.array_equal(python.memory_map, compiled.memory_map), one
        assert python.summary == compiled.summary, one


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_runs_stay_within_their_lists() -> None:
    if os.environ.get("KVSIM_BOUNDSCHECK") == "1":
        pytest.skip("this is that run")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-m", "slow", __file__]
    named = ["-k", "both_engines_agree"]
    subprocess.run([*command, *named], env=os.environ | {"KVSIM_BOUNDSCHECK": "1"}, check=True)
