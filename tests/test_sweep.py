"""``kvsim sweep``: nothing is run twice, nothing is lost, and the table is the same whoever ran."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsim.cli import main
from kvsim.study import digest, run_cell, workers

#: Requests that plain Python serves in milliseconds; four cells.
QUICK = (
    *("--model", "llama-3-8b", "--gpu", "a100-80gb", "--backend", "python"),
    *("--workload", "fixed+prompt=40+output=6", "--num-requests", "8"),
)
FOUR = (*QUICK, "--request-rate", "2,8", "--block-size", "16,32")
#: Cells that take a moment each, for sweeps that are stopped.
MANY = (*QUICK[:-1], "15", "--request-rate", "1,2,4,8,16,32", "--block-size", "8,16,32")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Run a sweep into ``out`` in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(["sweep", *arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cells that were really run, in order."""
    ran: list[str] = []

    def counted(cells: Path, cell: run_cell.Cell) -> str:
        ran.append(cell.digest)
        return run_cell.run_cell(cells, cell)

    monkeypatch.setattr(workers, "run_cell", counted)
    return ran


def here(*arguments: str) -> list[str]:
    return ["sweep", *arguments, "--out", "out", "--workers", "1"]


#: ``python -m kvsim`` that takes SIGINT as usual: what a shell starts in the background ignores it,
#: and so do its children. (A ``preexec_fn`` can hang, as the tests have other threads.)
PROGRAM = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("kvsim", run_name="__main__", alter_sys=True)
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a sweep into ``out`` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "sweep", *arguments, "--out", "out"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its workers can be killed with it
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def wait_for_cells(process: subprocess.Popen[str], folder: Path, number: int) -> None:
    """Wait until a sweep has finished as many cells, or has ended, or for a minute."""
    deadline = time.monotonic() + 60
    while num_cells(folder) < number and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)


def table(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("table.csv", "table.parquet")}


