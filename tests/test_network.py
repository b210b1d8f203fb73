"""Transfers that share links: closed forms of processor sharing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

import kvsim
from kvsim.fleet.disaggregation.network import Network
from kvsim.trace import Trace

GB = 1e9


def ends(*transfers: tuple[int, str, str, float, float]) -> dict[int, float]:
    """Return when transfers (key, source, target, bytes, start), in order of start, end."""
    network, found, waiting = Network(10 * GB), {}, list(transfers)
    while waiting or len(network):
        start = waiting[0][4] if waiting else math.inf
        end = network.next_end()
        if start <= end:
            key, source, target, num_bytes, now = waiting.pop(0)
            network.start(key, source, target, num_bytes, now)
        else:
            found |= dict.fromkeys(network.ended(end), end)
    return found


def test_a_transfer_ends_also_where_the_clock_is_coarse() -> None:
    """At 1.7e9 s a step of the clock is a quarter of a microsecond, 12 kB of this link."""
    network, now = Network(50e9), 1.7e9
    network.start(1, "a", "b", 8_000_000.0, now)
    for _ in range(3):
        now = network.next_end()
        if network.ended(now):
            break
    assert len(network) == 0
    trace = Trace.from_arrays([1.7e9, 1.7e9 + 1, 1.7e9 + 2], [1000] * 3, [4] * 3)
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
    result = kvsim.simulate(trace, **options, num_prefill_workers=1, num_decode_workers=1)
    assert result.summary["completed"] == 3


def test_one_transfer_has_the_link_to_itself() -> None:
    assert ends((1, "p", "d", 5 * GB, 2.0)) == {1: pytest.approx(2.5)}


def test_two_transfers_into_one_replica_share_its_link() -> None:
    """Each has half: the shorter one ends after 0.2 s, the longer one then has all of it."""
    found = ends((1, "p", "d", 1 * GB, 0.0), (2, "q", "d", 3 * GB, 0.0))
    assert found == {1: pytest.approx(0.2), 2: pytest.approx(0.4)}


def test_a_transfer_that_comes_later_takes_half_from_then_on() -> None:
    found = ends((1, "p", "d", 2 * GB, 0.0), (2, "p", "e", 2 * GB, 0.1))
    assert found == {1: pytest.approx(0.3), 2: pytest.approx(0.4)}


def test_transfers_between_other_replicas_do_not_meet() -> None:
    found = ends((1, "p", "d", 1 * GB, 0.0), (2, "q", "e", 1 * GB, 0.0))
    assert found == {1: pytest.approx(0.1), 2: pytest.approx(0.1)}


def test_a_transfer_goes_at_the_slower_of_its_ends() -> None:
    """Three leave p, so each has a third, though two of the targets have nothing else to do."""
    found = ends(*((k, "p", target, 1 * GB, 0.0) for k, target in enumerate("def")))
    assert found == dict.fromkeys(range(3), pytest.approx(0.3))


def test_without_a_limit_all_is_there_at_once() -> None:
    network = Network(math.inf)
    network.start(1, "p", "d", 2 * GB, 3.0)
    network.start(2, "p", "d", 2 * GB, 3.0)
    assert network.next_end() == 3.0
    assert network.ended(3.0) == [1, 2]


def test_what_is_broken_off_gives_its_share_back() -> None:
    network = Network(10 * GB)
    network.start(1, "p", "d", 2 * GB, 0.0)
    network.start(2, "p", "d", 2 * GB, 0.0)
    assert network.cancel(2, 0.2)
    assert not network.cancel(2, 0.2)
    assert network.next_end() == pytest.approx(0.3)


@examples(100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("pq"),
            st.sampled_from("de"),
            st.floats(1e4, 1e10),
            st.floats(0, 3),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_no_link_carries_more_than_it_can(rows: list[tuple[str, str, float, float]]) -> None:
    """Every transfer ends, none before its bytes fit, and a link is never faster than it is."""
    given_ = [(k, *row) for k, row in enumerate(sorted(rows, key=lambda row: row[3]))]
    found = ends(*given_)
    assert set(found) == set(range(len(given_)))
    for key, _, _, num_bytes, start in given_:
        assert found[key] >= start + num_bytes / (10 * GB) - 1e-6
    for place, name in ((1, "p"), (1, "q"), (2, "d"), (2, "e")):
        mine = [row for row in given_ if row[place] == name]
        if mine:
            last = max(found[row[0]] for row in mine)
            total = sum(row[3] for row in mine)
            assert last - mine[0][4] >= total / (10 * GB) - 1e-6
