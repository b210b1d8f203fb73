"""B16: goodput of 8 MI300X, aggregated and disaggregated: vLLM's blog on MORI-IO, 2026-04-07.

Qwen3-235B-A22B in FP8 with expert parallelism, 2,000 tokens in and 1,000 out, 8 requests a second,
100 of them; good is a TTFT below 1 s and an inter-token latency below 50 ms. That is the 99th
percentile of a request's own gaps: the blog tells of P99 far above 50 ms, and of requests in two
clusters, at 30 and at 150 ms. It gives more rates: two servers of four are all good at 0.5 requests
per second, 60 % at 1, a quarter from 2 on (the last dozen requests of each server, which see fewer
than ten prompts in a thousand tokens); with disaggregated prefill and KV read all are good up to 5,
and 44 % at 10.

Its figure 3 shows both latencies of all 400 requests; here are their means and medians. The client
is ``vllm bench serve``: TTFT of the figure goes with ours, request by request, if arrivals are its
own of seed 0. The two servers are apart, each with all experts, behind a proxy that takes turns. Of
the commands that it prints one option is not taken: 64 sequences at most where prefill is apart.
The 73rd request got its first token after 0.37 s there, when the 72 before it were all decoding.

Simple tests of this card were timed, no kernels (``kvsim.cost.relative``). Nothing is fitted.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

import kvsim
from experiments.validation.fleets.bars import Row, between, shown
from kvsim.cost.efficiency import efficiency_of
from kvsim.trace import Trace

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
    "2 x TP4": TOGETHER
    | {"tensor_parallel_size": 4, "router": "round-robin"}
    | {"pool": [{"role": "mixed", "replicas": 2}]},
    "1P1D, read": APART,
    "1P1D, write": APART | {"kv_transfer_protocol": "push"},
}
RATE, NUM_REQUESTS, SEED = 8.0, 100, 0
#: Good requests of 100, as published, and at other rates.
GOOD = {"TP8": 26, "2 x TP4": 30, "1P1D, read": 70, "1P1D, write": 73}
OTHER_RATES = {
    "2 x TP4": {0.5: 100, 1.0: 60, 2.0: 25},
    "1P1D, read": {4.0: 100, 5.0: 100, 10.0: 44},
}
#: Of its figure 3: mean TTFT, and the median of requests' p99 gaps, milliseconds.
TTFT_MS = {"TP8": 363, "2 x TP4": 282, "1P1D, read": 735, "1P1D, write": 731}
GAP_MS = {"TP8": 182, "2 x TP4": 152, "1P1D, read": 38, "1P1D, write": 38}
#: Seeds of the draws that are shown, not judged.
OTHER_SEEDS = tuple(range(1, 10))
TTFT, ITL = 1.0, 0.05
#: Seconds by which the end of a step may differ from its start and duration added up.
ROUNDING = 1e-9
#: Speed of arithmetic in the last row.
FASTER = 1.3


def arrivals(rate: float = RATE, seed: int = SEED) -> NDArray[np.float64]:
    """Return when ``vllm bench serve`` sends: NumPy's old generator, the last at n / rate."""
    gaps = np.random.RandomState(seed).gamma(1.0, 1.0 / rate, NUM_REQUESTS)
    times = np.cumsum(gaps)
    return times * (NUM_REQUESTS / rate / times[-1])


