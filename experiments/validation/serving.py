"""Measured serving runs, each with what it takes to simulate it and what its client saw."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

import kvsim
from kvsim.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

#: Client, HTTP and tokenisation on every measured time to first token, seconds: as seen on the run
#: at 2 requests/s.
FRONT_END = 0.005
#: Runs used to fit constants that kernels do not show: the first run's overheads, the second's
#: `mixed_decode`; the third one's, that only long prompts slow decodes down.
FITTED = (
    "qwen3-14b H100 2 rps",
    "qwen3-14b H100 24 rps, 256 in flight",
    "llama-2-7b H100 general 20 rps",
)


class Run(NamedTuple):
    """A measured run: what was sent, under which server, and what the client saw."""

    name: str
    trace: Trace
    options: dict[str, Any]
    ttft: Any
    e2e: Any
    saturated: bool = False
    queue: Any = 0.0  # seconds until it was scheduled, where the server logged that
    series: Any = None  # per second: running, waiting, kv_cache_pct

    @property
    def tpot(self) -> Any:
        """Seconds per output token after the first, by request."""
        return (self.e2e - self.ttft) / np.maximum(self.trace.num_output_tokens - 1, 1)


def qwen(folder: Path) -> list[Run]:
    """Qwen3-14B on an H100, vLLM 0.23: unique prompts of about 1,024 tokens, 128 out."""
    server = json.loads((folder / "server_config.json").read_text())
    runs = []
    for name, label, limit in (
        ("rate_2rps", "2 rps", None),
        ("rate_4rps", "4 rps", None),
        ("rate_8rps", "8 rps", None),
        ("w5_24rps", "24 rps, 256 in flight", 256),
    ):
        table = pd.read_csv(folder / name / "trace.csv.gz")
        table = table[table.status == "ok"].sort_values("send_time_us", kind="stable")
        sent = table.send_time_us.to_numpy()
        planned = table.arrival_time_us.to_numpy() if limit else sent
        order = np.argsort(planned, kind="stable")
        table, sent, planned = table.iloc[order], sent[order], planned[order]
        trace = Trace.from_arrays(
            (planned - planned.min()) / 1e6,
            table.server_input_tokens.to_numpy(),
            table.output_tokens.to_numpy(),
        )
        options = {
            "model": "qwen3-14b",
            "gpu": "h100-sxm",
            "num_gpu_blocks_override": server["num_gpu_blocks"],
            "max_num_batched_tokens": server["max_num_batched_tokens"],
            "max_model_len": server["max_seq_len"],
            "max_num_seqs": 1024,
            "max_concurrency": limit,
        }
        ttft = (table.first_chunk_time_us.to_numpy() - sent) / 1e6
        e2e = (table.last_chunk_time_us.to_numpy() - sent) / 1e6
        runs.append(Run(f"qwen3-14b H100 {label}", trace, options, ttft, e2e, limit is not None))
    return runs


def sharegpt300(folder: Path) -> list[Run]:
    """Llama-3.1-8B under 300 ShareGPT requests at 10 per second, vLLM 0.19, timed in the server."""
    runs = []
    for name, gpu in (("RTX4090", "rtx-4090"), ("RTXPRO6000", "rtx-pro-6000")):
        place = folder / f"{name}_Llama-3.1-8B"
        meta = json.loads((place / "meta.json").read_text())
        with gzip.open(place / "requests.jsonl.gz", "rt") as file:
            table = pd.DataFrame([json.loads(line) for line in file])
        table = table.sort_values("queued_ts", kind="stable")
        queued = table.queued_ts.to_numpy()
        trace = Trace.from_arrays(queued - queued.min(), table.input_toks, table.output_toks)
        options = {
            "model": "llama-3.1-8b",
            "gpu": gpu,
            "num_gpu_blocks_override": meta.get("kv_cache", {}).get("num_gpu_blocks"),
            "max_num_batched_tokens": meta["engine_kwargs"]["max_num_batched_tokens"],
            "max_num_seqs": meta["engine_kwargs"]["max_num_seqs"],
            "max_model_len": meta["engine_kwargs"]["max_model_len"],
        }
        ttft = table.first_token_ts.to_numpy() - queued
        e2e = table.last_token_ts.to_numpy() - queued
        run = Run(f"llama-3.1-8b {name}", trace, options, ttft, e2e)
        queue = table.scheduled_ts.to_numpy() - queued
        series = pd.read_csv(place / "timeseries.csv") if name == "RTX4090" else None
        runs.append(run._replace(queue=queue, series=series))
    return runs


#: kvsim's model, GPUs, and blocks in the server's log, of the runs below.
CONSTANT_RATES = {
    "llama-2-7b-tp1": ("llama-2-7b", 1, 7463),
    "codellama-34b-tp2": ("codellama-34b", 2, 26603),
}


def constant_rates(folder: Path) -> list[Run]:
    """Llama-2-7B on one H100 and CodeLlama-34B on two, vLLM 0.15, 100 prompts in turn: they hit.

    Only means were logged; a request stands for all of its stage.
    """
    runs = []
    for place in sorted(folder.glob("*-tp?-*")):
        server, _, kind = place.name.split("-", 2)[2].rpartition("-")
        if kind == "reasoning":
            continue  # overloaded: the client gave up on requests
        model, tp, blocks = CONSTANT_RATES[server]
        profile = json.loads((place / "profile.yaml").read_text())
        output = profile["data"]["shared_prefix"]["output_len"]
        for index, stage in enumerate(profile["load"]["stages"]):
            log = place / f"stage_{index}_lifecycle_metrics.json"
            seen = json.loads(log.read_text())["successes"]
            n = min(int(stage["rate"] * stage["duration"]), 4000)
            prompt = round(seen["prompt_len"]["mean"])
            trace = Trace.from_arrays(
                np.arange(n) / stage["rate"],
                [prompt] * n,
                [output] * n,
                segments=[[(i % 100, 0, prompt)] for i in range(n)],
            )
            options = {
                "model": model,
                "gpu": "h100-sxm",
                "tensor_parallel_size": tp,
                "num_gpu_blocks_override": blocks,
                "max_num_batched_tokens": 2048,
                "max_num_seqs": 128,
                "max_model_len": 4096,
            }
            ttft = np.full(n, seen["latency"]["time_to_first_token"]["mean"])
            e2e = np.full(n, seen["latency"]["request_latency"]["mean"])
            runs.append(Run(f"{model} H100 {kind} {stage['rate']} rps", trace, options, ttft, e2e))
    return runs


def closed_loops(file: Path) -> list[Run]:
    """Qwen3-32B on 2, 4 and 8 H100s, vLLM 0.12, which schedules synchronously: N in flight.

    Clients started one after another in an undocumented way, so that TTFT cannot be compared;
    end-to-end latency can. Runs that two GPUs' memory does not hold (4,096-token prompts, 64 or
    more at once) are left out: their blocks were not logged.
    """
    table = pd.read_csv(file)
    table = table[(table.backend == "vllm") & table.concurrency.notna()]
    runs = []
    for row in table.itertuples():
        if row.tp_size == 2 and row.isl > 1024 and row.concurrency >= 64:
            continue
        clients = int(row.concurrency)
        n = 8 * clients
        trace = Trace.from_arrays(np.zeros(n), np.full(n, row.isl), np.full(n, row.osl))
        options = {
            "model": "qwen3-32b",
            "gpu": "h100-sxm",
            "tensor_parallel_size": int(row.tp_size),
            "max_concurrency": clients,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 1024,
            "max_model_len": int(row.isl + row.osl) + 16,
            "enable_prefix_caching": False,
            "async_scheduling": False,
        }
        ttft = np.full(n, row.silicon_ttft_ms / 1e3)
        e2e = ttft + row.silicon_tpot_ms / 1e3 * (row.osl - 1)
        name = f"qwen3-32b {row.tp_size} x H100 {row.isl}+{row.osl} x {clients}"
        runs.append(Run(name, trace, options, ttft, e2e))
    return runs


class Found(NamedTuple):
    """A run simulated, as the client would see it; ``memory`` is the table of samples."""

    memory: Any
    ttft: Any
    e2e: Any
    tpot: Any
    token_seconds: float


def simulate(run: Run, **options: Any) -> Found:
    """Replay a run. Times taken in the server itself have no front end."""
    front_end = 0.0 if "RTX" in run.name else FRONT_END
    result = kvsim.simulate(run.trace, **run.options, **options)
    table = result.requests
    ttft = table["first_token_time"] - table["arrival_time"] + front_end
    e2e = table["finish_time"] - table["arrival_time"] + front_end
    tpot = (e2e - ttft) / np.maximum(table["num_output_tokens"] - 1, 1)
    kv = result.summary["kv_cache"]
    slots = kv["mean_usage"] * (kv["num_gpu_blocks"] - 1) * kv["block_size"]
    return Found(result.memory, ttft, e2e, tpot, slots * result.summary["duration"])


def error(ours: float, measured: float) -> float:
    """Percent by which ours differs."""
    return 100 * (ours / measured - 1)


def compare(run: Run, found: Found) -> dict[str, float]:
    """Errors of a run, percent.

    KV is the integral of tokens held, prompt and output so far, from sending to the last token.
    """
    trace = run.trace
    decoding = run.e2e - run.ttft
    held = trace.num_prompt_tokens * (run.e2e - run.queue) + trace.num_output_tokens * decoding / 2
    only_means = np.ptp(run.e2e) == 0
    errors = {
        "E2E": error(found.e2e.mean(), run.e2e.mean()),
        "TPOT": error(found.tpot.mean(), run.tpot.mean()),
        "TTFT": error(found.ttft.mean(), run.ttft.mean()),
        "p99 TTFT": error(np.quantile(found.ttft, 0.99), np.quantile(run.ttft, 0.99)),
        "KV": error(found.token_seconds, held.sum()),
    }
    if only_means:
        del errors["p99 TTFT"], errors["KV"]  # nothing to compare with, or shared
    if run.saturated:  # requests per second, by Little's law with the client's limit
        errors = {"throughput": error(run.e2e.mean(), found.e2e.mean()), **errors}
    return errors


def series_errors(run: Run, found: Found) -> dict[str, float]:
    """Mean absolute differences per second of running, waiting (requests) and KV (points)."""
    seconds = run.series.t.to_numpy()
    at = np.searchsorted(found.memory["time"], seconds, side="right") - 1
    last = float(found.memory["time"][-1])

    def ours(name: str) -> Any:
        return np.where(seconds <= last, found.memory[name][np.maximum(at, 0)], 0)

    return {
        "running": float(np.abs(ours("num_running") - run.series.running).mean()),
        "waiting": float(np.abs(ours("num_waiting") - run.series.waiting).mean()),
        "KV, points": float(np.abs(100 * ours("kv_usage") - run.series.kv_cache_pct).mean()),
    }
