"""The Trace itself: what it refuses, slicing, scaling, names of contents, digest."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

import workloads
from kvsim.trace import MAX_TOKENS, Segment, Trace
from kvsim.trace.columns import RowError
from kvsim.trace.waits import roots_of

THREE = {
    "arrival_time": [0.0, 1.0, 3.0],
    "num_prompt_tokens": [10, 20, 30],
    "num_output_tokens": [1, 2, 3],
}


def make(**changes):
    return Trace.from_arrays(**{**THREE, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival_time": []}, "a trace needs at least one request"),
        ({"arrival_time": [0, math.nan, 3]}, "row 1: arrival_time is nan, must be finite and at"),
        ({"arrival_time": [0, 1, math.inf]}, "row 2: arrival_time is inf, must be finite and at"),
        ({"arrival_time": [-1, 1, 3]}, "row 0: arrival_time is -1, must be finite and at least 0"),
        ({"arrival_time": [0, 2, 1]}, "row 2: arrival_time is 1, must be no earlier than the row"),
        ({"arrival_time": ["a", 1, 2]}, "arrival_time must be numbers"),
        ({"arrival_time": [[0], [1], [2]]}, "arrival_time must have one dimension"),
        ({"num_prompt_tokens": [1, 2]}, "num_prompt_tokens must have one entry per request (3)"),
        ({"num_prompt_tokens": [1, 0, 2]}, "row 1: num_prompt_tokens is 0, must be 1 to 16,777,2"),
        ({"num_prompt_tokens": [1, 2, MAX_TOKENS + 1]}, "row 2: num_prompt_tokens is 16777217,"),
        ({"num_prompt_tokens": [1, 2.5, 2]}, "row 1: num_prompt_tokens is 2.5, must be a whole"),
        ({"num_prompt_tokens": [1, 2, 2**70]}, "row 2: num_prompt_tokens is 1.18059e+21, must be"),
        ({"num_output_tokens": [-1, 2, 2]}, "row 0: num_output_tokens is -1, must be 1 to"),
        ({"num_samples": [1, 1, 65]}, "row 2: num_samples is 65, must be 1 to 64"),
        ({"session_id": [-2, 0, 0]}, "row 0: session_id is -2, must be at least -1"),
        ({"output_content_id": [0, -1, 2]}, "row 1: output_content_id is -1, must be at least 0"),
        ({"cache_salt": [0, -1, 2]}, "row 1: cache_salt is -1, must be at least 0"),
        ({"cache_salt": [0]}, "cache_salt must have one entry per request (3), got 1"),
        ({"tenant": [0, -2, 1]}, "row 1: tenant is -2, must be at least 0, or -1 for none"),
        ({"tenant": [0, 1.5, 1]}, "row 1: tenant is 1.5, must be a whole number"),
        ({"tenant": ["a"]}, "tenant must have one entry per request (3), got 1"),
        (
            {"sample_output_tokens": [[1], [1, 1], []]},
            "row 1: sample_output_tokens has 2 lengths, must have one per sample (1)",
        ),
        (
            {"sample_output_tokens": [[1], [], [999]]},
            "row 2: sample_output_tokens must be a list of whole numbers of 1 to "
            "num_output_tokens (",
        ),
        ({"ends_by": ["eos", "stop", None]}, "row 1: ends_by is 'stop', must be length or eos"),
        ({"ends_by": ["eos"]}, "ends_by must have one entry per request (3), got 1"),
        ({"segments": [[(0, 0, 10)]]}, "segments must have one list per request (3), got 1"),
        ({"segments": [[(0, 0, 10)], [], [(0, 0, 30)]]}, "row 1: segments must not be empty"),
        (
            {"segments": [[(0, 0, 10)], [(0, 0, 19)], [(0, 0, 30)]]},
            "row 1: the sum of segments is 19, must be num_prompt_tokens",
        ),
        (
            {"segments": [[(0, 0, 10)], [(1, 0, 30), (2, 0, -10)], [(0, 0, 30)]]},
            "row 1: segment (2, 0, -10) must have content_id and start of at least 0",
        ),
        ({"segments": [[(0, 0, 10)], [(0, 0, 20)], [(0, 30)]]}, "segments must be triples"),
        ({"segments": [[(0, 0.5, 10)], [(0, 0, 20)], [(0, 0, 30)]]}, "segments must be triples"),
        ({"segments": [[(2**64, 0, 10)], [(0, 0, 20)], [(0, 0, 30)]]}, "segments must be triples"),
    ],
)
def test_refuses_with_the_row_and_what_is_allowed(changes, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        make(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_row_error_knows_its_row_and_survives_pickling():
    with pytest.raises(RowError) as caught:
        make(num_output_tokens=[1, 0, 3])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.row, copy.name, str(copy)) == (1, "num_output_tokens", str(caught.value))


def test_arrays_are_frozen_copies():
    times = np.array([0.0, 1.0, 3.0])
    trace = make(arrival_time=times)
    times[0] = -1
    assert trace.arrival_time[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        trace.num_prompt_tokens[0] = 5


def test_fresh_contents_are_different_for_every_prompt_and_output():
    trace = make()
    ids = [trace.segments_of(i)[0].content_id for i in range(3)] + trace.output_content_id.tolist()
    assert len(set(ids)) == 6
    assert max(ids) < 0


def test_a_slice_keeps_segments_and_fresh_outputs_fresh():
    segments = [[(7, 0, 10)], [(7, 0, 10), (8, 5, 10)], [(9, 0, 30)]]
    part = make(segments=segments, session_id=[1, 2, 2])[1:]
    assert part.segments_of(0) == [Segment(7, 0, 10), Segment(8, 5, 10)]
    assert part.segments_of(1) == [Segment(9, 0, 30)]
    assert part.arrival_time.tolist() == [1.0, 3.0]
    assert part.session_id.tolist() == [2, 2]
    again = Trace.from_arrays([1, 3], [20, 30], [2, 3], segments=segments[1:], session_id=[2, 2])
    assert part.digest == again.digest


@pytest.mark.parametrize("rows", [slice(2, 1), slice(0, 3, 2), slice(5, 9)])
def test_a_slice_needs_rows_in_a_row(rows):
    with pytest.raises(ValueError, match="a slice of a trace needs step 1"):
        make()[rows]
    with pytest.raises(TypeError, match="a trace takes slices"):
        make()[0]


def test_the_rate_scales_times_and_nothing_else():
    trace = make(arrival_time=[2.0, 3.0, 5.0])
    assert trace.request_rate == pytest.approx(2 / 3)
    faster = trace.with_request_rate(4.0)
    assert faster.arrival_time.tolist() == pytest.approx([0, 1 / 6, 0.5])
    assert faster.request_rate == pytest.approx(4.0)
    assert np.array_equal(faster.num_prompt_tokens, trace.num_prompt_tokens)
    assert trace.with_request_rate(math.inf).arrival_time.tolist() == [0, 0, 0]


@pytest.mark.parametrize("rate", [0, -1, math.nan])
def test_the_rate_must_be_above_0(rate):
    with pytest.raises(ValueError, match="request_rate must be above 0"):
        make().with_request_rate(rate)


def test_a_trace_without_duration_has_no_rate_to_scale():
    burst = make(arrival_time=[1, 1, 1])
    assert burst.request_rate == math.inf
    with pytest.raises(ValueError, match="arrive at one instant"):
        burst.with_request_rate(2.0)
    assert burst[:1].with_request_rate(2.0).arrival_time.tolist() == [0]


def test_the_digest_names_the_content():
    assert make().digest == make().digest
    different = [
        make(arrival_time=[0, 1, 4]),
        make(num_output_tokens=[1, 2, 4]),
        make(priority=[0, 0, 1]),
        make(cache_salt=[None, None, "a"]),
        make(session_id=[-1, -1, 0]),
        make(output_content_id=[0, 1, 2]),
        make(segments=[[(0, 0, 10)], [(1, 0, 20)], [(2, 0, 30)]]),
        make(tenant=[0, 0, 1]),
        make(tenant=["a", "a", "b"]),
        make(tenant=["a", "a", "c"]),
    ]
    assert len({t.digest for t in [make(), *different]}) == 11
    assert make(tenant=[-1, None, ""]).digest == make().digest


def test_salts_of_text_become_numbers_and_none_stays_none():
    trace = make(cache_salt=["tenant-b", None, "tenant-a"])
    assert trace.cache_salt.tolist() == [1, 0, 2]
    assert make(cache_salt=[7, 0, None]).cache_salt.tolist() == [7, 0, 0]


def test_tenants_are_numbers_or_names():
    trace = make(tenant=["b", None, "a"])
    assert trace.tenant.tolist() == [0, -1, 1]
    assert [trace.tenant_of(row) for row in range(3)] == ["b", None, "a"]
    assert trace[1:].tenant.tolist() == [-1, 0]
    assert trace[1:].digest == make(tenant=["b", "", "a"])[1:].digest
    assert trace[1:].tenant_names.tolist() == ["a"]
    numbers = make(tenant=[7, -1, 3])
    assert [numbers.tenant_of(row) for row in range(3)] == [7, None, 3]
    assert make(tenant=["7", None, 3]).digest == numbers.digest
    assert make(tenant=["07", None, 3]).tenant_names.tolist() == ["07", "3"]


def test_repr_tells_the_size():
    assert repr(make()) == "<Trace of 3 requests over 3.0 s, mean prompt 20, mean output 2>"


def test_columns_that_nobody_gave_take_no_room_and_name_the_same_content():
    trace = workloads.sharegpt(num_requests=70_000)
    assert {getattr(trace, name).strides for name in ("session_id", "num_samples", "tenant")} == {
        (0,)
    }
    said = {
        name: np.full(len(trace), value) for name, value in (("session_id", -1), ("num_samples", 1))
    }
    assert replace(trace, **said).digest == trace.digest
    assert replace(trace, session_id=np.arange(len(trace)) // 69_999 - 1).digest != trace.digest


def test_the_first_request_of_a_tree_is_its_root() -> None:
    sessions = [-1, 5, 5, -1, 7, 5]
    times, tokens = [0.0] * 6, [9] * 6
    alone = Trace.from_arrays(times, tokens, tokens, session_id=sessions)
    assert roots_of(alone).tolist() == [-1, 1, 1, -1, 4, 1]
    waits = [[], [], [], [0], [], []]
    awaited = Trace.from_arrays(times, tokens, tokens, session_id=sessions, after=waits)
    assert roots_of(awaited).tolist() == [0, 1, 1, 0, 4, 1]
