"""inference-perf's replayed conversations: the published lengths, the order, the connections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from experiments.validation.llmd_routers import inference_perf
from experiments.validation.llmd_routers import token_aware as token_aware_routing
from experiments.validation.llmd_routers.inference_perf import (
    NUM_WORKERS,
    SERVICE,
    KeptConnections,
    Lengths,
    Load,
    Workload,
    conversations,
    play,
    play_within,
)
from kvsim.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Medians of the prompts in llm-d's tables (llm-d/llm-d at 06d672f7, Apache-2.0), by conversations.
#: The client counts the text it sent.
PROMPTS = {
    "REASONING": {50: 1085, 150: 1086, 250: 1039, 350: 1084, 450: 1111},
    "CODE": {10: 92361, 20: 69642, 30: 59529, 40: 69892, 50: 66015, 60: 70731, 90: 70322},
}
SERVERS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "data_parallel_size": 2,
    "max_model_len": 8192,
}
SHORT = Workload(
    shared=64,
    questions=Lengths("uniform", 20, 30),
    answers=Lengths("uniform", 4, 8),
    rounds=3,
)


@pytest.mark.parametrize("name", PROMPTS)
def test_seeds_give_the_published_lengths(name: str) -> None:
    ratios = []
    for slots, published in PROMPTS[name].items():
        load = conversations(getattr(token_aware_routing, name), slots)
        ratios.append(published / np.median(load.trace.num_prompt_tokens))
    assert np.median(ratios) == pytest.approx(1.0, abs=0.021)
    assert min(ratios) > 0.99
    assert max(ratios) < 1.03


def test_lengths_have_their_mean_and_end_where_they_must() -> None:
    rng = np.random.default_rng(0)
    found = Lengths("lognormal", 500, 10**6, 8000, 6500).draw(rng, 200_000)
    assert found.min() >= 500
    assert found.mean() == pytest.approx(8000, rel=0.02)
    assert found.std() == pytest.approx(6500, rel=0.05)
    found = Lengths("normal", 2, 20, 6, 3.5).draw(rng, 10_000)
    assert found.min() == 2
    assert found.max() <= 20
    assert Lengths("uniform", 10, 12).draw(rng, 1000).mean() == pytest.approx(11, rel=0.02)


def test_a_conversation_that_is_over_begins_again() -> None:
    load = conversations(token_aware_routing.CODE, 12)
    trace = load.trace
    rows = np.flatnonzero(trace.session_id == 3)
    assert len(rows) == 6
    turns = np.diff([*np.flatnonzero(load.begins[rows]), 6])
    assert len(set(turns[:-1].tolist())) <= 1  # all as long as the first
    for before, row in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
        if load.begins[row]:
            assert trace.segments_of(row) == trace.segments_of(int(rows[0]))
            continue
        *history, question = trace.segments_of(row)
        assert history[:-1] == trace.segments_of(before)
        assert history[-1].content_id == trace.output_content_id[before]
        assert question.num_tokens > 0


def by_hand(outputs: list[list[int]]) -> Load:
    """Two slots of worker 0 and one of each other: output tokens by round, of slots 0 and 6."""
    slots, rounds = NUM_WORKERS + 1, len(outputs)
    tokens = np.full((rounds, slots), 2)
    tokens[:, 0], tokens[:, 6] = np.array(outputs).T
    total = rounds * slots
    trace = Trace.from_arrays(
        np.zeros(total),
        [32] * total,
        tokens.ravel(),
        session_id=np.tile(np.arange(slots), rounds),
    )
    return Load(trace, np.arange(total) < slots)


def times(load: Load) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When requests were sent and answered; shape (rounds, slots)."""
    rows = play(load, "round-robin", **SERVERS).requests
    shape = (-1, NUM_WORKERS + 1)
    return rows["arrival_time"].reshape(shape), rows["finish_time"].reshape(shape)


