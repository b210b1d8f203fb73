"""Workloads of independent requests: every prompt unique, lengths from a distribution.

If only the means of a trace are published, its lengths are log-normal; a comment at each gives the
source of sigma. Lengths and arrivals are drawn from different random streams, so a change of rate
or arrival process does not change the lengths. Answers in chats and production end by EOS; answers
of synthetic lengths end by max_tokens, as in benchmarks with ``--ignore-eos``.
"""

from __future__ import annotations

import math

import numpy as np

from kvsim.trace import Trace
from kvsim.trace.endings import ENDINGS, EndsBy
from workloads.arrivals import draw_arrivals
from workloads.lengths import Constant, Lengths, LogNormal, Uniform
from workloads.registry import WORKLOADS

NUM_REQUESTS = 1000
REQUEST_RATE = 8.0

# ShareGPT, PagedAttention paper (arXiv 2309.06180) section 6.1: means 161.31 and 337.99 tokens, at
# most 2,048. Output sigma 0.72 reproduces the 13.3 % reservation of Orca (Max) in its Fig. 2; the
# prompt's sigma of 1.2 is an assumption, on which Fig. 2 hardly depends. A prompt of 2,048 tokens
# would not fit a 2,048-token model.
SHAREGPT = (LogNormal(161.31, 1.2, high=2047), LogNormal(337.99, 0.72))

# Alpaca, the same paper: means 19.31 and 58.45 tokens. Output sigma 0.9 fits Fig. 13: with it a
# buddy allocator holds 72.4 (Oracle) and 41.4 (Pow2) requests in 15,728 slots; published are 72.75
# and 43.24. Memory hardly depends on the prompt's sigma; 0.7 is an assumption.
ALPACA = (LogNormal(19.31, 0.7, high=2047), LogNormal(58.45, 0.9))

# Azure 2023 conversation trace (Azure/AzurePublicDataset, 19,366 requests): means 1,155 and 211,
# clipped at its longest. Prompt sigma 0.6 puts median and 99th percentile 6 % below the trace's
# 1,020 and 4,142. No log-normal has the two peaks of the outputs: 0.7 keeps their variance (CV
# 0.75, the trace has 0.77), which determines KV memory, but median and 99th percentile are 29 % and
# 41 % above the trace's 129 and 601. The trace itself, or `empirical`, has the exact shape.
AZURE_CONV = (LogNormal(1155, 0.6, high=14050), LogNormal(211, 0.7, high=1000))

# Azure 2023 code trace: means 2,048 and 28. The sigmas give the medians of Splitwise (arXiv
# 2311.18677) Fig. 3, 1,500 and 13, with prompts clipped at 7,437, the service's limit.
AZURE_CODE = (LogNormal(2048, 0.85, high=7437), LogNormal(28, 1.25))


def _independent(
    lengths: tuple[Lengths, Lengths],
    num_requests: int,
    request_rate: float,
    seed: int,
    arrival: str,
    ends_by: EndsBy = "length",
) -> Trace:
    of_prompts, of_outputs, of_arrivals = streams(seed, 3)
    times = draw_arrivals(arrival, num_requests, request_rate, of_arrivals)
    prompt, output = lengths
    return Trace.from_arrays(
        times,
        prompt.sample(of_prompts, num_requests),
        output.sample(of_outputs, num_requests),
        ends_by=ends_by,
    )


def streams(seed: int, n: int) -> list[np.random.Generator]:
    """Return ``n`` independent sources of randomness from one seed of at least 0."""
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    return np.random.default_rng(seed).spawn(n)


@WORKLOADS.register("sharegpt")
def sharegpt(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = REQUEST_RATE,
    seed: int = 0,
    arrival: str = "poisson",
) -> Trace:
    """Generate chats with lengths as in the PagedAttention paper's ShareGPT: 161 in, 338 out.

    Parameters
    ----------
    num_requests : number of requests
    request_rate : mean requests per second; ``inf`` sends everything at time 0
    seed : equal seeds give equal traces
    arrival : arrival process with its parameters, e.g. ``"gamma+cv=3"``; see workloads.arrivals

    Raises
    ------
    ValueError
        For a value out of range or an unknown arrival process.
    """
    return _independent(SHAREGPT, num_requests, request_rate, seed, arrival, "eos")


@WORKLOADS.register("alpaca")
def alpaca(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = REQUEST_RATE,
    seed: int = 0,
    arrival: str = "poisson",
) -> Trace:
    """Generate instructions with lengths as in the PagedAttention paper's Alpaca: 19 in, 58 out.

    Parameters and errors are those of :func:`sharegpt`.
    """
    return _independent(ALPACA, num_requests, request_rate, seed, arrival, "eos")


@WORKLOADS.register("azure-conv")
def azure_conv(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = REQUEST_RATE,
    seed: int = 0,
    arrival: str = "poisson",
) -> Trace:
    """Generate requests as long as Azure's 2023 conversations: 1,155 tokens in, 211 out.

    Parameters and errors are those of :func:`sharegpt`.
    """
    return _independent(AZURE_CONV, num_requests, request_rate, seed, arrival, "eos")


