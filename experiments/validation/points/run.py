"""A measured point simulated: what its client would have seen, and how far off that is."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import kvsim
from experiments.validation.constants import cost_model, value_of, with_values
from experiments.validation.points import rows as points
from experiments.validation.points.flags import whole
from experiments.validation.points.server import format_of, gpu_of, of_text, options_of, trace_of
from kvsim.catalog import get_model
from kvsim.cost.efficiency import card_of, read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MEASURES = ("TPOT", "TTFT", "throughput")

#: Seconds from the client's sending to the engine and back, and per token of a random prompt, which
#: the API server tokenises: what fits the times to first token of the fitted half, of fewer than 33
#: clients, by the machines that hold the cards. Hosts of Blackwell tokenise faster.
HOPPER, BLACKWELL = (11e-3, 4e-6), (16e-3, 2.5e-6)
#: The same by the engine of a row whose client is unknown; prompts do not wait for one another. For
#: vLLM, what fits the times to first token of the fitted half.
UNKNOWN_CLIENT = {"vllm": (10e-3, 33e-6), "sglang": (HOPPER[0], 0.0)}


#: The constant of layers with experts outside of CUDA graphs.
EXPERTS = "uncaptured_experts"
#: Seconds of a layer with latents and experts, beyond the constant of all layers with experts, in
#: prefills of SGLang up to 0.5.9, whose kernels the host launches one by one: what fits seven
#: points of DeepSeek on H200s of the fitted half, in TTFT and TPOT.
LATENT_LAUNCHES = {"h200-sxm": 1.75e-3}


class Point(NamedTuple):
    """A row of the table: its identity, its server and client, and what was measured.

    Attributes
    ----------
    identifier : the row's id
    model, weights, card : of its group
    parallel : GPUs and how they share the work
    concurrency : clients
    half : fitted, held out, or unmerged
    options : of :func:`kvsim.simulate`
    row : as in the table
    measured : by measure: seconds, seconds, output tokens per second and GPU
    """

    identifier: str
    model: str
    weights: str
    card: str
    parallel: str
    concurrency: int
    half: str
    options: dict[str, Any]
    row: dict[str, str]
    measured: dict[str, float]


class Found(NamedTuple):
    """Simulated values of a point, by measure, or the reason why there are none."""

    ours: dict[str, float]
    backend: str = ""
    cpu_seconds: float = 0.0
    preemptions: int = 0
    refused: str = ""


class Pair(NamedTuple):
    """A point, and what was found."""

    point: Point
    found: Found

    @property
    def errors(self) -> dict[str, float]:
        """Percent by which ours differs, by measure."""
        theirs = self.point.measured
        return {name: 100 * (value / theirs[name] - 1) for name, value in self.found.ours.items()}


def point_of(row: Mapping[str, str]) -> Point:
    """Read a row.

    Raises
    ------
    ValueError
        For what kvsim does not know.
    """
    options = options_of(row)
    ttft, tpot = float(row["ttft_ms"]) / 1e3, float(row["tpot_ms"]) / 1e3
    rate = little(row, ttft, tpot)
    return Point(
        row["id"],
        get_model(row["model"]).name,
        format_of(row["weights"]),
        gpu_of(row["gpu"]),
        parallel_of(options),
        options["max_concurrency"],
        half_of(row),
        options,
        dict(row),
        {"TPOT": tpot, "TTFT": ttft, "throughput": rate},
    )


def half_of(row: Mapping[str, str]) -> str:
    """Return which part of the table a row belongs to; constants may rest on the first alone."""
    if row["suspicious"] == points.UNMERGED:
        return "unmerged"
    fitted = points.is_fitted(row["id"]) or points.decided_constants(row)
    return "fitted" if fitted else "held out"


def parallel_of(options: Mapping[str, Any]) -> str:
    """Write GPUs, and how they share the work if not by tensors alone."""
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    sizes = dict(zip(("TP", "PP", "DP"), (options[name] for name in names), strict=True))
    words = [f"{name}{size}" for name, size in sizes.items() if size > 1 or name == "TP"]
    return " ".join([*words, *(["EP"] if options["enable_expert_parallel"] else [])])


def little(row: Mapping[str, str], ttft: float, tpot: float) -> float:
    """Return output tokens per second and GPU by Little's law from mean times.

    So the table has it, too; against measured rates it is 2.3 % high at the median, since the last
    requests run in a smaller batch.
    """
    ratio = row["random_range_ratio"]
    tokens = whole(row["osl"]) * ((1 + float(ratio)) / 2 if ratio else 1.0)
    seconds = ttft + tpot * (tokens - 1)
    return whole(row["concurrency"]) * tokens / seconds / whole(row["gpus"])


def front_end_of(point: Point) -> tuple[float, float]:
    """Return the seconds of a point's front end that no request waits for, and those per token."""
    if not of_text(point.row):
        seconds, per_token = UNKNOWN_CLIENT[point.row["engine"]]
        return seconds + per_token * whole(point.row["isl"]), 0.0
    return BLACKWELL if point.card.startswith(("b2", "b3", "gb")) else HOPPER


@contextmanager
def launches_of(point: Point) -> Iterator[dict[str, Any]]:
    """Yield the cost model of a point whose prefills wait for launches longer than others do."""
    seconds = LATENT_LAUNCHES.get(point.card, 0.0)
    if point.row["engine"] != "sglang" or not get_model(point.model).is_mla or not seconds:
        yield {}
        return
    table = read_table()
    name = card_of(point.card)
    seconds += value_of(table[name], EXPERTS)
    with cost_model(table | {name: with_values(table[name], {EXPERTS: seconds})}) as model:
        yield {"cost_model": model}


def simulate(point: Point, **options: Any) -> Found:
    """Replay a point; what kvsim refuses is told, and not raised."""
    started = time.process_time()
    try:
        trace = trace_of(point.row)
        front_end, per_token = front_end_of(point)
        with launches_of(point) as own:
            options = {"front_end_latency_per_token": per_token, **own, **options}
            result = kvsim.simulate(trace, **point.options, **options)
    except ValueError as error:
        return Found({}, refused=str(error))
    table = result.requests
    ttft = float((table["first_token_time"] - table["arrival_time"]).mean()) + front_end
    if unserved := len(table) - result.summary["completed"]:
        return Found({}, refused=f"{unserved} of {len(table)} requests were not served")
    decodes = table["finish_time"] - table["first_token_time"]
    tpot = float((decodes / np.maximum(table["num_output_tokens"] - 1, 1)).mean())
    ours = {"TPOT": tpot, "TTFT": ttft, "throughput": little(point.row, ttft, tpot)}
    seconds = time.process_time() - started
    preemptions = int(table["num_preemptions"].sum())
    return Found(ours, result.provenance["engine"], seconds, preemptions)
