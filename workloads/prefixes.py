"""Prompts with common prefixes: shared system prompts, and prefixes of real texts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.trace import Trace
from workloads.arrivals import draw_arrivals
from workloads.draft import first_tokens
from workloads.generators import NUM_REQUESTS, REQUEST_RATE, streams
from workloads.lengths import around
from workloads.registry import WORKLOADS
from workloads.texts import common

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.draft import Piece


@WORKLOADS.register("shared-prefix")
def shared_prefix(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = REQUEST_RATE,
    seed: int = 0,
    arrival: str = "poisson",
    num_prefixes: int = 10,
    prefix: int = 256,
    suffix: int = 256,
    output: int = 128,
    zipf: float = 0.0,
    sigma: float = 0.0,
) -> Trace:
    """Generate prompts of a shared system prompt followed by a unique text.

    The default lengths are those of ``vllm bench serve --dataset-name prefix_repetition``.

    Parameters
    ----------
    num_requests, request_rate, seed, arrival : as in ``workloads.sharegpt``
    num_prefixes : number of different system prompts
    prefix : tokens of each system prompt
    suffix, output : mean tokens of the unique text and of the output
    zipf : exponent of the system prompts' frequencies
        The k-th system prompt has a frequency proportional to ``k ** -zipf``; 0 makes all equal.
    sigma : log-normal width of suffix and output, each clipped at 8 times its mean; 0 fixes them

    Raises
    ------
    ValueError
        For a value out of range or an unknown arrival process.
    """
    if num_prefixes < 1 or prefix < 1:
        raise ValueError("num_prefixes and prefix must be at least 1")
    if not 0 <= zipf < math.inf:
        raise ValueError(f"zipf must be finite and at least 0, got {zipf}")
    of_prefixes, of_suffixes, of_outputs, of_arrivals = streams(seed, 4)
    times = draw_arrivals(arrival, num_requests, request_rate, of_arrivals)
    weights = np.arange(1, num_prefixes + 1, dtype=np.float64) ** -zipf
    chosen = of_prefixes.choice(num_prefixes, num_requests, p=weights / weights.sum())
    suffixes = around(suffix, sigma).sample(of_suffixes, num_requests)
    outputs = around(output, sigma).sample(of_outputs, num_requests)
    segments = [
        [(k, 0, prefix), (num_prefixes + row, 0, own)]
        for row, (k, own) in enumerate(zip(chosen.tolist(), suffixes.tolist(), strict=True))
    ]
    return Trace.from_arrays(times, prefix + suffixes, outputs, segments=segments)


def common_prefix_segments(
    prompts: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]
) -> tuple[list[list[Piece]], list[int]]:
    """Name the content of prompts so that they share exactly their common prefixes.

    Prompt i followed by its output is one sequence. In sorted order, the longest prefix that a
    sequence shares with any earlier one is the prefix that it shares with its predecessor. The
    sequence gets this content of its predecessor, and then its own: content 2 i for the prompt, 2 i
    + 1 for the output.

    A prompt that continues an earlier prompt and output has the content of that output. If two
    requests have equal prompts, and outputs with a common prefix, such a prompt matches the first.

    Parameters
    ----------
    prompts, outputs : n token sequences each; an unknown output is empty

    Returns
    -------
    segments : n lists of (content_id, start, num_tokens)
    output_content_id : n ids
    """
    sequences = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
    segments: list[list[Piece]] = [[] for _ in prompts]
    path: list[Piece] = []
    before: list[Any] = []
    for i in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence, length = sequences[i], len(prompts[i])
        shared = common(before, sequence)
        path = first_tokens(path, shared)
        if shared < length:
            path.append((2 * i, shared, length - shared))
        if len(sequence) > max(shared, length):
            start = max(shared - length, 0)
            path.append((2 * i + 1, start, len(sequence) - length - start))
        segments[i] = first_tokens(path, length)
        before = sequence
    return segments, list(range(1, 2 * len(prompts), 2))
