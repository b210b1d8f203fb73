"""SGLang's rules that no recorded case pins, each by an example worked out by hand.

Steps take a second, pages hold one token unless said, and the loop is not overlapped.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

import kvsim
from kvsim.cases.replay import play_case
from kvsim.engines.sglang.cases.case import RadixCase, RadixCaseConfig
from kvsim.engines.sglang.records.scheduler import Progress, Sglang
from kvsim.engines.sglang.rules.outlook import add_outlook, place_of, tokens_left
from kvsim.engines.sglang.rules.tree.mersenne import draw_below
from kvsim.records.engine import Replica
from kvsim.records.request import Request
from kvsim.results.tables import FinishReason
from kvsim.trace import Trace

PLAIN: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "backend": "python",
    "block_size": 1,
    "cost_model": "constant+seconds=1",
    "disable_overlap_schedule": True,
    "record_steps": True,
    "check_invariants": True,
}


def served(trace: Trace, slots: int, **options: Any) -> kvsim.Result:
    return kvsim.simulate(trace, **PLAIN | {"num_gpu_blocks_override": slots} | options)


def starts(trace: Trace, slots: int, **options: Any) -> list[float]:
    return served(trace, slots, **options).requests["first_scheduled_time"].tolist()


@pytest.mark.parametrize(("slots", "second"), [(33, 0.0), (32, 1.0)])
def test_a_request_is_admitted_if_it_leaves_something(slots: int, second: float) -> None:
    """Each asks for 10 + 5 tokens and a page. 16 are left of 32 for the second: it needs more."""
    found = starts(Trace.from_arrays([0.0, 0.0], [10, 10], [5, 5]), slots)
    assert found[0] == 0.0
    assert (found[1] == 0.0) == (second == 0.0)


def test_after_a_refusal_nobody_is_tried_until_somebody_leaves() -> None:
    """The second does not fit, and is tried again when the first has joined the running batch.

    Then not any more, until the first ends at 5 s: the third would fit all the time.
    """
    result = served(Trace.from_arrays([0.0, 0.0, 1.5], [10, 30, 1], [5, 5, 1]), 40)
    assert result.requests["first_scheduled_time"].tolist() == [0.0, 5.0, 5.0]
    assert result.summary["kv_cache"]["num_allocation_failures"] == 2


@pytest.mark.parametrize(("tokens", "together"), [(21, True), (20, False)])
def test_prompts_of_a_step_without_chunks(tokens: int, together: bool) -> None:
    """Behind the first 10 tokens, 10 more must be less than what is left of max_prefill_tokens."""
    trace = Trace.from_arrays([0.0, 0.0], [10, 10], [2, 2])
    found = starts(trace, 400, chunked_prefill_size=-1, max_prefill_tokens=tokens)
    assert found == [0.0, 0.0 if together else 1.0]


def test_the_first_prompt_may_exceed_what_a_step_takes() -> None:
    trace = Trace.from_arrays([0.0, 0.0], [30, 10], [2, 2])
    found = starts(trace, 400, chunked_prefill_size=-1, max_prefill_tokens=20)
    assert found == [0.0, 1.0]


@pytest.mark.parametrize(("tokens", "reason"), [(57, FinishReason.FINISHED), (58, 1)])
def test_a_prompt_leaves_six_tokens_of_the_context(tokens: int, reason: int) -> None:
    result = served(Trace.from_arrays([0.0, 0.0], [5, tokens], [1, 1]), 400, max_model_len=64)
    assert result.requests["finish_reason"][1] == reason


def test_output_is_cut_at_what_context_and_pool_hold() -> None:
    """64 - 1 - 40 - 1 tokens of context, and 50 - 40 - 1 - 1 of a pool of 50."""
    trace = Trace.from_arrays([0.0], [40], [100])
    for slots, tokens in ((400, 22), (50, 8)):
        result = served(trace, slots, max_model_len=64)
        assert result.requests["num_output_tokens"].tolist() == [tokens]


def test_a_namespace_of_its_own_shares_nothing() -> None:
    same = [[(5, 0, 30)]] * 3
    trace = Trace.from_arrays([0.0, 9.0, 18.0], [30] * 3, [2] * 3, segments=same)
    trace = Trace.from_arrays(
        [0.0, 9.0, 18.0], [30] * 3, [2] * 3, segments=same, cache_salt=[0, 7, 7]
    )
    found = served(trace, 400).requests["num_cached_tokens"].tolist()
    assert found == [0, 0, 29]


def test_lof_serves_the_longest_output_first() -> None:
    trace = Trace.from_arrays([0.0] * 3, [5] * 3, [3, 9, 6])
    found = starts(trace, 400, schedule_policy="lof", max_running_requests=1)
    assert np.argsort(found).tolist() == [1, 2, 0]


@pytest.mark.parametrize(("policy", "hits"), [("fifo", [0, 29]), ("filo", [29, 0])])
def test_the_leaf_made_first_or_last_goes(policy: str, hits: list[int]) -> None:
    """The third request takes the room of one of two prompts; then both come again.

    Of 100 slots, two prompts leave 40, less than the third's 50: a leaf of 30 goes. Who comes
    again and is there still takes no room; who is not takes that of the third.
    """
    prompts = [[(1, 0, 30)], [(2, 0, 30)], [(3, 0, 48)], [(1, 0, 30)], [(2, 0, 30)]]
    first = 0 if hits[0] else 1
    order = [0, 1, 2, 3 + first]
    trace = Trace.from_arrays(
        [float(10 * k) for k in range(4)],
        [sum(n for _, _, n in prompts[k]) for k in order],
        [1] * 4,
        segments=[prompts[k] for k in order],
    )
    found = served(trace, 100, radix_eviction_policy=policy).requests["num_cached_tokens"]
    assert found.tolist() == [0, 0, 0, hits[first]]


def ten() -> Trace:
    """Ten requests of 4 + 6 tokens that come one by one, so that each is promised little."""
    return Trace.from_arrays([1.0 * k for k in range(10)], [4] * 10, [6] * 10)


def test_several_are_retracted_in_one_pass() -> None:
    """Of 60 slots, 40 hold prompts, and two decodes of all ten take the rest.

    The third finds none. The latest gives back 2 slots, and its prompt's 4 are evicted: 6, where
    nine need 9. So the one before goes, too.
    """
    result = served(ten(), 60, schedule_conservativeness=0.02)
    steps = result.steps
    first = int(np.argmax(steps["num_preempted"] > 0))
    assert steps["num_scheduled_tokens"][:first].tolist() == [4] * 10 + [10] * 2
    assert steps["num_preempted"][first] == 2
    assert steps["num_scheduled_tokens"][first] == 8
    assert (result.requests["num_preemptions"][-2:] >= 1).all()
    assert (result.requests["finish_reason"] == FinishReason.FINISHED).all()


def test_of_equal_outputs_the_longest_prompt_is_retracted() -> None:
    """Three with 20, 40 and 10 tokens of prompt: of 78 slots 70 are prompts, two decodes fit."""
    trace = Trace.from_arrays([0.0, 1.0, 2.0], [20, 40, 10], [5, 5, 5])
    result = served(trace, 78, schedule_conservativeness=0.02, disable_radix_cache=True)
    assert result.requests["num_preemptions"].tolist() == [0, 1, 0]


def test_a_retracted_request_goes_to_the_end_of_the_queue() -> None:
    """Another one has come meanwhile; it waits for a place, and is served first.

    From the front of the queue the one retracted, which does not fit, would keep it back.
    """
    trace = Trace.from_arrays([0.0, 1.0, 2.0, 3.5], [20, 40, 10, 10], [5, 5, 5, 5])
    result = served(
        trace,
        78,
        schedule_conservativeness=0.02,
        disable_radix_cache=True,
        max_running_requests=3,
    )
    table = result.requests
    assert table["num_preemptions"].tolist() == [0, 1, 0, 0]
    assert table["first_scheduled_time"][3] == 6.0


@pytest.mark.parametrize(("threshold", "preempted"), [(9, 1), (10, 0)])
def test_priorities_must_be_more_than_the_threshold_apart(threshold: int, preempted: int) -> None:
    trace = Trace.from_arrays([0.0, 2.5], [20, 20], [30, 3], priority=[0, 10])
    result = served(
        trace,
        400,
        enable_priority_scheduling=True,
        priority_scheduling_preemption_threshold=threshold,
        max_running_requests=1,
    )
    assert result.requests["num_preemptions"].tolist() == [preempted, 0]


def test_vllms_priorities_mean_the_same() -> None:
    """Smaller ones first, under either engine."""
    trace = Trace.from_arrays([0.0] * 3, [5] * 3, [3] * 3, priority=[5, 1, 3])
    found = starts(trace, 400, scheduling_policy="priority", max_running_requests=1)
    assert np.argsort(found).tolist() == [1, 2, 0]


def test_a_head_that_can_never_be_admitted_is_rejected() -> None:
    """Without a tree and under ignore_eos the last slot is never given."""
    trace = Trace.from_arrays([0.0, 1.0], [20, 5], [100, 2])
    result = served(trace, 60, disable_radix_cache=True, ignore_eos=True)
    assert result.requests["finish_reason"].tolist() == [1, 0]


def test_eos_under_the_overlapped_loop_costs_one_step_more() -> None:
    """Ends by length are foreseen, ends by EOS are not: its slot is taken once more, and cached."""
    trace = Trace.from_arrays([0.0], [20], [4])
    options = {"disable_overlap_schedule": False}
    by_length = served(trace, 400, **options)
    by_eos = served(trace, 400, **options, max_new_tokens=50)
    tokens = [int(r.steps["num_scheduled_tokens"].sum()) for r in (by_length, by_eos)]
    assert tokens == [20 + 3, 20 + 4]


def test_a_decaying_ratio_admits_what_it_has_learned() -> None:
    """A running request may generate 100 more tokens; the ratio says how many of them count.

    Its prompt of 10 leaves 190 of 200 slots. A second one asks for 10 + 100 and a page. With all
    of the 100 counted that does not fit; with few of them it does.
    """
    trace = Trace.from_arrays([0.0, 3.5], [10, 10], [100, 100])
    careful = starts(trace, 200, schedule_conservativeness=1.5)
    hopeful = starts(trace, 200, schedule_conservativeness=0.1)
    assert careful[1] > 50
    assert hopeful[1] == 4.0


def evicted(policy: str, *ops: list[Any], **numbers: int) -> list[int]:
    """Do operations on a tree of 200 slots, and return what each eviction took."""
    config = RadixCaseConfig(page_size=1, size=200, policy=policy, policy_config=numbers)
    case = RadixCase(sglang="", config=config, ops=list(ops), log=[{}])
    return [entry["n"] for entry in play_case(case) if "n" in entry]


def insert(content: int, num_tokens: int) -> list[Any]:
    return ["I", [[content, 0, num_tokens]], None, 0]


def match(content: int, num_tokens: int) -> list[Any]:
    return ["m", [[content, 0, num_tokens]], None]


def test_a_split_keeps_when_a_node_was_made() -> None:
    """Of 40 tokens, 32 are matched, and the last 8 go. What is left was made before the others."""
    ops = insert(1, 40), insert(2, 30), match(1, 32), ["e", 8], ["e", 1]
    assert evicted("fifo", *ops) == [8, 32]
    assert evicted("filo", *ops[:3], ["e", 1], ["e", 1]) == [30, 8]
    # Made after the others, what is left is still the last one made.
    assert evicted("filo", ops[1], ops[0], match(1, 32), ["e", 1], ["e", 1]) == [8, 32]


def test_a_split_keeps_how_far_inserts_went() -> None:
    """Of 40 tokens the last 10 are the tail, which goes first; the first 32 are none of it.

    Without their reach of 40 they would be, and go before the other prompt, used longer ago.
    """
    ops = insert(1, 40), insert(2, 30), match(1, 32), ["e", 8], ["e", 1]
    assert evicted("tlru", *ops, threshold=10, next_prompt_estimate=0) == [8, 30]


def test_hpt_evicts_the_leaf_with_fewest_hits_per_token() -> None:
    """A hit on 40 tokens is less than one on 30, two are more; a split leaf has fewer tokens."""
    ops = insert(2, 30), insert(1, 40), ["e", 1], ["e", 1]
    assert evicted("hpt", *ops) == [40, 30]
    assert evicted("hpt", *ops[:2], insert(1, 40), *ops[2:]) == [30, 40]
    # The last 8 of the 40 have more hits per token than the 30, and the first 32 fewer.
    assert evicted("hpt", *ops[:2], match(1, 32), *ops[2:], ["e", 1]) == [30, 8, 32]


def test_the_longest_unused_leaf_goes_whole() -> None:
    """And the one used last stays, though it was made first."""
    ops = insert(1, 40), insert(2, 30), match(1, 40), ["e", 1], ["e", 1]
    assert evicted("lru", *ops) == [30, 40]
    assert evicted("mru", *ops) == [40, 30]


def test_the_last_token_of_a_prompt_never_counts_as_matched() -> None:
    """One of 20 tokens is all in the tree and counts 19; one of 25 has 20 there, and goes first."""
    whole, part = [(1, 0, 20)], [(1, 0, 20), (2, 0, 5)]
    trace = Trace.from_arrays(
        [0.0, 50.0, 50.0], [30, 20, 25], [2, 2, 2], segments=[[(1, 0, 30)], whole, part]
    )
    found = starts(trace, 400, schedule_policy="lpm", max_running_requests=1)
    assert found[2] == 50.0 < found[1]


def test_requests_that_begin_alike_are_not_computed_together() -> None:
    """Of two with the same 40 tokens the second waits until the first has left them in the tree."""
    same = [[(1, 0, 40), (2 + k, 0, 5)] for k in range(2)] + [[(9, 0, 45)]]
    trace = Trace.from_arrays([0.0] * 3, [45] * 3, [4] * 3, segments=same)
    lpm = served(trace, 400, schedule_policy="lpm", prefill_max_requests=2).requests
    assert lpm["first_scheduled_time"].tolist() == [0.0, 1.0, 0.0]
    assert lpm["num_cached_tokens"].tolist() == [0, 40, 0]
    fcfs = served(trace, 400, prefill_max_requests=2).requests
    assert fcfs["first_scheduled_time"].tolist() == [0.0, 0.0, 1.0]


def test_a_page_matches_as_a_whole() -> None:
    """Two prompts that part after 20 tokens share a page of 16, and one that parts at 15 none."""
    prompts = [[(1, 0, 40)], [(1, 0, 20), (2, 0, 20)], [(1, 0, 15), (3, 0, 25)]]
    trace = Trace.from_arrays([0.0, 20.0, 40.0], [40] * 3, [2] * 3, segments=prompts)
    found = served(trace, 640, page_size=16).requests["num_cached_tokens"]
    assert found.tolist() == [0, 16, 0]


def num_equal(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    pairs = zip(a, b, strict=False)
    return next((k for k, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


@pytest.mark.long
@given(
    st.sampled_from([1, 3, 16]),
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(1, 20)),
            min_size=1,
            max_size=5,
        ),
        min_size=2,
        max_size=8,
    ),
)
@examples(100)
def test_a_prompt_hits_what_it_has_in_common_with_an_earlier_one(
    page_size: int, prompts: list[list[tuple[int, int, int]]]
) -> None:
    """Token by token, in whole pages and without its last token, however both were cut."""
    tokens = [[(c, a + k) for c, a, n in prompt for k in range(n)] for prompt in prompts]
    expected, lengths = [], [len(prompt) for prompt in tokens]
    for place, prompt in enumerate(tokens):
        shared = [num_equal(prompt, other) for other in tokens[:place]]
        expected.append(min(max(shared, default=0), len(prompt) - 1) // page_size * page_size)
    arrivals = [20.0 * k for k in range(len(prompts))]
    trace = Trace.from_arrays(arrivals, lengths, [1] * len(prompts), segments=prompts)
    for backend in ("python", "compiled"):
        found = served(trace, 1000, page_size=page_size, backend=backend).requests
        assert found["num_cached_tokens"].tolist() == expected


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_the_queue_is_shuffled_as_python_does(seed: int) -> None:
    """Numbers below all kinds of bounds, over several times the generator's 624 words."""
    python, state = random.Random(seed), Sglang()
    *state.words, state.num_drawn = python.getstate()[1]
    counts = [*range(1, 600), 2**20, 2**31 - 1, 2**32 - 1] * 3
    assert [draw_below(state, n) for n in counts] == [python.randrange(n) for n in counts]


