"""B16: goodput of 8 MI300X, together and with prefill apart: vLLM's blog on MORI-IO, 2026-04-07.

Qwen3-235B-A22B in FP8 with expert parallelism, 2,000 tokens in and 1,000 out, 8 requests a second,
100 of them; good is a TTFT below 1 s and an inter-token latency below 50 ms. That is the 99th
percentile of a request's own gaps: the blog tells of P99 far above 50 ms, and of requests in two
clusters, at 30 and at 150 ms. It gives more rates for two servers of four: all good at 0.5 requests
per second, 60 % at 1, a quarter from 2 on. Those are the last dozen requests of each server, who
see fewer than ten prompts in a thousand tokens.

Simple tests of this card were timed, no kernels (``kvsim.cost.relative``). Nothing is fitted.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

import kvsim
import workloads
from experiments._fleet import Row, between, shown
from kvsim.cost.efficiency import efficiency_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.results.result import Result

SETS: tuple[str, ...] = ()
TOGETHER = {"max_num_batched_tokens": 8192}
APART = {
    **{"tensor_parallel_size": 4, "num_prefill_workers": 1, "num_decode_workers": 1},
    "max_num_batched_tokens": 4096,
}
SETUPS: dict[str, dict[str, Any]] = {
    "TP8": TOGETHER | {"tensor_parallel_size": 8},
    "2 x TP4": TOGETHER | {"tensor_parallel_size": 4, "data_parallel_size": 2},
    "1P1D, read": APART,
    "1P1D, write": APART | {"kv_transfer_protocol": "push"},
}
RATE = 8.0
#: Good requests of 100, as published, and of two servers at lower rates.
GOOD = {"TP8": 26, "2 x TP4": 30, "1P1D, read": 70, "1P1D, write": 73}
SLOWLY = {0.5: 100, 1.0: 60, 2.0: 25}
TTFT, ITL = 1.0, 0.05
#: Seconds by which the end of a step may differ from its start and duration added up.
ROUNDING = 1e-9
#: Speed of arithmetic in the last row.
SLOWER = 2 / 3


def served(setup: str, rate: float = RATE, cost_model: str = "roofline") -> Result:
    """Serve the requests by one set-up."""
    trace = workloads.fixed(prompt=2000, output=1000, num_requests=100, request_rate=rate)
    return kvsim.simulate(
        trace,
        model="qwen3-235b-a22b",
        quantization="fp8",
        gpu="mi300x",
        enable_expert_parallel=True,
        enable_prefix_caching=False,
        max_model_len=16_384,
        cost_model=cost_model,
        record_steps=True,
        **SETUPS[setup],
    )


def p99_gaps(result: Result) -> NDArray[np.float64]:
    """Return the 99th percentile of the gaps between tokens of each request, seconds.

    Every step of its replica from its first token to its last gives a request one; nobody is
    preempted here.
    """
    steps, found = result.steps, []
    for row in result.requests:
        of = steps[steps["replica"] == row["replica"]]
        ends = of["start_time"] + of["duration"]
        times = row["first_token_time"] - ROUNDING, row["finish_time"] + ROUNDING
        begin, end = np.searchsorted(ends, times)
        found.append(np.percentile(np.diff(ends[begin:end]), 99))
    return np.array(found)


def num_good(result: Result) -> int:
    """Count the requests that keep both targets."""
    ttft = result.requests["first_token_time"] - result.requests["arrival_time"]
    return int(((ttft < TTFT) & (p99_gaps(result) < ITL)).sum())


def rows(data: Path) -> list[Row]:
    """Judge the order and the gain; lower rates, gaps and a slower card are for information."""
    del data
    results = {setup: served(setup) for setup in SETUPS}
    good = {k: num_good(r) for k, r in results.items()}
    in_order = good["TP8"] < good["2 x TP4"] < good["1P1D, read"] < good["1P1D, write"]
    gain = good["1P1D, read"] / good["TP8"] if good["TP8"] else float("inf")
    gaps = {k: 1e3 * float(np.median(p99_gaps(r))) for k, r in results.items()}
    lower = {rate: num_good(served("2 x TP4", rate)) for rate in SLOWLY}
    return [
        Row("good requests of 100", _line(GOOD), _line(good), "same order", in_order),
        between("1P1D over TP8", GOOD["1P1D, read"] / GOOD["TP8"], gain, 2, 3, CAUSE),
        shown("2 x TP4 at 0.5, 1 and 2 requests/s: good ones", _line(SLOWLY), _line(lower)),
        shown("p99 gap of the median request, ms", "150 and 30, clusters", _line(gaps)),
        slower_row(),
    ]


def slower_row() -> Row:
    """Show what the goodput would be if arithmetic took half as long again."""
    rate = efficiency_of("mi300x")
    tables = {
        "mi300x": {
            "gemm": SLOWER * rate.gemm,
            "prefill_attention": SLOWER * rate.prefill_attention,
        },
        "mi300x.gemms.fp8": {"gemm": SLOWER * rate.gemms["fp8"].gemm},
        "mi300x.experts.fp8-block": {"gemm": SLOWER * rate.experts["fp8-block"].gemm},
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "slower.toml"
        lines = [
            f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in t.items())
            for name, t in tables.items()
        ]
        file.write_text("".join(lines), encoding="utf-8")
        good = {k: num_good(served(k, cost_model=f"roofline+constants={file}")) for k in SETUPS}
    return shown("good requests if arithmetic took half as long again", _line(GOOD), _line(good))


CAUSE = (
    "first tokens apart come late for 30 of theirs and for hardly any of ours: a prefill server "
    "that is a little slower than requests come decides it; see the last row"
)


def _line(values: dict[Any, Any]) -> str:
    return " / ".join(f"{value:.0f}" for value in values.values())
