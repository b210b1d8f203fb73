"""Runs return what they returned when their digests were recorded; ``-m slow`` checks all."""

import pytest
from digests import FILE, MOST, check, differing, read

#: A dozen that take a second in plain Python.
QUICK = (
    "allocator paged",
    "allocator contiguous-pow2",
    "autoscaler hpa",
    "disaggregation always",
    "eviction s3fifo",
    "failures migrate",
    "mamba align",
    "migration",
    "mtp",
    "offloading arc",
    "router llm-d",
    "sglang host",
    "store mooncake",
)

ANEW = "if results are meant to change: python tests/digests.py record"


@pytest.mark.parametrize("name", QUICK)
def test_a_run_returns_what_was_recorded(name: str) -> None:
    run = f"python/hand/{name}"
    assert differing(run, read(FILE)[run]) == [], ANEW


def test_a_name_of_no_run_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        check(FILE, "windows|mamba")
    assert "--only windows|mamba: must be part of a recorded run's name" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_runs_return_what_was_recorded() -> None:
    recorded = read(FILE)
    assert len(recorded) == MOST
    wrong = {run: found for run, d in recorded.items() if (found := differing(run, d))}
    assert wrong == {}, ANEW
