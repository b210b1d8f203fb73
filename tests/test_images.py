"""Prompts with images in simulated runs: what is encoded when, what it costs, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.catalog import get_model
from kvsim.config import Config
from kvsim.cost.roofline import TOWER_LAYERS
from kvsim.engine.setup import resolve
from kvsim.rules.price import encoder_time
from kvsim.trace import Trace

GEMMA = {
    "model": "gemma-3-4b",
    "gpu": "h100-sxm",
    "max_model_len": 8192,
    "num_gpu_blocks_override": 4096,  # few enough to be recounted after every step
}


def with_images(*prompts, gap=100.0):
    """Requests far apart, each of segments (content, tokens, whether it is an image)."""
    segments, items = [], []
    for parts in prompts:
        start, own = 0, []
        for _, length, is_image in parts:
            own += [(start, length)] if is_image else []
            start += length
        segments.append([(content, 0, length) for content, length, _ in parts])
        items.append(own)
    lengths = [sum(length for _, length, _ in parts) for parts in prompts]
    n = len(prompts)
    return Trace.from_arrays(
        np.arange(n) * gap, lengths, np.ones(n, int), segments=segments, encoder_items=items
    )


def served(trace, **options):
    return kvsim.simulate(trace, check_invariants=True, backend="python", **GEMMA | options)


@pytest.mark.long
def test_an_image_is_encoded_once_while_its_content_is_in_the_cache():
    trace = with_images(
        [(1, 100, False), (50, 256, True)],
        [(2, 100, False), (50, 256, True)],
        [(3, 100, False), (51, 256, True), (50, 256, True)],
    )
    found = served(trace).summary
    assert (found["num_encoded_items"], found["num_encoded_tokens"]) == (2, 512)
    assert found["encoder_cache_hit_rate"] == 0.5  # two of four
    # A cache of one image: the third request's first image takes the place of the other.
    found = served(trace, max_num_batched_tokens=256, max_num_seqs=4).summary
    assert found["num_encoded_items"] == 3


@pytest.mark.long
def test_a_step_waits_for_its_encoder_and_no_other_does():
    """All weights once, all patches through them: seconds by hand."""
    trace = with_images([(1, 100, False), (50, 256, True)], [(1, 100, False), (60, 256, False)])
    result = served(trace, record_steps=True, enable_prefix_caching=False)
    first, second = durations(result)
    assert first - second == pytest.approx(time_of(256), rel=1e-9)
    assert result.requests["num_output_tokens"].tolist() == [1, 1]
    two = served(with_images([(50, 256, True), (51, 256, True)]), record_steps=True)
    text = served(with_images([(50, 512, False)]), record_steps=True)
    assert durations(two)[0] - durations(text)[0] == pytest.approx(time_of(512))


def durations(result):
    return result.steps["duration"][result.steps["num_scheduled_tokens"] > 0]


def chunks(trace, **options):
    options = {"max_num_batched_tokens": 512, "max_num_seqs": 4, "record_steps": True} | options
    tokens = served(trace, **options).steps["num_scheduled_tokens"]
    return tokens[tokens > 0].tolist()


def time_of(num_tokens, **options):
    record = resolve(Config.build(**GEMMA | options)).cost.record
    record.work.num_encoded = num_tokens
    return encoder_time(record, record.work)


def test_the_time_of_an_encoder_grows_with_patches_and_shrinks_over_ranks():
    model = get_model("gemma-3-4b")
    record = resolve(Config.build(**GEMMA)).cost.record
    assert record.encoder_token_flops == 2 * model.num_tower_params * 16
    assert record.encoder_bytes == 2 * model.num_tower_params
    assert time_of(1) == record.encoder_launch > 0  # its launches: no CUDA graph covers it
    assert record.encoder_launch / TOWER_LAYERS < 0.001
    slow, fast = time_of(200_000), time_of(200_000, tensor_parallel_size=2)
    assert 1.5 < slow / fast <= 2.0


def test_prompts_share_kv_only_where_they_show_the_same_image():
    alike, other = [(1, 64, False), (50, 256, True)], [(1, 64, False), (51, 256, True)]
    cached = served(with_images(alike, alike, other)).requests["num_cached_tokens"]
    assert cached.tolist() == [0, 304, 64]  # blocks of 16; the last token is computed again


def test_a_chunk_ends_before_an_image_that_the_step_cannot_encode():
    """512 tokens a step: text and one image, then the other image."""
    trace = with_images([(1, 100, False), (50, 400, True), (51, 400, True)])
    assert chunks(trace) == [500, 400]
    assert chunks(with_images([(1, 900, False)])) == [512, 388]
    # Both can be encoded: the second one is cut, unless that is forbidden.
    assert chunks(trace, encoder_cache_size=800) == [500, 400]
    small = with_images([(1, 400, False), (50, 200, True)])
    assert chunks(small) == [512, 88]
    assert chunks(small, disable_chunked_mm_input=True) == [400, 200]


def test_an_image_longer_than_a_step_is_encoded_at_once_and_computed_in_chunks():
    trace = with_images([(50, 700, True)])
    options = {"max_num_batched_tokens": 512, "max_num_seqs": 4}
    assert chunks(trace) == [512, 188]
    assert served(trace, **options).summary["num_encoded_items"] == 1
    with pytest.raises(
        ValueError, match="chunks have at most 512 tokens, so that it could never be"
    ):
        served(trace, disable_chunked_mm_input=True, **options)
    with pytest.raises(ValueError, match="chunks have at most 100"):
        served(
            trace,
            disable_chunked_mm_input=True,
            long_prefill_token_threshold=100,
            max_num_seqs=4,
        )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "llama-3-8b"}, "request 1 has encoder items, and llama-3-8b has no encoder"),
        ({"language_model_only": True}, "gemma-3-4b has no encoder"),
        ({"scheduler": "orca"}, "under scheduler 'orca' does not support; paged under vllm does"),
        ({"allocator": "contiguous-max"}, "'contiguous-max' under"),
    ],
)
def test_who_has_no_encoder_says_so(options, reason):
    trace = with_images([(1, 10, False)], [(50, 10, True)])
    with pytest.raises(ValueError, match=reason):
        kvsim.simulate(trace, **GEMMA | options)


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([[(0, 11)], []], r"row 0: item \(0, 11\) must lie one after another within the prompt"),
        ([[], [(5, 5), (9, 1)]], r"row 1: item \(9, 1\)"),
        ([[], [(4, 0)]], r"row 1: item \(4, 0\)"),
        ([[(3, 4)], []], r"row 0: item \(3, 4\) must lie within one segment"),
        ([[(3,)], []], "row 0: encoder_items has"),
        ([[3], []], "row 0: encoder_items has 3"),
        ([7, []], "row 0: encoder_items has 7"),
        ([[]], "must have one list per request"),
        ([[(0.0, 1)], []], "pairs of integers"),
    ],
)
def test_a_trace_refuses_items_that_do_not_lie_in_their_prompts(items, reason):
    segments = [[(1, 0, 5), (2, 0, 5)], [(3, 0, 10)]]
    with pytest.raises(ValueError, match=reason):
        Trace.from_arrays([0, 1], [10, 10], [1, 1], segments=segments, encoder_items=items)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "csv.gz"])
def test_items_are_written_and_read_back(suffix, tmp_path):
    trace = workloads.random_mm(num_requests=20, num_mm_items_range_ratio=1.0, num_images=3)
    path = tmp_path / f"trace.{suffix}"
    workloads.save(trace, path)
    assert workloads.load(path).digest == trace.digest
    part = trace[5:9]
    assert part.item_offsets.tolist() == (trace.item_offsets[5:10] - trace.item_offsets[5]).tolist()
    assert (
        part.digest
        == Trace.from_arrays(
            part.arrival_time,
            part.num_prompt_tokens,
            part.num_output_tokens,
            segments=[part.segments_of(k) for k in range(4)],
            encoder_items=[
                list(
                    zip(
                        part.item_start[a:b].tolist(),
                        part.item_num_tokens[a:b].tolist(),
                        strict=True,
                    )
                )
                for a, b in zip(part.item_offsets[:-1], part.item_offsets[1:], strict=True)
            ],
        ).digest
    )


def test_without_items_a_trace_has_the_digest_it_had():
    trace = workloads.sharegpt(num_requests=5).with_ends_by("length")
    assert trace.digest == "1d517d96f350e9a7"  # of 0.1, which knew no items


def test_random_mm_is_text_and_then_images():
    options = {"num_requests": 400, "input_len": 100, "output_len": 8}
    trace = workloads.random_mm(**options, base_items_per_request=3, item_tokens=64)
    assert set(trace.num_prompt_tokens.tolist()) == {100 + 3 * 64}
    assert trace.item_start[:3].tolist() == [100, 164, 228]
    assert len(np.unique(trace.segment_content_id)) == len(trace.segment_content_id)
    few = workloads.random_mm(
        **options, base_items_per_request=2, num_mm_items_range_ratio=0.5, num_images=5
    )
    counts = np.diff(few.item_offsets)
    assert set(counts.tolist()) == {1, 2, 3}
    assert abs(counts.mean() - 2) < 0.15
    assert len(np.unique(few.segment_content_id)) == 400 + 5
    for wrong in ({"range_ratio": 2.0}, {"num_images": -1}, {"item_tokens": 0}):
        with pytest.raises(ValueError, match="must be"):
            workloads.random_mm(**options | wrong)


def test_an_item_that_is_computed_again_counts_once_in_the_hit_rate():
    """The second request is preempted; its image is still in the cache when it comes back."""
    trace = Trace.from_arrays([0, 0], [64, 64], [120, 120], encoder_items=[[(0, 32)], [(0, 32)]])
    options = {"num_gpu_blocks_override": 120, "max_num_seqs": 2, "enable_prefix_caching": False}
    found = served(trace, **options).summary
    assert found["num_preemptions"] > 0
    assert (found["num_encoded_items"], found["encoder_cache_hit_rate"]) == (2, 0.0)
