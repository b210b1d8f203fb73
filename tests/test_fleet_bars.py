"""The fleet's bars: what is judged, what is a miss, and the arithmetic behind single rows."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import fleet
from experiments.validation.fleets import (
    dynamo_mocker,
    kv_aware_routing,
    kv_transfers,
    mori_io,
    planner_studies,
    pulled_prefixes,
    rounds,
)
from experiments.validation.fleets.bars import Row, above, between, close, near, worst
from experiments.validation.llmd_routers import study as llmd_routers
from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.fleet.fabric import fabric_of
from kvsim.records.request import Request
from kvsim.sched.scheduler import StepPlan
from kvsim.trace import Trace


def test_verdicts_are_computed() -> None:
    assert near("", 100, 109.9, percent=10).holds
    assert not near("", 100, 89, percent=10).holds
    assert close("", 36.0, 39.9, points=4).holds
    assert not close("", 36.0, 40.1, points=4).holds
    assert between("", "", 5.0, 5, 6).holds
    assert not between("", "", 6.1, 5, 6).holds
    assert not above("", "", 84.0, 84).holds
    assert worst([3.0, -4.0]) == -4.0


def test_bars_are_chosen_in_their_order() -> None:
    assert fleet.chosen("b3, B1") == ["B1", "B3"]
    assert fleet.chosen("") == list(fleet.BARS)
    with pytest.raises(ValueError, match="unknown bar 'B2'"):
        fleet.chosen("B2")
    with pytest.raises(ValueError, match="unknown bar ''"):
        fleet.chosen("B3,")


def test_a_bar_without_its_measurements_is_not_judged_and_no_pass(
    monkeypatch, capsys, sample_data
) -> None:
    monkeypatch.setattr(sys, "argv", ["fleet", "--bars", "B3,B4,B5,B8,B11"])
    with pytest.raises(SystemExit) as ended:
        fleet.main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "B3: 6 of 6 bands hold" in said
    for name, lacking in (
        ("B4", "fleet/distserve_profiles"),
        ("B5", "fleet/mooncake_transfer/a10_pd_vs_regular.csv"),
        ("B8", "fleet/vtc_a10g_slora"),
        ("B11", "fleet/dynosim"),
    ):
        assert f"{name}: not judged, for want of {lacking}" in said


def test_what_is_written_goes_to_a_folder(monkeypatch, capsys, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["fleet", "--bars", "B3", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as ended:
        fleet.main()
    assert ended.value.code == 2
    assert "file is a file, not a folder" in capsys.readouterr().err


def test_a_miss_ends_the_script_with_1_and_is_written(monkeypatch, tmp_path, sample_data) -> None:
    rows = [Row("a", 1.0, 1.01, "±10 %", True), Row("b", "x", "z", "y", False)]
    absent = [rows[0], Row("c", "1, 2", "1, 2", "a < b", None)]
    for name, kept, code in (("B3", rows[:1], None), ("B7", rows, 1), ("B10", absent, 1)):
        monkeypatch.setitem(
            fleet.BARS, name, fleet.BARS[name]._replace(rows=lambda data, k=kept: k)
        )
        out = str(tmp_path / name)
        monkeypatch.setattr(sys, "argv", ["fleet", "--bars", name, "--out", out])
        if code:
            with pytest.raises(SystemExit) as ended:
                fleet.main()
            assert ended.value.code == 1
        else:
            fleet.main()
        written = json.loads((tmp_path / name / "fleet.json").read_text())
        assert [row["holds"] for row in written["bars"][name]["rows"]] == [r.holds for r in kept]
    assert fleet.verdict("B7", rows) == "B7: 1 of 2 bands hold; missed: b"
    assert fleet.verdict("B10", absent) == "B10: 1 of 1 bands hold; not judged: c"


def test_what_the_data_lacks_is_said_in_the_table() -> None:
    rows = [Row("a", 1.0, 1.0, "", None), Row("b", 1.0, 1.0, "±1 %", None)]
    column = fleet.table_of("B8", rows).columns[4]
    assert list(column.cells) == ["", "not judged"]


def test_all_bytes_and_times_of_transfers_hold(sample_data) -> None:
    rows = kv_transfers.rows(sample_data)
    assert len(rows) == 6
    assert all(row.holds for row in rows)


def test_the_fabrics_are_what_the_measurements_make_them(sample_data) -> None:
    pd = pytest.importorskip("pandas")
    table = pd.read_csv(sample_data / "fleet/mooncake_transfer/transfer.csv")
    for name, setting in kv_transfers.SETTINGS.items():
        fitted, shipped = (
            kv_transfers.fabric_from(table[table.setting == name]),
            fabric_of(setting.fabric),
        )
        assert shipped.base == pytest.approx(fitted.base, rel=0.005)
        assert shipped.bandwidth == pytest.approx(fitted.bandwidth, rel=0.001)
    pulls = pd.read_csv(sample_data / "fleet/llmd_p2p/pull_vs_recompute.csv")
    per_token = float(kv_transfers.bytes_per_token("gpt-oss-120b", 1))
    base, bandwidth = kv_transfers.fit(
        pulls.prefix_tokens.to_numpy() * per_token, pulls.pull_ms.to_numpy() / 1e3
    )
    shipped = fabric_of("h200-p2p")
    assert (shipped.base, shipped.bandwidth) == pytest.approx((base, bandwidth), rel=0.002)


def test_heads_are_copied_where_there_are_more_ranks() -> None:
    assert kv_transfers.bytes_per_token("qwen3-235b-a22b", 4) == 192_512
    assert kv_transfers.bytes_per_token("qwen3-235b-a22b", 8) == 2 * 192_512
    assert kv_transfers.as_printed(1_210_023_936, ((2**30, 2), (2**20, 0))) == 1.13 * 2**30


def test_a_line_through_two_points_is_exact_there(sample_data) -> None:
    x, y = np.array([2.0, 4.0, 8.0]), np.array([1.0, 7.0, 4.0])
    assert pulled_prefixes.line(x, y).tolist() == [1.0, 2.0, 4.0]
    rows = pulled_prefixes.line_rows(sample_data)
    assert [row.what for row in rows if not row.holds] == ["pull, 16,384 tokens, ms"]


def test_pods_of_a_fleet_hold_a_part_of_its_prefixes() -> None:
    trace = pulled_prefixes.trace(12.0)
    firsts = [trace.segments_of(row)[0] for row in range(len(trace))]
    assert {length for _, _, length in firsts} == {pulled_prefixes.PREFIX_TOKENS}
    assert len(set(firsts)) == pulled_prefixes.PREFIXES > pulled_prefixes.HELD


def test_a_plain_lru_makes_the_arithmetic_that_came_with_the_band() -> None:
    hits = rounds.arithmetic(rounds.shuffled(0), front_first=True)
    assert [round(hits[k], 1) for k in (6, 7, 8)] == [83.3, 77.1, 39.4]


def test_the_client_of_llm_d_sends_stages_of_the_same_prompts() -> None:
    trace = llmd_routers.trace_of(stages=((3, 20), (10, 20)))
    counts = np.bincount(trace.session_id)
    assert counts.tolist() == [750, 60, 200]
    first = [trace.segments_of(row) for row in (0, 750, 810)]
    assert first[0] == first[1] == first[2]
    prompts = {tuple(trace.segments_of(row)) for row in range(750)}
    assert len(prompts) == 750
    assert len({prompt[0] for prompt in prompts}) == 150
    idle = np.diff(trace.arrival_time)[[749, 809]]
    assert (idle > llmd_routers.IDLE).all()


def test_two_stream_events_make_a_token(sample_data) -> None:
    theirs = llmd_routers.measured(sample_data)
    assert sorted(theirs) == ["estimated", "load", "precise", "random"]
    assert theirs["precise"][30] == pytest.approx((9221.8, 0.296, 0.042))


def test_load_and_random_may_change_places() -> None:
    def stages(*rates: float) -> dict[str, llmd_routers.Stage]:
        names = ("precise", "estimated", "load", "random")
        return {n: llmd_routers.Stage(r, 0.0, 0.0) for n, r in zip(names, rates, strict=True)}

    there = stages(9, 8, 5, 4)
    assert llmd_routers.ranks(there, stages(9, 8, 4, 5)).holds
    assert not llmd_routers.ranks(there, stages(8, 9, 5, 4)).holds


@pytest.mark.slow
def test_the_bands_of_llm_ds_routers_hold(sample_data) -> None:
    missed = [row.what for row in llmd_routers.rows(sample_data) if row.holds is False]
    assert missed == []


def test_a_trace_like_another_has_its_means_and_shares_what_it_shared() -> None:
    segments = [[(1, 0, 1000)], [(1, 0, 1000), (2, 0, 1000)]]
    trace = Trace.from_arrays([0.0, 100.0], [1000, 2000], [100, 300], segments=segments)
    alike = planner_studies.like_tool_calls(trace, 0.5)
    assert alike.arrival_time.tolist() == [0.0, 50.0, 50.0, 100.0]
    means = [trace.num_prompt_tokens.mean(), trace.num_output_tokens.mean()]
    asked, told = (like / was for was, like in zip(means, planner_studies.MEANS, strict=True))
    assert alike.num_prompt_tokens.mean() == pytest.approx(1500 * asked, rel=0.01)
    assert alike.num_output_tokens.mean() == pytest.approx(200 * told, rel=0.01)
    own = [{s.content_id for s in alike.segments_of(row)} for row in range(4)]
    assert own[0] | own[3] == {1, 2}  # of the conversation itself
    assert not (own[0] | own[3]) & (own[1] | own[2])


def test_gaps_of_a_request_are_those_between_its_tokens() -> None:
    """Steps of one second but two of three: the prompts of the other requests."""
    times = {"start_time": [0, 1, 2, 5, 6, 7], "duration": [1, 1, 3, 1, 1, 3]}
    steps = np.zeros(6, dtype=[("replica", int), ("start_time", float), ("duration", float)])
    for name, values in times.items():
        steps[name] = values
    requests = np.zeros(
        2, dtype=[("replica", int), ("first_token_time", float), ("finish_time", float)]
    )
    requests["first_token_time"], requests["finish_time"] = [1, 5], [7, 7]
    found = mori_io.p99_gaps(SimpleNamespace(steps=steps, requests=requests))
    gaps = [[1, 3, 1, 1], [1, 1]]
    assert found.tolist() == [np.percentile(one, 99) for one in gaps]


def test_short_prompts_are_kept_whole() -> None:
    segments = [[(1, 0, 30), (2, 0, 30)], [(1, 0, 10)], [(3, 0, 40)]]
    trace = Trace.from_arrays([0.0, 1.0, 2.0], [60, 10, 40], [1, 2, 3], segments=segments)
    short = kv_aware_routing.short_ones(trace, 40)
    assert short.arrival_time.tolist() == [1.0, 2.0]
    assert short.num_output_tokens.tolist() == [2, 3]
    assert [short.segments_of(row) for row in (0, 1)] == segments[1:]


def test_bars_that_were_not_run_again_are_kept(tmp_path) -> None:
    file = tmp_path / "fleet.json"
    first = fleet.kept(file, {"B7": [Row("a", "x", "z", "y", False)]})
    file.write_text(json.dumps({"bars": first}))
    both = fleet.kept(file, {"B3": [Row("b", 1.0, 1.0, "±1", True)]})
    assert list(both) == ["B3", "B7"]
    assert both["B7"] == first["B7"]
    assert fleet.kept(file, {"B7": []})["B7"]["rows"] == []


def test_steps_of_dynamos_mocker_take_what_its_formulas_say() -> None:
    config = resolve(
        Config.build(model="qwen3-32b", gpu="h200", tensor_parallel_size=2, **dynamo_mocker.ENGINE)
    )
    capacity = dynamo_mocker.BLOCK_SIZE * dynamo_mocker.NUM_BLOCKS

    def seconds(*requests: tuple[int, int]) -> float:
        made = [Request(k, 0.0, end, 1, [], 1) for k, (_, end) in enumerate(requests)]
        for request, (_, end) in zip(made, requests, strict=True):
            request.num_computed_tokens = end
        scheduled = [(r, n) for r, (n, _) in zip(made, requests, strict=True)]
        return config.cost.step(StepPlan.of(scheduled, 0)).time

    for usage in (0.001, 0.25, 1.0):
        decode = -25.74 * usage**2 + 54.01 * usage + 5.74
        assert seconds((1, round(usage * capacity))) == pytest.approx(decode / 1e3, rel=1e-4)
    prompts = 4.209989e-07 * 8000**2 + 1.518344e-02 * 8000 + 1.650142e01
    fresh = prompts + 54.01 * 8000 / capacity + 5.74  # its own KV is read to give a token
    assert seconds((8000, 8000)) == pytest.approx(fresh / 1e3, rel=1e-4)
