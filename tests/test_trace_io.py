"""kvsim's own files: exact round trips, whole files or none."""

import gzip
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from strategies import examples

import workloads
from kvsim.trace import MAX_TOKENS, Trace, files

SUFFIXES = [".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet"]
NAMES = st.sampled_from([None, "", "-1", "7", "07", "a", "b, c", 'd "e"', "\u00e9"])
INT64 = st.integers(0, 2**63 - 1)


@st.composite
def traces(draw):
    n = draw(st.integers(1, 6))

    def column(strategy):
        return draw(st.lists(strategy, min_size=n, max_size=n))

    def maybe(strategy):
        return column(strategy) if draw(st.booleans()) else None

    times = sorted(column(st.floats(0, 1e300, allow_nan=False)))
    prompt = column(st.integers(1, 1000))
    segments = None
    if draw(st.booleans()):
        segments = [_split(draw, tokens) for tokens in prompt]
    return Trace.from_arrays(
        times,
        prompt,
        column(st.integers(1, MAX_TOKENS)),
        segments=segments,
        output_content_id=maybe(INT64),
        priority=maybe(st.integers(-(2**63), 2**63 - 1)),
        cache_salt=maybe(INT64),
        session_id=maybe(st.integers(-1, 2**63 - 1)),
        tenant=maybe(draw(st.sampled_from([st.integers(-1, 2**63 - 1), NAMES]))),
    )


def _split(draw, tokens):
    pieces = []
    while tokens:
        length = draw(st.integers(1, tokens))
        pieces.append((draw(INT64), draw(INT64), length))
        tokens -= length
    return pieces


@pytest.mark.parametrize("suffix", SUFFIXES)
@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces())
def test_writing_and_reading_back_gives_the_same_digest(trace, suffix, tmp_path):
    path = tmp_path / f"trace{suffix}"
    trace.save(path)
    loaded = workloads.read(path)
    assert loaded.trace.digest == trace.digest
    assert (loaded.format, loaded.notes) == ("kvsim", ())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_generated_trace_comes_back_whatever_the_file_is_called(suffix, tmp_path):
    trace = workloads.multi_turn(num_requests=50, seed=3)
    workloads.save(trace, tmp_path / f"trace{suffix}")
    other = tmp_path / "no-suffix-at-all"
    (tmp_path / f"trace{suffix}").rename(other)
    assert workloads.load(other).digest == trace.digest


def test_only_columns_that_say_something_are_written(tmp_path):
    path = tmp_path / "trace.csv"
    Trace.from_arrays([0.1, 0.30000000000000004], [3, 4], [5, 6]).save(path)
    assert path.read_text() == (
        "arrival_time,num_prompt_tokens,num_output_tokens\n0.1,3,5\n0.30000000000000004,4,6\n"
    )
    trace = Trace.from_arrays(
        [0, 1],
        [3, 4],
        [5, 6],
        segments=[[(9, 0, 3)], [(9, 0, 3), (8, 2, 1)]],
        session_id=[-1, 4],
        cache_salt=["a", None],
        priority=[0, -1],
        output_content_id=[1, 2],
    )
    trace.save(tmp_path / "trace.jsonl")
    assert [json.loads(t) for t in (tmp_path / "trace.jsonl").read_text().splitlines()] == [
        {
            "arrival_time": 0.0,
            "num_prompt_tokens": 3,
            "num_output_tokens": 5,
            "priority": 0,
            "cache_salt": 1,
            "session_id": -1,
            "output_content_id": 1,
            "segments": [[9, 0, 3]],
        },
        {
            "arrival_time": 1.0,
            "num_prompt_tokens": 4,
            "num_output_tokens": 6,
            "priority": -1,
            "cache_salt": 0,
            "session_id": 4,
            "output_content_id": 2,
            "segments": [[9, 0, 3], [8, 2, 1]],
        },
    ]


