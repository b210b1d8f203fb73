"""What each tenant got, and how far apart tenants that waited were served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.cli.main import main
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.results.tenants import is_waiting, largest_gap, service_by
from kvsim.trace import Trace

#: A second per step, one request at a time.
ONE: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "cost_model": "constant+seconds=1.0",
    "max_model_len": 256,
    "max_num_seqs": 1,
    "async_scheduling": False,
    "backend": "python",
}


def rows(*times: tuple[float, float, float, float], prompt: int, output: int) -> Any:
    """Requests that arrive, are scheduled, get their first token and end at these times."""
    table = np.zeros(len(times), dtype=REQUESTS)
    for row, (arrival, scheduled, first, finish) in zip(table, times, strict=True):
        row["arrival_time"], row["first_scheduled_time"] = arrival, scheduled
        row["first_token_time"], row["finish_time"] = first, finish
    table["num_prompt_tokens"], table["num_output_tokens"] = prompt, output
    table["finish_reason"] = FinishReason.FINISHED
    return table


def test_what_each_tenant_got() -> None:
    trace = Trace.from_arrays(
        [0.0, 0.0, 0.0, 0.0], [10, 20, 300, 5], [3, 1, 4, 2], tenant=["x", "y", "x", None]
    )
    summary = kvsim.simulate(trace, **ONE).summary
    nobody, x, y = summary["tenants"]
    assert nobody["name"] is None
    assert x == {
        "name": "x",
        "requests": 2,
        "completed": 1,
        "rejected": 1,
        "mean_ttft_ms": 1000.0,
        "p99_ttft_ms": 1000.0,
        "output_tokens": 3,
        "service": 16,
    }
    assert (y["name"], y["service"], nobody["service"]) == ("y", 22, 9)
    bare = kvsim.simulate(Trace.from_arrays([0.0], [10], [3]), **ONE).summary
    assert bare["tenants"] is None
    assert bare["max_service_gap"] is None


def test_service_is_the_input_at_once_and_the_output_evenly() -> None:
    table = rows((0, 0, 2, 6), (0, 3, 4, 4), prompt=10, output=8)
    times = np.array([0.0, 2.0, 3.0, 4.0, 6.0, 9.0])
    before, after = service_by(table, times, 9.0)
    assert before.tolist() == [0, 0, 14, 18, 52, 52]
    assert after.tolist() == [0, 10, 14, 44, 52, 52]
    table["finish_time"][0] = np.nan  # in flight when the run ended
    assert service_by(table, times, 10.0)[1].tolist() == [0, 10, 12, 40, 44, 50]


def test_only_what_waits_together_is_compared() -> None:
    """a waits from 0 to 4 and from 8 on, b from 2 to 10: a's input at 3, b's at 9, and what ran."""
    a = rows((0, 4, 5, 7), (8, 12, 13, 15), prompt=10, output=8)
    b = rows((2, 10, 11, 13), prompt=10, output=8)
    assert is_waiting(a, np.array([0.0, 2.0, 4.0, 8.0, 12.0])).tolist() == [1, 1, 0, 1, 0]
    late = rows((20, 20, 21, 22), prompt=1, output=1)  # until then requests arrive
    served = rows((1, 1, 3, 8), prompt=100, output=5)
    assert largest_gap([np.concatenate([a, late]), b], 30.0) == 0.0
    # From 2 to 4: its input at 3, and a fifth of its output's 10; from 8 to 10 nothing.
    both = np.concatenate([a, late, served])
    assert largest_gap([both, b], 30.0) == pytest.approx(100 + 2)
    assert largest_gap([both], 30.0) is None
    assert largest_gap([served, late], 30.0) is None


def test_first_come_first_served_lets_one_wait() -> None:
    """Both wait until a's second request begins at 3 s: by then its first had 10 + 2 x 3."""
    tenant = ["a", "a", "b", "b", "a"]
    trace = Trace.from_arrays([0.0, 0.0, 0.0, 0.0, 100.0], [10] * 5, [3] * 5, tenant=tenant)
    assert kvsim.simulate(trace, **ONE).summary["max_service_gap"] == pytest.approx(16)


def test_a_report_has_a_table_of_tenants(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Trace.from_arrays([0.0] * 3, [10] * 3, [3] * 3, tenant=["a", "a", None]).save(
        tmp_path / "t.csv"
    )
    flags = ["--model", "llama-3-8b", "--gpu", "l4"]
    main(["run", "--trace", str(tmp_path / "t.csv"), *flags])
    out = capsys.readouterr().out
    assert "tenant" in out
    assert "(none)" in out
    assert "service: 1 per prompt token, 2 per output token." in out