@WORKLOADS.register("azure-code")
def azure_code(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = REQUEST_RATE,
    seed: int = 0,
    arrival: str = "poisson",
) -> Trace:
    """Generate requests as long as Azure's 2023 code completions: 2,048 tokens in, 28 out.

    Parameters and errors are those of :func:`sharegpt`.
    """
    return _independent(AZURE_CODE, num_requests, request_rate, seed, arrival, "eos")


@WORKLOADS.register("uniform")
def uniform(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = REQUEST_RATE,
    seed: int = 0,
    arrival: str = "poisson",
    prompt_min: int = 1,
    prompt_max: int = 1024,
    output_min: int = 1,
    output_max: int = 512,
) -> Trace:
    """Generate requests with lengths uniform between two bounds.

    Parameters
    ----------
    num_requests, request_rate, seed, arrival : as in :func:`sharegpt`
    prompt_min, prompt_max, output_min, output_max : tokens, bounds included

    Raises
    ------
    ValueError
        For a value out of range or an unknown arrival process.
    """
    lengths = Uniform(prompt_min, prompt_max), Uniform(output_min, output_max)
    return _independent(lengths, num_requests, request_rate, seed, arrival)


@WORKLOADS.register("random")
def random(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = math.inf,
    seed: int = 0,
    arrival: str = "poisson",
    input_len: int = 1024,
    output_len: int = 128,
    range_ratio: float | None = None,
    symmetric: bool = False,
) -> Trace:
    """Generate lengths as serving benchmarks do: uniform between a share of L and L itself.

    This is ``--dataset-name random`` of vLLM's former benchmark_serving.py, which InferenceX runs.
    ``vllm bench serve`` draws lengths on both sides of L: ``symmetric=true``.

    Parameters
    ----------
    num_requests, seed, arrival : as in :func:`sharegpt`
    request_rate : mean requests per second; by default all requests arrive at time 0, and
        ``max_concurrency`` makes a closed loop of them
    input_len, output_len : L of prompt and output, tokens
    range_ratio : r: lengths are ``r L`` to ``L``, or symmetric ``(1 - r) L`` to ``(1 + r) L``;
        without it all lengths are L
    symmetric : draw lengths on both sides of L

    Raises
    ------
    ValueError
        For a value out of range or an unknown arrival process.
    """
    ratio = range_ratio
    if ratio is None:
        ratio = 0.0 if symmetric else 1.0
    if not 0 <= ratio <= 1:
        raise ValueError(f"range_ratio must be 0 to 1, got {ratio}")
    low, high = (1 - ratio, 1 + ratio) if symmetric else (ratio, 1.0)
    lengths = between(low, high, input_len), between(low, high, output_len)
    return _independent(lengths, num_requests, request_rate, seed, arrival)


def between(low: float, high: float, length: int) -> Uniform:
    """Return lengths uniform from ``low * length`` to ``high * length``, at least 1."""
    return Uniform(max(math.floor(low * length), 1), math.ceil(high * length))


@WORKLOADS.register("fixed")
def fixed(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = REQUEST_RATE,
    seed: int = 0,
    arrival: str = "poisson",
    prompt: int = 512,
    output: int = 128,
) -> Trace:
    """Generate requests with equal lengths.

    Parameters
    ----------
    num_requests, request_rate, seed, arrival : as in :func:`sharegpt`
    prompt, output : tokens

    Raises
    ------
    ValueError
        For a value out of range or an unknown arrival process.
    """
    lengths = Constant(prompt), Constant(output)
    return _independent(lengths, num_requests, request_rate, seed, arrival)


@WORKLOADS.register("empirical")
def empirical(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = REQUEST_RATE,
    seed: int = 0,
    arrival: str = "poisson",
    trace: str = "",
) -> Trace:
    """Generate requests with the lengths of a trace file, drawn with replacement.

    Prompt and output of a request are drawn together; prompts share no content.

    Parameters
    ----------
    num_requests, request_rate, seed, arrival : as in :func:`sharegpt`
    trace : path of a file that ``workloads.load`` reads, without "+" in ``empirical+trace=PATH``

    Raises
    ------
    ValueError
        If the file cannot be read, for a value out of range or an unknown arrival process.
    """
    from workloads.readers import load

    if not trace:
        raise ValueError("workload 'empirical' needs a file: empirical+trace=PATH")
    source = load(trace)
    of_rows, of_arrivals = streams(seed, 2)
    times = draw_arrivals(arrival, num_requests, request_rate, of_arrivals)
    rows = of_rows.integers(0, len(source), num_requests)
    return Trace.from_arrays(
        times,
        source.num_prompt_tokens[rows],
        source.num_output_tokens[rows],
        ends_by=np.array(ENDINGS)[source.ends_by[rows]],
    )