@pytest.mark.parametrize("suffix", [".csv.gz", ".jsonl.gz"])
def test_equal_traces_make_equal_files(suffix, tmp_path):
    for name in ("a", "b"):
        workloads.fixed(num_requests=5).save(tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    assert gzip.decompress((tmp_path / f"a{suffix}").read_bytes())


@pytest.mark.long
def test_a_request_may_have_very_many_segments(tmp_path):
    n = 40_000  # more than a cell of the csv module's default limit holds
    segments = [[(i, 0, 1) for i in range(n)]]
    trace = Trace.from_arrays([0], [n], [1], segments=segments)
    trace.save(tmp_path / "trace.csv")
    assert workloads.load(tmp_path / "trace.csv").digest == trace.digest


@pytest.mark.parametrize("name", ["trace.txt", "trace", "trace.gz", "csv"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(name, tmp_path):
    with pytest.raises(ValueError, match=r"must end in one of .csv, .csv.gz, .jsonl, .jsonl.gz, "):
        workloads.save(workloads.fixed(num_requests=1), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/trace.csv", "No such file or directory"),
        ("file/trace.csv", "Not a directory"),
        ("folder.csv", "Is a directory"),
    ],
)
def test_a_path_that_cannot_be_written_is_one_line(name, reason, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=f"cannot be written: {reason}$"):
        workloads.save(workloads.fixed(num_requests=1), tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.csv"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "trace.csv"
    path.write_text("old")

    def interrupted(columns, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setitem(files._WRITERS, ".csv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workloads.save(workloads.fixed(num_requests=1), path)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.csv"]
    assert path.read_text() == "old"


def test_empty_cells_of_optional_columns_are_defaults(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "session_id,arrival_time,num_prompt_tokens,num_output_tokens,cache_salt,colour\n"
        "3,0,10,5,tenant-a,red\n,1.5,20.0,6,,\n"
    )
    loaded = workloads.read(path)
    assert loaded.trace.session_id.tolist() == [3, -1]
    assert loaded.trace.cache_salt.tolist() == [1, 0]
    assert loaded.trace.num_prompt_tokens.tolist() == [10, 20]
    assert loaded.notes == ("not used: colour",)


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("session_id", "-2", "line 3: session_id is -2, must be at least -1"),
        ("session_id", "x", "line 3: session_id is 'x', must be a whole number from -2**63 to"),
        ("num_samples", "65", "line 3: num_samples is 65, must be 1 to 64"),
        ("output_content_id", "-1", "line 3: output_content_id is '-1', must be a whole number"),
        ("segments", "[[1,0]]", "line 3: segments is '[[1,0]]', must be a list of [content_id,"),
        ("segments", "[[1,0,9", "line 3: segments is '[[1,0,9', must be a list of [content_id,"),
        ("segments", "[[1,0,9]]", "line 3: the sum of segments is 9, must be num_prompt_tokens"),
        ("segments", "[[1,0.5,20]]", "line 3: segments is '[[1,0.5,20]]', must be a list of ["),
    ],
)
def test_a_wrong_optional_cell_is_named_by_its_line(column, cell, message, tmp_path):
    path = tmp_path / "trace.csv"
    good = {"segments": "[[1,0,10]]", "num_samples": "1"}.get(column, "0")
    path.write_text(
        f"arrival_time,num_prompt_tokens,num_output_tokens,{column}\n"
        f'0,10,5,"{good}"\n1,20,6,"{cell}"\n'
    )
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        workloads.load(path)
    assert str(caught.value).startswith(f"{path}, {message}")


def test_parquet_errors_count_rows(tmp_path):
    path = tmp_path / "trace.parquet"
    Trace.from_arrays([0.0, 1.0], [1, 1], [1, 1]).save(path)
    table = pq.read_table(path)
    bad = table.set_column(1, "num_prompt_tokens", [[1, 0]])
    pq.write_table(bad, path)
    with pytest.raises(ValueError, match="row 2: num_prompt_tokens is 0, must be a whole number"):
        workloads.load(path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"is a damaged or truncated Parquet file$"):
        workloads.load(path)


def test_negative_zero_and_tiny_floats_keep_their_bits(tmp_path):
    times = [-0.0, 5e-324, math.nextafter(1, 2)]
    trace = Trace.from_arrays(times, [1] * 3, [1] * 3)
    for suffix in SUFFIXES:
        trace.save(tmp_path / f"t{suffix}")
        loaded = workloads.load(tmp_path / f"t{suffix}").arrival_time
        assert np.array_equal(loaded.view(np.int64), np.array(times).view(np.int64))


def bomb(path, column, num_rows):
    """Write a small file of many rows that are all alike."""
    rows = {"arrival_time": pa.array([0.0] * 1000), "num_prompt_tokens": pa.array([1] * 1000)}
    part = pa.table(rows | {"num_output_tokens": pa.array([1] * 1000), **column})
    with pq.ParquetWriter(path, part.schema, compression="zstd") as file:
        for _ in range(num_rows // 100_000):
            file.write_table(pa.concat_tables([part] * 100))
    return path


@pytest.mark.long
def test_a_parquet_bomb_is_refused_by_its_metadata(tmp_path, monkeypatch):
    path = bomb(tmp_path / "bomb.parquet", {}, 11_000_000)
    assert path.stat().st_size < 1_000_000
    monkeypatch.setattr(pq.ParquetFile, "read", None)  # nothing is decoded
    with pytest.raises(ValueError, match=r"bomb\.parquet: holds more than 10,000,000 requests"):
        workloads.load(path)
    lists = {"segments": pa.array([[[1, 0, 1]] * 300] * 1000)}
    path = bomb(tmp_path / "lists.parquet", lists, 200_000)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(ValueError, match="unfolds to 180,600,000 values; kvsim reads 134,217,728"):
        workloads.load(path)


@pytest.mark.long
def test_a_text_that_fills_a_column_is_there_once(tmp_path):
    named = {"tenant": pa.array(["x" * 100_000] * 1000)}
    path = bomb(tmp_path / "texts.parquet", named, 100_000)
    assert path.stat().st_size < 1_000_000  # and 10 GB of texts
    trace = workloads.load(path)
    assert trace.tenant_of(99_999) == "x" * 100_000
