"""One prefill and one decode server beside two ordinary ones, measured on A10s.

Qwen2.5-7B in 4 bits, two GPUs a server, 4 requests per second of 2,048 tokens in and 512 out, 200
of them. What moves KV there is not told; 100 Gbit/s is taken. Nothing is fitted. Five draws of the
arrivals are averaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import kvsim
import workloads
from experiments.validation.fleets.bars import Row, between, near

if TYPE_CHECKING:
    from pathlib import Path

SETS = ("fleet/mooncake_transfer/a10_pd_vs_regular.csv",)
SEEDS = range(5)
#: The server of the measurements; its KV memory follows from the card.
SERVER: dict[str, Any] = {
    "model": "qwen2.5-7b-instruct",
    "quantization": "gptq",
    "gpu": "a10",
    "tensor_parallel_size": 2,
    "enable_prefix_caching": False,
}
SETUPS: dict[str, dict[str, Any]] = {
    "1P1D": {
        "num_prefill_workers": 1,
        "num_decode_workers": 1,
        "kv_transfer_fabric": "100g-roce",
    },
    "2_regular": {"data_parallel_size": 2},
}
#: Columns of the measurements by the summary's keys.
COLUMNS = {
    "output_throughput": "output_tok_per_s",
    "mean_itl_ms": "itl_mean_ms",
    "p99_itl_ms": "itl_p99_ms",
    "mean_ttft_ms": "ttft_mean_ms",
}


def simulated(setup: str, num_requests: int = 200) -> dict[str, float]:
    """Return the means of some figures over several draws of the arrivals."""
    summaries = []
    for seed in SEEDS:
        trace = workloads.fixed(
            prompt=2048, output=512, num_requests=num_requests, request_rate=4.0, seed=seed
        )
        summaries.append(kvsim.simulate(trace, **SERVER, **SETUPS[setup]).summary)
    return {key: float(np.mean([one[key] for one in summaries])) for key in COLUMNS}


def rows(data: Path) -> list[Row]:
    """Hold what separation changes within its bands; absolute times are for information.

    Parameters
    ----------
    data : the folder with the measurements
    """
    table = pd.read_csv(data / SETS[0])
    table = table[table["request_rate_rps"] == 4].set_index("setup")
    theirs = {
        setup: {key: float(table.loc[setup, column]) for key, column in COLUMNS.items()}
        for setup in SETUPS
    }
    ours = {setup: simulated(setup) for setup in SETUPS}

    def ratio(figures: dict[str, dict[str, float]], key: str) -> float:
        return figures["1P1D"][key] / figures["2_regular"][key]

    was, now = ratio(theirs, "output_throughput"), ratio(ours, "output_throughput")
    found = [near("output tokens/s, 1P1D over 2 regular", was, now, percent=5)]
    was, now = ratio(theirs, "mean_itl_ms"), ratio(ours, "mean_itl_ms")
    found.append(between("mean ITL, change, %", 100 * (was - 1), 100 * (now - 1), -45, -20))
    was, now = 1 / ratio(theirs, "p99_itl_ms"), 1 / ratio(ours, "p99_itl_ms")
    found.append(Row("p99 ITL, 2 regular over 1P1D", was, now, "> 5", now > 5))
    was, now = ratio(theirs, "mean_ttft_ms"), ratio(ours, "mean_ttft_ms")
    found.append(between("mean TTFT, 1P1D over 2 regular", was, now, 2, 5))
    for setup in SETUPS:
        for key in COLUMNS:
            said = f"{key}, {setup}"
            found.append(Row(said, theirs[setup][key], ours[setup][key], "", None))
    return found
