"""Goodput of 8 MI300X, together and with prefill apart: vLLM's blog on MORI-IO, 2026-04-07.

Qwen3-235B-A22B in FP8, 2,000 tokens in and 1,000 out, 8 requests per second, 100 of them; good is
a TTFT below 1 s and an inter-token latency below 50 ms. The blog does not say which statistic of a
request's gaps that is; the mean is taken here, as ``vllm bench serve`` judges TPOT. No kernels of
this card were measured, so its steps are priced with the H100's fractions. Nothing is fitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvsim
import workloads
from experiments._fleet import Row, between

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.results.result import Result

SETS: tuple[str, ...] = ()
APART = {"tensor_parallel_size": 4, "num_prefill_workers": 1, "num_decode_workers": 1}
SETUPS: dict[str, dict[str, Any]] = {
    "TP8": {"tensor_parallel_size": 8},
    "2 x TP4": {"tensor_parallel_size": 4, "data_parallel_size": 2},
    "1P1D, read": APART,
    "1P1D, write": APART | {"kv_transfer_protocol": "push"},
}
#: Good requests of 100, as published.
GOOD = {"TP8": 26, "2 x TP4": 30, "1P1D, read": 70, "1P1D, write": 73}


def served(setup: str, host_seconds: float = 0.0) -> Result:
    """Serve the requests by one set-up, with so much more of the host in every step."""
    trace = workloads.fixed(prompt=2000, output=1000, num_requests=100, request_rate=8.0)
    return kvsim.simulate(
        trace,
        model="qwen3-235b-a22b",
        quantization="fp8",
        gpu="mi300x",
        goodput={"ttft": 1000, "tpot": 50},
        cost_model=f"roofline+host-seconds={host_seconds}",
        **SETUPS[setup],
    )


def rows(data: Path) -> list[Row]:
    """Judge the order and the gain; gaps between tokens and a slower server are for information."""
    del data
    results = {setup: served(setup) for setup in SETUPS}
    good = {k: 100 * r.summary["goodput_attainment"] for k, r in results.items()}
    in_order = good["TP8"] < good["2 x TP4"] < good["1P1D, read"] < good["1P1D, write"]
    note = "all steps here are below 50 ms on average; see the last rows"
    found = [
        Row("good requests of 100", _line(GOOD), _line(good), "same order", in_order, note),
    ]
    gain = good["1P1D, read"] / good["TP8"] if good["TP8"] else float("inf")
    found.append(between("1P1D over TP8", GOOD["1P1D, read"] / GOOD["TP8"], gain, 2, 3))
    gaps = {k: r.summary["p99_itl_ms"] for k, r in results.items()}
    found.append(
        Row("p99 ITL, ms", "not told", _line(gaps), "", None, "if gaps are judged one by one")
    )
    slower = {k: 100 * served(k, 0.022).summary["goodput_attainment"] for k in SETUPS}
    found.append(
        Row(
            "good requests with 22 ms more per step",
            _line(GOOD),
            _line(slower),
            "",
            None,
            "means of 50 ms: then batches, not prefills, decide, and 1P1D's are larger",
        )
    )
    return found


def _line(values: dict[str, Any]) -> str:
    return " / ".join(f"{value:.0f}" for value in values.values())