@pytest.mark.long
def test_a_turn_that_waits_keeps_its_place() -> None:
    sent, done = times(by_hand([[400, 2], [2, 2], [2, 2]]))
    assert done[0, 6] < done[0, 0]
    # The place of slot 6 went to slot 0's second turn, which waits for the first.
    assert sent[1, 0] == np.nextafter(done[0, 0], np.inf)
    assert sent[1, 6] == np.nextafter(done[0, 0], np.inf)
    assert sent[1, 1] == np.nextafter(done[0, 1], np.inf)  # other workers do not care


def test_places_are_as_many_as_slots() -> None:
    sent, done = times(by_hand([[50, 60], [40, 20], [10, 30]]))
    for time in np.unique(sent):
        busy = (sent <= time) & (done > time)
        assert busy.sum() <= NUM_WORKERS + 1
        assert busy[:, [0, 6]].sum() <= 2


def test_connections_are_kept() -> None:
    load = conversations(SHORT, NUM_WORKERS)
    rows = play(load, SERVICE, seed=3, **SERVERS | {"data_parallel_size": 8}).requests
    pods = rows["replica"].reshape(SHORT.rounds, NUM_WORKERS)
    assert (pods == pods[0]).all()
    assert len(set(pods[0].tolist())) > 1


def test_idle_connections_are_closed_and_the_oldest_goes_first() -> None:
    router = KeptConnections()
    router.start(SimpleNamespace(rng=np.random.default_rng(0)))  # type: ignore[arg-type]
    views: Any = [None] * 1000

    def choose(request_id: int, time: float) -> int:
        request: Any = SimpleNamespace(request_id=request_id, session_id=0, arrival_time=time)
        return router.choose(request, views)

    pods = [choose(k, 0.0) for k in range(3)]
    assert len(set(pods)) == 3
    for k, time in ((0, 1.0), (1, 4.0), (2, 5.0)):
        router.on_finish(k, pods[k], time, 1)
    assert choose(3, 7.0) == pods[1]  # the first has idled for 6 seconds
    assert choose(4, 7.0) == pods[2]
    assert choose(5, 7.0) not in pods


def test_who_is_late_is_cut_there() -> None:
    load = by_hand([[4000, 2], [2, 2]])
    whole = play(load, "round-robin", **SERVERS).requests
    limit = 10.0
    assert whole["finish_time"][0] - whole["arrival_time"][0] > limit
    rows, late = play_within(load, "round-robin", limit, **SERVERS)
    assert late.tolist() == [True] + [False] * (len(late) - 1)
    assert rows["finish_time"][0] == pytest.approx(limit, rel=0.01)
    assert rows["arrival_time"][NUM_WORKERS + 1] == np.nextafter(rows["finish_time"][0], np.inf)


def test_others_may_be_late_by_a_cut_and_some_cannot_be_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played: list[list[int]] = []

    def pretend(load: Load, router: str) -> Any:
        """First the first is late, then another one; the last never gets a token in time."""
        del router
        outputs = load.trace.num_output_tokens
        played.append(outputs.tolist())
        names = ("arrival_time", "first_token_time", "finish_time")
        rows = np.zeros(3, [(name, float) for name in names] + [("num_output_tokens", int)])
        rows["first_token_time"] = [1.0, 1.0, 30.0]
        rows["num_output_tokens"] = outputs
        rows["finish_time"] = rows["first_token_time"] + 0.1 * (outputs - 1)
        if len(played) == 1:
            rows["finish_time"][1] = 9.0
        return SimpleNamespace(requests=rows)

    monkeypatch.setattr(inference_perf, "play", pretend)
    trace = Trace.from_arrays([0.0] * 3, [8] * 3, [200, 150, 50], session_id=[0, 1, 2])
    rows, late = play_within(Load(trace, np.ones(3, bool)), "random", 10.0)
    assert late.tolist() == [True] * 3
    assert played == [[200, 150, 50], [91, 150, 1], [91, 91, 1]]
    assert rows["finish_time"].tolist() == pytest.approx([10.0, 10.0, 30.0])