@pytest.mark.parametrize("backend", ["python", pytest.param("compiled", marks=pytest.mark.long)])
def test_random_admits_in_the_order_of_a_shuffle(backend: str) -> None:
    """One at a time of 90 who are all there; the queue is shuffled before each admission."""
    trace = Trace.from_arrays([0.0] * 90, [1] * 90, [1] * 90)
    options = {"schedule_policy": "random", "max_running_requests": 1, "seed": 7}
    found = served(trace, 400, backend=backend, **options).requests["first_scheduled_time"]
    python, queue, order = random.Random(7), list(range(90)), []
    while queue:
        python.shuffle(queue)
        order.append(queue.pop(0))
    assert np.argsort(found).tolist() == order


def outlook(*states: tuple[int, int]) -> Replica:
    """A scheduler that expects requests of one prompt token to generate so many more tokens."""
    state = Replica()
    state.engines.sglang.num_states, state.engines.sglang.ratio = 0, 1.0
    state.engines.sglang.states_left, state.engines.sglang.states_held = [0.0] * 9, [0] * 9
    for max_new, outputs in states:
        request = Request(len(state.requests), 0.0, 1, max_new)
        request.num_tokens += outputs
        state.requests.append(request)
        state.engines.sglang.progress.append(Progress(max_new=max_new))
        place = place_of(state, tokens_left(state, len(state.requests) - 1))
        add_outlook(state, len(state.requests) - 1, place)
    return state


def test_who_is_tried_later_joins_before_those_with_as_much_left_or_before_the_last() -> None:
    """That the largest stands before the last, and not behind it, is SGLang's."""
    held = [(4, 0), (9, 0), (9, 2), (6, 0), (6, 1)]
    state = outlook(*held)
    # 4; 9 is before it, as before the last; 7 before 9; 6 likewise; 5 before all of them.
    left = state.engines.sglang.states_left[: state.engines.sglang.num_states]
    assert left == [5.0, 6.0, 7.0, 9.0, 4.0]


def test_who_has_nothing_left_does_not_count() -> None:
    state = outlook((4, 0), (3, 3), (2, 5))
    assert state.engines.sglang.num_states == 1


def test_of_equals_the_later_one_stands_first() -> None:
    state = outlook((4, 0), (4, 0), (6, 2))
    held = state.engines.sglang.states_held[: state.engines.sglang.num_states]
    assert held == [3, 1, 1]