def served(
    setup: str, rate: float = RATE, *, cost_model: str = "roofline", seed: int = SEED
) -> Result:
    """Serve the requests by one set-up."""
    lengths = [2000] * NUM_REQUESTS, [1000] * NUM_REQUESTS
    return kvsim.simulate(
        Trace.from_arrays(arrivals(rate, seed).tolist(), *lengths),
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

    Every step of its replica from its first token to its last gives a request one token; no request
    is preempted here.
    """
    steps, found = result.steps, []
    for row in result.requests:
        of = steps[steps["replica"] == row["replica"]]
        ends = of["start_time"] + of["duration"]
        times = row["first_token_time"] - ROUNDING, row["finish_time"] + ROUNDING
        begin, end = np.searchsorted(ends, times)
        found.append(np.percentile(np.diff(ends[begin:end]), 99))
    return np.array(found)


def ttft(result: Result) -> NDArray[np.float64]:
    """Return the time to each request's first token, seconds."""
    found: NDArray[np.float64] = (
        result.requests["first_token_time"] - result.requests["arrival_time"]
    )
    return found


def num_good(result: Result) -> int:
    """Count the requests that keep both targets."""
    return int(((ttft(result) < TTFT) & (p99_gaps(result) < ITL)).sum())


def rows(data: Path) -> list[Row]:
    """Judge the order and the gain; other rates and draws, latencies, a faster card are shown."""
    results = {setup: served(setup) for setup in SETUPS}
    good = {k: num_good(r) for k, r in results.items()}
    in_order = good["TP8"] < good["2 x TP4"] < good["1P1D, read"] < good["1P1D, write"]
    gain = good["1P1D, read"] / good["TP8"] if good["TP8"] else float("inf")
    gaps = {k: 1e3 * float(np.median(p99_gaps(r))) for k, r in results.items()}
    means = {k: 1e3 * float(ttft(r).mean()) for k, r in results.items()}
    return [
        Row("good requests of 100", _line(GOOD), _line(good), "same order", in_order),
        between("1P1D over TP8", GOOD["1P1D, read"] / GOOD["TP8"], gain, 2, 3, CAUSE),
        shown("mean TTFT, ms", _line(TTFT_MS), _line(means)),
        shown("p99 gap of the median request, ms", _line(GAP_MS), _line(gaps)),
        *(rates_row(setup, published) for setup, published in OTHER_RATES.items()),
        draws_row(),
        faster_row(),
    ]


def rates_row(setup: str, published: dict[float, int]) -> Row:
    """Show the good requests of a set-up at other rates."""
    ours = {rate: num_good(served(setup, rate)) for rate in published}
    rates = ", ".join(f"{rate:g}" for rate in published)
    return shown(f"{setup} at {rates} requests/s: good ones", _line(published), _line(ours))


def draws_row() -> Row:
    """Show what the gain would be in other draws of arrivals."""
    counts = {
        setup: [num_good(served(setup, seed=seed)) for seed in OTHER_SEEDS]
        for setup in ("TP8", "1P1D, read")
    }
    together, apart = (np.array(one) for one in counts.values())
    gains = apart / np.maximum(together, 1)
    inside = int(((gains >= 2) & (gains <= 3)).sum())
    text = (
        f"mean {gains.mean():.1f}, {gains.min():.1f} to {gains.max():.1f}, {inside} within 2 to 3"
    )
    return shown(f"1P1D over TP8 in {len(OTHER_SEEDS)} other draws", "", text)


def faster_row() -> Row:
    """Show what the goodput would be if arithmetic took less time."""
    rate = efficiency_of("mi300x")
    tables = {
        "mi300x": {
            "gemm": FASTER * rate.gemm,
            "prefill_attention": FASTER * rate.prefill_attention,
        },
        "mi300x.gemms.fp8": {"gemm": FASTER * rate.gemms["fp8"].gemm},
        "mi300x.experts.fp8-block": {"gemm": FASTER * rate.experts["fp8-block"].gemm},
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "faster.toml"
        lines = [
            f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in t.items())
            for name, t in tables.items()
        ]
        file.write_text("".join(lines), encoding="utf-8")
        good = {k: num_good(served(k, cost_model=f"roofline+constants={file}")) for k in SETUPS}
    what = f"good requests if arithmetic were {FASTER:g} times as fast"
    return shown(what, _line(GOOD), _line(good))


CAUSE = (
    "a prefill server alone gets 13.9 s of our work in 12.5 s: from the fiftieth request on ours "
    "falls behind, where theirs catches up once; see the last row"
)


def _line(values: dict[Any, Any]) -> str:
    return " / ".join(f"{value:.0f}" for value in values.values())
