"""Plans of sweeps: how many cells, in what order, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kvsim.config import RunConfig
from kvsim.results.flat import flat
from kvsim.study.plan import MOST_CELLS, Study, plan
from kvsim.study.space import split_list
from kvsim.study.sweep_spec import read_study, values_of, with_options


def test_crossed_options_give_their_product() -> None:
    sizes = {"request_rate": [2, 4, 8], "block_size": [16, 32], "seed": [0, 1, 2, 3]}
    points = plan(Study(sizes))
    assert len(points) == math.prod(map(len, sizes.values()))
    assert len({tuple(point.varied.items()) for point in points}) == len(points)


def test_the_first_option_changes_slowest_and_the_seed_fastest() -> None:
    points = plan(Study({"request_rate": ["2", "4"], "block_size": [16, 32]}, replications=2))
    assert [tuple(point.varied.values()) for point in points[:3]] == [
        (2.0, 16, 0),
        (2.0, 16, 1),
        (2.0, 32, 0),
    ]
    assert len(points) == 8


def test_zipped_options_walk_together_and_cross_the_others() -> None:
    zipped = {"tensor_parallel_size": [1, 2, 4], "max_num_seqs": [64, 128, 256]}
    points = plan(Study({"block_size": [16, 32]}, zipped, replications=3))
    assert len(points) == 2 * 3 * 3
    pairs = {(p.config.tensor_parallel_size, p.config.max_num_seqs) for p in points}
    assert pairs == {(1, 64), (2, 128), (4, 256)}


def test_slices_of_a_trace_are_cells() -> None:
    points = plan(Study({"trace": ["a.csv"]}, slices=[(0, 10), (10, 20)]))
    assert [point.rows for point in points] == [(0, 10), (10, 20)]
    assert [point.varied for point in points] == [{"slice": "0:10"}, {"slice": "10:20"}]


def test_one_value_is_not_varied() -> None:
    (point,) = plan(Study({"block_size": [32]}))
    assert point.varied == {}
    assert point.config.block_size == 32


def test_replications_take_seeds_in_a_row() -> None:
    points = plan(Study({"seed": [7]}, replications=3))
    assert [point.config.seed for point in points] == [7, 8, 9]


def test_commas_in_objects_are_not_between_values() -> None:
    assert split_list('{"a": [1, 2], "b": "x,{"},none') == ['{"a": [1, 2], "b": "x,{"}', "none"]
    assert values_of("allocator", "paged,paged+int8") == ["paged", "paged+int8"]
    assert values_of("block_size", 16) == [16]


@pytest.mark.parametrize(
    ("study", "said"),
    [
        (Study({"block_size": []}), "block_size has no value"),
        (Study({"block_size": [16, 16]}), "block_size has the value 16 twice"),
        (Study({"block_size": [16]}, {"block_size": [32]}), "crossed and zipped"),
        (Study({}, {"block_size": [16], "seed": [0, 1]}), "block_size has 1, seed has 2"),
        (Study({"seed": [0, 1]}, replications=2), "seed is varied already"),
        (Study({"trace": ["a.csv"]}, replications=2), "a trace has no seed"),
        (Study({"block_size": ["x", 16]}), "block_size is 'x'"),
        (Study({"blocksize": [1]}), "did you mean block_size"),
        (Study({"seed": range(MOST_CELLS + 1)}), "a sweep of 100,001 cells"),
        (Study({"kv_events_config": ['{"path": "e.jsonl"}']}), "writes a file per run"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(study: Study, said: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as error:
        plan(study)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_crosses_lists_and_zips(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'model = "llama-3-8b"\nblock-size = [16, 32]\nenforce-eager = [true, false]\n'
        "replications = 2\nslices = [[0, 5], [5, 9]]\n"
        "[zip]\nmax-num-seqs = [8, 16]\nrequest-rate = [1.0, 2.0]\n"
    )
    study = read_study(file)
    assert len(plan(study)) == 2 * 2 * 2 * 2 * 2
    changed = with_options(study, {"block_size": ["64"]})
    assert {point.config.block_size for point in plan(changed)} == {64}
    with pytest.raises(ValueError, match=r"max_num_seqs is in the file's \[zip\]"):
        with_options(study, {"max_num_seqs": ["1"]})


def test_pools_are_one_value_and_lists_of_pools_several(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('[[pool]]\nrole = "mixed"\nreplicas = 2\n')
    (point,) = plan(read_study(file))
    assert point.config.pool is not None
    assert point.config.pool[0].replicas == 2
    file.write_text('pool = [[{role = "mixed"}], [{role = "mixed", replicas = 3}]]\n')
    assert len(plan(read_study(file))) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zip = 3", "zip must be a table"),
        ("[zip]\nblock-size = 16", "zip must be a table"),
        ("slices = [[5, 5]]", "holds no row"),
        ("slices = [5]", "must be rows"),
        ("replications = 0", "replications = 0: must be a whole number"),
        ("blocksize = [1]", "did you mean block_size"),
        ('block-size = ["16"]', "must be a number, without quotes"),
        ("block-size = [", "not a TOML file"),
    ],
)
def test_a_file_is_refused_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"\w") as error:
        read_study(file)
    assert str(error.value).startswith(f"{file}: ")
    assert str(error.value).count(str(file)) == 1
    assert said in str(error.value)


def test_no_option_has_the_name_of_a_key_of_the_summary() -> None:
    """A table has columns of both."""
    import kvsim
    import workloads

    result = kvsim.simulate(workloads.fixed(num_requests=2), backend="python")
    assert not flat(result.summary).keys() & RunConfig.model_fields.keys()
