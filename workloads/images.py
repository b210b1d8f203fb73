"""Prompts with images: text, then parts that an encoder computes."""

from __future__ import annotations

import math

import numpy as np

from kvsim.trace import Trace
from workloads.arrivals import draw_arrivals
from workloads.generators import NUM_REQUESTS, between, streams
from workloads.registry import WORKLOADS


@WORKLOADS.register("random-mm")
def random_mm(
    *,
    num_requests: int = NUM_REQUESTS,
    request_rate: float = math.inf,
    seed: int = 0,
    arrival: str = "poisson",
    input_len: int = 1024,
    output_len: int = 128,
    range_ratio: float = 0.0,
    base_items_per_request: int = 1,
    num_mm_items_range_ratio: float = 0.0,
    item_tokens: int = 256,
    num_images: int = 0,
) -> Trace:
    """Generate prompts of random text followed by images, as ``vllm bench serve`` does.

    This is its ``--dataset-name random-mm``; there the model's processor determines the number of
    tokens of an image, here ``item_tokens``.

    Parameters
    ----------
    num_requests, seed, arrival : as in ``workloads.sharegpt``
    request_rate : mean requests per second; by default all requests arrive at time 0
    input_len, output_len : L of text and of output, tokens
    range_ratio : r: lengths are ``(1 - r) L`` to ``(1 + r) L``
    base_items_per_request : n, images of a prompt
    num_mm_items_range_ratio : r: a prompt has ``(1 - r) n`` to ``(1 + r) n`` images
    item_tokens : tokens of an image, such as 256 of Gemma 3
    num_images : number of different images, drawn uniformly; 0: every image is different

    Raises
    ------
    ValueError
        For a value out of range or an unknown arrival process.
    """
    for name, ratio in (
        ("range_ratio", range_ratio),
        ("num_mm_items_range_ratio", num_mm_items_range_ratio),
    ):
        if not 0 <= ratio <= 1:
            raise ValueError(f"{name} must be 0 to 1, got {ratio}")
    if base_items_per_request < 0 or num_images < 0 or item_tokens < 1:
        raise ValueError(
            "base_items_per_request and num_images must be at least 0, item_tokens at least 1"
        )
    of_prompts, of_outputs, of_counts, of_images, of_arrivals = streams(seed, 5)
    times = draw_arrivals(arrival, num_requests, request_rate, of_arrivals)
    texts = between(1 - range_ratio, 1 + range_ratio, input_len).sample(of_prompts, num_requests)
    outputs = between(1 - range_ratio, 1 + range_ratio, output_len).sample(of_outputs, num_requests)
    low = math.floor((1 - num_mm_items_range_ratio) * base_items_per_request)
    high = math.ceil((1 + num_mm_items_range_ratio) * base_items_per_request)
    counts = of_counts.integers(low, high, num_requests, endpoint=True)
    total = int(counts.sum())
    images = of_images.integers(0, num_images, total) if num_images else np.arange(total)
    segments, items, first = [], [], 0
    for row, (text, count) in enumerate(zip(texts.tolist(), counts.tolist(), strict=True)):
        own = images[first : first + count].tolist()
        first += count
        # Texts have odd contents, images even ones.
        segments.append([(2 * row + 1, 0, text), *((2 * image, 0, item_tokens) for image in own)])
        items.append([(text + place * item_tokens, item_tokens) for place in range(count)])
    prompts = texts + counts * item_tokens
    return Trace.from_arrays(times, prompts, outputs, segments=segments, encoder_items=items)