def rows(path: str = "out/table.csv") -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def num_cells(folder: Path) -> int:
    return len(list((folder / "out" / "cells").glob("[0-9a-f]*/provenance.json")))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The table of MANY, run without a stop in one process."""
    folder = tmp_path_factory.mktemp("whole")
    code, err = finish(start(folder, *MANY, "--workers", "1"))
    assert code == 0, err
    return table(folder / "out")


def test_a_row_per_cell_in_the_order_of_the_plan(call: Call) -> None:
    code, out, err = call(*FOUR, "--out", "out", "--workers", "1")
    assert code == 0
    assert err.startswith("0 done, 4 to do")
    assert "Tables and figures are in out." in out
    found = rows()
    assert [(row["request_rate"], row["block_size"]) for row in found] == [
        *(("2.0", "16"), ("2.0", "32"), ("8.0", "16"), ("8.0", "32")),
    ]
    assert {row["completed"] for row in found} == {"8"}
    assert all(0 < float(row["kv_cache.mean_usage"]) < 1 for row in found)
    import pandas as pd

    frame = pd.read_parquet("out/table.parquet")
    assert list(frame.columns) == list(found[0])
    assert frame["output_throughput"].tolist() == [float(r["output_throughput"]) for r in found]


@pytest.mark.long
def test_a_row_is_what_kvsim_run_says(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    call(*FOUR, "--out", "out", "--workers", "1")
    last = rows()[-1]
    cell = Path("out/cells") / last["cell"]
    main(["run", str(cell / "config.toml"), "--json", "-"])
    told = json.loads(capsys.readouterr().out)
    del told["provenance"]
    assert told == json.loads((cell / "summary.json").read_text())


@pytest.mark.long
def test_a_finished_sweep_runs_nothing_and_a_larger_one_only_what_is_new(
    call: Call, runs: list[str]
) -> None:
    call(*FOUR, "--out", "out", "--workers", "1")
    before = table(Path("out"))
    _, _, err = call(*FOUR, "--out", "out", "--workers", "1")
    assert err.startswith("4 done, 0 to do")
    assert table(Path("out")) == before
    call(*FOUR[:-1], "16,32,64", "--out", "out", "--workers", "1")
    assert len(runs) == len(set(runs)) == 6


@pytest.mark.long
@pytest.mark.parametrize("name", ["kvsim_version", "physics_revision"])
def test_cells_of_another_version_are_run_again_and_leave_the_table(
    call: Call, runs: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as before:
        for module in (digest, run_cell):  # who runs a cell sees to it that the code is the same
            before.setattr(module, name, lambda: "an older one", raising=False)
        call(*FOUR, "--out", "out", "--workers", "1")
    old = {row["cell"] for row in rows()}
    _, _, err = call(*FOUR, "--out", "out", "--workers", "1")
    assert err.startswith("0 done, 4 to do")
    assert len(runs) == len(set(runs)) == 8
    assert old == set(runs[:4])
    assert {row["cell"] for row in rows()} == set(runs[4:])


def test_the_longest_are_expected_first(call: Call, runs: list[str]) -> None:
    call(*QUICK, "--request-rate", "2,8,4", "--out", "out", "--workers", "1")
    cells = {row["cell"]: row["request_rate"] for row in rows()}
    assert [cells[digest] for digest in runs] == ["8.0", "4.0", "2.0"]


@pytest.mark.long
def test_a_corrupt_cell_is_noticed_said_and_run_again(call: Call, runs: list[str]) -> None:
    call(*FOUR, "--out", "out", "--workers", "1")
    before = table(Path("out"))
    (Path("out/cells") / runs[0] / "summary.json").write_text("{}")
    (Path("out/cells") / runs[1] / "provenance.json").write_text("{")
    _, _, err = call(*FOUR, "--out", "out", "--workers", "1")
    assert f"note: cell {runs[0]}: summary.json was changed or damaged; it is run again" in err
    assert f"note: cell {runs[1]}: cannot be read" in err
    assert "2 done, 2 to do" in err
    assert sorted(runs[4:]) == sorted(runs[:2])
    assert table(Path("out")) == before


@pytest.mark.long
def test_a_damaged_trace_is_written_again(call: Call) -> None:
    call(*FOUR, "--out", "out", "--workers", "1")
    for path in Path("out/traces").iterdir():
        path.write_bytes(b"nothing")
    code, _, _ = call(*FOUR, "--max-num-seqs", "7", "--out", "out", "--workers", "1")
    assert code == 0


def test_what_cannot_run_is_recorded_and_retried_on_demand(call: Call, runs: list[str]) -> None:
    arguments = (*QUICK, "--max-num-seqs", "4,8", "--allocator", "paged,nosuch", "--out", "out")
    code, out, err = call(*arguments, "--workers", "1")
    assert code == 0
    assert "could not run: cell" in err
    assert "unknown allocator 'nosuch'" in err
    assert "and 1 more; --retry-failed runs them again" in err
    assert out.count("failed") == 2
    failed = [row for row in rows() if row["error"]]
    assert [row["allocator"] for row in failed] == ["nosuch", "nosuch"]
    assert len(runs) == 4
    call(*arguments, "--workers", "1")
    assert len(runs) == 4
    _, _, err = call(*arguments, "--workers", "1", "--retry-failed")
    assert "2 done, 2 to do" in err
    assert len(runs) == 6


@pytest.mark.long
def test_a_cell_in_which_no_request_fits_has_failed(call: Call) -> None:
    code, _, _ = call(*QUICK, "--max-model-len", "30,100", "--out", "out", "--workers", "1")
    assert code == 0
    assert [row["error"] for row in rows()] == [
        *("no request can ever be served: prompt not below max_model_len (30)", ""),
    ]


@pytest.mark.long
def test_replications_give_means_with_intervals(call: Call) -> None:
    sharegpt = ("--workload", "sharegpt", *QUICK[:6], "--num-requests", "6", "--max-num-seqs")
    code, _, _ = call(
        *sharegpt, "2,4", "--replications", "3", "--out", "out", "--workers", "1", "--json", "a"
    )
    assert code == 0
    every, means = rows(), rows("out/means.csv")
    assert [row["seed"] for row in every] == ["0", "1", "2"] * 2
    assert [row["max_num_seqs"] for row in means] == ["2", "4"]
    assert {row["replications"] for row in means} == {"3"}
    first = [float(row["mean_ttft_ms"]) for row in every[:3]]
    assert float(means[0]["mean_ttft_ms"]) == pytest.approx(sum(first) / 3)
    assert float(means[0]["mean_ttft_ms_ci95"]) > 0
    answer = json.loads(Path("a").read_text())
    assert (len(answer["cells"]), len(answer["means"])) == (6, 2)


@pytest.mark.long
def test_slices_and_traces(call: Call) -> None:
    main(["trace", "generate", "t.csv", "--num-requests", "9", "--workload", "fixed"])
    Path("study.toml").write_text(
        'trace = "t.csv"\nmodel = "llama-3-8b"\ngpu = "a100-80gb"\nbackend = "python"\n'
        "slices = [[0, 4], [4, 9]]\n"
    )
    code, _, err = call("study.toml", "--out", "out", "--workers", "1")
    assert code == 0, err
    assert [(row["slice"], row["completed"]) for row in rows()] == [("0:4", "4"), ("4:9", "5")]
    Path("study.toml").write_text('trace = "t.csv"\nslices = [[9, 12]]\n')
    code, _, err = call("study.toml", "--out", "out", "--workers", "1")
    assert (code, err) == (2, "kvsim: slices: [9, 12] begins after the last of 9 requests\n")


@pytest.mark.long
def test_an_infinite_rate_is_a_value_like_others(call: Call) -> None:
    rates = (*QUICK, "--request-rate", "2,inf", "--out", "out", "--workers", "1", "--figures")
    code, out, err = call(*rates, "--json", "-")
    assert code == 0, err
    assert [row["request_rate"] for row in json.loads(out)["cells"]] == [2.0, "inf"]
    assert [row["request_rate"] for row in rows()] == ["2.0", "inf"]


@pytest.mark.long
def test_switches_take_both_values(call: Call) -> None:
    code, _, err = call(
        *(*QUICK, "--enable-prefix-caching", "true,false", "--enforce-eager", "--out", "out"),
        *("--workers", "1"),
    )
    assert code == 0, err
    assert [row["enable_prefix_caching"] for row in rows()] == ["True", "False"]
    code, _, _ = call(*QUICK, "--no-enable-prefix-caching", "--out", "b", "--workers", "1")
    assert code == 0
    (config,) = Path("b/cells").glob("*/config.toml")
    assert "enable_prefix_caching = false" in config.read_text()


@pytest.mark.long
def test_a_figure_of_one_or_two_options(call: Call) -> None:
    call(*FOUR, "--out", "out", "--workers", "1", "--figures")
    assert Path("out/study.png").stat().st_size > 10_000
    three = (*FOUR, "--max-num-seqs", "2,4", "--out", "b", "--workers", "1", "--figures")
    code, _, err = call(*three)
    assert code == 0
    assert "no figure: 3 options are varied" in err
    assert not Path("b/study.png").exists()
    names = (*QUICK, "--allocator", "paged,paged+int8", "--out", "b", "--workers", "1", "--figures")
    assert "no figure: the values of allocator are not numbers" in call(*names)[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--out", "out", "--blocksize", "16"), "No such option '--blocksize'"),
        (("--out", "out", "--block-size", ""), "--block-size is empty"),
        (("--out", "out", "--block-size", "16,,32"), "--block-size is '16,,32': a value is"),
        (("--out", "out", "--block-size", "16,x"), "--block-size is 'x'"),
        (("--block-size", "16"), "sweep needs --out DIR"),
        (("--out", "file.json"), ".json is the name of a file"),
        (("--out", "out", "--trace", "no.csv"), "no.csv: cannot be read"),
        (("--out", "out", "nosuch.toml"), "nosuch.toml: cannot be read"),
        (("opt-13b", "--model", "opt-30b,opt-66b", "--out", "out"), "conflicts with --model"),
        (("--out", "out", "--workers", "0"), "--workers"),
        (("--out", "out", "--workers", "2", "--dask", "tcp://x"), "--workers and --dask"),
        (("--out", "out", "--allocator", "nosuch"), "every cell failed: unknown allocator"),
    ],
)
def test_mistakes_are_one_line(call: Call, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if "to do" not in line]
    assert len(lines) == 1
    assert said in lines[0]
    assert not Path("out/table.csv").exists() or "nosuch" in arguments


def test_several_workers_need_joblib(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "find_spec", lambda name: None)
    code, _, err = call(*FOUR, "--out", "out", "--workers", "2")
    assert code == 2
    assert err.endswith("--workers 2 needs joblib: pip install 'kvsim[study]', or --workers 1\n")
    code, _, _ = call(*FOUR, "--out", "out")
    assert code == 0
    code, _, err = call(*FOUR, "--seed", "1", "--out", "out", "--dask", "tcp://127.0.0.1:1")
    assert code == 2
    assert "--dask needs dask.distributed" in err


@pytest.mark.long
def test_two_workers_write_the_same_bytes(tmp_path: Path, expected: dict[str, bytes]) -> None:
    pytest.importorskip("joblib")
    code, err = finish(start(tmp_path, *MANY, "--workers", "2"))
    assert code == 0
    assert err.splitlines()[0] == "0 done, 18 to do"
    assert all(line.startswith("note: block-size=8: ") for line in err.splitlines()[1:])
    assert table(tmp_path / "out") == expected


@pytest.mark.long
def test_two_sweeps_at_once_in_one_folder(tmp_path: Path, expected: dict[str, bytes]) -> None:
    both = [start(tmp_path, *MANY, "--workers", "1") for _ in range(2)]
    for process in both:
        code, err = finish(process)
        assert code == 0, err
    assert table(tmp_path / "out") == expected
    assert num_cells(tmp_path) == len(list((tmp_path / "out" / "cells").iterdir())) == 18


def kill_and_resume(
    folder: Path, seed: int, expected: dict[str, bytes], number: int, kills: int = 4
) -> None:
    """Kill a sweep so many times, at moments drawn, and let another one end it."""
    draw, arguments = random.Random(seed), (*MANY, "--workers", str(number))
    for _ in range(kills):
        process = start(folder, *arguments)
        until = num_cells(folder) + draw.randint(0, 3)
        wait_for_cells(process, folder, min(until, 17))
        time.sleep(draw.uniform(0, 0.05))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL  # it had not ended by itself
    done = num_cells(folder)
    code, err = finish(start(folder, *arguments))
    assert code == 0, err
    if number == 1:  # workers outlive who started them, by a cell
        assert err.startswith(f"{done} done, {18 - done} to do")
    assert table(folder / "out") == expected


@pytest.mark.long
def test_a_killed_sweep_goes_on(tmp_path: Path, expected: dict[str, bytes]) -> None:
    kill_and_resume(tmp_path, 0, expected, number=1, kills=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_sweep_killed_at_twenty_moments_goes_on(
    tmp_path: Path, expected: dict[str, bytes], seed: int
) -> None:
    """Four moments each, in one process and in two."""
    kill_and_resume(tmp_path, seed, expected, number=1 + seed % 2)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_keeps_what_is_finished(
    tmp_path: Path, expected: dict[str, bytes], number: int
) -> None:
    process = start(tmp_path, *MANY, "--workers", str(number))
    wait_for_cells(process, tmp_path, 1)
    process.send_signal(signal.SIGINT)
    code, err = finish(process)
    assert code == 130, err
    assert "cells are left; run the command again to continue" in err
    assert "Traceback" not in err
    assert 1 <= num_cells(tmp_path) < 18
    assert finish(start(tmp_path, *MANY, "--workers", "1"))[0] == 0
    assert table(tmp_path / "out") == expected


@pytest.mark.slow
def test_a_dask_cluster_that_loses_a_worker(tmp_path: Path, expected: dict[str, bytes]) -> None:
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=tmp_path
        ) as cluster,
        Client(cluster) as client,
    ):
        pids = list(client.run(os.getpid).values())
        process = start(tmp_path, *MANY, "--dask", cluster.scheduler_address)
        while num_cells(tmp_path) < 2:
            time.sleep(0.002)
        os.kill(pids[0], signal.SIGKILL)
        code, err = finish(process)
        assert code == 0, err
    assert table(tmp_path / "out") == expected


def test_the_table_says_what_served_and_what_does_not_keep_up(call: Call) -> None:
    more = ("--max-num-seqs", "1", "--request-rate", "1,50", "--num-requests", "100")
    code, printed, _ = call(*QUICK[:-2], *more, "--out", "out", "--workers", "1")
    assert code == 0
    assert "llama-3-8b on a100-80gb, " in printed
    assert "100 requests at 1 to 50" in printed
    assert "requests/s, mean prompt 40 and output 6 tokens" in printed
    assert "request-rate=50: served " in printed
    assert "bottleneck: max_num_seqs" in printed.replace("\n", " ")
