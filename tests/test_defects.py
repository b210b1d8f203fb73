"""What once went wrong and stands in no other file."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from refused import refused
from rich.console import Console

import kvsim
import workloads
from kvsim import files
from kvsim.catalog import get_model
from kvsim.cli import main
from kvsim.engine.setup import resolve
from kvsim.kv.manager import ALLOCATORS
from kvsim.report.terminal import comparison_table, verdict
from kvsim.trace import Trace
from workloads.readers import source

FIRST_USE = """
import sys, threading
from kvsim.kv.manager import ALLOCATORS
sys.setswitchinterval(1e-6)
found = []
threads = [threading.Thread(target=lambda: found.append(ALLOCATORS.names())) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 8 and all("paged" in names for names in found), found
"""


@pytest.mark.long
def test_threads_wait_for_the_first_one_to_load_a_registry() -> None:
    subprocess.run([sys.executable, "-c", FIRST_USE], check=True)


def test_summaries_have_one_schema() -> None:
    """Replications are averaged key by key, so no key may come and go."""
    trace = workloads.fixed(prompt=40, output=6, num_requests=4, request_rate=2.0)
    schemas = set()
    for allocator in ("paged", "tiered+host-gib=1", "unified+host-gib=0.1", "dynamic", "virtual"):
        result = kvsim.simulate(trace, model="gpt2", gpu="l4", allocator=allocator)
        schemas.add((tuple(result.summary), tuple(result.summary["kv_cache"])))
    assert len(schemas) == 1


def test_replications_of_which_only_some_move_blocks() -> None:
    command = "run --replications 6 --workload multi-turn+turns=3 --num-requests 40 "
    command += "--request-rate 8 --model llama-3-8b --gpu a100-80gb --max-model-len 4096 "
    command += "--allocator tiered+host-gib=2 --num-gpu-blocks-override 600 --json -"
    assert main(command.split()) in (0, None)


def test_goodput_says_how_many_attain_it() -> None:
    trace = Trace.from_arrays([0.0, 1.0, 2.0, 50.0], [30, 30, 30, 30], [5, 5, 5, 5])
    options: dict[str, Any] = {"model": "gpt2", "gpu": "l4", "goodput": {"e2el": 10_000.0}}
    summary = kvsim.simulate(trace, **options).summary
    assert summary["goodput_attainment"] == 1.0  # whatever the rate, drained as it is
    none = kvsim.simulate(trace, **options | {"goodput": {"e2el": 1e-3}}).summary
    assert none["goodput_attainment"] == 0.0
    assert kvsim.simulate(trace, model="gpt2", gpu="l4").summary["goodput_attainment"] is None


def test_a_trace_without_a_duration_to_speak_of_is_not_stretched() -> None:
    trace = Trace.from_arrays([0.0, 1e-320], [5, 5], [5, 5])
    with pytest.raises(ValueError, match="too short to be scaled"):
        trace.with_request_rate(4.0)
    assert kvsim.simulate(trace, model="gpt2", gpu="l4").summary["completed"] == 2


@pytest.mark.parametrize("name", ALLOCATORS.names())
def test_the_scheduler_by_default_is_the_one_that_the_help_says(name: str) -> None:
    expected = "orca" if name.startswith("contiguous-") or name == "dynamic" else "vllm"
    expected = "sglang" if name == "radix" else expected
    setup = resolve(kvsim.Config.build(model="gpt2", gpu="l4", allocator=name))
    assert setup.scheduler == expected


def text_of(allocators: list[str], **options: Any) -> str:
    from rich.console import Console

    trace = workloads.fixed(prompt=40, output=60, num_requests=30, request_rate=np.inf)
    fixed = {"model": "gpt2", "gpu": "l4", "num_gpu_blocks_override": 80, "max_model_len": 512}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(comparison_table(kvsim.compare(trace, allocators, **fixed, **options)))
    return " ".join(capture.get().split())


def test_rows_under_different_schedulers_say_so() -> None:
    said = (
        "contiguous-max under orca; paged under vllm: each allocator runs under its usual scheduler"
    )
    assert said in text_of(["contiguous-max", "paged"])
    assert "under orca" not in text_of(["contiguous-max", "paged"], scheduler="vllm")


def test_the_verdict_compares_tokens_of_one_size() -> None:
    text = text_of(["contiguous-max", "contiguous-pow2", "paged+int8"])
    assert "paged+int8 wastes" not in text
    assert "contiguous-pow2 wastes" in text


def test_capacity_bounds_what_a_run_reaches() -> None:
    """Windows hold the tokens of the steps in flight only while a prompt is computed."""
    options: dict[str, Any] = {"model": "gemma-3-27b", "gpu": "h100-sxm", "max_model_len": 32768}
    found = kvsim.capacity(**options)
    length = "8192"
    trace = workloads.fixed(prompt=8192 - 200, output=200, num_requests=40, request_rate=np.inf)
    reached = kvsim.simulate(trace, **options).summary["peak_running"]
    assert found.max_concurrency[length] < reached <= found.max_concurrency_decoding[length]
    assert reached >= 0.75 * found.max_concurrency_decoding[length]
    without = kvsim.capacity(disable_hybrid_kv_cache_manager=True, **options)
    assert without.max_concurrency_decoding[length] < found.max_concurrency_decoding[length]
    assert without.max_concurrency == without.max_concurrency_decoding


@pytest.mark.parametrize("process", ["poisson", "gamma+cv=3", "constant", "onoff"])
def test_arrivals_come_at_the_rate_asked_for(process: str) -> None:
    trace = workloads.generate(
        f"sharegpt+arrival={process}", num_requests=1000, request_rate=8.0, seed=0
    )
    assert trace.arrival_time[-1] == pytest.approx(125.0, abs=10.0 if process == "onoff" else 1e-9)


def test_arrivals_may_stay_as_drawn() -> None:
    raw = workloads.sharegpt(num_requests=1000, request_rate=8, arrival="poisson+raw=true")
    scaled = workloads.sharegpt(num_requests=1000, request_rate=8)
    ratio = raw.arrival_time / scaled.arrival_time
    assert ratio == pytest.approx(ratio[0])
    assert abs(raw.arrival_time[-1] / 125 - 1) > 0.01


def test_a_workload_at_another_rate_than_asked_for_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chat = "run --workload multi-turn --num-requests 300 --request-rate 24"
    main([*chat.split(), *["--model", "llama-3-8b", "--gpu", "a10g"]])
    said = capsys.readouterr()
    assert "24 requests/s requested, " in said.err
    assert "later turns arrived before the answer to the turn before" in " ".join(said.out.split())
    main(
        [
            "run",
            "--num-requests",
            "300",
            "--request-rate",
            "24",
            "--model",
            "llama-3-8b",
            "--gpu",
            "a100-80gb",
        ]
    )
    said = capsys.readouterr()
    assert "asked for" not in said.err
    assert "later turns" not in said.out


def test_turns_that_come_before_their_answer_are_counted() -> None:
    contents = [[(1, 0, 20)]] * 4
    trace = Trace.from_arrays(
        [0.0, 0.0, 1e-6, 500.0], [20] * 4, [9] * 4, segments=contents, session_id=[7, -1, 7, 7]
    )
    summary = kvsim.simulate(trace, model="gpt2", gpu="l4").summary
    assert (summary["num_early_turns"], summary["num_later_turns"]) == (1, 2)


@pytest.mark.long
def test_replications_say_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "compare",
            "--replications",
            "3",
            "--num-requests",
            "30",
            "--allocators",
            "paged,virtual",
            "--json",
            "-",
        ]
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["workload"]["replications"] == 3
    assert answer["workload"]["digest"] is None
    assert answer["rows"][0]["completed"] == 30
    assert isinstance(answer["rows"][0]["completed"], int)
    main(
        ["compare", "--replications", "3", "--num-requests", "30", "--allocators", "paged,virtual"]
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "means of 3 replications, each of 30 requests" in out
    assert "paged: 95 % confidence intervals: mean TTFT +- " in out
    assert "virtual: 95 % confidence intervals: mean TTFT +- " in out
    main(["run", "--replications", "2", "--num-requests", "30", "-dp", "2"])
    out = " ".join(capsys.readouterr().out.split())
    assert "means of 2 replications, each of 30 requests" in out
    assert "router round-robin" in out


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_narrow_terminal_loses_columns_and_no_digits(width: int) -> None:
    trace = workloads.sharegpt(num_requests=20)
    comparison = kvsim.compare(trace, ["contiguous-oracle", "paged"])
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(comparison_table(comparison))
    shown = console.file.getvalue()
    assert "…" not in shown
    assert ("--json has all" in " ".join(shown.split())) == (width < 99)
    tokens = 100 * comparison.rows[1]["kv_cache"]["token_states"]
    assert f"{tokens:.1f}" in shown


def test_memory_that_is_never_short_gets_no_credit() -> None:
    trace = workloads.sharegpt(num_requests=10, request_rate=0.05)
    said = verdict(kvsim.compare(trace, ["contiguous-max", "paged"]).rows)
    assert said
    assert "No request waited for memory at this rate" in said


def test_list_alone_names_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list"])
    assert "models, gpus, allocators" in capsys.readouterr().out
    main(["list", "arrivals"])
    assert "gamma" in capsys.readouterr().out


# -- wrong input is one line and exit code 2 ------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--allocator os:system", "allocator 'os:system' cannot be made"),
        ("--router builtins:list", "router 'builtins:list' is not a subclass of Router"),
        ("--scheduler builtins:dict", "scheduler 'builtins:dict' is not a subclass of Scheduler"),
        ("--scheduler os:getpid", "scheduler 'os:getpid' cannot be made"),
        ("--cost-model builtins:dict", "cost model 'builtins:dict' is not a subclass of CostModel"),
        (
            "--allocator paged+eviction=builtins:dict",
            "'builtins:dict' is not a subclass of EvictionPolicy",
        ),
        ("--json loop", "--json loop: cannot be written: "),
        ("--record loop", "--record loop: cannot be written: "),
        ("--out loop", "--out loop: cannot create this directory: "),
        ("--out r.html", ".html is the name of a file"),
        (f"--out {'a' * 300}", "File name too long"),
        (f"--json {'a' * 300}", "File name too long"),
        ("--model moonshotai/Kimi-K9-Instruct", "give the path of its config"),
    ],
)
def test_what_once_ended_in_a_traceback_is_one_line(
    option: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    assert problem in refused(capsys, f"run --num-requests 5 {option}")
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_no_model_is_suggested_for_its_organisation(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run --model moonshotai/Kimi-K9-Instruct")
    assert "did you mean" not in said
    assert "did you mean llama-3-8b" in refused(capsys, "run --model meta/lama-3-8b")


def test_misspelt_constants_hint_at_no_listing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constants = tmp_path / "c.toml"
    constants.write_text("[a100]\ngem = 0.5\n")
    said = refused(capsys, f"run --cost-model roofline+constants={constants}")
    assert "did you mean gemm" in said
    assert "kvsim list" not in said


def test_a_benchmark_result_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"date": "1", "ttfts": [0.1], "itls": [[0.1]], "completed": 1}))
    said = refused(capsys, f"run --trace {file}")
    assert "nearest: vllm-bench-serve (lacks input_lens, output_lens)" in said
    assert len(said) - len(str(file)) < 330


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("arrival_time,num_prompt_tokens,num_prompt_tokens,num_output_tokens\n0,1,1,1\n", "twice"),
        ("arrival_time,num_prompt_tokens,num_output_tokens\n0,1_000,5\n", "is '1_000', must be"),
        ("arrival_time,num_prompt_tokens,num_output_tokens\n0,١٢,5\n", "line 2: num_prompt"),
        ("arrival_time,num_prompt_tokens,num_output_tokens\n1_0,12,5\n", "line 2: arrival_time"),
    ],
)
def test_tables_are_read_as_they_stand(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text, encoding="utf-8")
    assert problem in refused(capsys, f"run --trace {file}")


def test_a_small_file_of_endless_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(source, "MAX_REQUESTS", 1000)
    monkeypatch.setattr(files, "MAX_UNFOLDED", 100_000)
    head = "arrival_time,num_prompt_tokens,num_output_tokens\n"
    (tmp_path / "t.csv").write_text(head + "0,1,1\n" * 1001)
    assert "holds more than 1,000 requests" in refused(capsys, f"run --trace {tmp_path}/t.csv")
    (tmp_path / "t.jsonl").write_text(
        '{"arrival_time": 0, "num_prompt_tokens": 1, "num_output_tokens": 1}\n' * 1001
    )
    assert "holds more than 1,000 requests" in refused(capsys, f"run --trace {tmp_path}/t.jsonl")
    (tmp_path / "t.csv").write_bytes(gzip.compress((head + "0,1," + "1" * 200_000).encode()))
    assert "unfolds to more than 100,000" in refused(capsys, f"run --trace {tmp_path}/t.csv")


def test_a_whole_vllm_line_may_begin_with_its_program() -> None:
    main(["run", "vllm", "serve", "llama-3-8b", "--gpu", "a100-80gb", "--num-requests", "5"])


def run_whole(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvsim", *arguments],
        check=False,
        text=True,
        stderr=subprocess.PIPE,
        **how,
    )


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        for arguments in (["list", "gpus"], ["capacity", "--json", "-"]):
            done = run_whole(*arguments, stdout=full)
            assert done.returncode == 1
            assert done.stderr == "kvsim: cannot write the output: No space left on device\n"


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["list", "models"], ["capacity", "--json", "-"]])
def test_a_reader_may_go(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run_whole(*arguments, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_is_130_and_an_end_of_file_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvsim.report.listing.listing", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["list", "gpus"])
    assert end.value.code == 130
    assert "interrupted" in capsys.readouterr().err

    def ended(*_: object, **__: object) -> None:
        raise EOFError("damaged")

    monkeypatch.setattr("kvsim.report.listing.listing", ended)
    with pytest.raises(EOFError, match="damaged"):
        main(["list", "gpus"])


@pytest.mark.long
def test_a_part_of_ones_own_may_stand_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "own_allocator.py").write_text(
        "from kvsim.kv.paged import PagedManager\nclass Mine(PagedManager): pass\n"
    )
    kvsim_command = shutil.which("kvsim", path=str(Path(sys.executable).parent))
    assert kvsim_command
    command = [
        "compare",
        "--allocators",
        "own_allocator:Mine,paged",
        "--num-requests",
        "5",
        "--json",
        "-",
    ]
    done = subprocess.run(
        [kvsim_command, *command], cwd=tmp_path, text=True, check=True, capture_output=True
    )
    one, other = json.loads(done.stdout)["rows"]
    assert one["duration"] == other["duration"]


# -- what a reader of the numbers should know -----------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--allocator contiguous-max --enable-prefix-caching", "it keeps no prefixes"),
        ("--allocator contiguous-max", ""),
        ("--allocator dynamic --enable-prefix-caching", "it keeps no prefixes"),
        ("--allocator virtual --enable-prefix-caching", "it keeps no prefixes"),
        ("--allocator virtual --block-size 64", "its blocks are pages"),
        ("--allocator paged --enable-prefix-caching --block-size 32", ""),
        ("--logged kv_cache:4.68 weights:34.99", "more than the total"),
        ("--logged weights:24.99", ""),
        ("--gpu a100-80gb --kv-cache-dtype fp8", "never measured on a100-80gb"),
        ("--gpu h100-sxm --kv-cache-dtype fp8", ""),
        ("--gpu h100-sxm --kv-cache-dtype int4", "attention over int4 KV was never measured"),
        ("--gpu h100-sxm --model llama-3-70b -tp 16", "is more than the 8 GPUs of one server"),
        ("--gpu h100-sxm --model llama-3-70b -tp 8", ""),
        ("--gpu h100-sxm --kv-store peer+pull=always", "peer+pull=always has no effect: there is"),
        ("--gpu h100-sxm --kv-store peer --data-parallel-size 2", ""),
        ("--gpu h100-sxm --session-think-time 3", "3.0 has no effect: no session of the trace has"),
        ("--gpu h100-sxm --migration llumnix", "llumnix has no effect: there is one replica"),
        ("--gpu h100-sxm --dlpm-quantum 9", "has no effect: scheduling_policy is fcfs"),
        ("--gpu h100-sxm --failures at+time=9999", "has no effect: the run had ended 9999 s after"),
        ("--gpu h100-sxm --failures at+time=0", ""),
        (
            "--gpu h100-sxm --failures at+time=0+replica=3 --autoscaler hpa",
            "no replica 3 was there to fail",
        ),
    ],
)
def test_notes_say_what_has_no_effect_and_what_rests_on_nothing(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--num-requests", "3", *options.split()])
    notes = [line for line in capsys.readouterr().err.splitlines() if "plain Python" not in line]
    if not said:
        assert notes == []
    else:
        (note,) = notes
        assert said in note


def test_nothing_fits_at_once_where_not_even_one_does() -> None:
    capacity = kvsim.capacity(model="llama-3-8b", gpu="a100-80gb", num_gpu_blocks_override=512)
    assert not capacity.fits
    assert capacity.max_concurrency["8192"] == capacity.max_concurrency_decoding["8192"] == 0
    assert capacity.max_concurrency["4096"] == 2


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"segments": 5}, "segments must be a list, not int"),
        ({"segments": [5]}, "row 0: segments is 5, must be a list of triples"),
        ({"segments": ["abc"]}, "row 0: segments is 'abc'"),
        ({"cache_salt": 5}, "cache_salt must be a list, not int"),
        ({"cache_salt": "a"}, "cache_salt must be a list, not str"),
        ({"priority": {}}, "priority must be numbers"),
        ({"session_id": ["a"]}, "session_id must be numbers"),
        ({"num_samples": [True]}, "num_samples must be numbers"),
    ],
)
def test_columns_of_a_wrong_type_are_refused(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        Trace.from_arrays([0.0], [5], [5], **columns)


def test_a_session_that_is_a_list_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"Timestamp": 0, "Session ID": [1], "Request tokens": 5, "Response tokens": 5}
    (tmp_path / "b.json").write_text(json.dumps([row]))
    said = refused(capsys, f"run --trace {tmp_path}/b.json")
    assert "entry 1: Session ID is [1], must be a text or a number" in said


@pytest.mark.long
def test_a_saved_run_is_run_again_on_its_own_requests_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = workloads.fixed(prompt=40, output=6, num_requests=4, request_rate=2.0)
    options: dict[str, Any] = {"model": "gpt2", "gpu": "l4", "goodput": {"ttft": 100.0}}
    kvsim.simulate(trace, **options).save(tmp_path / "a")
    again = f"run {tmp_path}/a/config.toml"
    assert "the saved run served other requests than those of workload sharegpt" in refused(
        capsys, again
    )
    trace.save(tmp_path / "t.csv")
    main([*again.split(), "--trace", str(tmp_path / "t.csv"), "--json", "-"])
    assert json.loads(capsys.readouterr().out)["completed"] == 4
    main(f"run --num-requests 7 --model gpt2 --gpu l4 --out {tmp_path}/b".split())
    capsys.readouterr()
    main([*f"run {tmp_path}/b/config.toml --json -".split()])
    assert json.loads(capsys.readouterr().out)["completed"] == 7
    main([*f"run {tmp_path}/b/config.toml --num-requests 8 --json -".split()])
    assert json.loads(capsys.readouterr().out)["completed"] == 8
    loaded = kvsim.load(tmp_path / "b")
    loaded.save(tmp_path / "c")
    assert (tmp_path / "c/config.toml").read_text() == (tmp_path / "b/config.toml").read_text()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
@pytest.mark.parametrize("concurrency", [None, 1, 3])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_run_cut_at_its_horizon_counts_what_a_shorter_trace_would(
    backend: str, concurrency: int | None, num_replicas: int
) -> None:
    """Who was not sent by then is nobody: not in flight, not rejected, not in a denominator."""
    trace = workloads.fixed(prompt=60, output=300, num_requests=40, request_rate=4.0)
    lengths = trace.num_prompt_tokens.copy()
    lengths[[1, 30]] = 9000  # never fit, one of them sent
    trace = Trace.from_arrays(trace.arrival_time, lengths, trace.num_output_tokens)
    options: dict[str, Any] = {"model": "llama-3-8b", "gpu": "a100-80gb", "backend": backend}
    options |= {"horizon": 5.0, "max_concurrency": concurrency, "goodput": {"ttft": 1e9}}
    cut = kvsim.simulate(trace, data_parallel_size=num_replicas, **options)
    num_sent = 40 - cut.summary["num_unsent"]
    assert 1 < num_sent < 30
    assert cut.summary["num_rejected"] == 1
    running = concurrency or num_sent
    assert 0 < cut.summary["num_in_flight"] <= running
    ended = cut.summary["completed"] + cut.summary["num_rejected"]
    assert cut.summary["num_in_flight"] + ended == num_sent
    short = kvsim.simulate(trace[:num_sent], data_parallel_size=num_replicas, **options).summary
    assert short | {"num_unsent": 0} == cut.summary | {"num_unsent": 0}


def test_the_mean_gap_counts_the_tokens_that_its_percentiles_count() -> None:
    trace = Trace.from_arrays([0.0, 0.0], [50, 50], [3, 5000])
    summary = kvsim.simulate(trace, model="llama-3-8b", gpu="h100-sxm", horizon=2.0).summary
    assert summary["num_in_flight"] == 1
    assert summary["mean_itl_ms"] == pytest.approx(summary["median_itl_ms"], rel=0.05)
    assert summary["mean_itl_ms"] > 1.0  # not the two gaps of the first


def test_a_config_of_endless_layers_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    shape |= {"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 2048}
    file = tmp_path / "config.json"
    for key, size in {"num_hidden_layers": 10**12, "intermediate_size": 10**30}.items():
        file.write_text(json.dumps(shape | {"num_hidden_layers": 2, key: size}))
        assert f"{key} must be at most" in refused(capsys, f"capacity --model {file}")
    spec = get_model("gpt2")
    with pytest.raises(ValueError, match="num_layers must be at most 10,000"):
        replace(spec, num_layers=10_001)


def test_steps_that_were_not_recorded_leave_no_file(tmp_path: Path) -> None:
    trace = workloads.fixed(prompt=40, output=6, num_requests=4, request_rate=2.0)
    for record in (True, False):
        run = kvsim.simulate(trace, model="gpt2", gpu="l4", record_steps=record)
        run.save(tmp_path)
        assert (tmp_path / "steps.parquet").exists() is record
        assert len(kvsim.load(tmp_path).steps) == len(run.steps)
    kvsim.simulate(trace, model="gpt2", gpu="l4", record_steps=True).save(tmp_path)
    (tmp_path / "steps.parquet").unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        kvsim.load(tmp_path)


def test_codes_have_a_legend_in_their_file(tmp_path: Path) -> None:
    trace = workloads.fixed(prompt=40, output=6, num_requests=4, request_rate=2.0)
    kvsim.simulate(trace, model="gpt2", gpu="l4").save(tmp_path)
    legend = parquet.read_schema(tmp_path / "requests.parquet").metadata[b"finish_reason"]
    assert legend == b"0 finished, 1 rejected, 2 in_flight, 3 unsent, 4 aborted, 5 failed"


@pytest.mark.parametrize("command", ["capacity", "train-memory", "roofline"])
def test_what_simulates_nothing_can_be_written_too(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([command, "--model", "llama-3-8b", "--out", str(tmp_path / "a")])
    assert "Tables and figures are in" in capsys.readouterr().out
    main([command, "--model", "llama-3-8b", "--json", "-"])
    (answer,) = (tmp_path / "a").glob("*.json")
    assert json.loads(answer.read_text()) == json.loads(capsys.readouterr().out)
    assert answer.with_suffix(".png").stat().st_size > 5000


def test_a_trace_is_told_with_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workloads.sharegpt(num_requests=30).save(tmp_path / "t.csv")
    main(["trace", "inspect", str(tmp_path / "t.csv")])
    said = capsys.readouterr().out
    assert re.search(r"^duration +[\d.,]+ s *$", said, re.MULTILINE)
    assert re.search(r"^request rate +[\d.]+ requests/s *$", said, re.MULTILINE)
    assert re.search(r"^mean prompt +[\d.]+ tokens *$", said, re.MULTILINE)
